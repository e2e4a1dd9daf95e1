"""How a dataset is prepared whatever its rows are: in shards and units, on this machine or on a cluster.

0. Look: what the names of files and the first rows tell is checked before anything else is read.
1. Survey: all shards are read once, which finds the classes there are and the like.
2. Plan: by that is decided what the rows become (classes, pixels, tokenizer).
3. Index and judgement, where they are needed: a cluster, a stratified split, near-duplicates, a test source, label
   conflicts that are rejected. The records of each shard are hashed; pieces that have a range of hashes each find the
   duplicates and the split of each record.
4. The shards are prepared in units, each a small dataset of its own.
5. The units are joined.

On this machine one process reads, and batches of records are shared among all cores. On a cluster each worker has a
shard. What is done in a step is a part of the unfinished work. Which shards there are and where units end depends on
the source and the settings alone, so that neither an interruption nor the number of machines changes a byte of the
dataset.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gpu_pipelines.artifacts.dataset import Manifest
from gpu_pipelines.artifacts.scratch import scratch_folder
from gpu_pipelines.data.divided import warning_of_division
from gpu_pipelines.data.preparation import Preparation
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.data.shard_work import INDEX, JOIN, PLAN, SURVEY, WRITE, Piece, ShardWork, Written, for_workers
from gpu_pipelines.data.sources.files_read import FilesOfSources
from gpu_pipelines.data.sources.fingerprint import artifact_fingerprint, source_fingerprint
from gpu_pipelines.data.sources.listing import shown_path
from gpu_pipelines.data.sources.row_streams import Meter
from gpu_pipelines.data.splits.judgement_plan import Plan
from gpu_pipelines.data.splits.judging import judge
from gpu_pipelines.data.splits.record_index import index_name, write_index
from gpu_pipelines.data.splits.split_assignments import AsTheyCome, Judged, SplitAssignments
from gpu_pipelines.data.units.host import Host
from gpu_pipelines.data.units.joining import join_units
from gpu_pipelines.data.units.progress import SECONDS_BETWEEN_LINES
from gpu_pipelines.data.units.source_shards import SourceShard, joined, source_shards_of, unit_bytes
from gpu_pipelines.data.units.unfinished_work import UnfinishedWork
from gpu_pipelines.data.units.units import Units, UnitWriters, Writing
from gpu_pipelines.distributed.pieces import Executor, WorkOptions
from gpu_pipelines.distributed.process_executor import ProcessExecutor
from gpu_pipelines.distributed.signals import Signalled, noted
from gpu_pipelines.errors import Interrupted, UserError
from gpu_pipelines.tasks.tasks import BUILT_IN, task_named

SOURCE_FINGERPRINT = "source_fingerprint"
TEST_SOURCE = "test_source"
#: Surveys that are added up by one worker, and that this process adds up itself.
_ADDED_UP = 16


def prepare_data(settings: PrepareSettings, directory: Path) -> Manifest:
    """Prepares the dataset that `settings` describe in `directory`, on this machine; an interruption loses it.

    Args:
        settings: what to read and how to split it.
        directory: where the dataset goes.

    Returns:
        The manifest of the dataset written.

    Raises:
        UserError: a setting is wrong, the source has no usable rows, or a split or class would be empty.
    """
    with (
        scratch_folder(".gpu-pipelines-work", _beside(directory)) as scratch,
        ProcessExecutor() as executor,
    ):
        return prepare_together(settings, directory, UnfinishedWork(f"{scratch}/work", scratch), executor)


def prepare_together(
    settings: PrepareSettings,
    directory: Path,
    work: UnfinishedWork,
    executor: Executor,
    *,
    named: str = "",
    unit_weight: int = 0,
) -> Manifest:
    """Prepares a dataset on this machine or on a cluster, continuing what is done of it.

    Args:
        settings: what to read and how to split it.
        directory: where the dataset goes.
        work: what is done of it already, and gets what is done now; all machines see it.
        executor: does it.
        named: what the dataset calls its source, if that is an artifact of a step before; empty for its own name.
        unit_weight: bytes of a source, or characters or pixels of its rows, after which the work is kept; 0 to choose
            it; for tests.

    Returns:
        The manifest of the dataset written.

    Raises:
        UserError: a setting is wrong, the source has no usable rows, a split or class would be empty, or a piece of
            the work killed worker after worker.
        Interrupted: this process was interrupted.
    """
    if problems := settings.problems() or settings.problems_on(2 if executor.is_cluster else 1):
        raise UserError.of_all(problems)
    if settings.task not in BUILT_IN:
        task_named(settings.task).require_parts()
    with scratch_folder("prepare") as scratch, noted() as signalled:
        for name in ("sample", "seen"):
            (scratch / name).mkdir()
        print(f"reading {settings.source}", flush=True)
        # Before the files are listed: one that comes later is then new for whoever compares.
        fingerprints = {} if work.find(PLAN) else _fingerprints(settings, is_artifact=bool(named))
        preparation = task_named(settings.task).load_preparation()(settings, scratch / "sample")
        if told := "" if settings.test_source else warning_of_division(preparation.source.names, settings.source):
            print(f"warning: {told}", flush=True)
        with _seen_by_all(preparation, str(scratch), executor) as seen:
            host = Host(seen, check=partial(_require_no, signalled))
            task = _Task(preparation, work, host, unit_weight or unit_bytes(settings), named, fingerprints)
            return _prepare(task, directory, scratch / "seen")


def _require_no(signalled: Signalled) -> None:
    if signalled:
        raise Interrupted(f"stopped by {signalled.name}; what is done is kept")


def _beside(directory: Path) -> Path:
    """A directory on the file system of another that may not be there yet, so that files need not be copied."""
    return next(path for path in (directory, *directory.absolute().parents) if path.is_dir())


@contextmanager
def _seen_by_all(preparation: Preparation[Any], scratch: str, executor: Executor) -> Iterator[Executor]:
    """The executor, or this machine's, where the source is a sample, which has been made here."""
    made = any(source and source.root.startswith(scratch) for source in (preparation.source, preparation.test_source))
    if not (made and executor.is_cluster):
        yield executor
        return
    print("the source is made on this machine, which therefore prepares it", flush=True)
    with ProcessExecutor() as own:
        yield own


