"""The process of a trial: trains it up to a step, from its last checkpoint."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from gpu_pipelines.component_interface.step import own_process
from gpu_pipelines.distributed.members import Cluster
from gpu_pipelines.distributed.signals import end_with_the_starter
from gpu_pipelines.training.settings import TrainingSettings
from gpu_pipelines.training.train import train_model


def main(job_file: str, starter: str) -> None:
    """Trains according to a job.

    Args:
        job_file: JSON with `settings`, `dataset`, `checkpoints` and `until`, the last step.
        starter: id of the process that started this one; without it nobody wants its work.
    """
    end_with_the_starter()
    if os.getppid() != int(starter):
        sys.exit(1)
    with own_process():
        job = json.loads(Path(job_file).read_text(encoding="utf-8"))
        settings = TrainingSettings.from_json(job["settings"])
        train_model(settings, job["dataset"], job["checkpoints"], Cluster(), until=job["until"])


if __name__ == "__main__":
    main(*sys.argv[1:])
