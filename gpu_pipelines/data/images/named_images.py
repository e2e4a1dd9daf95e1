"""The images that the rows of a table name: relative to it, or in full, but nowhere outside of some folders."""

from __future__ import annotations

import os
import posixpath
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from gpu_pipelines.artifacts.remote_files import is_remote
from gpu_pipelines.data.sources.files import SourceFile
from gpu_pipelines.data.sources.source import SourceFiles

#: Schemes that a row of a table may name an image in.
_SCHEMES = ("gs", "gcs", "s3", "hf")
#: What stands before an absolute path of this machine, in one of the forms in which programs write it.
_FILE_URI = re.compile("file:(//)?(?=/)")


@dataclass(frozen=True)
class NamedImages:
    """Where images named by a table may be.

    Args:
        base: the folder that paths are relative to; empty for that of the table.
        roots: folders of this machine, as `os.path.realpath` gives them, that images on this machine must be in.
        remote: what the URI of an image in object storage must begin with; None where none may be there.
        title: what the rows are of, where no file is beside them.
    """

    base: str
    roots: tuple[str, ...]
    remote: str | None
    title: str = ""

    @classmethod
    def of(cls, source: SourceFiles, image_root: str) -> NamedImages:
        """What is allowed for a source.

        Args:
            source: tables. Images on this machine must be in its folder; those in object storage may be in any that
                can be read.
            image_root: a folder or `gs://…` that all images must be in instead; empty for none.
        """
        if not image_root:
            roots = source.image_roots or (source.root or ".",)
            here = () if is_remote(source.root) and not source.image_roots else roots
            title = source.service.title if source.service else ""
            return cls("", tuple(os.path.realpath(root) for root in here), "", title)
        if is_remote(image_root):
            root = f"{image_root.rstrip('/')}/"
            return cls(root, (), root)
        folder = Path(image_root).expanduser()
        return cls(f"{folder}/", (os.path.realpath(folder),), None)

    def file(self, table: SourceFile, name: str) -> SourceFile:
        """The file that a row of a table names.

        Raises:
            OSError: it is outside of where images may be, or is neither a path nor in object storage.
        """
        if here := _FILE_URI.match(name):
            name = unquote(name[here.end() :])
        elif is_remote(name):
            if name.partition("://")[0] not in _SCHEMES:
                raise OSError("neither a path nor in object storage")
            return SourceFile(self._remote(name), name)
        if self.title:
            raise OSError(f"not in object storage, and beside {self.title} there are no files; give image_root")
        base = self.base or f"{os.path.dirname(table.place)}/"  # noqa: PTH120 (it may be a URI)
        with_slashes = name.replace("\\", "/")  # as a table has it that was written on Windows
        if is_remote(base):
            return SourceFile(_below(base, with_slashes), name)
        folder = Path(self.base) if self.base else Path(table.place).parent
        place = self._here(folder / name)
        # Elsewhere than on Windows a name may have a backslash in it.
        if with_slashes != name and not os.path.lexists(place):
            place = self._here(folder / with_slashes)
        return SourceFile(place, name)

    def _remote(self, uri: str) -> str:
        if self.remote is None or not uri.startswith(self.remote) or (self.remote and ".." in uri.split("/")):
            raise OSError(_OUTSIDE)
        return uri

    def _here(self, path: Path) -> str:
        try:
            place = os.path.realpath(path)
        except ValueError as error:  # it has a NUL, or a surrogate that stands for no byte
            raise OSError(f"no path: {error}") from None
        if not any(place == root or place.startswith(root.rstrip("/") + "/") for root in self.roots):
            raise OSError(_OUTSIDE)
        return place


def _below(base: str, name: str) -> str:
    if ".." not in name.split("/"):
        return f"{base}{name}"
    scheme, _, folder = base.partition("://")
    place = f"{scheme}://{posixpath.normpath(folder + name)}"
    if not place.startswith(base):
        raise OSError(_OUTSIDE)
    return place


_OUTSIDE = "outside of the folder of the source; image_root names another"
