"""Whether the files of a registered model are the uploaded ones, by the hashes in `version.json`.

The hashes find changes by a disk, a copy or a person. They are not a signature: whoever can write the files can write
`version.json` as well.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gpu_pipelines.artifacts.benchmark_results import BENCHMARKS
from gpu_pipelines.artifacts.documents import read_document, sha256_of_file
from gpu_pipelines.artifacts.evaluation import EVALUATION, GENERATED
from gpu_pipelines.artifacts.examples import EXAMPLES
from gpu_pipelines.artifacts.exported_model import CONFIG, MODEL_CARD, PROFILE
from gpu_pipelines.artifacts.remote_files import RemoteFolder, is_remote, open_remote
from gpu_pipelines.errors import UserError

#: Document that was recorded with a version, among its files.
VERSION = "version.json"
_PIECE = 1 << 20


def model_files(files: Mapping[str, str]) -> dict[str, str]:
    """The files of an exported model that are the model, without those that its evaluation wrote.

    A model that was not evaluated has all of them, and a mark of that: with an evaluation it is another version.

    Args:
        files: hex SHA-256 by path, `version.json` not among them.
    """
    if EVALUATION not in files:
        return {**files, EVALUATION: ""}
    # Beside a checkpoint in the user's own format, files of the other names are the user's.
    beside = {EVALUATION, MODEL_CARD, *([BENCHMARKS, EXAMPLES, GENERATED, PROFILE] if CONFIG in files else [])}
    return {name: digest for name, digest in files.items() if name not in beside}


def digest_of(files: Mapping[str, str]) -> str:
    """Hex SHA-256 of paths and hashes."""
    return hashlib.sha256(json.dumps(dict(files), sort_keys=True).encode()).hexdigest()


def damage(place: str, files: Mapping[str, str], md5: Mapping[str, str]) -> str:
    """What is wrong with the files of a version, such as "config.json is missing"; empty for nothing.

    Files whose names begin with a dot do not belong to a model and are passed over.

    Args:
        place: a directory, or a folder in object storage. If the storage keeps MD5, nothing is downloaded.
        files: hex SHA-256 by path, as recorded; empty if none were, and then nothing can be checked.
        md5: base64 by path, as recorded; not used for a directory.

    Raises:
        UserError: the place cannot be read.
    """
    if not files:
        return ""
    if is_remote(place):
        there: Mapping[str, str] = RemoteFolder(place).md5()
    else:
        root = Path(place)
        there = {p.relative_to(root).as_posix(): "" for p in root.rglob("*") if p.is_file()}
    if missing := sorted(files.keys() - there.keys()):
        return f"{missing[0]} is missing"
    added = (name for name in there.keys() - files.keys() - {VERSION} if not name.rpartition("/")[2].startswith("."))
    if more := sorted(added):
        return f"{more[0]} was not uploaded with it"
    unknown = [name for name in sorted(files) if not (md5.get(name) and there[name])]
    changed = {name for name in files.keys() - set(unknown) if there[name] != md5[name]}
    changed |= _changed(place, {name: files[name] for name in unknown})
    return f"{min(changed)} is not as it was uploaded" if changed else ""


def require_undamaged(directory: Path) -> None:
    """Checks the files of a registered version's directory, or of a copy of it, before they are loaded.

    Args:
        directory: an exported model; one without `version.json` was never registered, and nothing is checked.

    Raises:
        UserError: names the file that is not as uploaded.
    """
    if not (directory / VERSION).is_file():
        return
    content = read_document(directory / VERSION, "model version")
    if what := damage(str(directory), content.get("files", {}), {}):
        raise UserError(
            f"The registered model in {directory} is damaged: {what}.",
            "Restore the file from a copy, or take another version.",
        )


def _changed(place: str, files: Mapping[str, str]) -> set[str]:
    """Names of the files with another SHA-256; several are read at once."""

    def is_changed(name: str) -> bool:
        if not is_remote(place):
            return sha256_of_file(Path(place) / name) != files[name]
        with open_remote(f"{place.rstrip('/')}/{name}") as content:
            return _sha256(iter(lambda: content.read(_PIECE), b"")) != files[name]

    with ThreadPoolExecutor() as pool:
        return {name for name, changed in zip(files, pool.map(is_changed, files), strict=True) if changed}


def _sha256(pieces: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()
