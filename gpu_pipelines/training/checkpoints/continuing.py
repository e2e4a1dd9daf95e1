"""Finding the checkpoint that a training continues from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from gpu_pipelines.artifacts import checkpoint as checkpoints
from gpu_pipelines.artifacts.checkpoint import Checkpoint, CheckpointInfo
from gpu_pipelines.artifacts.checkpoint_lock import CheckpointLock
from gpu_pipelines.artifacts.checkpoint_store import CheckpointStore
from gpu_pipelines.artifacts.dataset import Dataset
from gpu_pipelines.errors import DamagedError, InvalidRequestError, UserError
from gpu_pipelines.tasks.checkpoint_state import State, frozen_weights_sha256
from gpu_pipelines.training.checkpoints.checkpoint_reading import CheckpointReader
from gpu_pipelines.training.settings import TrainingSettings

#: A checkpoint, and what those before it say of themselves.
_Candidate = tuple[Checkpoint, list[CheckpointInfo]]


@dataclass(frozen=True)
class Identity:
    """What a checkpoint must share with the training that continues from it."""

    dataset_fingerprint: str
    configuration_hash: str
    frozen_weights_sha256: str


def identity_of(model: nn.Module, dataset: Dataset, settings: TrainingSettings, store: CheckpointStore) -> Identity:
    """The identity of a training; all processes call it.

    Args:
        model: as it was built; rank 0 has its weights.
        dataset: to train on.
        settings: of the training.
        store: of its checkpoints, which say how they hash frozen weights.
    """
    frozen = [""]
    if dist.get_rank() == 0 and not all(weight.requires_grad for weight in model.parameters()):
        known = [checkpoint.info.frozen_weights_sha256 for checkpoint in store.complete()]
        frozen = [frozen_weights_sha256(model, like=known[-1] if known else "")]
    dist.broadcast_object_list(frozen, src=0)
    return Identity(dataset.manifest.fingerprint, settings.configuration_hash(), frozen[0])


def restore(
    state: Callable[[], State],
    store: CheckpointStore,
    identity: Identity,
    settings: TrainingSettings,
    lock: CheckpointLock | None,
    mesh: DeviceMesh | None,
) -> tuple[Checkpoint | None, list[CheckpointInfo]]:
    """Reads the newest good checkpoint, or that of `resume_from_step`, into a state; all processes call it.

    Rank 0 looks for it, and each process verifies what it needs: all continue from the same checkpoint.

    Args:
        state: returns the tensors to read into; not called if there is no checkpoint.
        store: where to look.
        identity: what the checkpoint must share with this training.
        settings: of this training.
        lock: the right to write there, which rank 0 waits for first; None on other processes.
        mesh: over which the state is sharded; None where every process holds the whole.

    Returns:
        The checkpoint, or None if there is none, and the information of it and of those before it.

    Raises:
        UserError: another training writes there, the checkpoints are of another training, or they cannot be read.
    """
    reader = CheckpointReader(store, mesh)
    candidates = _candidates(store, identity, settings, lock) if lock is not None else None
    while chosen := _next_of_rank_0(candidates):
        newest, earlier = chosen
        here = Checkpoint(store.directory / newest.name, newest.info)
        try:
            reader.read(here, state)
        except DamagedError as damage:
            _pass_over(store, here, damage.problem)
            continue
        store.forget_staged(here.name)
        return here, [*earlier, here.info]
    return None, []


def _next_of_rank_0(candidates: Iterator[_Candidate] | None) -> _Candidate | None:
    """The next candidate, as rank 0 finds it; None where there is none left."""
    chosen: list[Any] = [None]
    if candidates is not None:
        try:
            chosen = [next(candidates, None)]
        except UserError as error:
            chosen = [error]
    dist.broadcast_object_list(chosen, src=0)
    if isinstance(chosen[0], UserError):
        raise chosen[0]
    return chosen[0]


def _candidates(
    store: CheckpointStore, identity: Identity, settings: TrainingSettings, lock: CheckpointLock
) -> Iterator[_Candidate]:
    """The checkpoints that a training may continue from, the newest first, and what those before each say."""
    lock.acquire()
    store.delete_unfinished()
    found = store.complete()
    store.fetch_log()
    if settings.resume_from_step:
        found = _up_to_the_step(store, found, identity, settings)
    for number in range(len(found) - 1, -1, -1):
        checkpoint = found[number]
        _require_continues(store, checkpoint, identity, settings)
        if checkpoint.info.val_loss is None and not checkpoint.info.interruption:
            # So versions before 0.2 kept weights that had diverged.
            _pass_over(store, checkpoint, "its loss on val is not a number")
        else:
            yield checkpoint, [earlier.info for earlier in found[:number]]


def _pass_over(store: CheckpointStore, checkpoint: Checkpoint, why: str) -> None:
    if dist.get_rank() == 0:
        print(f"warning: passing over {checkpoint.name}: {why}", flush=True)
    store.forget_staged(checkpoint.name)


def _up_to_the_step(
    store: CheckpointStore, found: list[Checkpoint], identity: Identity, settings: TrainingSettings
) -> list[Checkpoint]:
    """The checkpoints up to the one that was asked for, and those that a training from there has written since.

    The others are set aside: the next start would take them for the newest.

    Raises:
        UserError: there is no such checkpoint, or it is of another training.
    """
    step = settings.resume_from_step

    def written_since(info: CheckpointInfo) -> bool:
        return info.resumed_from_step == step and info.configuration_hash == identity.configuration_hash

    if not any(checkpoint.info.step == step for checkpoint in found):
        steps = ", ".join(str(checkpoint.info.step) for checkpoint in found) or "none"
        raise UserError(
            f"resume_from_step is {step}, and {store.uri} has no checkpoint of that step.", f"It has: {steps}."
        )
    kept = [checkpoint for checkpoint in found if checkpoint.info.step <= step or written_since(checkpoint.info)]
    # What is refused sets nothing aside: the training that is there would go on from the older one.
    _require_continues(store, kept[-1], identity, settings)
    for checkpoint in found:
        if checkpoint not in kept:
            store.set_aside(checkpoint)
            print(f"{checkpoint.name} is set aside: the training goes on from step {step}", flush=True)
    return kept


def _require_continues(
    store: CheckpointStore, checkpoint: Checkpoint, identity: Identity, settings: TrainingSettings
) -> None:
    info, step = checkpoint.info, checkpoint.info.step
    _require_same(checkpoint, identity, "dataset_fingerprint")
    if info.configuration_hash != identity.configuration_hash:
        differing = checkpoints.differing_settings(store.directory, settings.shaping())
        fixed = settings.fixed_in(differing)
        if fixed or step > settings.resume_from_step:
            raise InvalidRequestError(
                f"{checkpoint.path} was trained with other parameters{checkpoints.told_differences(differing)}.",
                "Give the parameters of that run, or leave out --resume or checkpoint_uri to start anew"
                + ("." if fixed else f", or resume_from_step={step} to continue from there with these."),
            )
    # Other adapters, say, leave other weights frozen: what the user has changed was told before.
    _require_same(checkpoint, identity, "frozen_weights_sha256")


def _require_same(checkpoint: Checkpoint, identity: Identity, what: str) -> None:
    if getattr(checkpoint.info, what) != getattr(identity, what):
        raise InvalidRequestError(
            f"{checkpoint.path} was trained with a different {what.replace('_', ' ')}.",
            "Leave out --resume or checkpoint_uri to start anew, or give the data and the weights of that run.",
        )
