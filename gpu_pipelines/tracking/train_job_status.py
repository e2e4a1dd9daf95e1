"""Tells Kubeflow Trainer how far a training is: progress, time that is left and figures in the status of a TrainJob.

Trainer takes that from 2.3.0 on, with its feature gate TrainJobStatus, and says to the pods where. Source:
https://github.com/kubeflow/trainer, KEP-2779.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpu_pipelines.artifacts.checkpoint import METRICS, known_configuration
from gpu_pipelines.artifacts.checkpoint_store import last_metrics

#: Where the status goes; unset where nobody takes it.
SERVER = "KUBEFLOW_TRAINER_SERVER_URL"
#: The SDK sends no more than one update in 5 s.
_SECONDS = 10.0
_FIGURES = ("loss", "val_loss", "learning_rate", "samples_per_second", "mfu")


@contextmanager
def progress_told(folder: Path) -> Iterator[None]:
    """Tells the progress as long as the block runs, if somebody takes it. What goes wrong with it is no matter.

    Args:
        folder: where the log of the training will be.
    """
    if not os.environ.get(SERVER):
        yield
        return
    ended = threading.Event()
    thread = threading.Thread(target=_tell, args=(folder, ended), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(_SECONDS)


def _tell(folder: Path, ended: threading.Event) -> None:
    try:
        from kubeflow.trainer import update_trainjob_status
    except ImportError:
        print("the progress is not told to Kubeflow Trainer: kubeflow is not installed", flush=True)
        return
    told = -1
    while not ended.wait(_SECONDS if told >= 0 else 1.0):
        status = status_of(known_configuration(folder), last_metrics(folder / METRICS, ["step", *_FIGURES]))
        if status and status["progress_percent"] != told and update_trainjob_status(**status):
            told = status["progress_percent"]


def status_of(configuration: Mapping[str, Any], last: Mapping[str, float]) -> dict[str, Any] | None:
    """The arguments of the SDK's function; None before the first entry of the log.

    Args:
        configuration: what `training.json` says.
        last: of each figure of `metrics.jsonl` the last number, and the step.
    """
    total = configuration.get("total_steps", 0)
    if not (last and total):
        return None
    step, speed = int(last["step"]), last.get("samples_per_second")
    rows = (total - step) * configuration.get("settings", {}).get("global_batch_size", 0)
    return {
        # The last percent is the work that follows the last step.
        "progress_percent": min(99, 100 * step // total),
        "estimated_remaining_seconds": round(rows / speed) if speed else None,
        "metrics": {name: last[name] for name in _FIGURES if name in last},
    }
