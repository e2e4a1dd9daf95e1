"""What tells whether a source of data has changed, without reading its rows."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gpu_pipelines.artifacts.documents import sha256_of_file
from gpu_pipelines.artifacts.remote_files import is_remote, listed
from gpu_pipelines.data.sources.listing import Listing, is_pattern, list_source, shown_path
from gpu_pipelines.data.sources.names import SAMPLE, hub_parts, is_bigquery, is_hub_id
from gpu_pipelines.errors import UserError


def source_fingerprint(source: str, billing_project: str = "") -> str:
    """Hex SHA-256 of what tells one version of a source from another.

    Of files that is their names, their sizes, and the checksum that the object storage keeps, or on this machine the
    time of the last change; of a table in BigQuery its `etag`; of a data set of the hub its commit. No row is read, so
    it is quick; images that a table names by their paths are not looked at.

    Args:
        source: a path, a pattern, `gs://…`, `bq://…`, a file with a query, `hf://…`, or a sample, which never changes.
        billing_project: what a query in BigQuery is checked in; empty for that of the environment.

    Raises:
        UserError: the source cannot be listed, or BigQuery does not answer.
    """
    return hashlib.sha256(json.dumps(_entries(source, billing_project)).encode()).hexdigest()


def artifact_fingerprint(place: str) -> str:
    """Hex SHA-256 of what tells one content of an artifact from another.

    A step that writes the same again writes it elsewhere and later. So neither the place counts nor the time: the names
    of the files below it do, and their bytes, or the checksums that the object storage keeps.

    Args:
        place: a file or a folder, on this machine or in object storage.

    Raises:
        UserError: it cannot be read.
    """
    listing = _listed(place)
    states: list[tuple[str, str]] = []
    found = listed(place) if is_remote(place) else {}
    for name in listing.files:
        at = f"{listing.root}{name}"
        states.append((repr(name), _version_of(found[at]) if at in found else sha256_of_file(Path(at))))
    return hashlib.sha256(json.dumps(states).encode()).hexdigest()


def _listed(source: str) -> Listing:
    try:
        return list_source(source)
    except (OSError, RuntimeError, ValueError) as error:
        raise _unreadable(source, error) from None


def _entries(source: str, billing_project: str) -> list[Any]:
    if source.startswith(SAMPLE):
        return [(source, "")]
    if is_bigquery(source):
        from gpu_pipelines.data.sources.bigquery_tables import table_state

        return list(table_state(source, billing_project))
    if is_hub_id(source):
        return _state_of_hub(source)
    if is_remote(source):
        found = listed(source, is_pattern(source)).items()
        return [(place, f"{info.get('size')} {_version_of(info)}") for place, info in found]
    return [(repr(name), state) for name, state in _states_here(source)]


def _version_of(info: Mapping[str, Any]) -> str:
    """What tells one content of an object from another; Cloud Storage has no MD5 of objects that were composed."""
    return str(next((info[key] for key in ("md5Hash", "crc32c", "ETag", "etag", "mtime") if info.get(key)), ""))


def _states_here(source: str) -> Iterator[tuple[str, str]]:
    try:
        listing = list_source(source)
        for name in listing.files:
            status = Path(f"{listing.root}{name}").stat()
            yield name, f"{status.st_size} {status.st_mtime_ns}"
    except (OSError, RuntimeError, ValueError) as error:
        raise _unreadable(source, error) from None


def _unreadable(source: str, error: Exception) -> UserError:
    reason = getattr(error, "strerror", None) or error
    return UserError(f"The source {shown_path(source)[:200]} cannot be read: {reason}.")


def _state_of_hub(source: str) -> list[Any]:
    """The commit of a data set on the hub; never the same without a hub."""
    name, revision, *_ = hub_parts(source)
    # `datasets` takes a directory of that name in place of the hub's data set.
    if Path(name).is_dir():
        return list(_states_here(name))
    from huggingface_hub import HfApi

    try:
        return [source, str(HfApi().dataset_info(name, revision=revision).sha)]
    except Exception:  # Names, networks: of several packages. What cannot be looked up may have changed.
        return [uuid.uuid4().hex]
