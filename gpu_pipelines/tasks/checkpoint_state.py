"""The tensors of a checkpoint: written and read with `torch.distributed.checkpoint`, as safetensors files.

Each process that saves writes one safetensors file; where a tensor is sharded, the file's header says which part it
holds, so that any other number of processes can read it. No file of a checkpoint is a pickle.
"""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import nn
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._dtensor_spec import DTensorSpec

from gpu_pipelines.errors import DamagedError, UserError, some_of
from gpu_pipelines.processors import cores

State = dict[str, Any]
#: The parts of a checkpoint that are whole models: the weights, and their moving average where one is kept.
WEIGHTS, AVERAGE = "model", "ema"
#: The part that a checkpoint may lack: the scale of the loss, which there is in fp16 alone. A training may continue on
#: GPUs of another generation, where `auto` is another precision.
SCALER = "scaler"
#: What a layer that recomputes its activations puts into the names that `named_parameters` gives its weights.
_WRAPPER = "_checkpoint_wrapped_module."
#: What the hash of frozen weights begins with, where those of all weights were made side by side.
_SIDE_BY_SIDE = "tree-"
#: Numbers of a weight: a copy of them in fp32 takes 256 KiB, which stays in the cache of a core.
_HASHED_AT_ONCE = 1 << 16
#: As torch.distributed.checkpoint names the files of a single process.
_FILE = "shard-00001-model-{number:05d}-of-{files:05d}.safetensors"


