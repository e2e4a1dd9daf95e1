"""Prepares a data set: reads, checks, splits and writes it in the dataset format."""

from __future__ import annotations

import tempfile
from pathlib import Path

from gpu_pipelines.artifacts.dataset import Manifest
from gpu_pipelines.data.preparation import prepare
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.data.units.replicas import replicas_of
from gpu_pipelines.data.units.source_shards import unit_bytes
from gpu_pipelines.data.units.unfinished_work import UnfinishedWork
from gpu_pipelines.distributed.members import Cluster
from gpu_pipelines.distributed.peers import Timing
from gpu_pipelines.errors import UserError
from gpu_pipelines.tasks.tasks import task_named


def prepare_data(settings: PrepareSettings, directory: Path) -> Manifest:
    """Prepares the dataset that `settings` describe in `directory`, on this machine alone; an interruption loses it.

    Args:
        settings: what to read and how to split it.
        directory: where the dataset goes.

    Returns:
        The manifest of the dataset written.

    Raises:
        UserError: a setting is wrong, the source has no usable rows, or a split or class would be empty.
    """
    with tempfile.TemporaryDirectory(prefix="gpu-pipelines-work-", dir=_beside(directory)) as scratch:
        work = UnfinishedWork(f"{scratch}/work", Path(scratch))
        manifest = prepare_together(settings, directory, work, Cluster())
    assert manifest is not None
    return manifest


def prepare_together(
    settings: PrepareSettings,
    directory: Path,
    work: UnfinishedWork,
    cluster: Cluster,
    *,
    named: str = "",
    unit_weight: int = 0,
    timing: Timing | None = None,
) -> Manifest | None:
    """Prepares a dataset on one machine or several, continuing what is done of it.

    Args:
        settings: what to read and how to split it.
        directory: where the dataset goes.
        work: what is done of it already, and gets what is done now.
        cluster: the machines that prepare it together, each with the same arguments.
        named: what the dataset calls its source, if that is an artifact of a step before; empty for its own name.
        unit_weight: bytes of a source, or characters or pixels of its rows, after which the work is kept; 0 to choose
            it; for tests.
        timing: how long to wait for other machines; for tests.

    Returns:
        The manifest of the dataset written; None on a machine that is not rank 0.

    Raises:
        UserError: a setting is wrong, the source has no usable rows, a split or class would be empty, or another
            machine failed.
        Interrupted: this machine or another was interrupted.
    """
    if problems := settings.problems() or settings.problems_on(cluster.nodes):
        raise UserError.of_all(problems)
    with tempfile.TemporaryDirectory(prefix="gpu-pipelines-prepare-") as scratch:
        for name in ("sample", "seen"):
            Path(scratch, name).mkdir()
        with replicas_of(cluster, timing) as replicas:
            print(f"reading {settings.source}", flush=True)
            return prepare(
                task_named(settings.task).load_preparation()(settings, Path(scratch, "sample")),
                directory,
                Path(scratch, "seen"),
                work,
                replicas,
                unit_weight or unit_bytes(settings),
                named,
            )


def _beside(directory: Path) -> Path:
    """A directory on the file system of another that may not be there yet, so that files need not be copied."""
    return next(path for path in (directory, *directory.absolute().parents) if path.is_dir())
