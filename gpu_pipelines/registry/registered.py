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

from gpu_pipelines.artifacts.documents import document_in, sha256_of_tree, write_document_at
from gpu_pipelines.artifacts.evaluation import EVALUATION
from gpu_pipelines.artifacts.integrity import VERSION, damage, digest_of, model_files
from gpu_pipelines.artifacts.remote_files import RemoteFolder, fetched_folder, is_remote
from gpu_pipelines.errors import DamagedError, NewerFormatError, UserError, first_line
from gpu_pipelines.registry.serving_container import ServingContainer

CHAMPION = "champion"
CHALLENGER = "challenger"
#: Entry of a version's record: the key of its run in the tracker.
TRACKED_RUN = "tracked_run"
#: Entry of a version's record: the version of the champion that it was compared with.
COMPARED_WITH = "compared_with"
#: Entries of a version's record: the fingerprint of the source that it was trained on, and those of others that have
#: given the same model since.
SOURCE, ALSO_FROM = "source_fingerprint", "also_from_sources"
#: Source: `version_aliases` of the Vertex AI API's Model, which distinguishes aliases from numbers by it.
_ALIAS = re.compile(r"[a-z][a-zA-Z0-9-]{0,126}[a-z0-9]")
#: Checks the uploaded files of a version before the version counts; raises `UserError`.
Check = Callable[[str], None]
Version = TypeVar("Version")
#: Records of versions to read at a time: each takes a request to the storage, and a model may have thousands.
_READ_AT_ONCE = 32


class DamagedVersionError(UserError):
    """The files of a version are not those that were uploaded, or this cannot be checked."""


