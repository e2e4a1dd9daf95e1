"""The models of the registries in the form in which the console shows them, and promotion of a version."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from gpu_pipelines.artifacts.evaluation import EVALUATION, Evaluation
from gpu_pipelines.console.emulator_client import EmulatorClient
from gpu_pipelines.console.local_runs import measured_in
from gpu_pipelines.console.shown import EMULATOR, LOCAL, Measured
from gpu_pipelines.errors import InvalidRequestError, NotFoundError, UserError
from gpu_pipelines.registry import DirectoryRegistry
from gpu_pipelines.registry.registered import CHAMPION, RegisteredVersion

PASSED, FAILED, NOT_EVALUATED = "passed", "failed", "not evaluated"


@dataclass(frozen=True)
class Gate:
    """A gate of a version."""

    name: str
    passed: bool
    why: str


@dataclass(frozen=True)
class Version:
    """A version of a model.

    Attributes:
        number: from 1.
        aliases: its current aliases.
        created: ISO 8601, UTC.
        gates: their outcome in a word: passed, failed, not evaluated.
        each_gate: all gates.
        metrics: its figures on test.
        where: the place of its files.
        damage: what is wrong with it; empty if no damage is known.
    """

    number: int
    aliases: Sequence[str]
    created: str
    gates: str
    each_gate: Sequence[Gate] = ()
    metrics: Mapping[str, Measured] = field(default_factory=dict)
    where: str = ""
    damage: str = ""

    @property
    def is_champion(self) -> bool:
        """Whether it is the champion now."""
        return CHAMPION in self.aliases


@dataclass(frozen=True)
class Model:
    """A model with its versions, the newest first."""

    place: str
    name: str
    versions: Sequence[Version]
    where: str = ""

    @property
    def champion(self) -> int | None:
        """Number of the champion version; None if there is none."""
        return next((version.number for version in self.versions if version.is_champion), None)


@dataclass(frozen=True)
class ModelRow:
    """A model in the list."""

    place: str
    name: str
    title: str
    versions: int
    aliases: Mapping[str, int]


class LocalModels:
    """The registry in a directory.

    Args:
        root: the directory; it need not exist yet.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._registry = DirectoryRegistry(root)

    def rows(self) -> list[ModelRow]:
        """All models."""
        return [
            ModelRow(LOCAL, name, name, len(list((self.root / name / "versions").glob("[0-9]*"))), self._aliases(name))
            for name in (self._registry.names() if self.root.is_dir() else [])
        ]

    def model(self, name: str) -> Model:
        """A model.

        Raises:
            UserError: there is no such model, or the registry is damaged.
        """
        if Path(name).name != name or not self.root.is_dir() or name not in self._registry.names():
            raise NotFoundError(f"There is no model {name[:80]!r} in {self.root}.", "A run that uploads one adds it.")
        versions = [_local_version(each) for each in reversed(self._registry.versions(name))]
        return Model(LOCAL, name, versions, self._registry.where(name))

    def promote(self, name: str, number: int) -> None:
        """Makes a version the champion, through the registry, which checks its files first.

        Raises:
            UserError: there is no such version, or it is damaged.
        """
        self._registry.set_alias(name, CHAMPION, number)

    def _aliases(self, name: str) -> Mapping[str, int]:
        with suppress(UserError):
            return self._registry.aliases(name)
        return {}


