"""Finding the checkpoint that a training continues from."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from gpu_pipelines.artifacts import checkpoint as checkpoints
from gpu_pipelines.artifacts.checkpoint import Checkpoint, CheckpointInfo
from gpu_pipelines.artifacts.checkpoint_lock import CheckpointLock
from gpu_pipelines.artifacts.checkpoint_store import CheckpointStore
from gpu_pipelines.errors import UserError
from gpu_pipelines.tasks.checkpoint_state import State, load_state
from gpu_pipelines.training.settings import TrainingSettings

#: What makes weights of other shapes, other tensors of a checkpoint, or another order of the rows.
OF_THE_WHOLE_TRAINING = (
    *("model", "recipe", "lora_rank", "lora_alpha", "freeze", "ema_decay", "global_batch_size", "seed"),
)


@dataclass(frozen=True)
class Identity:
    """What a checkpoint must share with the training that continues from it."""

    dataset_fingerprint: str
    configuration_hash: str
    frozen_weights_sha256: str


def restore(
    state: Callable[[], State],
    store: CheckpointStore,
    identity: Identity,
    settings: TrainingSettings,
    lock: CheckpointLock | None,
) -> tuple[Checkpoint | None, list[CheckpointInfo]]:
    """Reads the newest good checkpoint, or that of `resume_from_step`, into a state, in place; all processes call it.

    Rank 0 looks and verifies; the others follow it, so that all continue from the same one.

    Args:
        state: gives the tensors to read into; not called if there is no checkpoint.
        store: where to look.
        identity: what the checkpoint must share with this training.
        settings: of this training.
        lock: the right to write there, which rank 0 waits for first; None on other processes.

    Returns:
        The checkpoint, or None if there is none, and what it and those before it say of themselves.

    Raises:
        UserError: another training writes there, the checkpoints are of another one, or they cannot be read.
    """
    chosen: list[Any] = [None]
    if lock is not None:
        try:
            lock.acquire()
            chosen = [_newest_good(store, identity, settings)]
        except UserError as error:
            chosen = [error]
    dist.broadcast_object_list(chosen, src=0)
    if isinstance(chosen[0], UserError):
        raise chosen[0]
    if chosen[0] is None:
        return None, []
    newest, earlier = chosen[0]
    here = checkpoints.Checkpoint(store.directory / newest.name, newest.info)
    _require_readable_on_all_nodes(store, here)
    load_state(state(), here.path)
    dist.barrier()
    store.forget_staged(here.name)
    return here, [*earlier, here.info]


def _newest_good(
    store: CheckpointStore, identity: Identity, settings: TrainingSettings
) -> tuple[Checkpoint, list[CheckpointInfo]] | None:
    store.delete_unfinished()
    found = store.complete()
    store.fetch_log()
    if settings.resume_from_step:
        found = _up_to_the_step(store, found, identity, settings)
    for number in range(len(found) - 1, -1, -1):
        checkpoint = found[number]
        _require_continues(store, checkpoint, identity, settings)
        if reason := _unfit(store, checkpoint):
            print(f"warning: passing over {checkpoint.name}: {reason}", flush=True)
            store.forget_staged(checkpoint.name)
            continue
        return checkpoint, [earlier.info for earlier in found[:number]]
    return None


def _unfit(store: CheckpointStore, checkpoint: Checkpoint) -> str:
    """Why a training cannot go on from a checkpoint; empty if it can."""
    if checkpoint.info.val_loss is None and not checkpoint.info.interruption:
        return "its loss on val is no number"  # so versions before 0.2 kept weights that had diverged
    store.fetch(checkpoint)
    damaged = checkpoint.damaged_file()
    return f"{damaged} is damaged" if damaged else ""


def _up_to_the_step(
    store: CheckpointStore, found: list[Checkpoint], identity: Identity, settings: TrainingSettings
) -> list[Checkpoint]:
    """The checkpoints up to the one that was asked for, and those that a training from there has written since.

    The others are set aside: the next start would take them for the newest.

    Raises:
        UserError: there is no such checkpoint.
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
    for checkpoint in found:
        if checkpoint not in kept:
            store.set_aside(checkpoint)
            print(f"{checkpoint.name} is set aside: the training goes on from step {step}", flush=True)
    return kept


def _require_continues(
    store: CheckpointStore, checkpoint: Checkpoint, identity: Identity, settings: TrainingSettings
) -> None:
    info, step = checkpoint.info, checkpoint.info.step
    for what in ("dataset_fingerprint", "frozen_weights_sha256"):
        if getattr(info, what) != getattr(identity, what):
            raise UserError(
                f"{checkpoint.path} was trained with another {what.replace('_', ' ')}.",
                "Give an empty checkpoint directory, or the data and the weights of that run.",
            )
    if info.configuration_hash == identity.configuration_hash:
        return
    differing = checkpoints.differing_settings(store.directory, settings.shaping())
    fixed = [name for name in differing if name in OF_THE_WHOLE_TRAINING]
    if step <= settings.resume_from_step and not fixed:
        return
    raise UserError(
        f"{checkpoint.path} was trained with other parameters{checkpoints.told_differences(differing)}.",
        "Give those of that run, or an empty checkpoint directory"
        + ("." if fixed else f", or resume_from_step={step} to go on from there with these."),
    )


def _require_readable_on_all_nodes(store: CheckpointStore, checkpoint: Checkpoint) -> None:
    problem = ""
    if dist.get_rank() != 0 and os.environ.get("LOCAL_RANK") == "0":
        try:
            store.fetch(checkpoint)
            damaged = checkpoint.damaged_file()
            problem = (
                f"{checkpoint.path / damaged} cannot be read on node {os.environ['GROUP_RANK']}" if damaged else ""
            )
        except UserError as error:
            problem = str(error)
    problems: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(problems, problem)
    if found := [problem for problem in problems if problem]:
        raise UserError(
            f"{found[0]}.", "Give a gs:// checkpoint_uri or a directory on a file system that all nodes mount."
        )
