"""Stops trainings at random moments, runs the same command again, and compares the bits with an undisturbed one.

Run by `make bench-training`. Prints a table, and as its last line one JSON object. With `--peer` it also shows the
result of one resume of transformers.Trainer from its own checkpoint.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contest import conclude
from trainer_resume import MODELS as PEER_MODELS
from trainer_resume import resume_with_transformers
from workloads import write_dataset

from gpu_pipelines.errors import INTERRUPTED
from gpu_pipelines.tasks.tasks import TASKS
from gpu_pipelines.training.settings import TrainingSettings

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "training"))
from started_training import Ended, run_training, weights_digest

MODELS = {
    "vit-micro": "image_classification",
    "swin-micro": "image_classification",
    "convnext-micro": "image_classification",
    "resnet-micro": "image_classification",
    "gpt2-micro": "causal_lm",
    "llama-micro": "causal_lm",
    "mixtral-micro": "causal_lm",
    "bert-micro": "text_classification",
}
SHAPES = {"image_classification": (3, 32, 32), "causal_lm": (64,), "text_classification": (64,)}
SIGNALS = (signal.SIGKILL, signal.SIGTERM)
STEPS, EVERY, ROWS, BATCH, VOCABULARY = 150, 20, 96, 16, 400
LAST = f"step-{STEPS:08d}"
#: A training that finished its last checkpoint before its moment proves nothing; it gets another moment.
MOST_MOMENTS = 20
MOST_LAUNCHES = 5


def main() -> None:
    """Reports for each model and signal how many trials ended with the same bits."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=20, help="for each model and signal")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--signals", default=",".join(by.name for by in SIGNALS))
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--peer", action="store_true", help="one resume of transformers.Trainer as well")
    asked = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    moments = random.Random(asked.seed)
    results: dict[str, Any] = {}
    ratios: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for model in asked.models.split(","):
            task = MODELS[model]
            if task not in TASKS or model not in TASKS[task].models:
                print(f"{model}: there is no such model here; passed over")
                continue
            dataset = Path(scratch) / task
            if not dataset.exists():
                write_dataset(dataset, task, SHAPES[task], ROWS, VOCABULARY)
            trials = Trials(model, dataset, Path(scratch), moments)
            for by in [by for by in SIGNALS if by.name in asked.signals.split(",")]:
                same = sum(trials.ends_the_same(by, f"{n} of {asked.trials}") for n in range(1, asked.trials + 1))
                results[f"{model}, {by.name}"] = f"{same} of {asked.trials}"
                ratios[f"{model}, {by.name}"] = same / asked.trials if asked.trials else 0.0
                print(f"{model:16} {by.name}: {same} of {asked.trials} the same bits", flush=True)
        if asked.peer:
            for model in PEER_MODELS:
                found = resume_with_transformers(model, Path(scratch))
                results[f"transformers.Trainer, {model}"] = found
                print(f"transformers.Trainer, {model}: {found}", flush=True)
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    conclude("training_exact_resume", machine, results, ratios)


@dataclass
class Trials:
    """The trials of one model; starts with an undisturbed training.

    Attributes:
        model: name of the architecture.
        dataset: the dataset to train on.
        scratch: the folder for checkpoints.
        moments: draws the moments to stop.
    """

    model: str
    dataset: Path
    scratch: Path
    moments: random.Random

    def __post_init__(self) -> None:
        self._settings = TrainingSettings(
            model=self.model, max_steps=STEPS, checkpoint_every_steps=EVERY, global_batch_size=BATCH
        )
        directory = self.scratch / "left alone"
        steps: list[float] = []

        def note(line: str) -> bool:
            if is_of_a_step(line):
                steps.append(time.monotonic())
            return False

        ended = run_training(self._settings, self.dataset, str(directory), stop_when=note)
        if ended.status or not steps:
            sys.exit(f"{self.model} cannot be trained:\n{ended.text}")
        # Up to the last step: the processes take longer to end than these few steps, and nothing can be lost then.
        self._seconds = steps[-1] - steps[0]
        self._digest = weights_digest(directory / LAST)
        shutil.rmtree(directory)
        print(f"{self.model}: {self._seconds:.1f} s from the first step to the last", flush=True)

    def ends_the_same(self, by: signal.Signals, number: str) -> bool:
        """Stops a training once, runs it again until it ends, and compares."""
        directory = self.scratch / "stopped"
        shutil.rmtree(directory, ignore_errors=True)
        moment = self._stop_once(directory, by)
        reached = max((path.parent.name for path in directory.glob("step-*/checkpoint.json")), default="no checkpoint")
        launches, ended = 0, Ended(-1, [])
        while ended.status and launches < MOST_LAUNCHES:
            ended = run_training(self._settings, self.dataset, str(directory))
            launches += 1
        if ended.status:
            print(f"  {number}: it did not come to its end:\n{ended.text}", flush=True)
            return False
        same = weights_digest(directory / LAST) == self._digest
        verdict = "the same bits" if same else "OTHER BITS"
        print(f"  {number}: {by.name} {moment:.2f} s after the first step, {reached}: {verdict}", flush=True)
        return same

    def _stop_once(self, directory: Path, by: signal.Signals) -> float:
        stopped = -by if by == signal.SIGKILL else INTERRUPTED
        for _ in range(MOST_MOMENTS):
            moment = self.moments.uniform(0, self._seconds)
            ended = run_training(
                self._settings, self.dataset, str(directory), stop_when=is_of_a_step, by=by, seconds_later=moment
            )
            is_whole = (directory / LAST / "checkpoint.json").exists()
            if ended.status == stopped and not is_whole:
                return moment
            if not is_whole and ended.status not in (0, stopped):
                sys.exit(f"{self.model} ended with {ended.status} instead of {stopped} after {by.name}:\n{ended.text}")
            shutil.rmtree(directory)
        sys.exit(f"{self.model} was never stopped before its end in {MOST_MOMENTS} attempts")


def is_of_a_step(line: str) -> bool:
    """Whether a line of output shows that steps are being taken."""
    return line.startswith("step ")


if __name__ == "__main__":
    main()
