"""How a dataset is prepared whatever its rows are: in shards and units, on one machine or several.

0. Look: what the names of files and the first rows tell is checked before anything else is read.
1. Survey: every machine reads its shards once and finds which classes there are and the like.
2. Plan: rank 0 decides by that what the rows become (classes, pixels, tokenizer).
3. Index and judgement, where they are needed: several machines, a stratified split, near-duplicates, a test source,
   label conflicts that are rejected. Every machine hashes the records of its shards; rank 0 finds the duplicates
   among all of them, and the split of each record.
4. Every machine prepares its shards in units, each a small dataset of its own.
5. Rank 0 joins the units.

What is done in a step is a part of the unfinished work. Which shards there are and where units end depends on the
source and the settings alone, so that neither an interruption nor the number of machines changes a byte of the dataset.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from gpu_pipelines.artifacts.dataset import Manifest
from gpu_pipelines.data.preparation import Preparation
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.data.sources.files_read import FilesOfSources
from gpu_pipelines.data.sources.fingerprint import artifact_fingerprint, source_fingerprint
from gpu_pipelines.data.sources.listing import shown_path
from gpu_pipelines.data.sources.row_streams import Meter
from gpu_pipelines.data.splits.judging import judge
from gpu_pipelines.data.splits.record_index import index_name, write_index
from gpu_pipelines.data.splits.split_assignments import AsTheyCome, Judged, SplitAssignments, judged_name
from gpu_pipelines.data.units.joining import join_units
from gpu_pipelines.data.units.replicas import Replicas, replicas_of
from gpu_pipelines.data.units.source_shards import SourceShard, joined, share_of, source_shards_of, unit_bytes
from gpu_pipelines.data.units.unfinished_work import UnfinishedWork
from gpu_pipelines.data.units.units import Units, UnitWriters, Writing
from gpu_pipelines.distributed.members import Cluster
from gpu_pipelines.distributed.peers import Timing
from gpu_pipelines.errors import UserError
from gpu_pipelines.tasks.tasks import task_named

PLAN = "plan"
SOURCE_FINGERPRINT = "source_fingerprint"
TEST_SOURCE = "test_source"


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
            return _prepare(
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


def _prepare(
    preparation: Preparation[Any],
    directory: Path,
    scratch: Path,
    work: UnfinishedWork,
    replicas: Replicas,
    unit_weight: int,
    named: str,
) -> Manifest | None:
    """Prepares a dataset, or this machine's share of it.

    Args:
        preparation: what is prepared.
        directory: where the dataset goes.
        scratch: an empty directory.
        work: what is done already, and gets what is done now.
        replicas: the machines.
        unit_weight: bytes or characters after which a unit ends.
        named: what the dataset calls its source, if that is an artifact of a step before; empty for its own name.

    Returns:
        The manifest of the dataset; None on a machine that is not rank 0.

    Raises:
        UserError: the source is of no use, or another machine failed.
        Interrupted: this machine or another was interrupted.
    """
    settings = preparation.settings
    files = FilesOfSources(preparation.source, preparation.test_source)
    files.say()
    shards = source_shards_of(preparation.source, unit_weight, preparation.test_source)
    own = share_of(shards, replicas.rank, replicas.nodes)
    plan = _planned(preparation, own, work, replicas, is_artifact=bool(named))
    assignments: SplitAssignments
    if replicas.nodes > 1 or settings.needs_judgement:
        _judge(preparation, shards, own, work, replicas)
        assignments = Judged(work, plan["labels"], settings.source)
    else:
        assignments = AsTheyCome(settings, plan["labels"], scratch)
    meter = Meter(joined(preparation.source, own))
    units = Units(own, preparation.records, preparation.sizes(plan, unit_weight), work, assignments, meter)
    form = {**preparation.form(plan), **{name: plan[name] for name in (SOURCE_FINGERPRINT, TEST_SOURCE)}}
    if named:
        form["source"] = named
    writers = UnitWriters(work, form)
    for _ in preparation.write(plan, work.path(PLAN), Writing(units, writers, assignments)):
        replicas.check()
    if units.passed_over:
        print(f"{units.passed_over:,} units of work were done before and are taken as they are", flush=True)
    replicas.reach("written")
    if not replicas.is_rank_0:
        return None
    work.look()
    return join_units(work, shards, directory, settings, preparation.tokenizer(work.path(PLAN)), files)


def _planned(
    preparation: Preparation[Any],
    own: Sequence[SourceShard],
    work: UnfinishedWork,
    replicas: Replicas,
    *,
    is_artifact: bool,
) -> Mapping[str, Any]:
    if work.find(PLAN) is None:
        # Before anything is read: a file that comes later is then new for whoever compares.
        fingerprints = _fingerprints(preparation.settings, is_artifact) if replicas.is_rank_0 else {}
        share = joined(preparation.source, [shard for shard in own if not shard.is_test])
        found = _surveyed(preparation, "survey", lambda: preparation.survey(share, replicas), work, replicas)
        of_test = None
        if preparation.test_source is not None:
            tested = joined(preparation.test_source, [shard for shard in own if shard.is_test])
            look = partial(preparation.survey_of_test, tested, replicas)
            of_test = _surveyed(preparation, "survey-of-test", look, work, replicas)
        replicas.reach("surveyed")
        if replicas.is_rank_0:
            work.look()
            folder = work.begin(PLAN)
            work.commit(PLAN, {**preparation.plan(found(), of_test and of_test(), folder), **fingerprints})
    replicas.reach("planned")
    work.look()
    return work.require(PLAN)


def _surveyed(
    preparation: Preparation[Any], name: str, look: Callable[[], Any], work: UnfinishedWork, replicas: Replicas
) -> Callable[[], Any]:
    """Looks through this machine's share; what is returned gives what all machines found, when all have looked."""
    if replicas.nodes == 1:
        found = look()
        return lambda: found
    names = [f"{name}/{rank}-of-{replicas.nodes}" for rank in range(replicas.nodes)]
    own = names[replicas.rank]
    if work.find(own) is None:
        folder = work.begin(own)
        work.commit(own, look().save(folder))
    return lambda: preparation.join_surveys([(work.path(name), work.require(name)) for name in names])


def _fingerprints(settings: PrepareSettings, is_artifact: bool) -> dict[str, Any]:
    test_source = None
    if settings.test_source:
        fingerprint = source_fingerprint(settings.test_source, settings.billing_project)
        test_source = {"source": shown_path(settings.test_source), "fingerprint": fingerprint}
    if is_artifact:
        source = artifact_fingerprint(settings.source)
    else:
        source = source_fingerprint(settings.source, settings.billing_project)
    return {SOURCE_FINGERPRINT: source, TEST_SOURCE: test_source}


def _judge(
    preparation: Preparation[Any],
    shards: list[SourceShard],
    own: list[SourceShard],
    work: UnfinishedWork,
    replicas: Replicas,
) -> None:
    for shard in own:
        name = index_name(shard.number)
        if work.find(name) is None:
            folder = work.begin(name)
            work.commit(name, {"records": write_index(folder, preparation.entries(shard, replicas))})
    replicas.reach("indexed")
    if replicas.is_rank_0:
        work.look()
        if any(work.find(judged_name(shard.number)) is None for shard in shards):
            judge(work, shards, preparation.settings, replicas.check)
    replicas.reach("judged")
    work.look()
