"""Reports to Kubeflow Trainer the progress of a training: percent, time left and figures in the status of a TrainJob.

Trainer supports this from 2.3.0 on, with its feature gate TrainJobStatus, and tells the pods its address. Source:
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

#: The address for the status; unset if nobody reads it.
SERVER = "KUBEFLOW_TRAINER_SERVER_URL"
#: The SDK sends at most one update in 5 s.
_SECONDS = 10.0
_FIGURES = ("loss", "val_loss", "learning_rate", "samples_per_second", "mfu")


@contextmanager
def progress_told(folder: Path) -> Iterator[None]:
    """Reports the progress during the block, if Trainer reads it. Failures have no effect.

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
        print("the progress is not reported to Kubeflow Trainer: kubeflow is not installed", flush=True)
        return
    told = -1
    while not ended.wait(_SECONDS if told >= 0 else 1.0):
        status = status_of(known_configuration(folder), last_metrics(folder / METRICS, ["step", *_FIGURES]))
        if status and status["progress_percent"] != told and update_trainjob_status(**status):
            told = status["progress_percent"]


def status_of(configuration: Mapping[str, Any], last: Mapping[str, float]) -> dict[str, Any] | None:
    """The arguments of the SDK's function; None before the first entry of the log.

    Args:
        configuration: the content of `training.json`.
        last: the last value of each figure of `metrics.jsonl`, and the step.
    """
    total = configuration.get("total_steps", 0)
    if not (last and total):
        return None
    step, speed = int(last["step"]), last.get("samples_per_second")
    rows = (total - step) * configuration.get("settings", {}).get("global_batch_size", 0)
    return {
        # The last percent is the work after the last step.
        "progress_percent": min(99, 100 * step // total),
        "estimated_remaining_seconds": round(rows / speed) if speed else None,
        "metrics": {name: last[name] for name in _FIGURES if name in last},
    }