def record_in(place: str) -> tuple[dict[str, Any], UserError | None]:
    """What was recorded with a version in object storage, and why that cannot be read.

    A version that another program added has no `version.json`; its record is empty, and the error is None.

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


def hashes_in(model: Path) -> dict[str, str]:
    """SHA-256 by path of the files of a model that is to be added. Raises UserError if one cannot be read."""
    try:
        return sha256_of_tree(model, leave_out=(VERSION,))
    except OSError as error:
        file = error.filename or model
        raise UserError(
            f"The model cannot be read: {file}: {error.strerror or first_line(error)}.", "No version was added."
        ) from None


def made_at_once(make: Callable[[Version], RegisteredVersion], versions: Iterable[Version]) -> list[RegisteredVersion]:
    """Versions with their records in object storage, reading several at a time.

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
        info: its record of the upload: `created` (ISO 8601, UTC), `files` (SHA-256 by path), in object storage `md5`
            (base64 by path), and what the uploader added.
        resource_name: the service's name of it; in a directory, its name and number.
        labelled: beginning of the digest of its files according to the registry's service; empty if it has none.
        unread: why its `version.json` cannot be read; `info` then has none of it, and the version counts as damaged.
        added: whether the call of `Registry.add` that returned this added it; False if it was there before.
        led: whether it was the champion before that call moved any alias.
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
        """A directory of this machine with its checked files; from object storage they are copied, once.

        Raises:
            DamagedVersionError: a file is not as it was uploaded.
            UserError: the files cannot be read.
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
            UserError: the files cannot be read.
        """
        self._require_undamaged(self.place)

    @property
    def sources(self) -> set[str]:
        """Fingerprints of the sources that have given this model; none if they are not known."""
        return {each for each in (self.info.get(SOURCE), *self.info.get(ALSO_FROM, ())) if each}

    def note_source(self, fingerprint: str) -> None:
        """Records that another source has given the same model: else it would be new, and trained on, each night.

        Args:
            fingerprint: of the source; empty if it is not known.
        """
        if fingerprint and fingerprint not in self.sources and self.info.get("files"):
            noted = {**self.info, ALSO_FROM: [*self.info.get(ALSO_FROM, ()), fingerprint]}
            write_document_at(f"{self.place}/{VERSION}", noted)

    @property
    def has_evaluation(self) -> bool:
        """Whether it was registered with an evaluation, with which another model can be compared."""
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
        """Hex SHA-256 of its files as they are now, including damaged ones, for the key of a cache."""
        if is_remote(self.place):
            return RemoteFolder(self.place).state()
        return digest_of(sha256_of_tree(Path(self.place)))

    @property
    def recorded_digest(self) -> str:
        """Hex SHA-256 of the model as it was uploaded; another model may have its number in another registry."""
        return digest_of(model_files(self.info.get("files") or {}))

    def _require_undamaged(self, place: str) -> None:
        if isinstance(self.unread, NewerFormatError):
            told = f"Version {self.number} of {self.name!r} cannot be checked: {self.unread.problem}"
            raise DamagedVersionError(told, self.unread.remedy)
        if what := self._damage(place):
            # Of a version that is champion and challenger, what is served and compared with is the champion.
            alias = CHAMPION if CHAMPION in self.aliases else next(iter(self.aliases), CHAMPION)
            raise DamagedVersionError(
                f"Version {self.number} of {self.name!r} in {self.place} is damaged: {what}.",
                "Restore the file from a copy, or point the alias at another version: gpu-pipelines models alias "
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
        champion_seen: version of the champion that it was compared with, None if there was none; `champion` does not
            move if it names another version by now.
    """

    wanted: bool
    champion_seen: int | None

    def aliases(self, champion: int | None, number: int) -> list[str]:
        """The aliases for the new version.

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
        """Raises `UserError` if versions cannot be added, as far as this can be checked without leaving anything."""

    def prepare(self) -> None:  # noqa: B027 (most need nothing)
        """Creates whatever has to exist before the first version is added.

        Raises:
            UserError: it cannot be created, or versions cannot be added.
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
        """The version with a number or an alias.

        Args:
            name: of the model.
            reference: the number or the alias.

        Raises:
            UserError: there is no such version.
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
        """Points an alias at a version.

        Args:
            name: the model's name.
            alias: in the form of Vertex AI in every registry, so that it cannot be the number of a version.
            number: of the version.

        Raises:
            UserError: the alias is not valid, there is no such version, or the version is damaged.
        """
        if not isinstance(alias, str) or not _ALIAS.fullmatch(alias):
            raise UserError(
                f"{alias!r:.200} is not a valid alias.",
                "Give 2 to 128 letters, digits and hyphens, a lower-case letter first, a lower-case letter or a digit "
                "last, such as champion or release-2, and then the number of the version.",
            )
        found = self.version(name, number)
        found.require_undamaged()
        # Not what was given: a text that is the number would be kept as one, which no version has.
        self._point(name, alias, found.number)

    @abstractmethod
    def _point(self, name: str, alias: str, number: int) -> None:
        """Points an alias at a version that exists and is whole. Raises `UserError` if that fails."""

    @abstractmethod
    def add(
        self, name: str, model: Path, info: dict[str, Any], promotion: Promotion, check: Check | None = None
    ) -> RegisteredVersion:
        """Adds a version, unless a version is the same model; points `challenger` at it, and `champion` if it may.

        Two models are the same if their files have the same bytes, apart from those that the evaluation wrote beside
        them. Such a version stays as it is, and is returned with `added` False. Aliases move last. If the upload is
        interrupted before that, it leaves no version, or a whole one without an alias of this project, which the next
        upload of the same model completes.

        Args:
            name: the model's name.
            model: directory of the exported model; it is copied.
            info: what to record with the version.
            promotion: whether it may become champion.
            check: called with the place of the uploaded files before the version counts and any alias moves.

        Raises:
            UserError: the registry cannot be written, or the check failed. No partial version is left then.
        """


@runtime_checkable
class ServesModels(Protocol):
    """A registry whose versions name the container that serves them."""

    def steps_image(self, pipeline_job: str) -> str:
        """The image that the steps of a pipeline job run in; empty if it is not known."""

    def container_for(self, model: Path, pipeline_job: str) -> ServingContainer:
        """The container for a version of an exported model if this job uploads it."""
