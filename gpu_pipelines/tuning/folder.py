"""The folder of a study: a directory, or a folder in object storage with a local directory for its small files.

In object storage, everything that a study must know after a kill is stored before it acts on it. The trials train into
the folder by themselves, like any training; of them the study reads curves and markers, but no weights.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from gpu_pipelines.artifacts.checkpoint import MARKER, METRICS
from gpu_pipelines.artifacts.checkpoint_store import CheckpointStore
from gpu_pipelines.artifacts.remote_files import RemoteFolder, is_remote

STUDY, SPENT, JOURNAL, LOG = "study.json", "spent.json", "journal.jsonl", "log.txt"
#: The folder of the trials, and the prefix of the folder of a longer training.
TRIALS, WINNER = "trials", "winner-"
#: In object storage the journal is a file for each trial, because nothing can be appended there.
_JOURNAL_OF_TRIALS = "journal"
_CHECKPOINTS = "checkpoints"
_READ = re.compile(
    rf"{STUDY}|{SPENT}|{_JOURNAL_OF_TRIALS}/\d+\.jsonl"
    rf"|({TRIALS}/\d+|{WINNER}[^/]+)/({LOG}|{_CHECKPOINTS}/({METRICS}|step-\d+/{re.escape(MARKER)}))"
)


class StudyFolder:
    """The folder of a study.

    Args:
        place: a directory, or `gs://…`.
        scratch: an empty local directory for a place in object storage; not used for a directory.

    Attributes:
        place: the place as it was given.
        directory: the local directory with its small files.
    """

    def __init__(self, place: str | Path, scratch: Path | None = None) -> None:
        self.place = str(place).rstrip("/") or "/"
        self._remote = RemoteFolder(self.place) if is_remote(self.place) else None
        self.directory = Path(place) if self._remote is None or scratch is None else scratch

    @property
    def is_remote(self) -> bool:
        return self._remote is not None

    def fetch(self) -> None:
        """Downloads the current small files."""
        if self._remote is None:
            self.directory.mkdir(parents=True, exist_ok=True)
            return
        names = [name for name in self._remote.names() if _READ.fullmatch(name)]
        self._remote.download(names, self.directory)
        parts = sorted((self.directory / _JOURNAL_OF_TRIALS).glob("*.jsonl"))
        (self.directory / JOURNAL).write_bytes(b"".join(part.read_bytes() for part in parts))

    def keep(self, *names: str) -> None:
        """Stores files of `directory` durably, by their relative paths; missing ones are ignored."""
        if self._remote is not None:
            self._remote.upload(self.directory, [name for name in names if (self.directory / name).is_file()])

    def keep_trial(self, trial: int, lines: Sequence[bytes]) -> None:
        """Stores the journal's lines on a trial durably."""
        if self._remote is not None:
            self._remote.write(f"{_JOURNAL_OF_TRIALS}/{trial:04d}.jsonl", b"".join(lines))

    def shown(self, name: str) -> str:
        """The place of one of its files or folders, for people and for other steps."""
        return f"{self.place}/{name}" if self.is_remote else str(self.directory / name)

    def checkpoints_of(self, name: str) -> str:
        """The place of a trial's checkpoints, by the name of its folder."""
        return self.shown(f"{name}/{_CHECKPOINTS}")

    def seen_of(self, name: str) -> Path:
        """A directory with the curve and the markers of a trial's checkpoints, as of the last look."""
        return self.directory / name / _CHECKPOINTS

    def look_at(self, name: str) -> None:
        """Updates the curve and the markers of a trial, which has been trained since."""
        if self._remote is not None:
            store = CheckpointStore(self.checkpoints_of(name), self.seen_of(name))
            store.fetch_log()
            store.complete()
            self.keep(f"{name}/{LOG}")


def trial_folder(trial: int) -> str:
    """The name of a trial's folder in that of its study."""
    return f"{TRIALS}/{trial:04d}"


def winner_folder(trial: int, steps: int) -> str:
    """The name of the folder of a longer training with the values of a trial."""
    return f"{WINNER}{trial:04d}-{steps}"
