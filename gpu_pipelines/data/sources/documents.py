"""The documents of text files; one or more blank lines stand between two of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpu_pipelines.data.sources.files import SourceFile
from gpu_pipelines.data.sources.reader import Reader
from gpu_pipelines.data.sources.row_streams import (
    LARGEST_TEXT,
    Meter,
    Problem,
    Row,
    bounded_lines,
    text_of,
    undecodable,
)


class Documents(Reader):
    """Documents, each as the column `text`, named by its first line."""

    def rows(self, file: SourceFile, meter: Meter, columns: list[str], remedy: str) -> Iterator[Row]:
        with text_of(file, meter) as stream:
            document: list[bytes] = []
            first = size = 0
            too_large = False
            for number, line in enumerate(bounded_lines(stream), start=1):
                if line is not None and not line.strip(b" \t\r\n"):
                    if document or too_large:
                        yield f"{first}", _document(document, first, too_large)
                    document, size, too_large = [], 0, False
                    continue
                if not document and not too_large:
                    first = number
                size += LARGEST_TEXT + 1 if line is None else len(line)
                if size > LARGEST_TEXT:
                    document, too_large = [], True
                elif line is not None:
                    document.append(line)
            if document or too_large:
                yield f"{first}", _document(document, first, too_large)


def _document(lines: list[bytes], first: int, too_large: bool) -> dict[str, Any] | Problem:
    if too_large:
        return Problem("malformed row", f"longer than {LARGEST_TEXT >> 20} MiB")
    try:
        return {"text": b"".join(lines).decode("utf-8-sig" if first == 1 else "utf-8").strip("\r\n")}
    except UnicodeDecodeError as error:
        return Problem("not UTF-8", undecodable(error))
