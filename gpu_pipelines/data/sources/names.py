"""What kind of source a name stands for, and what is wrong with it, without reading anything."""

from __future__ import annotations

import re

from gpu_pipelines.artifacts.remote_files import problems_of_place

#: What the name of a sample begins with.
SAMPLE = "sample:"
TABLE_SCHEME = "bq://"
_QUERY_SUFFIX = ".sql"
_HUB_SCHEME = "hf://"
#: What names of sources begin with that do not depend on the machine.
READ_ANYWHERE = (SAMPLE, "gs://", TABLE_SCHEME, _HUB_SCHEME)
# https://cloud.google.com/bigquery/docs/tables#table_naming and …/datasets#dataset-naming; old projects have a domain.
_TABLE = re.compile(r"([a-z0-9.-]+:)?[a-z0-9-]+\.\w+\.[^./:*$@`]+")
_HUB_ID = re.compile(
    r"(?P<id>[\w.-]+(/[\w.-]+)?)(@(?P<revision>[^?@]+))?(\?(?P<options>(config|split)=[\w.-]+(&(config|split)=[\w.-]+)?))?"
)


def is_query(source: str) -> bool:
    """Whether a source is a file with a query for BigQuery."""
    return source.lower().endswith(_QUERY_SUFFIX) and not source.startswith(TABLE_SCHEME)


def is_bigquery(source: str) -> bool:
    """Whether a source is a table in BigQuery or a file with a query."""
    return source.startswith(TABLE_SCHEME) or is_query(source)


def is_hub_id(source: str) -> bool:
    """Whether a source is a data set of the Hugging Face hub; files in one are `hf://datasets/OWNER/NAME/…`."""
    return source.startswith(_HUB_SCHEME) and source.removeprefix(_HUB_SCHEME).count("/") <= 1


def problems_of_name(source: str) -> list[str]:
    """What is wrong with the name of a bucket, of a table or of a data set of the hub."""
    if found := problems_of_place("source", source):
        return found
    if source.startswith(TABLE_SCHEME) and not _TABLE.fullmatch(source.removeprefix(TABLE_SCHEME)):
        return [
            f"source is {source[:200]!r}; a table is bq://PROJECT.DATASET.TABLE. For a partition give row_filter, for "
            "several tables a file with a query, NAME.sql."
        ]
    if is_hub_id(source) and not _HUB_ID.fullmatch(source.removeprefix(_HUB_SCHEME)):
        return [
            f"source is {source[:200]!r}; a data set of the hub is hf://OWNER/NAME, with @REVISION and "
            "?config=NAME&split=NAME where they are not the usual ones."
        ]
    return []


def hub_parts(source: str) -> tuple[str, str | None, str | None, str]:
    """Id, revision, configuration and split (`train` where none is named) of a data set of the hub."""
    match = _HUB_ID.fullmatch(source.removeprefix(_HUB_SCHEME))
    assert match
    options = dict(part.split("=") for part in (match["options"] or "").split("&") if part)
    return match["id"], match["revision"], options.get("config"), options.get("split", "train")
