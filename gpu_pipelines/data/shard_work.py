"""What a worker of a cluster does with one shard of a source at a time: looks through it, indexes it, prepares it."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from gpu_pipelines.data.preparation import Preparation
from gpu_pipelines.data.sources.row_streams import Meter
from gpu_pipelines.data.splits.record_index import write_index
from gpu_pipelines.data.splits.split_assignments import Judged
from gpu_pipelines.data.units.host import Host
from gpu_pipelines.data.units.source_shards import SourceShard
from gpu_pipelines.data.units.unfinished_work import UnfinishedWork
from gpu_pipelines.data.units.units import Units, UnitWriters, Writing, unit_name

PLAN = "plan"
SURVEY, INDEX, WRITE, JOIN = "looking through", "looking for duplicates in", "preparing", "adding up"


class Piece(NamedTuple):
    """A piece of work.

    Attributes:
        kind: one of those above.
        shard: what is read; None to add up.
        name: of the part of the unfinished work that the piece leaves, where it leaves one.
        parts: the parts that are added up.
    """

    kind: str
    shard: SourceShard | None = None
    name: str = ""
    parts: Sequence[str] = ()

    @property
    def called(self) -> str:
        """The piece as messages call it."""
        if self.shard is None:
            return self.name
        names = self.shard.source.names
        return f"{self.kind} {names[0]}" + (f" and {len(names) - 1} more files" if len(names) > 1 else "")


@dataclass(frozen=True)
class Written:
    """What is prepared of a shard: what `Units` and `DatasetWriter` are told."""

    plan: Mapping[str, Any]
    unit_weight: int
    form: dict[str, Any]


class ShardWork:
    """Does pieces.

    Args:
        preparation: what is prepared.
        uri: of the unfinished work.
        written: of the last phase.
    """

    def __init__(self, preparation: Preparation[Any], uri: str, written: Written | None = None) -> None:
        self._preparation, self._written = preparation, written
        self._staging = tempfile.TemporaryDirectory(prefix="gpu-pipelines-shards-")
        self._work = UnfinishedWork(uri, Path(self._staging.name))
        self._host = Host.alone()

    def __call__(self, piece: Piece) -> int:
        """Does a piece, unless it is done; how much of it depends on the kind."""
        if piece.kind == WRITE:
            assert piece.shard is not None
            return self._write(piece.shard)
        if self._work.has(piece.name):
            return int(self._work.said(piece.name)["rows"])
        folder = self._work.begin(piece.name)
        if piece.kind == INDEX:
            assert piece.shard is not None
            said = {"rows": write_index(folder, self._preparation.entries(piece.shard, self._host))}
        elif piece.kind == JOIN:
            said = self._preparation.join_surveys(
                [(self._work.path(name), self._work.require(name)) for name in piece.parts]
            ).save(folder)
        else:
            assert piece.shard is not None
            look = self._preparation.survey_of_test if piece.shard.is_test else self._preparation.survey
            said = look(piece.shard.source, self._host).save(folder)
        self._work.commit(piece.name, said)
        self._work.let_go(piece.name)
        return int(said["rows"])

    def _write(self, shard: SourceShard) -> int:
        """Prepares the units of a shard that are not done, and tells how many were."""
        assert self._written is not None
        preparation, work, written = self._preparation, self._work, self._written
        done = self._units_of(shard)
        if done and work.said(done[-1])["is_last"]:
            return len(done)
        work.require(PLAN)
        assignments = Judged(work, written.plan["labels"], preparation.settings.source)
        sizes = preparation.sizes(written.plan, written.unit_weight)
        units = Units([shard], preparation.records, sizes, work, assignments, Meter(shard.source))
        writing = Writing(units, UnitWriters(work, written.form), assignments, self._host)
        for _ in preparation.write(written.plan, work.path(PLAN), writing):
            pass
        for name in self._units_of(shard):
            work.let_go(name)
        return units.passed_over

    def _units_of(self, shard: SourceShard) -> list[str]:
        """Those that are done, up to the first that is not."""
        names: list[str] = []
        while self._work.has(name := unit_name(shard.number, len(names))):
            names.append(name)
        return names


def for_workers(preparation: Preparation[Any]) -> Preparation[Any]:
    """A preparation without the lists of its files, which pieces bring with them."""
    found = copy.copy(preparation)
    found.source = replace(found.source, names=(), sizes=(), passed_over={})
    if found.test_source is not None:
        found.test_source = replace(found.test_source, names=(), sizes=(), passed_over={})
    return found
