"""The properties of objects that their files lack, in a table of SQLite.

A change costs the same however many objects there are.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpu_pipelines.emulator.api_error import ApiError
from gpu_pipelines.emulator.state_folder import damaged

#: The properties of a file that change when it is written: its size and the time, nanoseconds.
Stamp = tuple[int, int]
# A kill loses nothing that was committed: the kernel has it. Only one process has the table, so there is no shared
# memory beside it.
_SETTINGS = "PRAGMA locking_mode = EXCLUSIVE; PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF;"
_TABLE = """CREATE TABLE IF NOT EXISTS objects
    (bucket TEXT, name TEXT, record TEXT, size INTEGER, time INTEGER, PRIMARY KEY (bucket, name)) WITHOUT ROWID;"""


class ObjectRecords:
    """The records of objects. Its callers take turns.

    Args:
        file: the file of the table; created if it does not exist.

    Raises:
        UserError: the file is damaged.
    """

    def __init__(self, file: Path) -> None:
        self._table = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
        try:
            self._table.executescript(_SETTINGS + _TABLE)
        except sqlite3.Error as error:
            self._table.close()
            raise damaged(file, error) from error

    def of(self, bucket: str, name: str) -> tuple[dict[str, Any], Stamp] | None:
        """The record of an object, and the stamp that its file had then; None if it has none."""
        wanted = "SELECT record, size, time FROM objects WHERE bucket = ? AND name = ?"
        found = self._table.execute(wanted, (bucket, name)).fetchone()
        return (json.loads(found[0]), (found[1], found[2])) if found else None

    def keep(self, bucket: str, name: str, record: dict[str, Any], stamp: Stamp) -> None:
        """Keeps the record of an object.

        Raises:
            ApiError: there is no room for it.
        """
        self.keep_all([(bucket, name, record, stamp)])

    def keep_all(self, records: Iterable[tuple[str, str, dict[str, Any], Stamp]]) -> None:
        """Keeps records, all of them or none.

        Raises:
            ApiError: there is no room for them.
        """
        rows = ((bucket, name, json.dumps(record), *stamp) for bucket, name, record, stamp in records)
        try:
            with self._table:
                self._table.execute("BEGIN")
                self._table.executemany("REPLACE INTO objects VALUES (?, ?, ?, ?, ?)", rows)
        except sqlite3.OperationalError as error:
            raise cannot_write(str(error)) from error

    def forget(self, bucket: str, name: str) -> None:
        """Removes the record of an object whose file is gone."""
        # On a full disk it stays: without a file it says nothing.
        with suppress(sqlite3.OperationalError):
            self._table.execute("DELETE FROM objects WHERE bucket = ? AND name = ?", (bucket, name))

    def close(self) -> None:
        """Closes the table."""
        self._table.close()


def cannot_write(why: str) -> ApiError:
    """The error for an object for which there is no room."""
    return ApiError(400, f"The emulator cannot write the object: {why}", "FAILED_PRECONDITION")
