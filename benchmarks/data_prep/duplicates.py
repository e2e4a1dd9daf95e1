"""The time and memory of the search for duplicates among records that are only known by their hashes.

Run with `python benchmarks/data_prep/duplicates.py [--millions N] [--shards N] [--folder F --seconds S]`. The indexes
of the shards are random numbers, one in ten of which is repeated elsewhere. All later work is measured: records are
sorted into ranges of hashes, duplicates and splits are found, and each shard gets the result for its records. Beside
it, `numpy.sort` of the same numbers in one process, which holds all of them. Both must find as many. With a folder it
stops after the seconds, and continues when it is run again, like a preparation.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from machine import machine

from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.data.splits.judgement_plan import Plan
from gpu_pipelines.data.splits.judging import judge
from gpu_pipelines.data.splits.record_index import index_name
from gpu_pipelines.data.splits.split_assignments import CODES, DUPLICATE, judged_name
from gpu_pipelines.data.units.unfinished_work import UnfinishedWork
from gpu_pipelines.distributed.process_executor import ProcessExecutor
from gpu_pipelines.errors import Interrupted

MOST_MEGABYTES = 1500
#: The figures are for this many records, machines, and cores of a machine.
RECORDS, MACHINES, CORES = 10_000_000_000, 32, 32


def numbers_of(shard: int, records: int) -> np.ndarray:
    """The hashes of a shard: one in ten is from a small set that all shards share."""
    generator = np.random.default_rng(shard)
    numbers = generator.integers(0, 2**64, records, dtype=np.uint64)
    common = np.random.default_rng(10**6).integers(0, 2**64, records, dtype=np.uint64)
    again = np.arange(0, records, 10)
    numbers[again] = common[generator.integers(0, records, len(again))]
    return numbers


def write_indexes(base: Path, shards: int, records: int, until: float) -> None:
    """Writes the missing indexes, until the time is over."""
    work = UnfinishedWork(str(base), base)
    for shard in range(shards):
        if work.has(index_name(shard)):
            continue
        if time.monotonic() > until:
            return
        numbers = numbers_of(shard, records)
        order = np.argsort(numbers)
        folder = work.begin(index_name(shard))
        zeros = np.zeros(records, dtype=np.uint64)
        np.save(folder / "index.npy", np.stack([order.astype(np.uint64), numbers[order], numbers[order], zeros]))
        work.commit(index_name(shard), {"rows": records})


def most_of(process: psutil.Process) -> float:
    """The most memory of a process so far, in million bytes, including mapped files."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return next(int(line.split()[1]) * 1024 / 1e6 for line in status.splitlines() if line.startswith("VmHWM"))


class Watch:
    """Samples the memory of this process and its children."""

    def __init__(self) -> None:
        self.most: dict[int, float] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        own = psutil.Process()
        while not self._ended.wait(0.2):
            for process in (own, *own.children(recursive=True)):
                try:
                    self.most[process.pid] = most_of(process)
                except (OSError, StopIteration, psutil.Error):
                    continue

    def end(self) -> float:
        self._ended.set()
        self._thread.join()
        return max(self.most.values(), default=0.0)


class Spent:
    """Seconds, CPU seconds, and the most memory of a process, added up over runs in one folder."""

    def __init__(self, folder: Path, what: str) -> None:
        self._path = folder / f"{what}.json"
        self.figures = {"seconds": 0.0, "cpu_seconds": 0.0, "megabytes": 0.0}
        if self._path.exists():
            self.figures = json.loads(self._path.read_text())
        self._started, self._cpu = time.monotonic(), self._cpu_seconds()

    @staticmethod
    def _cpu_seconds() -> float:
        each = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        return sum(usage.ru_utime + usage.ru_stime for usage in each)

    def add(self, megabytes: float) -> dict[str, float]:
        self.figures["seconds"] += time.monotonic() - self._started
        self.figures["cpu_seconds"] += self._cpu_seconds() - self._cpu
        self.figures["megabytes"] = max(self.figures["megabytes"], megabytes)
        self._path.write_text(json.dumps(self.figures))
        return self.figures


