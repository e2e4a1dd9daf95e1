"""The outputs of a batch prediction: predictions, rejected rows, and `predictions.json`, which is written last.

predictions-00000-of-00002.jsonl    or .parquet
rejected.jsonl                      the other rows, each with its source, a reason and a detail
predictions.json                    the model, the source, how many rows, and each file with its hash

If a later prediction fails, all of these stay, and its rejected rows are in a file beside them.
"""

from __future__ import annotations

import fcntl
import os
import random
import re
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from gpu_pipelines.artifacts.documents import fields_in, read_as, sha256_of_file, write_document
from gpu_pipelines.artifacts.remote_files import RemoteFolder, is_remote
from gpu_pipelines.artifacts.scratch import scratch_folder
from gpu_pipelines.data.units.unfinished_work import UnfinishedWork
from gpu_pipelines.errors import UserError, full_disk_named
from gpu_pipelines.prediction.settings import DATE, TIME
from gpu_pipelines.prediction.worker import Predicted
from gpu_pipelines.prediction.written import Form, as_json

DOCUMENT, REJECTED = "predictions.json", "rejected.jsonl"
#: The rejected rows of a failed prediction, beside the files of an earlier one.
REJECTED_BY_A_FAILED = "rejected-by-a-failed-prediction.jsonl"
_PART = "part"
#: Files of earlier predictions that a new one does not overwrite.
_EARLIER = re.compile(rf"predictions-\d{{5,}}-of-\d{{5,}}\.\w+|{re.escape(REJECTED_BY_A_FAILED)}")
#: Prefix of the folder in which predictions are joined; a killed process leaves it behind.
_SCRATCH = ".predictions"
_WHAT = "document of predictions"
#: Most tries to put predictions into a bucket while another prediction does the same.
_MOST_TIMES = 10


@dataclass(frozen=True)
class OutputFile:
    """A file of predictions: its name, its rows and its hex SHA-256."""

    path: str
    rows: int
    sha256: str


#: Most reasons of a representation.
_MOST_SHOWN = 8


@dataclass(frozen=True)
class Predictions:
    """The document of predictions.

    Attributes:
        task: the task of the model.
        model: the model; see `Model.said`.
        source: as it was named.
        source_fingerprint: tells versions of the source apart; empty if that is not possible.
        rows_read: rows of the source.
        rows_predicted: rows with a prediction.
        rejected: the other rows by reason.
        labels: for a classifier, how often each class was predicted; the most frequent 1,000.
        parameters: the parameters of the prediction that differ from the defaults.
        files: the files with predictions; none if they are in a table.
        table: the table in BigQuery; empty for none.
    """

    task: str
    model: dict[str, Any]
    source: str
    source_fingerprint: str
    rows_read: int
    rows_predicted: int
    rejected: dict[str, int]
    labels: dict[str, int]
    parameters: dict[str, Any]
    files: list[OutputFile] = field(default_factory=list)
    table: str = ""

    @property
    def rows_rejected(self) -> int:
        return sum(self.rejected.values())

    def __repr__(self) -> str:
        where = self.table or f"{self.parameters.get('output', '')} ({len(self.files)} files)"
        why = [f"{count:,} rejected: {reason}" for reason, count in list(self.rejected.items())[:_MOST_SHOWN]]
        more = [f"and {len(self.rejected) - _MOST_SHOWN} more reasons"] if len(self.rejected) > _MOST_SHOWN else []
        predicted = f"{self.rows_predicted:,} of {self.rows_read:,} rows of {self.source}"
        return "\n  ".join([f"Predictions of {predicted}, in {where}", *why, *more])

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Predictions:
        """Reads what `asdict` returns; raises KeyError or TypeError for anything else."""
        files = [OutputFile(**fields_in(OutputFile, each)) for each in content["files"]]
        return cls(**fields_in(cls, content) | {"files": files})

    @classmethod
    def load(cls, folder: Path) -> Predictions:
        """Reads the document of a folder. Raises `UserError` if there is none, or it is another program's."""
        return read_as(folder / DOCUMENT, _WHAT, cls.from_json)


