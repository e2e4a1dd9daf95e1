"""A process that holds the model, on a GPU or on CPUs, and predicts one piece after another.

Threads read and decode rows ahead of the model. The rows are prepared and predicted by the same code as in the
prediction server.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from gpu_pipelines.artifacts.remote_files import folder_at, is_remote
from gpu_pipelines.data.sources.files import SourceFile
from gpu_pipelines.data.sources.row_streams import LARGEST_TEXT, Problem
from gpu_pipelines.data.units.parallel import in_order
from gpu_pipelines.errors import UserError, named
from gpu_pipelines.prediction.source_rows import NO_NUMBERS, InputRow, Piece, characters, read_value
from gpu_pipelines.prediction.written import Form, Prediction
from gpu_pipelines.serving.batching import Unfinished, one_for_each
from gpu_pipelines.serving.predictor import IMAGES, NUMBERS, Predictor
from gpu_pipelines.serving.predictors import gpus_here, load_predictor
from gpu_pipelines.serving.request_body import WrongRequest
from gpu_pipelines.serving.settings import ServerSettings

#: Rows that a thread prepares at once; the first batch of a piece waits for them, and each image takes milliseconds.
_IMAGES_AT_ONCE, _OTHERS_AT_ONCE = 8, 32
_ROWS_ON_CPU, _ROWS_ON_GPU = 32, 128
#: Requests to object storage at the same time; each waits tens of milliseconds and needs no processor.
_REMOTE_THREADS = 32
#: Most pixels of an image; the server, which others share, accepts fewer.
_MOST_PIXELS = 178_956_970
_REASONS = {IMAGES: "unreadable image", NUMBERS: NO_NUMBERS}
FAILED = "prediction failed"
#: The most labels that are counted.
_LABELS_COUNTED = 1000


class Check:
    """Called again and again while this process predicts; ends the prediction by raising.

    Processes that it is sent to are ended by this one; there it does nothing.
    """

    def __init__(self, check: Callable[[], None] | None = None) -> None:
        self._check = check

    def __call__(self) -> None:
        """Raises if the work has to end."""
        if self._check:
            self._check()

    def __reduce__(self) -> tuple[type[Check], tuple[()]]:
        return Check, ()


@dataclass(frozen=True)
class Work:
    """The work of a worker.

    Attributes:
        model: directory of the exported model, or `gs://…`.
        kind: the kind of the model's input; see `Inputs`.
        parameters: the parameters of each request, as for the server.
        rows_at_once: rows in a batch of the model; 0 to choose it.
        form: the form of the predictions.
        threads: threads that decode, and that compute if there is no GPU.
        on_gpu: whether the model goes on a GPU.
        check: called for each batch.
    """

    model: str
    kind: str
    parameters: dict[str, Any]
    rows_at_once: int
    form: Form
    threads: int
    on_gpu: bool
    check: Check


class Predicted(NamedTuple):
    """The results of a piece.

    Attributes:
        number: the number of the piece.
        rows: its rows.
        content: the predictions, as they are written.
        predicted: the number of predictions.
        rejected: the other rows, each with its source, reason and detail.
        labels: how often each class was predicted.
    """

    number: int
    rows: int
    content: bytes
    predicted: int
    rejected: list[dict[str, Any]]
    labels: Counter[str]


class Worker:
    """Predicts pieces with the model, which it loads. Made once in each process."""

    def __init__(self, work: Work) -> None:
        directory = folder_at(work.model)
        if work.on_gpu and not gpus_here():
            raise UserError("A worker has no GPU that PyTorch sees.", "Check its image and driver, or give device=cpu.")
        self._at_once = work.rows_at_once or (_ROWS_ON_GPU if work.on_gpu else _ROWS_ON_CPU)
        limits = replace(
            ServerSettings(),
            max_batch=self._at_once,
            max_pixels=_MOST_PIXELS,
            max_characters=LARGEST_TEXT,
            max_new_tokens=max(work.parameters.get("max_new_tokens", 0), 1),
        )
        self._predictor: Predictor = load_predictor(directory, limits, work.threads, "cuda" if work.on_gpu else "cpu")
        self._parameters = self._predictor.checked(work.parameters)
        self._work = work
        self._reading = ThreadPoolExecutor(max(work.threads, _REMOTE_THREADS), thread_name_prefix="read")
        # While a GPU computes for one thread, the other makes the next batch. Generated texts have one thread.
        at_a_time = 2 if work.on_gpu and self._predictor.advance is None else 1
        self._predicting = ThreadPoolExecutor(at_a_time, thread_name_prefix="predict")

    def __call__(self, piece: Piece) -> Predicted:
        found: list[Any] = [None] * len(piece.rows)
        for batch, predictions in in_order(self._predicting, self._predicted, self._batches(piece, found), ahead=2):
            self._work.check()
            for (number, _), prediction in zip(batch, predictions, strict=True):
                found[number] = prediction
        self._finish(found)
        predictions, rejected, labels = [], [], Counter[str]()
        for row, prediction in zip(piece.rows, found, strict=True):
            if isinstance(prediction, Problem):
                rejected.append(_rejected(row, prediction))
                continue
            predictions.append(Prediction(row.key, row.instance, prediction))
            labels.update(_classes_of(prediction))
        content = self._work.form.content(predictions)
        counted = Counter(dict(labels.most_common(_LABELS_COUNTED)))
        return Predicted(piece.number, len(piece.rows), content, len(predictions), rejected, counted)

    def _batches(self, piece: Piece, found: list[Any]) -> Iterator[list[tuple[int, Any]]]:
        """The rows of a piece in the model's form, with their numbers; `found` gets the problems of the others."""
        # Texts of similar length fill a batch with little padding.
        order = sorted(range(len(piece.rows)), key=lambda number: characters(piece.rows[number].value))
        size = _IMAGES_AT_ONCE if self._work.kind == IMAGES else _OTHERS_AT_ONCE
        chunks = (order[start : start + size] for start in range(0, len(order), size))
        batch: list[tuple[int, Any]] = []
        is_far = any(isinstance(row.value, SourceFile) and is_remote(row.value.place) for row in piece.rows[:1])
        ahead = _REMOTE_THREADS if is_far else self._work.threads + self._at_once // size
        for numbers, made in in_order(self._reading, lambda chunk: self._decoded(piece, chunk), chunks, ahead):
            for number, row in zip(numbers, made, strict=True):
                if isinstance(row, Problem):
                    found[number] = row
                else:
                    batch.append((number, row))
            while len(batch) >= self._at_once:
                yield batch[: self._at_once]
                batch = batch[self._at_once :]
        if batch:
            yield batch

    def _decoded(self, piece: Piece, numbers: Sequence[int]) -> tuple[Sequence[int], list[Any]]:
        values = [read_value(piece.rows[number].value) for number in numbers]
        rows = iter(
            self._predictor.rows_of([each for each in values if not isinstance(each, Problem)], self._parameters)
        )
        made = [each if isinstance(each, Problem) else next(rows) for each in values]
        return numbers, [self._problem(each) if isinstance(each, WrongRequest) else each for each in made]

    def _problem(self, wrong: WrongRequest) -> Problem:
        # What a client should send instead does not matter here.
        return Problem(_REASONS.get(self._work.kind, "unusable text"), str(wrong).partition(" Send ")[0])

    def _predicted(self, batch: list[tuple[int, Any]]) -> tuple[list[tuple[int, Any]], list[Any]]:
        predictions = self._of_rows([row for _, row in batch])
        if len(batch) > 1 and all(isinstance(each, _Failure) for each in predictions):
            raise UserError(  # not the fault of the rows
                f"The model fails on each of {len(batch)} rows: {predictions[0].problem.detail}.",
                "If its memory is full, give a smaller rows_at_once.",
            ) from predictions[0].error
        return batch, [_or_problem(each) for each in predictions]

    def _of_rows(self, rows: list[Any]) -> list[Any]:
        """Predictions; after a failure the halves of the batch are tried, so that one row does not fail the others."""
        try:
            return one_for_each(rows, self._predictor.answers(rows))
        except Exception as error:  # the libraries' errors are not documented
            if len(rows) == 1:
                return [_Failure(error)]
        half = len(rows) // 2
        return self._of_rows(rows[:half]) + self._of_rows(rows[half:])

    def _finish(self, found: list[Any]) -> None:
        """Continues unfinished rows, such as generated texts, until all are finished."""
        waiting = deque(number for number, each in enumerate(found) if isinstance(each, Unfinished))
        going: list[int] = []
        while waiting or going:
            while waiting and len(going) < self._predictor.writes_at_once:
                going.append(waiting.popleft())
            self._work.check()
            failed = self._advanced([found[number] for number in going])
            for number in going:
                text = found[number]
                found[number] = failed.get(id(text)) or text.prediction or text
            going = [number for number in going if isinstance(found[number], Unfinished)]

    def _advanced(self, texts: list[Any]) -> dict[int, Problem]:
        """Continues some texts, in halves after a failure; returns the problems of those that fail alone."""
        assert self._predictor.advance is not None
        try:
            self._predictor.advance(texts, lambda: False)
        except Exception as error:  # see _of_rows
            if len(texts) == 1:
                return {id(texts[0]): _Failure(error).problem}
        else:
            return {}
        half = len(texts) // 2
        return {**self._advanced(texts[:half]), **self._advanced(texts[half:])}


class _Failure(NamedTuple):
    error: Exception

    @property
    def problem(self) -> Problem:
        return Problem(FAILED, named(self.error)[:300])


def _or_problem(prediction: Any) -> Any:
    if isinstance(prediction, WrongRequest):
        return Problem(FAILED, str(prediction))
    return prediction.problem if isinstance(prediction, _Failure) else prediction


def _rejected(row: InputRow, problem: Problem) -> dict[str, Any]:
    key = {} if row.key == row.place else {"key": row.key}
    return {**key, "source": row.place, "reason": problem.reason, "detail": problem.detail}


def _classes_of(prediction: Mapping[str, Any]) -> list[str]:
    """The classes that a prediction names, one or several."""
    found = [prediction.get("label"), *(many if isinstance(many := prediction.get("labels"), list) else [])]
    return [each for each in found if isinstance(each, str)]