@dataclass(frozen=True)
class _Task:
    """A dataset that is prepared, as `prepare_together` was told."""

    preparation: Preparation[Any]
    work: UnfinishedWork
    host: Host
    unit_weight: int
    named: str
    fingerprints: Mapping[str, Any]

    @property
    def is_on_cluster(self) -> bool:
        return self.host.executor.is_cluster

    def each(self, kind: str, pieces: Sequence[Piece], written: Written | None = None) -> list[int]:
        """Does pieces on the cluster, and tells what each said, in their order."""
        arguments = (for_workers(self.preparation), self.work.uri, written)
        said = [0] * len(pieces)
        shown = time.monotonic()
        options = WorkOptions(check=self.host.check, named=lambda piece: piece.called)
        done = self.host.executor.map(ShardWork, arguments, pieces, options)
        for so_far, (number, found) in enumerate(done, start=1):
            said[number] = found
            if (now := time.monotonic()) - shown > SECONDS_BETWEEN_LINES:
                shown = now
                print(f"{kind}: {so_far:,} of {len(pieces):,} shards", flush=True)
        self.work.look()
        return said


def _prepare(task: _Task, directory: Path, scratch: Path) -> Manifest:
    preparation, work, settings = task.preparation, task.work, task.preparation.settings
    files = FilesOfSources(preparation.source, preparation.test_source)
    files.say()
    shards = source_shards_of(preparation.source, task.unit_weight, preparation.test_source)
    plan = _planned(task, shards)
    judged = None
    if task.is_on_cluster or settings.needs_judgement:
        judged = _judge(task, shards)
    form = {**preparation.form(plan), **{name: plan[name] for name in (SOURCE_FINGERPRINT, TEST_SOURCE)}}
    if task.named:
        form["source"] = task.named
    if task.is_on_cluster:
        pieces = [Piece(WRITE, shard) for shard in shards]
        passed_over = sum(task.each("preparing", pieces, Written(plan, task.unit_weight, form)))
    else:
        passed_over = _write(task, shards, plan, form, judged, scratch)
    if passed_over:
        print(f"{passed_over:,} units of work were done before and are taken as they are", flush=True)
    return join_units(work, shards, directory, settings, preparation.tokenizer(work.path(PLAN)), files)


