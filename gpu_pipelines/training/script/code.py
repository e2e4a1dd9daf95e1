"""Brings a user's training script to this machine: a file, a folder or an archive, local or in a bucket."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

from gpu_pipelines.errors import UserError
from gpu_pipelines.training.script.settings import ScriptSettings

_ARCHIVES = (".tar.gz", ".tgz")


def fetch(settings: ScriptSettings, folder: Path) -> tuple[list[str], Path | None]:
    """Makes script and code available.

    Args:
        settings: what to run.
        folder: an empty directory for what has to be fetched or unpacked.

    Returns:
        What to give the Python interpreter (a file, or `-m` and a module), and the folder to import from, if any.

    Raises:
        UserError: something does not exist or cannot be read.
    """
    root = _code(settings, folder) if settings.code else None
    if settings.module:
        return ["-m", settings.module], root
    script = settings.script.strip()
    if root:
        file = (root / script).resolve()
        if not file.is_relative_to(root.resolve()):
            raise UserError(f"script is {script}, which is outside of code.")
    else:
        file = _downloaded(script, folder) if "://" in script else Path(script).expanduser().resolve()
    if not file.is_file():
        raise UserError(f"There is no script {file if not root else f'{script} in {settings.code}'}.")
    return [str(file)], root


def _code(settings: ScriptSettings, folder: Path) -> Path:
    code = settings.code
    path = _downloaded(code, folder) if "://" in code else Path(code).expanduser().resolve()
    if path.is_dir():
        return path
    if not path.is_file():
        raise UserError(f"There is no code at {code}.", "Give a folder or a .tar.gz, local or gs://.")
    if not path.name.endswith(_ARCHIVES):
        raise UserError(f"code is {code}, which is neither a folder nor a .tar.gz.")
    unpacked = folder / "code"
    unpacked.mkdir()
    try:
        with tarfile.open(path, "r:gz") as archive:
            # The filter refuses members outside of the folder, devices and the like.
            archive.extractall(unpacked, filter="data")
    except (tarfile.TarError, OSError, EOFError) as error:
        raise UserError(f"The archive {code} cannot be unpacked: {error}.") from None
    return _root(settings, unpacked)


def _root(settings: ScriptSettings, unpacked: Path) -> Path:
    """Where the script is looked for in an archive: an sdist, or a folder that was packed, has all in one folder."""
    path = settings.module.replace(".", "/")
    names = [f"{path}.py", f"{path}/__main__.py"] if path else [settings.script.strip()]
    if any((unpacked / name).is_file() for name in names):
        return unpacked
    folders = [entry for entry in unpacked.iterdir() if entry.is_dir()]
    return folders[0] if len(folders) == 1 and any((folders[0] / name).is_file() for name in names) else unpacked


def _downloaded(uri: str, folder: Path) -> Path:
    """A copy of a file or folder of any file system that fsspec knows."""
    import fsspec

    target = folder / "fetched" / uri.rstrip("/").rpartition("/")[2]
    target.parent.mkdir(exist_ok=True)
    try:
        system, path = fsspec.core.url_to_fs(uri)
        if system.isdir(path):
            system.get(path.rstrip("/") + "/", f"{target}/", recursive=True)
        else:
            with system.open(path, "rb") as source, target.open("wb") as copy:
                shutil.copyfileobj(source, copy)
    except ImportError as error:
        raise UserError(f"{uri} cannot be read: {error}.", "For gs://, install gcsfs in the image.") from None
    except FileNotFoundError:
        raise UserError(f"There is nothing at {uri}.") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{uri} cannot be read: {error}.") from None
    return target
