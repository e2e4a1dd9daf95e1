"""One process of the training: what the launcher starts once per GPU, or per CPU process."""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from pathlib import Path

from gpu_pipelines.errors import UserError

# A worker that prints its error and exits would be followed by the launcher's; the launcher reads it from here instead.
USER_ERROR = "user error: "


def main(dataset_directory: str, checkpoint_directory: str, device_type: str) -> None:
    """Trains as `training.json` in the checkpoint directory says, on "cpu" or "cuda"."""
    import torch
    import torch.distributed as dist

    from gpu_pipelines.artifacts.checkpoint import read_configuration
    from gpu_pipelines.artifacts.dataset import Dataset
    from gpu_pipelines.components.training.engine import Trainer
    from gpu_pipelines.components.training.settings import TrainingSettings
    from gpu_pipelines.recipes.tasks import TASKS

    # Depthwise convolutions have such strides in every process and step; there is nothing the user could do about it.
    warnings.filterwarnings("ignore", message="Grad strides do not match bucket view strides")
    device = torch.device("cpu")
    if device_type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device_type == "cuda" else "gloo")
    try:
        dataset = Dataset(Path(dataset_directory))
        settings = TrainingSettings.from_json(read_configuration(Path(checkpoint_directory))["settings"])
        recipe = TASKS[dataset.manifest.task].load_recipe().for_dataset(dataset)
        Trainer(recipe, dataset, settings, Path(checkpoint_directory), device).train()
    except UserError as error:
        _leave_for_the_launcher(error)
        sys.exit(1)
    dist.destroy_process_group()


def _leave_for_the_launcher(error: UserError) -> None:
    reply = {"message": f"{USER_ERROR}{error}", "timestamp": int(time.time())}
    Path(os.environ["TORCHELASTIC_ERROR_FILE"]).write_text(json.dumps(reply), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
