"""Rows of numbers on their way from the pieces that have them to those that need them: a shuffle, in files.

Each sender leaves one file in the unfinished work, with its rows in the order of their receivers; a receiver reads its
part of each. Nobody holds more than that, whoever sent is not needed any more, and what was sent is not sent again.
"""

from __future__ import annotations

import numpy as np

from gpu_pipelines.data.units.unfinished_work import UnfinishedWork

_ROWS, _STARTS = "rows.u64", "starts.i64"
_BYTES = 8


class Exchange:
    """Rows of one kind.

    Args:
        work: where the files are, in a place that all workers see.
        name: of the kind.
        columns: numbers of 64 bits in a row.
        senders: how many there are.
        receivers: how many there are.
    """

    def __init__(self, work: UnfinishedWork, name: str, columns: int, senders: int, receivers: int) -> None:
        self._work, self._name, self._columns = work, name, columns
        self._senders, self._receivers = senders, receivers
        self._starts: dict[int, np.ndarray] = {}

    def is_sent(self, sender: int) -> bool:
        """Whether a sender has sent all of its rows."""
        return self._work.has(self._part(sender))

    def send(self, sender: int, rows: np.ndarray, receivers: np.ndarray) -> None:
        """Sends all rows of one sender.

        Args:
            sender: its number.
            rows: (rows, columns).
            receivers: of each row the number of its receiver.
        """
        folder = self._work.begin(self._part(sender))
        order = np.argsort(receivers, kind="stable")
        np.searchsorted(receivers[order], np.arange(self._receivers + 1)).astype(np.int64).tofile(folder / _STARTS)
        np.ascontiguousarray(rows[order], dtype=np.uint64).tofile(folder / _ROWS)
        self._work.commit(self._part(sender), {})
        self._work.let_go(self._part(sender))

    def received(self, receiver: int) -> np.ndarray:
        """The rows that all have sent to one receiver, in the order of the senders: (rows, columns)."""
        size = self._columns * _BYTES
        found = []
        for sender in range(self._senders):
            if sender not in self._starts:
                self._starts[sender] = np.frombuffer(self._work.read(self._part(sender), _STARTS), np.int64)
            start, stop = self._starts[sender][receiver : receiver + 2].tolist()
            if stop > start:
                found.append(self._work.read(self._part(sender), _ROWS, start * size, stop * size))
        return np.frombuffer(b"".join(found), np.uint64).reshape(-1, self._columns)

    def _part(self, sender: int) -> str:
        return f"exchange/{self._name}/{sender:05d}"
