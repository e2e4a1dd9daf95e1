"""Resolves URIs of Cloud Storage to files, for the emulator's own reading and writing."""

from __future__ import annotations

from collections.abc import Collection
from fnmatch import fnmatchcase
from pathlib import Path

from gpu_pipelines.emulator.api_error import ApiError


class BucketPlaces:
    """The buckets.

    Args:
        folder: the folder with a folder for each bucket.
        names: the names of the buckets.
    """

    def __init__(self, folder: Path, names: Collection[str]) -> None:
        self._folder, self._names = folder, names

    def path(self, uri: str) -> Path:
        """The file of an object.

        Raises:
            ApiError: there is no such bucket, or the URI does not name an object.
        """
        bucket, name = self._parts(uri)
        path = self._folder / bucket / name
        if ".." in Path(name).parts:
            raise ApiError(400, f"{uri} is not a Google Cloud Storage URI.")
        return path

    def matching(self, pattern: str) -> list[Path]:
        """The files of the objects that match a URI, in which `*` stands for any text; ordered by name.

        Raises:
            ApiError: there is none.
        """
        bucket, name = self._parts(pattern)
        root = self._folder / bucket
        # All others are outside of the part before the first wildcard.
        beginning = self.path(f"gs://{bucket}/{name.split('*')[0]}").parent if "*" in name else self.path(pattern)
        found = beginning.rglob("*") if "*" in name else iter([beginning])
        named = (each for each in found if fnmatchcase(each.relative_to(root).as_posix(), name))
        files = sorted(each for each in named if each.is_file())
        if not files:
            raise ApiError(400, f"Unable to find objects that match {pattern}.", "FAILED_PRECONDITION")
        return files

    def _parts(self, uri: str) -> tuple[str, str]:
        scheme, _, rest = uri.partition("://")
        bucket, _, name = rest.partition("/")
        if scheme != "gs" or bucket not in self._names:
            raise ApiError(404, f"The specified bucket does not exist: {uri}.")
        return bucket, name