def training_state(model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> State:
    """The tensors that a training continues from, by name: references to those in use, not copies.

    Args:
        model: the model itself, not a DDP wrapper. Of a model with frozen weights, only what is trained is part of it.
        optimizers: its optimizers; must have taken a step, or get states that are meant to be read over.
    """
    # Learning rates and the like are a function of the step and of training.json; only tensors need keeping.
    return {WEIGHTS: trained_weights(model), "optimizer": get_optimizer_state_dict(model, optimizers)["state"]}


def trained_weights(model: nn.Module) -> dict[str, torch.Tensor]:
    """Weights and buffers by name, without those weights that are frozen (their source has them)."""
    named = model.named_parameters(remove_duplicate=False)
    frozen = {without_wrappers(name) for name, parameter in named if not parameter.requires_grad}
    return {name: value for name, value in model.state_dict().items() if name not in frozen}


def without_wrappers(name: str) -> str:
    """The name of a weight in a checkpoint, whether or not its layer was made to recompute its activations."""
    return name.replace(_WRAPPER, "")


def frozen_weights_sha256(model: nn.Module, like: str = "") -> str:
    """The hash of the frozen weights in fp32, which a checkpoint does not hold; empty if there are none.

    It is the SHA-256 of those of all weights, in the order of their names, which are made side by side: one behind
    another, eight billion weights take half a minute, in which no GPU has anything to do.

    Args:
        model: with its weights.
        like: a hash that it is compared with. Where that is of an earlier version, which hashed all weights one behind
            another, so is what is returned.
    """
    named = sorted(model.named_parameters(), key=lambda entry: entry[0])
    frozen = [(name, weight.detach()) for name, weight in named if not weight.requires_grad]
    if not frozen:
        return ""
    whole = hashlib.sha256()
    if like and not like.startswith(_SIDE_BY_SIDE):
        for name, weight in frozen:
            _hash_into(whole, name, weight)
        return whole.hexdigest()

    def digest_of(entry: tuple[str, torch.Tensor]) -> bytes:
        own = hashlib.sha256()
        _hash_into(own, *entry)
        return own.digest()

    with ThreadPoolExecutor(cores()) as threads:
        for digest in threads.map(digest_of, frozen):
            whole.update(digest)
    return f"{_SIDE_BY_SIDE}{whole.hexdigest()}"


def _hash_into(digest: hashlib._Hash, name: str, weight: torch.Tensor) -> None:
    """Hashes a name and a weight, of bf16 in fp32, a part at a time; by NumPy, whose loops use one core."""
    digest.update(name.encode() + b"\0")
    for part in weight.cpu().contiguous().flatten().split(_HASHED_AT_ONCE):
        if part.dtype == torch.bfloat16:
            digest.update(np.left_shift(part.view(torch.uint16).numpy(), 16, dtype=np.uint32).data)
        else:
            digest.update(part.view(torch.uint8).numpy().data)


class StateCopy:
    """A copy of a state in host memory, taken again and again into the same buffers.

    Args:
        state: nested dicts of tensors; the same tensors are copied each time.
    """

    def __init__(self, state: State) -> None:
        self._sources: list[torch.Tensor] = []
        self._buffers: list[torch.Tensor] = []
        self.state = self._mirror(state)

    def _mirror(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: self._mirror(entry) for name, entry in value.items()}
        tensor = value.detach()
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        buffer = torch.empty(local.shape, dtype=local.dtype, device="cpu", pin_memory=local.is_cuda)
        self._sources.append(local)
        self._buffers.append(buffer)
        if isinstance(tensor, DTensor):
            # from_local would move the buffer back to the mesh's device.
            return DTensor(buffer, _of_one_replica(tensor._spec), requires_grad=False)
        return buffer

    @torch.no_grad()
    def take(self) -> State:
        """Copies the tensors as they are now, overwriting the copy before."""
        for buffer, source in zip(self._buffers, self._sources, strict=True):
            buffer.copy_(source, non_blocking=True)
        if any(source.is_cuda for source in self._sources):
            torch.cuda.synchronize()
        return self.state


def _of_one_replica(spec: DTensorSpec) -> DTensorSpec:
    """How a tensor is sharded, without its replicas, of which one is saved."""
    if spec.mesh.ndim == 1:
        return spec
    return DTensorSpec(spec.mesh[(spec.mesh.mesh_dim_names or ())[-1]], spec.placements[-1:], spec.tensor_meta)


def local_tensors(state: State) -> Iterator[torch.Tensor]:
    """The part of the tensors of a state that this process holds; of sharded ones its shard."""
    for _, tensor in _flat(state):
        yield (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()


def bytes_of(state: State) -> int:
    """Bytes that this process holds of a state."""
    return sum(tensor.numel() * tensor.element_size() for tensor in local_tensors(state))


def save_state(state: State, path: Path, group: dist.ProcessGroup | None = None) -> None:
    """Writes tensors into an existing folder: whole models into a process's first file, the rest into its second.

    Args:
        state: nested dicts of tensors.
        path: the folder.
        group: processes among which the state is sharded; all of them call this; None if only this process saves.
    """
    if group is None:
        # Whole tensors need no plan of who writes which part; to plan takes longer than to write a small model.
        models = {part: tensors for part, tensors in state.items() if part in (WEIGHTS, AVERAGE)}
        rest = {part: tensors for part, tensors in state.items() if part not in models}
        files = [part for part in (models, rest) if part]
        for number, part in enumerate(files, start=1):
            place = path / _FILE.format(number=number, files=len(files))
            save_file(dict(_flat(part)), place, metadata={"format": "pt"})
        return
    in_file = {name: 1 if name.partition(".")[0] in (WEIGHTS, AVERAGE) else 2 for name, _ in _flat(state)}
    writer = HuggingFaceStorageWriter(str(path), fqn_to_index_mapping=in_file, save_distributed=True)
    dcp.save(state, storage_writer=writer, process_group=group)


def load_state(state: State, path: Path) -> None:
    """Reads tensors in place; a missing or unexpected key, or another shape, is an error, but for a missing `SCALER`.

    Each process reads what it needs by itself.

    Args:
        state: nested dicts of tensors.
        path: folder of the checkpoint.

    Raises:
        UserError: the checkpoint is damaged or of another model.
    """
    with _opened(path) as reader:
        metadata = reader.read_metadata()
        state = _without_what_it_may_lack(state, metadata)
        _require_same_tensors(state, metadata, path)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            dcp.load(state, storage_reader=reader, no_dist=True)


def ranges_of(state: State, path: Path) -> dict[str, list[tuple[int, int]]]:
    """The bytes of a checkpoint's files that `load_state` reads in this process, by the name of the file.

    Args:
        state: the tensors to read into.
        path: folder of the checkpoint; of its files only the headers need to be there.

    Returns:
        First byte, and that after the last, of each part of a tensor. Between them may be bytes that are not read.

    Raises:
        UserError: the checkpoint is damaged or of another model.
    """
    found: dict[str, list[tuple[int, int]]] = {}
    headers: dict[str, tuple[int, dict[str, Any]]] = {}
    with _opened(path) as reader:
        metadata = reader.read_metadata()
        state = _without_what_it_may_lack(state, metadata)
        _require_same_tensors(state, metadata, path)
        planner = DefaultLoadPlanner()
        planner.set_up_planner(state, metadata, is_coordinator=True)
        for item in planner.create_local_plan().items:
            held = metadata.storage_data[item.storage_index]
            file = held.relative_path
            headers[file] = headers.get(file) or _header_of(Path(file))
            data, tensors = headers[file]
            begin, end = tensors[item.storage_index.fqn]["data_offsets"]
            first, count = _covering(item.storage_offsets, item.lengths, held.shape)
            width = (end - begin) // max(1, held.shape.numel())
            start = data + begin + first * width
            found.setdefault(Path(file).name, []).append((start, start + count * width))
    return found


def _header_of(file: Path) -> tuple[int, dict[str, Any]]:
    """Where the bytes of the tensors begin in a safetensors file, and what its header says of each."""
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        return 8 + length, json.loads(opened.read(length))


def _covering(offsets: Sequence[int], lengths: Sequence[int], shape: Sequence[int]) -> tuple[int, int]:
    """The first element of a part of a tensor, and how many there are from it to the part's last one."""
    strides = [math.prod(shape[dimension + 1 :]) for dimension in range(len(shape))]
    if 0 in lengths:
        return 0, 0
    first = sum(offset * stride for offset, stride in zip(offsets, strides, strict=True))
    return first, 1 + sum((length - 1) * stride for length, stride in zip(lengths, strides, strict=True))


@contextmanager
def _opened(path: Path) -> Iterator[HuggingFaceStorageReader]:
    """A reader of a checkpoint, whose errors are a user's.

    Raises:
        UserError: there are no safetensors files, or they are damaged.
    """
    if not any(path.glob("*.safetensors")):
        raise UserError(
            f"The checkpoint {path} has no safetensors files.",
            "Write it with torch.distributed.checkpoint's HuggingFaceStorageWriter(path, save_distributed=True).",
        )
    try:
        yield HuggingFaceStorageReader(str(path))
    except (SafetensorError, OSError) as error:
        raise DamagedError(f"The checkpoint {path} is damaged: {error}.") from None


def load_weights(model: nn.Module, path: Path, part: str = WEIGHTS) -> None:
    """Reads a checkpoint's weights into a model; a missing or unexpected key is an error.

    Args:
        model: of the training.
        path: folder of the checkpoint.
        part: `WEIGHTS`, or `AVERAGE` for their moving average.
    """
    load_state({part: trained_weights(model)}, path)


def _without_what_it_may_lack(state: State, metadata: Metadata) -> State:
    has_scaler = any(key.startswith(f"{SCALER}.") for key in metadata.state_dict_metadata)
    return {part: tensors for part, tensors in state.items() if has_scaler or part != SCALER}


def _require_same_tensors(state: State, metadata: Metadata, path: Path) -> None:
    parts = tuple(f"{part}." for part in state)
    held = metadata.state_dict_metadata
    has = {key: tuple(getattr(entry, "size", ())) for key, entry in held.items() if key.startswith(parts)}
    wants = {key: tuple(tensor.shape) for key, tensor in _flat(state)}
    if has.keys() != wants.keys():
        raise UserError(
            f"The checkpoint {path} is of another model: it lacks {some_of(wants.keys() - has.keys(), most=3)}; "
            f"this model does not have {some_of(has.keys() - wants.keys(), most=3)}."
        )
    if other := [key for key in wants if has[key] != wants[key]]:
        raise UserError(f"The checkpoint {path} is of another model: other shapes of {some_of(other, most=3)}.")


def _flat(tree: State, prefix: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
