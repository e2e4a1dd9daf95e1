"""Scores models with the recipe of their task: checkpoints of the training, or Hugging Face directories."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from gpu_pipelines.artifacts.checkpoint import MARKER
from gpu_pipelines.artifacts.dataset import Dataset
from gpu_pipelines.artifacts.documents import sha256_of_file, sha256_of_tree
from gpu_pipelines.artifacts.integrity import digest_of
from gpu_pipelines.errors import UserError
from gpu_pipelines.evaluation.generation.request import VLLM
from gpu_pipelines.evaluation.generation.scores import ScoresWithText
from gpu_pipelines.evaluation.generation.text_scoring import TextScoring
from gpu_pipelines.evaluation.models.average import write_average
from gpu_pipelines.evaluation.models.by_recipe import (
    configuration_in,
    foreign_candidates,
    foreign_models,
    good_checkpoints,
    trained_candidates,
)
from gpu_pipelines.evaluation.models.candidates import Candidate, WorkOnModels
from gpu_pipelines.evaluation.models.hugging_face import copy_adapters, copy_model
from gpu_pipelines.evaluation.models.loading import Loaded, ModelSource, champion_errors
from gpu_pipelines.evaluation.scorers.examples import examples_of
from gpu_pipelines.evaluation.scorers.runner import RunnerSettings
from gpu_pipelines.evaluation.scorers.sharding import ShardedRunner, evaluation_devices
from gpu_pipelines.evaluation.scorers.vllm_process import writes_with_vllm, written_in_process
from gpu_pipelines.evaluation.scores import Scores
from gpu_pipelines.registry import RegisteredVersion
from gpu_pipelines.tasks.checkpoint_state import AVERAGE, WEIGHTS
from gpu_pipelines.tasks.model_places import holds_adapters
from gpu_pipelines.tasks.tasks import task_named

MOST_ROWS_PER_BATCH = 256
#: Of models whose training is not known and whose output may be large.
TEXTS_PER_BATCH = 8


class RecipeScorer:
    """Runs models over the rows of a dataset, on all GPUs of the machine; see `Scorer`.

    Args:
        dataset: its `val` and `test` splits are read.
        directory: of a training's checkpoints; or a model in Hugging Face layout, or a folder of them.
        average_last: number of last checkpoints to average into one more candidate; 0 for none.
        processes: number of GPUs or CPU processes; None for all that the step was placed on.
        training: prefix of the candidates' names; empty if there is only one training.
        texts: scores written text; None if none is written.
        texts_on_val: whether each candidate also writes text for `val`.

    Raises:
        UserError: there is no good checkpoint, or data and checkpoints do not belong together.
    """

    def __init__(
        self,
        dataset: Dataset,
        directory: Path,
        average_last: int = 0,
        processes: int | None = None,
        training: str = "",
        texts: TextScoring | None = None,
        texts_on_val: bool = False,
    ) -> None:
        self._dataset = dataset
        self._texts, self._texts_on_val = texts, texts_on_val
        self._scoring = task_named(dataset.manifest.task).load_scoring(dataset)
        self._scratch = tempfile.TemporaryDirectory(prefix="gpu-pipelines-evaluation-")
        self._trained = not foreign_models(directory)
        checkpoints = good_checkpoints(directory, dataset, training) if self._trained else []
        self._configuration = configuration_in(directory) if self._trained else {"settings": {}, "devices": {}}
        self._scoring.trained_with(self._configuration["settings"])
        self._referred: set[str] = set()
        frozen = {checkpoint.info.frozen_weights_sha256 for checkpoint in checkpoints} - {""}
        if len(frozen) > 1:
            raise UserError(f"The checkpoints of {directory} hold adapters for different models.")
        self._settings = RunnerSettings(
            dataset.directory,
            self._configuration["settings"],
            next(iter(frozen), ""),
            self._rows_per_batch(),
            texts.request.generate_rows if texts else 0,
            texts.request.max_new_tokens if texts else 0,
        )
        self._processes = processes
        self._opened: ShardedRunner | None = None
        found = trained_candidates(checkpoints, self._has_ema) if self._trained else foreign_candidates(directory)
        self.candidates = [replace(candidate, training=training) for candidate in found]
        if average_last:
            self._add_average(average_last)

    @property
    def _has_ema(self) -> bool:
        """Whether the checkpoints hold a moving average of the weights."""
        return bool(self._configuration["settings"].get("ema_decay"))

    @property
    def _devices(self) -> list[str]:
        return evaluation_devices(torch.cuda.device_count(), self._processes)

    @property
    def _sharded(self) -> ShardedRunner:
        """What runs the models; begun when it is first needed."""
        if self._opened is None:
            self._opened = ShardedRunner(self._settings, self._devices, at_once=self._processes is not None)
        return self._opened

    def release(self) -> None:
        """Ends the processes and frees their memory, until the next model is run."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def configuration_of(self, candidate: Candidate) -> dict[str, Any]:
        return self._configuration

    def on_val(self, done: Callable[[int, Scores], None]) -> None:
        sources = [self._source(candidate) for candidate in self.candidates]
        self._scored(sources, "val", done, self._texts if self._texts_on_val else None)

    def on_test(self, candidate: Candidate) -> Scores:
        return self._score_on_test(self._source(candidate))

    def champion_on_test(self, champion: RegisteredVersion) -> Scores:
        return self._score_on_test(_champion(champion))

    def each(self, models: Sequence[Candidate | RegisteredVersion], work: WorkOnModels) -> None:
        """Does work with models, spread over all processes; see `RunsModels` of benchmarks."""
        sources = [self._source(each) if isinstance(each, Candidate) else _champion(each) for each in models]
        self._sharded.each(sources, work)

    def identity_of(self, candidate: Candidate) -> str:
        """Hex SHA-256 that identifies the weights of a candidate."""
        if candidate.averages:
            members = [each for each in self.candidates if each.name in candidate.averages]
            return digest_of({each.name: self.identity_of(each) for each in members})
        if not self._trained:
            return digest_of(sha256_of_tree(candidate.path))
        # It holds the hashes of all files.
        info = sha256_of_file(candidate.path / MARKER)
        return digest_of({"checkpoint": info, "frozen": self._settings.frozen_sha256, "ema": str(candidate.ema)})

    def latency(self, candidate: Candidate) -> dict[str, Any]:
        took = self._sharded.runner.latency_ms(self._source(candidate), "test")
        p50, p95 = np.percentile(took, [50, 95])
        device = self._sharded.runner.device_name
        return {"p50_ms": float(p50), "p95_ms": float(p95), "calls": len(took), "device": device}

    def worst(self, scores: Scores) -> list[dict[str, Any]]:
        return self._scoring.worst(scores.others if isinstance(scores, ScoresWithText) else scores)

    def slice_values(self, column: str) -> list[str]:
        return self._scoring.slice_values(column)

    def export(self, candidate: Candidate, directory: Path) -> None:
        models = self._sharded.runner.models
        loaded = models.load(self._source(candidate))
        if self._configuration["settings"].get("lora_rank"):
            from gpu_pipelines.tasks.adapters import save_adapters

            base = self._configuration["settings"]["model"]
            save_adapters(loaded.model, base, getattr(loaded.recipe, "auto_class", ""), directory)
        self._write(candidate.path, loaded, directory)
        copy_adapters(candidate.path, directory)
        if examples := examples_of(loaded, self._dataset, self._scoring, models.device):
            examples.save(directory)

    def close(self) -> None:
        self.release()
        self._scratch.cleanup()

    def _source(self, candidate: Candidate) -> ModelSource:
        kind: Literal["checkpoint", "hugging_face"] = "checkpoint" if self._trained else "hugging_face"
        return ModelSource(kind, candidate.path, candidate.name, AVERAGE if candidate.ema else WEIGHTS)

    def _score_on_test(self, source: ModelSource) -> Scores:
        found: list[Scores] = []
        self._scored([source], "test", lambda number, scores: found.append(scores), self._texts)
        return found[0]

    def _scored(
        self,
        sources: list[ModelSource],
        split: str,
        done: Callable[[int, Scores], None],
        texts: TextScoring | None,
    ) -> None:
        """Scores models on a split; with their text, if `texts` is given, which they write afterwards."""
        others: dict[int, Scores] = {}
        rows = self._rows(split)
        self._refer(split, rows)

        def scored(number: int, predicted: np.ndarray) -> None:
            scores = self._scoring.scores(predicted, split)
            # Those of one checkpoint may be gigabytes, so they are kept only where text is still to be added.
            if texts is None:
                done(number, scores)
            else:
                others[number] = scores

        self._sharded.predict(sources, split, rows, scored)
        if texts is None:
            return
        if writes_with_vllm(texts.request.generate_with, self._devices[0]):
            for number, source in enumerate(sources):
                done(number, texts.scores(self._written_by_vllm(source, split, texts), split, others[number], VLLM))
        else:
            self._sharded.write(
                sources,
                split,
                len(texts.units(split)),
                lambda number, written: done(number, texts.scores(written, split, others[number])),
            )

    def _written_by_vllm(self, source: ModelSource, split: str, texts: TextScoring) -> np.ndarray:
        """What the model of a source writes, unit after unit; a checkpoint is exported for that."""
        pairs = texts.pairs(split)
        prompts = [pairs[number].prompt for unit in texts.units(split) for number in unit]
        with tempfile.TemporaryDirectory(dir=self._scratch.name) as scratch, champion_errors(source):
            model = source.path
            if source.kind == "checkpoint" or holds_adapters(source.path):
                model = Path(scratch)
                self._write(source.path, self._sharded.runner.models.load(source), model)
            self.release()
            most = texts.request.max_new_tokens
            written = written_in_process(self._dataset.directory, model, source.title, prompts, most)
        return np.array(written, dtype=object)

    def _write(self, path: Path, loaded: Loaded, directory: Path) -> None:
        """Writes a model from `path` as it is exported; with adapters, it is none of the training any more."""
        if not self._trained and not holds_adapters(path):
            copy_model(path, directory, self._dataset)
            loaded.recipe.complete(directory)
            return
        if self._configuration["settings"].get("lora_rank"):
            from gpu_pipelines.tasks.adapters import merge_adapters

            merge_adapters(loaded.model)
        loaded.recipe.export(loaded.model, directory)

    def _refer(self, split: str, rows: int) -> None:
        """Sees to what the model that the training began with predicts, once for each split, where that is wanted."""
        if not self._trained or not self._scoring.has_reference or split in self._referred:
            return
        source = ModelSource("untrained", Path(), "the model that the training began with")
        self._sharded.predict([source], split, rows, lambda _, predicted: self._scoring.refer(predicted, split))
        self._referred.add(split)

    def _rows(self, split: str) -> int:
        if rows := self._dataset.manifest.rows(split):
            return rows
        raise UserError(f"The split {split} of {self._dataset.directory} has no rows.")

    def _rows_per_batch(self) -> int:
        """As many as the scoring says, else as many as were trained on."""
        if self._scoring.rows_at_once:
            return self._scoring.rows_at_once
        settings, devices = self._configuration["settings"], self._configuration["devices"]
        if not settings:
            return TEXTS_PER_BATCH
        of_a_process = settings.get("global_batch_size", 1) // devices.get("processes", 1)
        return max(1, min(MOST_ROWS_PER_BATCH, settings.get("micro_batch_size") or of_a_process))

    def _add_average(self, count: int) -> None:
        chosen = [candidate for candidate in self.candidates if not candidate.ema][-count:]
        if not self._trained or len(chosen) < 2:
            what = "models that this project did not train" if not self._trained else f"{len(chosen)} checkpoint"
            where = f" of {chosen[-1].training}" if chosen[-1].training else ""
            raise UserError(f"average_last is {count}, but there is nothing to average: {what}{where}.", "Give 0.")
        last = chosen[-1]
        path = Path(self._scratch.name) / f"average-of-last-{len(chosen)}"
        model = self._sharded.runner.models.load(self._source(last)).model
        write_average(model, [candidate.path for candidate in chosen], path)
        self._sharded.runner.models.forget()
        names = tuple(candidate.name for candidate in chosen)
        self.candidates.append(replace(last, path=path, averages=names))


def _champion(registered: RegisteredVersion) -> ModelSource:
    title = f"The champion of {registered.name!r}, version {registered.number},"
    return ModelSource("champion", registered.path, title)