def keep_piece(work: UnfinishedWork, found: Predicted, suffix: str) -> None:
    """Keeps the results of a piece, so that it is not predicted again."""
    name = piece_name(found.number)
    lines = "".join(as_json(row) + "\n" for row in found.rejected)
    reasons = dict(Counter(row["reason"] for row in found.rejected))
    counts = {"read": found.rows, "predicted": found.predicted, "rejected": reasons, "labels": dict(found.labels)}
    with full_disk_named("What is predicted", work.path("").absolute()):
        folder = work.begin(name)
        (folder / f"{_PART}.{suffix}").write_bytes(found.content)
        (folder / REJECTED).write_text(lines, encoding="utf-8")
        work.commit(name, counts)


def piece_name(number: int) -> str:
    """The name of a piece in the unfinished work."""
    return f"pieces/{number:07d}"


@dataclass(frozen=True)
class Joined:
    """All pieces, in the order of the source."""

    work: UnfinishedWork
    done: Sequence[Mapping[str, Any]]
    form: Form

    def sum_of(self, name: str) -> int:
        """A sum over all pieces, such as the rows read or predicted."""
        return sum(int(each[name]) for each in self.done)

    def counted(self, name: str) -> dict[str, int]:
        """Counts over all pieces, such as rejected rows by reason or labels, the most frequent first."""
        total: Counter[str] = Counter()
        for each in self.done:
            total.update(each[name])
        return dict(sorted(total.items(), key=lambda pair: (-pair[1], pair[0])))

    def write_files(self, folder: Path, rows_per_file: int) -> list[OutputFile]:
        """Writes the predictions; a file ends with the piece that reaches `rows_per_file`."""
        groups = list(self._groups(rows_per_file))
        files = []
        for number, pieces in enumerate(groups):
            path = folder / f"predictions-{number:05d}-of-{len(groups):05d}.{self.form.suffix}"
            self._join(pieces, path)
            rows = sum(int(self.done[piece]["predicted"]) for piece in pieces)
            files.append(OutputFile(path.name, rows, sha256_of_file(path)))
        return files

    def write_table(self, path: Path) -> None:
        """Writes all predictions as one file."""
        self._join(range(len(self.done)), path)

    def write_rejected(self, path: Path) -> None:
        """Writes the list of the rejected rows."""
        with path.open("wb") as whole:
            for number in range(len(self.done)):
                with (self.work.path(piece_name(number)) / REJECTED).open("rb") as part:
                    shutil.copyfileobj(part, whole)

    def _join(self, pieces: Sequence[int], path: Path) -> None:
        parts = (self.work.path(piece_name(piece)) / f"{_PART}.{self.form.suffix}" for piece in pieces)
        self.form.join(parts, path)

    def _groups(self, rows_per_file: int) -> Iterator[list[int]]:
        group: list[int] = []
        rows = 0
        for number, done in enumerate(self.done):
            group.append(number)
            rows += int(done["predicted"])
            if rows >= rows_per_file:
                yield group
                group, rows = [], 0
        if group or not self.done:
            yield group


def write_predictions(folder: Path, predictions: Predictions) -> None:
    """Writes the document, after all the files that it names."""
    write_document(folder / DOCUMENT, asdict(predictions))


def told(made: Predictions, place: str) -> str:
    """The result of a prediction and its place, in one line."""
    reasons = ", ".join(f"{rows:,} × {reason}" for reason, rows in made.rejected.items())
    where = made.table or f"{len(made.files)} file{'s' * (len(made.files) != 1)} in {place}"
    rejected = f"rejected {made.rows_rejected:,}{f' ({reasons})' if reasons else ''}"
    return f"predicted {made.rows_predicted:,} of {made.rows_read:,} rows, {rejected}: {where}"


def filled_in(place: str, now: datetime | None = None) -> str:
    """A place with date and time filled in."""
    now = now or datetime.now(timezone.utc)
    return place.replace(DATE, f"{now:%Y%m%d}").replace(TIME, f"{now:%H%M%S}")


def require_output(place: str) -> None:
    """Refuses a place that predictions cannot be written to, before hours of predicting are lost.

    Args:
        place: a directory, which is created, or `gs://…`.

    Raises:
        UserError: the place cannot be written to, or holds the document of another program.
    """
    with _Output.opened(place) as output, output.alone():
        output.has_earlier()


