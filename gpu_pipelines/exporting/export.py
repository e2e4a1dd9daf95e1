"""Exports a registered model to the format of another program, and evaluates it again on the same rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

from gpu_pipelines import __version__
from gpu_pipelines.artifacts.dataset import Dataset
from gpu_pipelines.artifacts.documents import sha256_of_tree, write_document
from gpu_pipelines.artifacts.evaluation import EVALUATION, Evaluation
from gpu_pipelines.artifacts.exported_model import EXPORT
from gpu_pipelines.artifacts.remote_files import RemoteFolder, is_remote
from gpu_pipelines.artifacts.scratch import scratch_folder
from gpu_pipelines.errors import UserError, first_line, is_of_a_full_disk
from gpu_pipelines.evaluation.models.loading import Loaded, ModelSource, load_champion
from gpu_pipelines.evaluation.scorers.runner import Runner, RunnerSettings
from gpu_pipelines.evaluation.settings import Ranking
from gpu_pipelines.evaluation.statistics.bootstrap import json_metrics
from gpu_pipelines.exporting import gguf_model, onnx_model
from gpu_pipelines.exporting.comparison import SAME_LOGITS, agreement, is_language_model, lost, metrics_of, rows_at_once
from gpu_pipelines.exporting.settings import ExportSettings
from gpu_pipelines.numbers import figure
from gpu_pipelines.tasks.image_preprocessor import PREPROCESSOR
from gpu_pipelines.tasks.tasks import task_named
from gpu_pipelines.tasks.text_tokenizer import TOKENIZER_FILES, copy_files

_SCRATCH = ".export"
#: Files that go with an ONNX graph; GGUF has all of this in one file.
_BESIDE = ("config.json", "generation_config.json", PREPROCESSOR, *TOKENIZER_FILES)
_FORMATS: dict[str, ModuleType] = {"onnx": onnx_model, "gguf": gguf_model}


@dataclass(frozen=True)
class Exported:
    """A finished export.

    Attributes:
        place: the folder.
        content: the content of `export.json`.
    """

    place: str
    content: dict[str, Any]

    def __repr__(self) -> str:
        told = self.content
        before, after = (figure(told[when][told["metric"]]) for when in ("before", "after"))
        metric = f"{told['metric']} {before} before, {after} after, on {told['rows']:,} test rows"
        return f"Exported {told['model']} as {told['format']} in {told['dtype']} to {self.place}: {metric}"


def export_model(model: Path, title: str, dataset: Dataset, settings: ExportSettings) -> Exported:
    """Writes a model in another format, scores it on the test rows, and keeps it if it lost no more than allowed.

    Args:
        model: directory of the exported model, in Hugging Face layout.
        title: its name in messages.
        dataset: the dataset whose test rows are scored, usually that of the evaluation.
        settings: the format, the destination, and the allowed loss.

    Returns:
        The export; after a failure nothing is left.

    Raises:
        UserError: a value is wrong, the model cannot be written in this format, or the result is worse than allowed.
    """
    if problems := settings.problems():
        raise UserError.of_all(problems)
    require_free(settings.to)
    task = dataset.manifest.task
    if settings.format == "gguf" and not is_language_model(dataset):
        raise UserError(f"GGUF is for language models; {title} is for {task}.", "Give --format onnx.")
    runner, loaded = _opened(model, title, dataset)
    exporter = _FORMATS[settings.format]
    exporter.require_writable(loaded.model, model)
    with _incoming(settings.to) as folder:
        print(f"writing {title} as {settings.format} in {settings.numbers}", flush=True)
        other, told = _written(loaded, model, dataset, folder, settings)
        result = _compared(runner, loaded, other, _ranking(model, dataset), title, settings)
        content = {
            "format": settings.format,
            "dtype": settings.numbers,
            "model": title,
            "task": task,
            **told,
            **result,
            "dataset_fingerprint": dataset.manifest.fingerprint,
            "gpu_pipelines": __version__,
            "files": sha256_of_tree(folder),
        }
        write_document(folder / EXPORT, content)
        _move(folder, settings.to)
    return Exported(settings.to, content)


def require_free(to: str) -> None:
    """Refuses a place that is not empty.

    Raises:
        UserError: there are files, or it cannot be read.
    """
    if is_remote(to):
        taken = bool(RemoteFolder(to).names())
    else:
        place = Path(to).expanduser()
        try:
            # A killed export has left its scratch folder, which the next one removes.
            taken = any(not each.name.startswith(f"{_SCRATCH}-") for each in place.iterdir())
        except FileNotFoundError:
            taken = place.is_symlink()  # a link to nothing is neither a folder nor free
        except NotADirectoryError:
            taken = True
        except OSError as error:
            raise UserError(f"{to} cannot be read: {error.strerror}.", "Give another folder.") from None
    if taken:
        raise UserError(f"{to} is not empty.", "Give another folder, or remove what is there.")


def _opened(directory: Path, title: str, dataset: Dataset) -> tuple[Runner, Loaded]:
    """The model in memory, and its runner."""
    training: dict[str, Any] = {}
    if (directory / EVALUATION).is_file():
        evaluation = Evaluation.load(directory)
        training = evaluation.configuration["settings"]
        if evaluation.scoring_function:
            raise UserError(
                f"{title} was scored by {evaluation.scoring_function}, so the format of its files is not known here.",
                "Export it with the program that trained it.",
            )
    if training.get("recipe") or not task_named(dataset.manifest.task).recipe:
        raise UserError(
            f"{title} was trained by a recipe of its own, {training.get('recipe') or dataset.manifest.task}, so the "
            "inputs of its model are not known here.",
            "Export it with torch.onnx.export.",
        )
    runner = Runner(RunnerSettings(dataset.directory, training, "", rows_at_once(dataset)), "cpu")
    loaded = load_champion(ModelSource("champion", directory, title), dataset)
    loaded.model.eval()
    return runner, loaded


def _written(
    loaded: Loaded, directory: Path, dataset: Dataset, folder: Path, settings: ExportSettings
) -> tuple[nn.Module, dict[str, Any]]:
    """Writes the model; returns the model read back from the files, and facts for `export.json`."""
    config = getattr(loaded.model, "config", None)
    if settings.format == "gguf":
        gguf_model.write(loaded.model, directory, folder, settings.numbers)
        opened = gguf_model.opened(folder, config)
        return opened, {"evaluated_by": f"transformers {version('transformers')}, from {gguf_model.FILE}"}
    test = dataset.split("test")
    rows = test.take(np.array([0, len(test) - 1]))
    batch = loaded.recipe.batch(rows, torch.device("cpu"))
    inputs = onnx_model.Inputs(loaded.model, lambda: loaded.recipe.predict(loaded.model, batch))
    onnx_model.write(loaded.model, inputs, folder, settings.numbers, settings.opset)
    copy_files(_BESIDE, directory, folder)
    told = {"opset": settings.opset, "inputs": onnx_model.described(inputs), "output": onnx_model.OUTPUT}
    by = f"onnxruntime {version('onnxruntime')}"
    return onnx_model.OnnxModel(folder, inputs, config), {**told, "evaluated_by": by}


def _compared(
    runner: Runner, loaded: Loaded, other: nn.Module, ranking: Ranking, title: str, settings: ExportSettings
) -> dict[str, Any]:
    """Metrics before and after, and the difference of the logits.

    Raises:
        UserError: the exported model has lost more than allowed.
    """
    dataset = runner.dataset
    close = agreement(dataset, loaded, other)
    if settings.numbers == "f32" and close.share > SAME_LOGITS:
        raise UserError(
            f"{title} was not exported: its logits on {close.rows} test rows would be off by {close.off:.2g}; the "
            f"largest is {close.largest:.3g}.",
            f"In f32 the tolerance is {SAME_LOGITS:g} of that. Give another format.",
        )
    rows = dataset.manifest.rows("test")
    before = metrics_of(runner, loaded, rows)
    after = metrics_of(runner, replace(loaded, model=other), rows)
    share = lost(before, after, ranking)
    # The reference of a preference loss stays with the checkpoints, so these figures differ from the evaluation's.
    alone = runner.scoring.has_reference
    said = f"{ranking.metric}{' without the reference model' if alone else ''} on {rows:,} test rows: "
    said += f"{figure(before[ranking.metric])} before, "
    said += f"{figure(after[ranking.metric])} after"
    if not share <= settings.margin:
        raise UserError(
            f"{title} was not exported: it would lose {share:.2%} of its {ranking.metric}, and the margin is "
            f"{settings.margin:.2%}. {said}.",
            "Give --dtype f32, or a larger --margin.",
        )
    print(f"{said}; logits are off by at most {close.off:.2g}", flush=True)
    return {
        "metric": ranking.metric,
        "more_is_better": ranking.more_is_better,
        "lost": share,
        "margin": settings.margin,
        "rows": rows,
        "before": json_metrics(before),
        "after": json_metrics(after),
        **({"without_reference": True} if alone else {}),
        "logits": {**asdict(close), "share": close.share},
    }


def _ranking(model: Path, dataset: Dataset) -> Ranking:
    """The metric by which the model was chosen, else the first of its task."""
    known = task_named(dataset.manifest.task).metrics
    name = next(iter(known))
    if (model / EVALUATION).is_file():
        chosen = Evaluation.load(model).select_by
        name = chosen if chosen in known else name
    return Ranking(name, known[name].more_is_better)


@contextmanager
def _incoming(to: str) -> Iterator[Path]:
    """A folder to write to; it is removed in the end, unless it was moved.

    Raises:
        UserError: it cannot be created.
    """
    place = Path(to).expanduser().absolute()
    # On the disk of the place, which may be a mount point.
    beside = None if is_remote(to) else place if place.is_dir() else place.parent
    with ExitStack() as stack:
        try:
            if beside is not None:
                beside.mkdir(parents=True, exist_ok=True)
            folder = stack.enter_context(scratch_folder(_SCRATCH, beside)) / "model"
            folder.mkdir()
        except OSError as error:
            raise UserError(f"{to} cannot be written: {error.strerror}.", "Give another folder.") from None
        try:
            yield folder
        except OSError as error:
            # For a tensor that does not fit, numpy says only how many numbers were written.
            if not (is_of_a_full_disk(error) or error.errno is None):
                raise
            told = f"The export could not be written on the disk of {folder.parent.parent}: {first_line(error)}."
            raise UserError(told, "Make room there, or give another folder.") from None


def _move(folder: Path, to: str) -> None:
    """Puts the files into their place: all at once, or into a folder or bucket that is there, the description last."""
    if not is_remote(to):
        place = Path(to).expanduser()
        if place.is_dir():
            require_free(to)  # another export may have come first
            for path in sorted(folder.iterdir(), key=lambda path: path.name == EXPORT):
                path.rename(place / path.name)
        else:
            folder.rename(place)
        return
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    target = RemoteFolder(to)
    try:
        target.upload(folder, [name for name in names if name != EXPORT])
        target.require_same(folder, [name for name in names if name != EXPORT])
        target.upload(folder, [EXPORT])
    except BaseException:
        target.delete(names)
        raise
