"""What all registries have in common: versions of models, and the aliases that name them."""

from __future__ import annotations

import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

from gpu_pipelines.artifacts.documents import document_in, sha256_of_tree
from gpu_pipelines.artifacts.evaluation import EVALUATION
from gpu_pipelines.artifacts.integrity import VERSION, damage, digest_of, model_files
from gpu_pipelines.artifacts.remote_files import RemoteFolder, fetched_folder, is_remote
from gpu_pipelines.errors import DamagedError, NewerFormatError, UserError
from gpu_pipelines.registry.serving_container import ServingContainer

CHAMPION = "champion"
CHALLENGER = "challenger"
#: Name, in what is recorded with a version, of the key of the tracker's run that it is of.
TRACKED_RUN = "tracked_run"
#: Name, in the same place, of the version of the champion that it was compared with.
COMPARED_WITH = "compared_with"
#: Source: `version_aliases` of the Vertex AI API's Model, which tells aliases from numbers by it.
_ALIAS = re.compile(r"[a-z][a-zA-Z0-9-]{0,126}[a-z0-9]")
#: Looks at the files of a version where they were uploaded to, before the version counts; raises `UserError`.
Check = Callable[[str], None]
Version = TypeVar("Version")
#: Records of versions that are read at a time: each takes an answer of the storage, and a model may have thousands.
_READ_AT_ONCE = 32


class DamagedVersionError(UserError):
    """The files of a version are not those that were uploaded, or nobody can tell."""


def record_in(place: str) -> tuple[dict[str, Any], UserError | None]:
    """What was recorded with a version in object storage, and why that cannot be read.

    Of a version that somebody else has added, which has no `version.json`, that is nothing and None.

    Args:
        place: the folder of its files.

    Raises:
        UserError: the storage does not answer.
    """
    try:
        content = document_in(RemoteFolder(place).read(VERSION), f"{place}/{VERSION}")
    except FileNotFoundError:
        return {}, None
    except (DamagedError, NewerFormatError) as error:
        return {}, error
    return {name: value for name, value in content.items() if name != "format_version"}, None


def made_at_once(make: Callable[[Version], RegisteredVersion], versions: Iterable[Version]) -> list[RegisteredVersion]:
    """Versions with their records in object storage, of which several are read at a time.

    Args:
        make: reads the record of one.
        versions: as the registry's service lists them.
    """
    with ThreadPoolExecutor(_READ_AT_ONCE) as pool:
        return list(pool.map(make, versions))


@dataclass(frozen=True)
class RegisteredVersion:
    """One version of a model.

    Attributes:
        name: the model's name.
        number: the version, from 1.
        place: where the exported model is: a directory, `gs://…`, or a run of MLflow.
        aliases: aliases that name this version now.
        info: what was recorded when it was uploaded: `created` (ISO 8601, UTC), `files` (SHA-256 by path), in object
            storage `md5` (base64 by path), and what the uploader added.
        resource_name: what the registry's service calls it; of a directory, its name and number.
        labelled: how the digest of its files begins, by what the registry's service says; empty if it says nothing.
        unread: why its `version.json` cannot be read; `info` has nothing of it then, and the version counts as damaged.
        added: whether the call of `Registry.add` that returned this made it; False where it was there before.
        led: whether it was the champion already before that call moved any alias.
    """

    name: str
    number: int
    place: str
    aliases: tuple[str, ...]
    info: dict[str, Any] = field(repr=False)
    resource_name: str = ""
    labelled: str = ""
    unread: UserError | None = field(default=None, compare=False)
    added: bool = field(default=False, compare=False)
    led: bool = field(default=False, compare=False)

    @cached_property
    def path(self) -> Path:
        """A directory of this machine with its files, which have been checked; of object storage, a copy, made once.

        Raises:
            DamagedVersionError: a file is not as it was uploaded.
            UserError: they cannot be read.
        """
        if not is_remote(self.place):
            self._require_undamaged(self.place)
            return Path(self.place)
        if self.unread:
            self.require_undamaged()
        directory = fetched_folder(self.place)
        try:
            self._require_undamaged(str(directory))
        except DamagedVersionError:
            # Not every storage tells that a file has been restored since.
            shutil.rmtree(directory, ignore_errors=True)
            raise
        return directory

    def require_undamaged(self) -> None:
        """Checks all files where they are, without copying them.

        Raises:
            DamagedVersionError: names the version and the file that is not as it was uploaded.
            UserError: they cannot be read.
        """
        self._require_undamaged(self.place)

    @property
    def has_evaluation(self) -> bool:
        """Whether it was registered with an evaluation, to which another model can be compared."""
        if files := self.info.get("files"):
            return EVALUATION in files
        if is_remote(self.place):
            return EVALUATION in RemoteFolder(self.place).names()
        return bool(self.place) and (Path(self.place) / EVALUATION).is_file()

    @property
    def is_damaged(self) -> bool:
        """Whether `require_undamaged` would raise."""
        return bool(self._damage(self.place))

    @property
    def digest(self) -> str:
        """Hex SHA-256 of its files as they are now, the damaged ones too: the part of a cache's key that tells them."""
        if is_remote(self.place):
            return RemoteFolder(self.place).state()
        return digest_of(sha256_of_tree(Path(self.place)))

    def _require_undamaged(self, place: str) -> None:
        if isinstance(self.unread, NewerFormatError):
            told = f"Version {self.number} of {self.name!r} cannot be checked: {self.unread.problem}"
            raise DamagedVersionError(told, self.unread.remedy)
        if what := self._damage(place):
            # Of a version that is champion and challenger, what is served and compared with is the champion.
            alias = CHAMPION if CHAMPION in self.aliases else next(iter(self.aliases), CHAMPION)
            raise DamagedVersionError(
                f"Version {self.number} of {self.name!r} in {self.place} is damaged: {what}.",
                "Restore the file from a copy, or let the alias name another version: gpu-pipelines models alias "
                f"{self.name} {alias} NUMBER",
            )

    def _damage(self, place: str) -> str:
        if self.unread:
            return f"{VERSION} cannot be read"
        files = self.info.get("files") or {}
        # The label was made of all files once, and of the model's own since.
        digests = (digest_of(files), digest_of(model_files(files)))
        if self.labelled and not any(digest.startswith(self.labelled) for digest in digests):
            return f"{VERSION} does not hold the hashes that it was uploaded with"
        return damage(place, files, self.info.get("md5") or {})


