"""Predicts the rows of a source with a model: reads them in pieces, which workers predict, keeps each, and joins them.

The pieces depend only on the source and the parameters. A finished piece is kept with its hashes and skipped after an
interruption, so that no row is twice in the output, and none is missing.
"""

from __future__ import annotations

import json
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

from gpu_pipelines.artifacts.digests import digest_of_program
from gpu_pipelines.artifacts.evaluation import EVALUATION, Evaluation
from gpu_pipelines.artifacts.exported_model import CONFIG
from gpu_pipelines.artifacts.scratch import scratch_folder
from gpu_pipelines.data.settings import limit_of
from gpu_pipelines.data.sources.archives import archive_of
from gpu_pipelines.data.sources.bigquery.load import load_table, require_dataset
from gpu_pipelines.data.sources.files_read import FilesOfSources
from gpu_pipelines.data.sources.fingerprint import source_fingerprint
from gpu_pipelines.data.sources.row_streams import Meter
from gpu_pipelines.data.sources.sources import source_of
from gpu_pipelines.data.units.progress import Progress
from gpu_pipelines.data.units.unfinished_work import UnfinishedWork, kept_work, place_name
from gpu_pipelines.distributed.pieces import WorkOptions
from gpu_pipelines.distributed.signals import noted
from gpu_pipelines.errors import Interrupted, RunFailedError, UserError
from gpu_pipelines.prediction.devices import Workers, workers_for
from gpu_pipelines.prediction.model import Model
from gpu_pipelines.prediction.outputs import (
    REJECTED,
    Joined,
    Predictions,
    keep_piece,
    output_folder,
    piece_name,
    require_output,
    write_predictions,
)
from gpu_pipelines.prediction.settings import NOT_SHAPING, PARQUET, PredictSettings
from gpu_pipelines.prediction.source_rows import MOST_ROWS, Piece, RowSource
from gpu_pipelines.prediction.worker import Check, Predicted, Work, Worker
from gpu_pipelines.prediction.written import Form
from gpu_pipelines.serving.served_models import task_of
from gpu_pipelines.tasks.tasks import task_named, task_problems

#: Most rows of a piece if each takes long: generated texts.
_MOST_TEXTS = 256
#: Most scores of a piece, and the fewest rows in any case; a score takes about 100 bytes until it is written.
_MOST_SCORES, _FEWEST_ROWS = 1 << 20, 32
#: Pieces written to the unfinished work at the same time.
_KEPT_AT_ONCE = 4
_REASONS_TOLD = 3


def predict_batch(
    settings: PredictSettings, model: Model, output: str, unfinished: str, piece_rows: int = 0
) -> Predictions:
    """Predicts all rows of a source, and continues interrupted work.

    Args:
        settings: the rows, and how to write the predictions.
        model: the model.
        output: a directory, or `gs://…`, for the predictions; for the rejected rows and the document if the predictions
            go to a table in BigQuery.
        unfinished: a directory, or `gs://…`, that keeps finished pieces until all are finished.
        piece_rows: most rows of a piece; 0 to choose it; for tests.

    Returns:
        The document of the predictions.

    Raises:
        UserError: a value is wrong, the source or the model cannot be read, too many rows were rejected, or the output
            cannot be written.
        Interrupted: this process got a signal; finished pieces are kept.
    """
    if problems := settings.problems():
        raise UserError.of_all(problems)
    if settings.is_table:
        settings = replace(settings, output_format=PARQUET)
        require_dataset(settings.output, settings.billing_project)
    fingerprint = source_fingerprint(settings.source, settings.billing_project)
    require_output(output)
    place = ""
    if source_of(settings.source).is_repeatable:
        place = f"{unfinished.rstrip('/')}/{_key(settings, model, fingerprint)}"
    with noted() as signalled, kept_work(place, "predicts the same rows") as work:

        def check() -> None:
            if signalled:
                raise Interrupted(f"stopped by {signalled.name}; what is done is kept")

        prediction = _Prediction(settings, model, fingerprint, piece_rows)
        with workers_for(settings.ray_address, settings.device) as workers:
            joined = prediction.all_pieces(work, workers, check)
        with output_folder(output) as folder:
            found = prediction.write(joined, folder, work)
        work.remove()
    return found


