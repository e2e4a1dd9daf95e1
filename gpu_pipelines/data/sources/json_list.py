"""Files that are one list of JSON objects, as `json.dump` writes rows, read one object at a time."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from typing import Any, BinaryIO, cast

from gpu_pipelines.data.sources.compression import DamagedError
from gpu_pipelines.data.sources.row_streams import LARGEST_TEXT

_BEGINS = re.compile(rb"(\xef\xbb\xbf)?\s*\[\s*[{\]]")
#: What stands between two elements.
_MARK = re.compile(r"\s*([\[\],])\s*")
_BYTES_LOOKED_AT = 64
_PART = 1 << 16


def begins_a_list(start: bytes) -> bool:
    """Whether a file that begins like this is a list of objects, of which there may be none."""
    return bool(_BEGINS.match(start))


def is_list(stream: BinaryIO) -> bool:
    """Whether a file, at its beginning, is a list of objects."""
    return begins_a_list(cast(io.BufferedReader, stream).peek(_BYTES_LOOKED_AT))


def elements(stream: BinaryIO) -> Iterator[Any]:
    """The elements of a list, of which one is held at a time.

    Args:
        stream: UTF-8.

    Raises:
        DamagedError: it is no JSON, is cut off, or has an element that is larger than a row may be.
        UnicodeDecodeError: it is not UTF-8.
    """
    text = io.TextIOWrapper(stream, encoding="utf-8-sig")
    decode = json.JSONDecoder().raw_decode
    held, place, wanted, number = "", 0, "[", 0
    while True:
        mark = _MARK.match(held, place)
        if mark and mark[1] == "]":
            break
        problem = ""
        if mark and mark[1] == wanted == "[" and held.startswith("]", mark.end()):
            place = mark.end()
            continue
        if mark and mark[1] == wanted:
            try:
                value, end = decode(held, mark.end())
            except (ValueError, RecursionError) as error:
                problem = f": {error}"
            else:
                # A number may go on where the part that was read ends.
                if end < len(held):
                    yield value
                    place, wanted, number = end, ",", number + 1
                    continue
        rest = len(held) - place
        more = text.read(max(_PART, rest)) if rest <= LARGEST_TEXT else ""
        if not more:
            raise DamagedError(f"after {number:,} rows of a list the next one cannot be read{problem}")
        held, place = held[place:] + more, 0
    if (held[mark.end() :] + text.read(_PART)).strip():
        raise DamagedError(f"something follows the list of {number:,} rows")
