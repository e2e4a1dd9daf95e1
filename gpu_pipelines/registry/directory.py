"""A model registry in a directory: `<name>/versions/<n>/` and `<name>/model.json` with the aliases.

Every change is made under a lock on the model and becomes visible by one rename. So a reader sees only whole versions,
two writers do not interfere, and a killed writer leaves nothing that counts as a version.
"""

from __future__ import annotations

import fcntl
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from gpu_pipelines.artifacts.documents import read_as, read_document, write_document
from gpu_pipelines.artifacts.integrity import model_files
from gpu_pipelines.errors import DamagedError, NewerFormatError, UserError, first_line, some_of
from gpu_pipelines.registry.missing import missing_version
from gpu_pipelines.registry.registered import (
    CHAMPION,
    VERSION,
    Check,
    Promotion,
    RegisteredVersion,
    Registry,
    hashes_in,
)

_MODEL = "model.json"
_INCOMING = ".incoming-"
#: Most names of models in a message about a registry.
_MOST_SHOWN = 12


class DirectoryRegistry(Registry):
    """The registry below a directory, which is created when the first model is added."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __repr__(self) -> str:
        return f"DirectoryRegistry {self.root}: {some_of(self.names(), _MOST_SHOWN)}"

    def require_writable(self) -> None:
        """Tries to write into the root, or where it would be created; nothing stays, because this is only a check.

        Raises:
            UserError: it cannot be created or written to.
        """
        root = self.root.absolute()
        try:
            there = next(place for place in (root, *root.parents) if place.exists())
            with tempfile.NamedTemporaryFile(dir=there, prefix=_INCOMING):
                pass
        except OSError as error:
            raise UserError(
                f"The registry directory {self.root} cannot be written: {error.strerror}.",
                "Give another with -p registry=DIRECTORY, or fix its permissions.",
            ) from None

    def where(self, name: str) -> str:
        """The model's directory."""
        return str(self.root / name)

    def names(self) -> list[str]:
        """Names of all models that have a version."""
        return sorted(p.parent.name for p in self.root.glob("*/versions") if self._numbers(p.parent.name))

    def versions(self, name: str) -> list[RegisteredVersion]:
        """All versions of a model, oldest first; none if there is no such model.

        A version whose `version.json` cannot be read is one of them, and counts as damaged.
        """
        aliases = self.aliases(name)
        return [self._version(name, number, aliases, UserError) for number in self._numbers(name)]

    def version(self, name: str, reference: str | int) -> RegisteredVersion:
        """The version with a number or an alias.

        A version whose `version.json` is damaged or of a newer format exists, and counts as damaged.

        Raises:
            UserError: there is no such version.
        """
        # The others are not read: one that was removed in part must not block this one.
        aliases, reference = self.aliases(name), str(reference)
        wanted = reference if reference.isdecimal() else str(aliases.get(reference))
        for number in self._numbers(name):
            if str(number) == wanted:
                # A damaged one stays the champion, though nobody uses it and nothing replaces it.
                return self._version(name, number, aliases, DamagedError, NewerFormatError)
        raise missing_version(self, name, reference, str(self.root))

    def aliases(self, name: str) -> dict[str, int]:
        """Version by alias."""
        path = self.root / name / _MODEL
        return read_as(path, "registered model", lambda content: dict(content["aliases"])) if path.exists() else {}

    def _point(self, name: str, alias: str, number: int) -> None:
        with self._locked(name) as folder:
            self._write_aliases(folder, {**self.aliases(name), alias: number})

    def add(
        self, name: str, model: Path, info: dict[str, Any], promotion: Promotion, check: Check | None = None
    ) -> RegisteredVersion:
        """Adds a version under the lock of its model, unless the same model is one already; see `Registry.add`."""
        self.require_writable()
        files = hashes_in(model)
        try:
            with self._locked(name) as folder:
                same = self._same_model(name, files)
                if same is not None:
                    number = same
                else:
                    incoming = self._copy_in(model, folder, {**info, "files": files}, check)
                    number = self._next_number(name)
                    (folder / "versions").mkdir(exist_ok=True)
                    incoming.rename(folder / "versions" / str(number))
                aliases = self.aliases(name)
                champion = aliases.get(CHAMPION)
                aliases |= dict.fromkeys(promotion.aliases(champion, number), number)
                self._write_aliases(folder, aliases)
        except OSError as error:
            raise UserError(
                f"The model {name!r} could not be written to {self.root}: {error.strerror or first_line(error)}.",
                "No alias was moved. Check space and permissions, then upload again.",
            ) from None
        return replace(self._version(name, number, aliases), added=same is None, led=champion == number)

    @contextmanager
    def _locked(self, name: str) -> Iterator[Path]:
        folder = self.root / name
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / ".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                # It may test a model for minutes, or hang.
                print(f"waiting for another process, which writes {name} in {self.root}", file=sys.stderr, flush=True)
                fcntl.flock(lock, fcntl.LOCK_EX)
            # The holder of the lock is the only writer, so other incomplete files are from a killed writer.
            for stale in folder.glob(f"{_INCOMING}*"):
                shutil.rmtree(stale, ignore_errors=True)
            yield folder

    def _copy_in(self, model: Path, folder: Path, info: dict[str, Any], check: Check | None) -> Path:
        incoming = Path(tempfile.mkdtemp(prefix=_INCOMING, dir=folder))
        incoming.chmod(0o755)
        try:
            shutil.copytree(model, incoming, dirs_exist_ok=True)
            created = datetime.now(timezone.utc).isoformat(timespec="seconds")
            write_document(incoming / VERSION, {"created": created, **info})
            if check:
                check(str(incoming))
        except BaseException:
            shutil.rmtree(incoming, ignore_errors=True)
            raise
        return incoming

    def _same_model(self, name: str, files: dict[str, str]) -> int | None:
        """The newest whole version of the same model; one that a killed upload completed is not added again."""
        wanted = model_files(files)
        for number in reversed(self._numbers(name)):
            with suppress(UserError):  # a version that cannot be read is not whole
                version = self._version(name, number, {})
                if model_files(version.info.get("files", {})) == wanted and not version.is_damaged:
                    return number
        return None

    def _numbers(self, name: str) -> list[int]:
        return sorted(int(p.name) for p in (self.root / name / "versions").glob("*") if p.name.isdecimal())

    def _next_number(self, name: str) -> int:
        # An alias may still name a version whose files were deleted: it must not come to name another model.
        return 1 + max([*self._numbers(name), *self.aliases(name).values()], default=0)

    @staticmethod
    def _write_aliases(folder: Path, aliases: dict[str, int]) -> None:
        write_document(folder / _MODEL, {"name": folder.name, "aliases": dict(sorted(aliases.items()))})

    def _version(self, name: str, number: int, aliases: dict[str, int], *unread: type[UserError]) -> RegisteredVersion:
        """A version; one whose record cannot be read for one of these reasons counts as damaged."""
        path, error = self.root / name / "versions" / str(number), None
        named = tuple(sorted(alias for alias, version in aliases.items() if version == number))
        info: dict[str, Any] = {"created": "", "passed": False, "metrics": {}}
        try:
            info |= read_document(path / VERSION, "model version")
        except unread as caught:
            error = caught
        info.pop("format_version", None)
        return RegisteredVersion(name, number, str(path.resolve()), named, info, f"{name}/versions/{number}", "", error)
