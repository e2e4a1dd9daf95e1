"""The Python packages of an old job: those in Cloud Storage, and those that gcloud uploaded from this machine."""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from gpu_pipelines.errors import UserError

#: Most packages of a job (`packageUris` of both APIs).
_MOST = 100
#: The folder in which the commands build packages.
_BUILT = "migrated-package"


@dataclass(frozen=True)
class Packages:
    """The packages of a job.

    Attributes:
        sources: the current place of each: `gs://…` or a path.
        uris: the later address of each in Cloud Storage.
        upload: commands that upload them.
    """

    sources: tuple[str, ...] = ()
    uris: tuple[str, ...] = ()
    upload: tuple[str, ...] = ()


def find_packages(
    uris: Sequence[str], package_path: str | None, archives: Sequence[str], staging: str | None
) -> Packages:
    """All packages of a job.

    Args:
        uris: `packageUris` of the file; flags take precedence.
        package_path: value of `--package-path`.
        archives: values of `--packages`.
        staging: folder in Cloud Storage for packages on this machine; None if none was given.

    Raises:
        UserError: there are too many, two have the same name, or there is no place for them.
    """
    local = [each for each in archives if not each.startswith("gs://")]
    if (package_path or local) and staging is None:
        raise UserError(
            "Packages on this machine need a place in Cloud Storage.", "Give --staging-bucket or --job-dir, as before."
        )
    if not (package_path or archives):
        found = Packages(tuple(uris), tuple(uris))
    else:
        found = _from_flags(package_path, archives, staging or "")
    if len(found.uris) > _MOST:
        raise UserError(f"A job has at most {_MOST} packages, not {len(found.uris)}.")
    if wrong := [uri for uri in found.uris if not uri.startswith("gs://") or len(uri) < len("gs://b/p")]:
        raise UserError(f"The package {wrong[0][:100]!r} is not in Cloud Storage.", "Give it by --packages.")
    if len(set(found.uris)) < len(found.uris):
        raise UserError(f"Two packages have one name: {', '.join(found.uris)[:200]}.")
    return found


def root_of(package_path: str) -> tuple[str, str]:
    """The folder in which a package is built, and its name; the current folder may be the package itself.

    Args:
        package_path: value of `--package-path`.
    """
    return posixpath.normpath(posixpath.join(package_path, "..")), posixpath.basename(posixpath.abspath(package_path))


def _from_flags(package_path: str | None, archives: Sequence[str], staging: str) -> Packages:
    uris, upload = [], []
    if package_path:
        folder, name = root_of(package_path)
        uri = f"{staging}/{name}.tar.gz"
        uris.append(uri)
        upload.append(shlex.join(["python3", "-m", "build", "--sdist", "--outdir", _BUILT, folder]))
        # The file name of the built package has the version of the user's setup.py in it.
        upload.append(f"gcloud storage cp {_BUILT}/*.tar.gz {shlex.quote(uri)}")
    for archive in archives:
        uri = archive if archive.startswith("gs://") else f"{staging}/{posixpath.basename(archive)}"
        uris.append(uri)
        if uri != archive:
            upload.append(shlex.join(["gcloud", "storage", "cp", archive, uri]))
    sources = [*([package_path] if package_path else []), *archives]
    return Packages(tuple(sources), tuple(uris), tuple(upload))