def require_usable(settings: PredictSettings, directory: Path) -> None:
    """Checks that a model can predict a source, as far as possible before its rows are read.

    Args:
        settings: the parameters, already checked.
        directory: the exported model; its weights are not needed. A model whose task is not known on this machine is
            not checked: it may be known where the prediction runs.

    Raises:
        UserError: the source cannot be found, lacks a column, or the model does not take a parameter.
    """
    if (directory / EVALUATION).is_file() and task_problems(Evaluation.load(directory).task):
        return
    prediction = _Prediction(settings, Model(directory, "", ""), "", 0)
    if archive_of(settings.rows(task_of(directory))):
        return
    with scratch_folder("source") as scratch:
        prediction.source(scratch / "source")


def _key(settings: PredictSettings, model: Model, fingerprint: str) -> str:
    """The name of the kept work. Pieces do not depend on the number of rows in a file."""
    left_out = {*NOT_SHAPING, "rows_per_file"}
    said = {name: value for name, value in asdict(settings).items() if name not in left_out}
    return place_name([said, model.digest, model.name, model.version], [fingerprint, digest_of_program()])


class _Prediction:
    """One batch prediction.

    Args:
        settings: the parameters, already checked.
        model: the model.
        fingerprint: the fingerprint of the source.
        piece_rows: most rows of a piece; 0 to choose it.
    """

    def __init__(self, settings: PredictSettings, model: Model, fingerprint: str, piece_rows: int) -> None:
        self._settings, self._model, self._fingerprint = settings, model, fingerprint
        self._given_piece_rows = piece_rows
        self._task = task_of(model.directory)
        self._predictor: Any = task_named(self._task).load_predictor()
        self._inputs = self._predictor.inputs_of(model.directory)
        self._form = Form(settings.output_format, self._predictor.answer, model.said, not settings.key_column)
        self._parameters = self._checked_parameters()

    def _checked_parameters(self) -> dict[str, Any]:
        given = {name: getattr(self._settings, name) for name in ("top_k", "max_new_tokens")}
        given = {name: value for name, value in given.items() if value}
        for name in given:
            if name not in self._predictor.parameters:
                raise UserError(f"{name} is given, but a model for {self._task} takes none.", "Leave it out.")
        return given

    @property
    def _piece_rows(self) -> int:
        """Most rows of a piece."""
        if self._given_piece_rows or self._settings.max_new_tokens:
            return self._given_piece_rows or _MOST_TEXTS
        scores = self._settings.top_k or _classes_of(self._model.directory)
        if "top_k" not in self._predictor.parameters or not scores:
            return MOST_ROWS
        return min(MOST_ROWS, max(_FEWEST_ROWS, _MOST_SCORES // scores))

    def source(self, scratch: Path) -> RowSource:
        """Finds the source, in the form that the model reads; arguments and errors as for `RowSource`."""
        return RowSource(self._settings.rows(self._task), self._inputs, self._settings.key_column, scratch)

    def all_pieces(self, work: UnfinishedWork, workers: Workers, check: Callable[[], None]) -> Joined:
        """Predicts the pieces that are not finished yet.

        Args:
            work: holds the finished pieces, and gets the others.
            workers: the workers.
            check: called again and again; ends the work by raising.
        """
        print(f"predicting {self._settings.source} with {self._model.title} ({self._task})", flush=True)
        with scratch_folder("source") as scratch:
            source = self.source(scratch / "source")
            FilesOfSources(source.files, None).say()
            meter = Meter(source.files)
            left = _Left(work, source.pieces(meter, self._piece_rows), check)
            progress = Progress("predicting", meter)
            first = next(iter(left), None)
            left.say()
            if first is not None:
                pieces, told = chain([first], left), self._told(workers, Check(check))
                with _kept_by_threads(work, self._form.suffix) as keep:
                    options = WorkOptions(check, workers.needs, _named)
                    for _, predicted in workers.executor.map(Worker, (told,), pieces, options):
                        keep(predicted)
                        progress.advance(predicted.rows, left.waiting(progress.rows + predicted.rows))
        if not left.rows:  # such as a day without rows for a schedule, or a wrong file
            print(f"warning: {self._settings.source} has no rows, so nothing is predicted", flush=True)
        done = [work.require(piece_name(number)) for number in range(left.pieces)]
        joined = Joined(work, done, self._form)
        if joined.sum_of("read") != left.rows:
            raise UserError(
                f"{self._settings.source} has changed while it was read: {left.rows:,} rows, and "
                f"{joined.sum_of('read'):,} before.",
                "Run the same again.",
            )
        return joined

    def _told(self, workers: Workers, check: Check) -> Work:
        """The work that a worker is told."""
        return Work(
            self._model.place,
            self._inputs.kind,
            self._parameters,
            self._settings.rows_at_once,
            self._form,
            workers.threads,
            workers.needs.gpus > 0,
            check,
        )

    def write(self, joined: Joined, folder: Path, work: UnfinishedWork) -> Predictions:
        """Writes the predictions, unless too many rows were rejected."""
        rejected = joined.counted("rejected")
        joined.write_rejected(folder / REJECTED)
        self._require_few(rejected, joined.sum_of("read"), folder / REJECTED)
        found = Predictions(
            self._task,
            self._model.said,
            self._settings.source,
            self._fingerprint,
            joined.sum_of("read"),
            joined.sum_of("predicted"),
            rejected,
            joined.counted("labels"),
            _not_default(self._settings),
        )
        if self._settings.is_table:
            with tempfile.TemporaryDirectory(prefix="gpu-pipelines-table-") as scratch:
                file = Path(scratch) / "predictions.parquet"
                joined.write_table(file)
                load_table(file, self._settings.output, self._settings.billing_project, self._model.said, work)
            found = replace(found, table=self._settings.output)
        else:
            found = replace(found, files=joined.write_files(folder, self._settings.rows_per_file))
        write_predictions(folder, found)
        return found

    def _require_few(self, rejected: dict[str, int], rows: int, file: Path) -> None:
        most_share, most = limit_of(self._settings.max_rejected)
        count = sum(rejected.values())
        if not count or (count <= most and count <= most_share * rows):
            return
        with file.open(encoding="utf-8") as lines:
            first = [json.loads(line) for line in islice(lines, _REASONS_TOLD)]
        told = "; ".join(f"{row['source']}: {row['reason']}, {row['detail']}"[:300] for row in first)
        reasons = ", ".join(f"{number:,} × {reason}" for reason, number in rejected.items())
        raise RunFailedError(
            f"{count:,} of {rows:,} rows of {self._settings.source} were rejected, more than "
            f"max_rejected={self._settings.max_rejected}: {reasons} (first: {told}).",
            "Fix the rows, or raise max_rejected, a share such as 20%, a number, or unlimited; finished predictions "
            "are kept until then.",
        )


def _named(piece: Piece) -> str:
    return f"the {len(piece.rows):,} rows from {piece.rows[0].place}"


class _Left:
    """Iterates over the unfinished pieces in order; counts all pieces."""

    def __init__(self, work: UnfinishedWork, pieces: Iterator[Piece], check: Callable[[], None]) -> None:
        self._work, self._all, self._check = work, pieces, check
        self.pieces = self.rows = 0
        self._passed_over = self._rows_passed_over = 0

    def __iter__(self) -> Iterator[Piece]:
        return self

    def __next__(self) -> Piece:
        for piece in self._all:
            self._check()
            self.pieces += 1
            self.rows += len(piece.rows)
            if self._work.find(piece_name(piece.number)) is None:
                return piece
            self._passed_over += 1
            self._rows_passed_over += len(piece.rows)
        raise StopIteration

    def waiting(self, done: int) -> float:
        """Share of the rows read whose predictions are not made yet, after `done` rows of this attempt."""
        return 1 - (self._rows_passed_over + done) / self.rows

    def say(self) -> None:
        """Says how many rows an earlier attempt has predicted, of those read so far."""
        if self._passed_over:
            print(f"continuing: the first {self._rows_passed_over:,} rows are predicted already", flush=True)


@contextmanager
def _kept_by_threads(work: UnfinishedWork, suffix: str) -> Iterator[Callable[[Predicted], None]]:
    """Keeps pieces while others are predicted: in object storage each takes a tenth of a second."""
    waiting: deque[Future[None]] = deque()
    with ThreadPoolExecutor(_KEPT_AT_ONCE, thread_name_prefix="keep") as pool:

        def keep(found: Predicted) -> None:
            waiting.append(pool.submit(keep_piece, work, found, suffix))
            if len(waiting) > _KEPT_AT_ONCE:
                waiting.popleft().result()

        yield keep
        for future in waiting:
            future.result()


def _classes_of(directory: Path) -> int:
    """The number of classes of an exported model; 0 if its config.json does not say."""
    config = directory / CONFIG
    return len(json.loads(config.read_text(encoding="utf-8")).get("id2label") or ()) if config.is_file() else 0


def _not_default(settings: PredictSettings) -> dict[str, Any]:
    usual = asdict(PredictSettings())
    return {name: value for name, value in asdict(settings).items() if value != usual[name] and name != "source"}