def _write(
    task: _Task,
    shards: Sequence[SourceShard],
    plan: Mapping[str, Any],
    form: dict[str, Any],
    judged: UnfinishedWork | None,
    scratch: Path,
) -> int:
    """Prepares all shards on this machine, and tells how many units were done before."""
    preparation, work, settings = task.preparation, task.work, task.preparation.settings
    assignments: SplitAssignments
    if judged is not None:
        assignments = Judged(judged, plan["labels"], settings.source)
    else:
        assignments = AsTheyCome(settings, plan["labels"], scratch)
    sizes = preparation.sizes(plan, task.unit_weight)
    units = Units(shards, preparation.records, sizes, work, assignments, Meter(joined(preparation.source, shards)))
    writing = Writing(units, UnitWriters(work, form), assignments, task.host)
    for _ in preparation.write(plan, work.path(PLAN), writing):
        task.host.check()
    return units.passed_over


def _planned(task: _Task, shards: Sequence[SourceShard]) -> Mapping[str, Any]:
    preparation, work = task.preparation, task.work
    if work.find(PLAN) is None:
        if task.is_on_cluster and preparation.surveys_all:
            found = _surveyed(task, "survey", [shard for shard in shards if not shard.is_test])
        else:
            found = preparation.survey(preparation.source, task.host)
        of_test = None
        if preparation.test_source is not None:
            if task.is_on_cluster:
                of_test = _surveyed(task, "survey-of-test", [shard for shard in shards if shard.is_test])
            else:
                of_test = preparation.survey_of_test(preparation.test_source, task.host)
        folder = work.begin(PLAN)
        work.commit(PLAN, {**preparation.plan(found, of_test, folder), **task.fingerprints})
    return work.require(PLAN)


def _surveyed(task: _Task, name: str, shards: Sequence[SourceShard]) -> Any:
    """What workers find in some shards; they add up most of it, too."""
    pieces = [Piece(SURVEY, shard, f"{name}/{shard.number:05d}") for shard in shards]
    task.each("looking through", pieces)
    level = 0
    while len(pieces) > _ADDED_UP:
        level += 1
        names = [piece.name for piece in pieces]
        starts = range(0, len(names), _ADDED_UP)
        pieces = [
            Piece(JOIN, None, f"{name}/sum-{level}-{start:05d}", names[start : start + _ADDED_UP]) for start in starts
        ]
        task.each("adding up", pieces)
    return task.preparation.join_surveys(
        [(task.work.path(piece.name), task.work.require(piece.name)) for piece in pieces]
    )


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


def _judge(task: _Task, shards: Sequence[SourceShard]) -> UnfinishedWork:
    """Finds the split of every record; returns where it is."""
    preparation, work, host = task.preparation, task.work, task.host
    # On one machine, nothing of it has to be where others see it.
    place = work if task.is_on_cluster else work.here()
    if task.is_on_cluster:
        records = sum(
            task.each("looking for duplicates", [Piece(INDEX, shard, index_name(shard.number)) for shard in shards])
        )
    else:
        records = sum(_indexed(task, shard) for shard in shards)
    tests = sum(shard.is_test for shard in shards)
    judge(Plan.of(place.uri, preparation.settings, len(shards), tests, records), place, host.executor, host.check)
    place.look()
    return place


def _indexed(task: _Task, shard: SourceShard) -> int:
    """Indexes a shard, unless it is, and tells how many records it has."""
    name = index_name(shard.number)
    if (found := task.work.find(name)) is None:
        folder = task.work.begin(name)
        found = {"rows": write_index(folder, task.preparation.entries(shard, task.host))}
        task.work.commit(name, found)
    return int(found["rows"])
