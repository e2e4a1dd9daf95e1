"""The tensors of a checkpoint: written and read with `torch.distributed.checkpoint`, tensors only.

`.metadata`, the index that torch writes beside the tensors, is a pickle. A checkpoint may come from elsewhere, so it is
read with an unpickler that knows only the few types such an index is made of.
"""

from __future__ import annotations

import pickle
import shutil
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

from gpu_pipelines.errors import UserError, some_of

_INDEX_TYPES = {
    "torch.distributed.checkpoint.metadata": {
        "Metadata",
        "MetadataIndex",
        "TensorStorageMetadata",
        "ChunkStorageMetadata",
        "TensorProperties",
        "StorageMeta",
        "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.serialization": {"_get_layout"},
    "torch": {"Size", "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"},
    "pathlib": {"Path", "PosixPath", "PurePosixPath", "_local"},
    "pathlib._local": {"Path", "PosixPath", "PurePosixPath"},
    "collections": {"OrderedDict"},
}


class _IndexUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if name in _INDEX_TYPES.get(module, ()):
            return super().find_class(module, name)
        raise UserError(
            f"The index of the checkpoint refers to {module}.{name}, which no checkpoint of tensors needs.",
            "It was not written by this program; do not use a checkpoint from a source you do not trust.",
        )


class _TensorReader(dcp.FileSystemReader):
    """Reads a checkpoint of tensors and refuses one whose index holds anything else."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        path = Path(str(self.path)) / ".metadata"
        try:
            with path.open("rb") as file:
                metadata = _IndexUnpickler(file).load()
        except FileNotFoundError:
            raise UserError(f"The checkpoint {self.path} has no .metadata file.") from None
        except (pickle.UnpicklingError, EOFError, AttributeError, ValueError) as error:
            raise UserError(f"The index of the checkpoint {self.path} is damaged: {error}.") from None
        if metadata.storage_meta is None:
            metadata.storage_meta = StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


def save_state(model: nn.Module, optimizer: torch.optim.Optimizer, path: Path) -> None:
    """Writes weights and optimizer state; every process of the group calls it.

    Args:
        model: the model, not its DDP wrapper.
        optimizer: its optimizer.
        path: the checkpoint's folder; what an interrupted attempt left there is removed.
    """
    if dist.get_rank() == 0:
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
    dist.barrier()
    dcp.save(_state(model, optimizer), checkpoint_id=path)


def load_state(model: nn.Module, optimizer: torch.optim.Optimizer, path: Path) -> None:
    """Reads weights and optimizer state in place; a missing or unexpected key is an error."""
    state = _state(model, optimizer)
    reader = _TensorReader(path)
    _require_same_keys(state, reader, path)
    dcp.load(state, storage_reader=reader)
    model.load_state_dict(state["model"], strict=True)
    groups = get_optimizer_state_dict(model, optimizer)["param_groups"]
    set_optimizer_state_dict(model, optimizer, {"state": state["optimizer"], "param_groups": groups})


def load_weights(model: nn.Module, path: Path) -> None:
    """Reads a checkpoint's weights into a model, in this process alone; a missing or unexpected key is an error."""
    state = {"model": model.state_dict()}
    reader = _TensorReader(path)
    _require_same_keys(state, reader, path)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        dcp.load(state, storage_reader=reader, no_dist=True)
    model.load_state_dict(state["model"], strict=True)


def _state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    # Learning rates and the like are a function of the step and of training.json; only tensors need keeping.
    return {"model": model.state_dict(), "optimizer": get_optimizer_state_dict(model, optimizer)["state"]}


def _require_same_keys(state: dict[str, Any], reader: _TensorReader, path: Path) -> None:
    parts = tuple(f"{part}." for part in state)
    has = {key for key in reader.read_metadata().state_dict_metadata if key.startswith(parts)}
    wants = set(_flat_keys(state))
    if has != wants:
        raise UserError(
            f"The checkpoint {path} is of another model: it lacks {some_of(wants - has, most=3)}; "
            f"this model does not have {some_of(has - wants, most=3)}."
        )


def _flat_keys(tree: dict[str, Any], prefix: str = "") -> list[str]:
    keys = []
    for name, value in tree.items():
        keys += _flat_keys(value, f"{prefix}{name}.") if isinstance(value, dict) else [f"{prefix}{name}"]
    return keys
