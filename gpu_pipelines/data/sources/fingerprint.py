"""What tells whether a source of data has changed, without reading its rows."""

from __future__ import annotations

import hashlib
import json

from gpu_pipelines.data.sources.file_source import contents_of_files
from gpu_pipelines.data.sources.sources import source_of


def source_fingerprint(source: str, billing_project: str = "") -> str:
    """Hex SHA-256 of what tells one version of a source from another; no row is read, so it is quick.

    Args:
        source: as a user names it.
        billing_project: what a query in BigQuery is checked in; empty for that of the environment.

    Raises:
        UserError: the source cannot be listed, or its service does not answer.
    """
    state = source_of(source).state(source, billing_project)
    return hashlib.sha256(json.dumps(state).encode()).hexdigest()


def artifact_fingerprint(place: str) -> str:
    """Hex SHA-256 of what tells one content of an artifact from another.

    A step that writes the same again writes it elsewhere and later. So neither the place counts nor the time: the names
    of the files below it do, and their bytes, or the checksums that the object storage keeps.

    Args:
        place: a file or a folder, on this machine or in object storage.

    Raises:
        UserError: it cannot be read.
    """
    return hashlib.sha256(json.dumps(contents_of_files(place)).encode()).hexdigest()