@dataclass(frozen=True)
class Promotion:
    """Whether a new version may become champion.

    Attributes:
        wanted: the model passed its gates.
        champion_seen: version of the champion it was compared with, None if there was none; `champion` does not move
            if it names another by now.
    """

    wanted: bool
    champion_seen: int | None

    def aliases(self, champion: int | None, number: int) -> list[str]:
        """The aliases that are to name the new version.

        Args:
            champion: version that is champion now; None if there is none.
            number: the new version.
        """
        leads = self.wanted and champion in (self.champion_seen, number)
        return [CHALLENGER, CHAMPION] if leads else [CHALLENGER]


class Registry(ABC):
    """Holds versions of models."""

    @abstractmethod
    def require_writable(self) -> None:
        """Raises `UserError` if versions cannot be added, as far as that can be known and nothing is left behind."""

    def prepare(self) -> None:  # noqa: B027 (most need nothing)
        """Makes what versions are added to, where that has to be there before the first one.

        Raises:
            UserError: it cannot be made, or versions cannot be added.
        """

    @abstractmethod
    def where(self, name: str) -> str:
        """Where a person finds a model.

        Args:
            name: of the model.
        """

    @abstractmethod
    def names(self) -> list[str]:
        """Names of all models that have a version."""

    @abstractmethod
    def versions(self, name: str) -> list[RegisteredVersion]:
        """All versions of a model, oldest first; none if there is no such model.

        Args:
            name: of the model.
        """

    @abstractmethod
    def version(self, name: str, reference: str | int) -> RegisteredVersion:
        """The version that a number or an alias names.

        Args:
            name: of the model.
            reference: the number or the alias.

        Raises:
            UserError: there is none.
        """

    @abstractmethod
    def aliases(self, name: str) -> dict[str, int]:
        """Version by alias.

        Args:
            name: of the model.
        """

    def _repr_html_(self) -> str:
        """For a notebook: the models with their versions and aliases."""
        from gpu_pipelines.notebook_html import table

        rows = []
        for name in self.names():
            try:
                aliases, versions = self.aliases(name), str(len(self.versions(name)))
            except UserError:  # one damaged model hides no other
                aliases, versions = {}, "damaged"
            known = (str(aliases.get(alias, "–")) for alias in (CHAMPION, CHALLENGER))
            rows.append([name, versions, *known, self.where(name)])
        return table(("model", "versions", CHAMPION, CHALLENGER, "where"), rows, repr(self))

    def champion(self, name: str) -> RegisteredVersion | None:
        """The version that the alias `champion` names, or None.

        Args:
            name: of the model.
        """
        number = self.aliases(name).get(CHAMPION)
        return None if number is None else self.version(name, number)

    def set_alias(self, name: str, alias: str, number: int) -> None:
        """Lets an alias name a version.

        Args:
            name: the model's name.
            alias: as Vertex AI takes them, whichever registry it is, so that it is no number of a version.
            number: of the version.

        Raises:
            UserError: it is no alias, there is no such version, or that is damaged.
        """
        if not _ALIAS.fullmatch(alias):
            raise UserError(
                f"The alias {alias[:200]!r} is not one.",
                "Give a small letter, then letters, digits and hyphens, at the end no capital and no hyphen, 2 to 128 "
                "signs in all, such as champion or release-2, and behind it the number of the version.",
            )
        found = self.version(name, number)
        found.require_undamaged()
        # Not what was given: a text that is the number would be kept as one, which no version has.
        self._point(name, alias, found.number)

    @abstractmethod
    def _point(self, name: str, alias: str, number: int) -> None:
        """Lets an alias name a version that is there and whole. Raises `UserError` if that fails."""

    @abstractmethod
    def add(
        self, name: str, model: Path, info: dict[str, Any], promotion: Promotion, check: Check | None = None
    ) -> RegisteredVersion:
        """Adds a version, unless one is the same model already; `challenger` names it, and `champion` where it may.

        The same model is one whose files have the same bytes, what its evaluation wrote beside them apart; it stays as
        it is, and `added` of what is returned is False. Aliases move last. What is stopped before leaves no version, or
        a whole one that no alias of this project names, which the next upload of the same model takes up.

        Args:
            name: the model's name.
            model: directory of the exported model; it is copied.
            info: what to record with the version.
            promotion: whether it may become champion.
            check: called with the place of the uploaded files before the version counts and any alias moves.

        Raises:
            UserError: the registry cannot be written, or the check failed. There is no half version then.
        """


@runtime_checkable
class ServesModels(Protocol):
    """A registry whose versions say which container serves them."""

    def steps_image(self, pipeline_job: str) -> str:
        """The image that the steps of a pipeline job run in; empty if that is not known."""

    def container_for(self, model: Path, pipeline_job: str) -> ServingContainer:
        """The container that a version of an exported model gets, if this job uploads it."""
