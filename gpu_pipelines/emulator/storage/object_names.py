"""Lists the objects of a folder in pages, in the order of their names, and reads no more of the folder than it must."""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from heapq import merge
from itertools import islice, takewhile
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from gcp_storage_emulator.gcs_glob import gcs_glob_match

from gpu_pipelines.emulator.api_error import ApiError

#: The longest page of Cloud Storage, and that of a request that asks for none.
PAGE = 1000
#: In the name of a file that is no UTF-8, which no object has.
_NO_TEXT = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class Page:
    """A page of a list.

    Attributes:
        names: the names of objects.
        prefixes: the folders, as the delimiter makes them.
        token: the token of the next page; empty if there is none.
    """

    names: list[str]
    prefixes: list[str]
    token: str


def page_of(folder: Path, markers: Path, query: Mapping[str, str]) -> Page:
    """A page of the objects of a bucket.

    https://cloud.google.com/storage/docs/json_api/v1/objects/list

    Args:
        folder: the bucket.
        markers: folder of the objects whose names end with a slash, which no file can have.
        query: the parameters of the request.

    Raises:
        ApiError: one of them is wrong.
    """
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    glob, end = query.get("matchGlob", ""), query.get("endOffset", "")
    if glob and delimiter not in ("", "/"):
        raise ApiError(400, "When listing with a glob pattern, the only supported delimiter is '/'.")
    start = max(query.get("startOffset", ""), start_of(query))
    # A name with empty parts leads to the same file as one without them.
    plain = re.sub("/+", "/", prefix)
    if start.startswith(prefix):
        start = plain + start[len(prefix) :]
    files = _files(folder, plain, start, delimiter == "/" and not glob)
    names: Iterator[str] = merge(files, _markers(markers, plain, start))
    if end:
        names = takewhile(lambda name: name < end, names)
    keys = _keys((prefix + name[len(plain) :] for name in names), prefix, delimiter)
    found = list(islice((key for key in keys if not glob or gcs_glob_match(glob, key)), size_of(query) + 1))
    token = token_of(found.pop()) if len(found) > size_of(query) else ""
    folders = {key for key in found if delimiter and delimiter in key[len(prefix) :]}
    return Page([key for key in found if key not in folders], sorted(folders), token)


def listed(kind: str, resources: Mapping[str, Any], query: Mapping[str, str]) -> dict[str, Any]:
    """A page of resources of a kind by their names, in the form of the API.

    Raises:
        ApiError: a parameter is wrong.
    """
    prefix, start = query.get("prefix", ""), start_of(query)
    names = sorted(name for name in resources if name.startswith(prefix) and name >= start)
    size = size_of(query)
    found = {"kind": kind, "items": [resources[name] for name in names[:size]]}
    return {**found, "nextPageToken": token_of(names[size])} if len(names) > size else found


def size_of(query: Mapping[str, str]) -> int:
    """The length of a page.

    Raises:
        ApiError: it is no number.
    """
    if not re.fullmatch("[0-9]{0,9}", wanted := query.get("maxResults", "")):
        raise ApiError(400, f"Invalid value at 'maxResults': {wanted!r}.")
    return min(int(wanted or 0) or PAGE, PAGE)


def token_of(name: str) -> str:
    """The token of a page that begins with a name."""
    return base64.urlsafe_b64encode(name.encode()).decode()


def start_of(query: Mapping[str, str]) -> str:
    """The name with which a page begins.

    Raises:
        ApiError: the token is not from a list.
    """
    token = query.get("pageToken", "")
    try:
        return base64.b64decode(token, b"-_", validate=True).decode()
    except (binascii.Error, ValueError) as error:
        raise ApiError(400, f"Invalid page token: {token!r}.") from error


def _keys(names: Iterator[str], prefix: str, delimiter: str) -> Iterator[str]:
    """Names with a delimiter behind the prefix up to that one, and each of them once."""
    last = ""
    for name in names:
        rest, found, _ = name[len(prefix) :].partition(delimiter) if delimiter else (name, "", "")
        key = prefix + rest + found if found else name
        if key != last:
            yield key
        last = key


def _files(folder: Path, prefix: str, start: str, fold: bool, base: str = "") -> Iterator[str]:
    """The names that begin with a prefix, from one on; if they are folded, one of each folder behind the prefix.

    `base` is the name of the folder in the bucket.
    """
    for name, path in _entries(folder, base):
        if not name.endswith("/"):
            if name.startswith(prefix) and name >= start:
                yield name
        elif (name.startswith(prefix) or prefix.startswith(name)) and start[: len(name)] <= name:
            below = _files(Path(path), prefix, start, fold, name)
            yield from islice(below, 1) if fold and len(name) > len(prefix) else below


def _entries(folder: Path, base: str) -> list[tuple[str, str]]:
    """The names in a folder, of folders with a slash, which decides about their order, and their paths."""
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                found.append((f"{base}{entry.name}/", entry.path))
            elif entry.is_file() and not _NO_TEXT.search(entry.name):
                found.append((f"{base}{entry.name}", entry.path))
    return sorted(found)


def _markers(folder: Path, prefix: str, start: str) -> list[str]:
    names = [unquote(each.name) for each in folder.iterdir()] if folder.is_dir() else []
    return sorted(name for name in names if name.startswith(prefix) and name >= start)
