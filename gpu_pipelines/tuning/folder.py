"""Where a study is kept: a directory, or a folder in object storage with a directory in which its small files are.

In object storage everything that a study must know after a kill is there before anything is done that it speaks of. The
trials train into it by themselves, as any training does; of them the study reads curves and markers, and no weights.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from gpu_pipelines.artifacts.checkpoint import MARKER, METRICS
from gpu_pipelines.artifacts.checkpoint_store import CheckpointStore
from gpu_pipelines.artifacts.remote_files import RemoteFolder, is_remote

STUDY, SPENT, JOURNAL, LOG = "study.json", "spent.json", "journal.jsonl", "log.txt"
#: The folders of the trials, and what stands before that of a longer training.
TRIALS, WINNER = "trials", "winner-"
#: In object storage the journal is a file for each trial: nothing can be appended to one.
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
        scratch: an empty directory of this machine for a place in object storage; not used for a directory.

    Attributes:
        place: as it was given.
        directory: where its small files are, on this machine.
    """

    def __init__(self, place: str | Path, scratch: Path | None = None) -> None:
        self.place = str(place).rstrip("/") or "/"
        self._remote = RemoteFolder(self.place) if is_remote(self.place) else None
        self.directory = Path(place) if self._remote is None or scratch is None else scratch

    @property
    def is_remote(self) -> bool:
        return self._remote is not None

    def fetch(self) -> None:
        """Makes the small files local as they are now."""
        if self._remote is None:
            self.directory.mkdir(parents=True, exist_ok=True)
            return
        names = [name for name in self._remote.names() if _READ.fullmatch(name)]
        self._remote.download(names, self.directory)
        parts = sorted((self.directory / _JOURNAL_OF_TRIALS).glob("*.jsonl"))
        (self.directory / JOURNAL).write_bytes(b"".join(part.read_bytes() for part in parts))

    def keep(self, *names: str) -> None:
        """Makes files of `directory` last, by their relative paths; those that are not there are passed over."""
        if self._remote is not None:
            self._remote.upload(self.directory, [name for name in names if (self.directory / name).is_file()])

    def keep_trial(self, trial: int, lines: Sequence[bytes]) -> None:
        """Makes what the journal says of a trial last."""
        if self._remote is not None:
            self._remote.write(f"{_JOURNAL_OF_TRIALS}/{trial:04d}.jsonl", b"".join(lines))

    def shown(self, name: str) -> str:
        """Where a file or folder of it is, for people and for other steps."""
        return f"{self.place}/{name}" if self.is_remote else str(self.directory / name)

    def checkpoints_of(self, name: str) -> str:
        """Where the checkpoints of a trial go, by the name of its folder."""
        return self.shown(f"{name}/{_CHECKPOINTS}")

    def seen_of(self, name: str) -> Path:
        """A directory with the curve and the markers of a trial's checkpoints, as they were last looked at."""
        return self.directory / name / _CHECKPOINTS

    def look_at(self, name: str) -> None:
        """Looks at the checkpoints of a trial, which has been trained since."""
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
