"""What tells whether a source of data has changed, without reading its rows."""

from __future__ import annotations

import hashlib
import json

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
