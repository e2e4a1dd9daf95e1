"""What NCCL did last, which it writes down where processes wait for each other too long."""

from __future__ import annotations

import glob
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpu_pipelines.artifacts.checkpoint_store import CheckpointStore
from gpu_pipelines.artifacts.scratch import scratch_folder
from gpu_pipelines.errors import UserError, first_line
from gpu_pipelines.step_environment import environment_with

#: Where each process writes what NCCL did last: what the names of the files begin with, before the rank.
_DUMPS = "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"
#: Folder beside the checkpoints that gets them, and how large one may be: that of 20,000 collectives is a fraction.
NCCL, _MOST_BYTES_OF_A_DUMP = "nccl", 256 << 20


@contextmanager
def dumps_kept(store: CheckpointStore) -> Iterator[None]:
    """Has processes that are started meanwhile write it down, and keeps it: the disk of a machine goes with it.

    What the user has said of it stays. Source of the rest: torchtitan, its `comm` settings. One file of each rank is
    kept, the newest. They are pickles for PyTorch's tools, and are not read here.

    Args:
        store: of the checkpoints; gets the files.
    """
    began = time.time()
    # Ranks of a training beside this one, as of another trial, have the same numbers.
    with scratch_folder("nccl") as own:
        usual = {
            "TORCH_FR_BUFFER_SIZE": "20000",
            "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
            _DUMPS: f"{own}/nccl-rank-",
        }
        told = {name: os.environ.get(name, value) for name, value in usual.items()}
        try:
            with environment_with(told):
                yield
        finally:
            _keep(Path(told[_DUMPS]), began, store)


def _keep(prefix: Path, began: float, store: CheckpointStore) -> None:
    """Copies what was written since the training began to the store."""
    found = prefix.parent.glob(f"{glob.escape(prefix.name)}[0-9]*") if prefix.name else ()
    try:
        dumps = [path for path in found if path.is_file() and path.stat().st_mtime >= began]
        kept = [path for path in dumps if path.stat().st_size <= _MOST_BYTES_OF_A_DUMP]
        if kept:
            (store.directory / NCCL).mkdir(parents=True, exist_ok=True)
            for path in kept:
                shutil.copyfile(path, store.directory / NCCL / path.name)
            store.publish([f"{NCCL}/{path.name}" for path in kept])
            print(f"what NCCL did last is in {store.uri}/{NCCL}", flush=True)
    except (OSError, UserError) as error:  # what ended the training is to be said
        print(f"warning: what NCCL did last was not kept: {first_line(error)}", flush=True)