@contextmanager
def output_folder(place: str) -> Iterator[Path]:
    """A local folder to write predictions to; they are put into their place at the end of the block.

    Earlier predictions are replaced only then; other files stay. If the block ends with an error, its rejected rows are
    kept beside the earlier files.

    Args:
        place: a directory, or `gs://…`.

    Raises:
        UserError: the place cannot be written to, or holds the document of another program.
    """
    with _Output.opened(place) as output:
        with output.alone():
            has_earlier = output.has_earlier()
        try:
            with full_disk_named("The predictions", output.new.parent.absolute()):
                yield output.new
        except UserError:
            if (output.new / REJECTED).exists():
                name = REJECTED_BY_A_FAILED if has_earlier else REJECTED
                (output.new / REJECTED).rename(output.new / name)
                output.take([name])
                print(f"all rejected rows: {place.rstrip('/')}/{name}", flush=True)
            raise
        output.put()


@dataclass(frozen=True)
class _Output:
    """The destination of predictions.

    Attributes:
        new: a folder for the new files.
        folder: the directory of the predictions; None for a bucket.
        remote: the folder in a bucket; None for a directory.
    """

    new: Path
    folder: Path | None = None
    remote: RemoteFolder | None = None

    @classmethod
    @contextmanager
    def opened(cls, place: str) -> Iterator[_Output]:
        """Opens a place. Raises UserError if it cannot be written to."""
        if is_remote(place):
            with scratch_folder("predictions") as scratch:
                yield cls(scratch, remote=RemoteFolder(place))
            return
        folder = Path(place).expanduser()
        with ExitStack() as stack:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                # On the same disk, so that files can be moved into place whole.
                scratch = stack.enter_context(scratch_folder(_SCRATCH, folder))
            except OSError as error:
                reason = error.strerror or error
                raise UserError(f"{folder} cannot be written to: {reason}.", "Give another output.") from None
            yield cls(scratch, folder=folder)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Within the block, no other prediction on this machine puts its files into the same directory."""
        with ExitStack() as stack:
            if self.folder is not None:
                directory = os.open(self.folder, os.O_RDONLY)
                stack.callback(os.close, directory)
                with suppress(OSError):  # a file system may not support locks of directories
                    fcntl.flock(directory, fcntl.LOCK_EX)
            yield

    def has_earlier(self) -> bool:
        """Whether there are earlier predictions. Raises UserError if their document is another program's."""
        if self.remote is None:
            assert self.folder is not None
            if not (self.folder / DOCUMENT).exists():
                return False
            Predictions.load(self.folder)
            return True
        try:
            content = self.remote.read(DOCUMENT)
        except FileNotFoundError:
            return False
        with tempfile.TemporaryDirectory(prefix="gpu-pipelines-predictions-") as scratch:
            (Path(scratch) / DOCUMENT).write_bytes(content)
            Predictions.load(Path(scratch))
        return True

    def put(self) -> None:
        """Puts all new files into place, the document last, and deletes those of earlier predictions.

        A bucket has no lock. If two predictions end at the same moment, each checks that all its files are as it wrote
        them, and puts them there again if not; the one that checks last prevails.

        Raises:
            UserError: they never were as written.
        """
        now = {path.name for path in self.new.iterdir()}
        for _ in range(_MOST_TIMES):
            began = time.monotonic()
            with self.alone():
                self.has_earlier()
                self.delete([DOCUMENT])  # without it an earlier prediction no longer counts
                self.take(sorted(now - {DOCUMENT}))
                self.take([DOCUMENT])
                # Also files of a prediction that ended before it wrote its document.
                self.delete(sorted({name for name in self._names() if _EARLIER.fullmatch(name)} - now))
            if self.remote is None or not self.remote.different(self.new, sorted(now)):
                return
            # So that they do not start together again.
            time.sleep(random.uniform(0, 2 * (time.monotonic() - began)))  # noqa: S311 (no secret)
        raise UserError("Other predictions keep writing into the same output.", "Give each an output of its own.")

    def _names(self) -> list[str]:
        if self.remote is not None:
            return self.remote.names()
        assert self.folder is not None
        return [path.name for path in self.folder.iterdir()]

    def take(self, names: Sequence[str]) -> None:
        """Puts new files into place."""
        if self.remote is not None:
            self.remote.upload(self.new, names)
            return
        assert self.folder is not None
        for name in names:
            (self.new / name).replace(self.folder / name)

    def delete(self, names: Sequence[str]) -> None:
        """Deletes files of the place; missing ones are ignored."""
        if self.remote is not None:
            self.remote.delete(names)
            return
        assert self.folder is not None
        for name in names:
            (self.folder / name).unlink(missing_ok=True)