def judge_all(folder: Path, shards: int, records: int, until: float) -> dict[str, float] | None:
    """The time and memory used; None if it is not finished in time."""

    def check() -> None:
        if time.monotonic() > until:
            raise Interrupted("the time is over")

    base, spent, watch = folder / "work", Spent(folder, "judged"), Watch()
    plan = Plan.of(str(base), PrepareSettings(), shards, 0, shards * records)
    is_done = False
    with suppress(Interrupted), ProcessExecutor() as executor:
        judge(plan, UnfinishedWork(str(base), base), executor, check)
        is_done = True
    figures = spent.add(watch.end())
    return figures if is_done else None


def all_in_memory(folder: Path, shards: int, records: int) -> None:
    numbers = np.concatenate([numbers_of(shard, records) for shard in range(shards)])
    spent = Spent(folder, "sorted")
    # np.unique of NumPy 2.3 puts integers into a hash table, which takes several times as long.
    numbers.sort()
    spent.figures["kept"] = 1 + int(np.count_nonzero(numbers[1:] != numbers[:-1]))
    spent.add(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6)


def in_process_of_its_own(function: Callable[..., None], *arguments: Any) -> None:
    """Calls a function whose memory must not count for this process."""
    process = multiprocessing.get_context("spawn").Process(target=function, args=arguments)
    process.start()
    process.join()
    assert process.exitcode == 0


def compare(folder: Path, shards: int, records: int, until: float) -> bool:
    """Does the remaining work; returns whether all is finished."""
    if not (folder / "written").exists():
        in_process_of_its_own(write_indexes, folder / "work", shards, records, until)
        if time.monotonic() > until:
            return False
        (folder / "written").touch()
    ours = judge_all(folder, shards, records, until)
    if ours is None:
        return False
    if not (folder / "sorted.json").exists():
        in_process_of_its_own(all_in_memory, folder, shards, records)
    show(folder, ours, shards, records)
    return True


def show(folder: Path, ours: dict[str, float], shards: int, records: int) -> None:
    peer = json.loads((folder / "sorted.json").read_text())
    codes = (np.load(folder / "work" / judged_name(shard) / CODES) for shard in range(shards))
    kept = sum(int((part != DUPLICATE).sum()) for part in codes)
    assert kept == peer["kept"], (kept, peer["kept"])
    total = shards * records
    minutes = RECORDS * ours["cpu_seconds"] / total / (MACHINES * CORES) / 60
    print(f"{total:,} records, {kept:,} of them different")
    print(f"{'':24}{'seconds':>10}{'CPU seconds':>14}{'records/CPU s':>16}{'MB at most':>12}")
    for name, spent in (("ranges, in processes", ours), ("numpy.sort", peer)):
        rate = total / spent["cpu_seconds"]
        print(
            f"{name:24}{spent['seconds']:>10.0f}{spent['cpu_seconds']:>14.0f}{rate:>16,.0f}{spent['megabytes']:>12,.0f}"
        )
    print(
        f"{RECORDS:,} records on {MACHINES} machines of {CORES} such cores: {minutes:.1f} minutes of their processors"
    )
    verdict = "held" if ours["megabytes"] < MOST_MEGABYTES else "NOT held"
    print(f"no process above {MOST_MEGABYTES:,} MB: {verdict}")
    results = {"records": total, "kept": kept, "ranges": ours, "sorted": peer}
    ratios = {f"{name}_over_numpy": ours[name] / peer[name] for name in ("cpu_seconds", "megabytes")}
    print(json.dumps({"benchmark": "duplicates", "machine": machine(), "results": results, "ratios": ratios}))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--millions", type=int, default=200)
    arguments.add_argument("--shards", type=int, default=100)
    arguments.add_argument("--folder", type=Path)
    arguments.add_argument("--seconds", type=float, default=1e9)
    given = arguments.parse_args()
    until = time.monotonic() + given.seconds
    with tempfile.TemporaryDirectory(prefix="duplicates-") as scratch:
        folder = given.folder or Path(scratch)
        folder.mkdir(exist_ok=True)
        if not compare(folder, given.shards, given.millions * 10**6 // given.shards, until):
            print("the time is over; run the same again to continue")


if __name__ == "__main__":
    main()