class EmulatorModels:
    """The Model Registry of an emulator.

    Args:
        client: the client of the emulator.
    """

    def __init__(self, client: EmulatorClient) -> None:
        self._client = client
        self._models = f"v1/{client.parent}/models"

    def rows(self) -> list[ModelRow]:
        """All models."""
        found = []
        for model in self._client.every(self._models, "models"):
            name = str(model["name"]).rpartition("/")[2]
            versions = list(self._versions(name))
            aliases = {alias: int(each["versionId"]) for each in versions for alias in each.get("versionAliases", [])}
            found.append(ModelRow(EMULATOR, name, model.get("displayName") or name, len(versions), aliases))
        return found

    def model(self, name: str) -> Model:
        """A model.

        Raises:
            UserError: there is no such model.
        """
        versions = sorted(self._versions(name), key=lambda each: -int(each["versionId"]))
        return Model(
            EMULATOR, name, [self._version(name, each) for each in versions], f"{self._client.parent}/models/{name}"
        )

    def promote(self, name: str, number: int) -> None:
        """Makes a version the champion and the service's default version, as uploads do.

        Raises:
            UserError: there is no such version.
        """
        path = f"{self._models}/{quote(name, safe='')}@{number}:mergeVersionAliases"
        self._client.ask("POST", path, {"versionAliases": [CHAMPION, "default"]})

    def _versions(self, name: str) -> Iterator[dict[str, Any]]:
        return self._client.every(f"{self._models}/{quote(name, safe='')}:listVersions", "models")

    def _version(self, name: str, model: Mapping[str, Any]) -> Version:
        number, where = int(model["versionId"]), model.get("artifactUri", "")
        evaluation = None
        with suppress(UserError, ValueError, KeyError, TypeError):
            evaluation = Evaluation.from_json(json.loads(self._client.object(f"{where}/{EVALUATION}")))
        metrics = measured_in(evaluation) if evaluation else dict(self._imported(name, number))
        return Version(
            number,
            model.get("versionAliases", []),
            model.get("versionCreateTime", ""),
            _word(evaluation),
            _gates(evaluation),
            metrics,
            where,
        )

    def _imported(self, name: str, number: int) -> Iterator[tuple[str, Measured]]:
        """The figures of the evaluations that were imported for a version."""
        path = f"{self._models}/{quote(name, safe='')}@{number}/evaluations"
        for evaluation in self._client.every(path, "modelEvaluations"):
            for metric, value in evaluation.get("metrics", {}).items():
                if isinstance(value, int | float) and not isinstance(value, bool):
                    yield metric, Measured(float(value))


def require_fit(model: Model, number: int, seen: str, in_spite: bool) -> None:
    """Checks that a version may become the champion.

    Args:
        model: the model.
        number: the number of the version.
        seen: number of the champion on the user's page; empty for none.
        in_spite: whether to ignore gates that were not passed.

    Raises:
        UserError: there is no such version, its gates were not passed, or the champion has changed.
    """
    version = next((each for each in model.versions if each.number == number), None)
    if version is None:
        raise NotFoundError(f"{model.name} has no version {number}.", "Load the page again.")
    if seen != str(model.champion or ""):
        now = f"version {model.champion}" if model.champion else "none"
        raise InvalidRequestError(
            f"The champion of {model.name} has changed since the page was loaded: it is {now}.",
            "Look at the page again, and promote the version if you still want to.",
        )
    if version.gates != PASSED and not in_spite:
        told = "was not evaluated" if version.gates == NOT_EVALUATED else "has not passed its gates"
        raise InvalidRequestError(
            f"Version {number} of {model.name} {told}.", "Tick the box to promote it in spite of that."
        )


def _local_version(version: RegisteredVersion) -> Version:
    evaluation, damage = None, str(version.unread or "")
    if not damage and version.has_evaluation:
        try:
            evaluation = Evaluation.load(Path(version.place))
        except UserError as error:
            damage = str(error)
    logged = version.info.get("metrics") or {}
    plain = {name: Measured(value) for name, value in logged.items() if isinstance(value, int | float)}
    return Version(
        version.number,
        version.aliases,
        version.info.get("created", ""),
        _word(evaluation, version.info.get("passed")),
        _gates(evaluation),
        measured_in(evaluation) if evaluation else plain,
        version.place,
        damage,
    )


def _word(evaluation: Evaluation | None, passed: Any = None) -> str:
    if evaluation is None:
        return NOT_EVALUATED
    return PASSED if (evaluation.passed if passed is None else passed) else FAILED


def _gates(evaluation: Evaluation | None) -> list[Gate]:
    held = evaluation.gates if evaluation else []
    return [Gate(str(gate["gate"]), bool(gate["passed"]), str(gate["why"])) for gate in held]
