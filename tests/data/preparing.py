"""Preparations in processes of their own, one for each machine, and what they leave."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from processes import Started, start_python

from gpu_pipelines.artifacts.documents import sha256_of_tree
from gpu_pipelines.artifacts.remote_files import RemoteFolder, is_remote
from gpu_pipelines.data.prepare import prepare_together
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.data.units.unfinished_work import unfinished_work
from gpu_pipelines.distributed.members import Cluster
from gpu_pipelines.emulator.json_server import free_port

PREPARE = """
import json, os, sys
from pathlib import Path
from gpu_pipelines.distributed.members import Cluster
from gpu_pipelines.distributed.peers import Timing
from gpu_pipelines.data.prepare import prepare_together
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.data.units.unfinished_work import unfinished_work
from gpu_pipelines.component_interface.step import own_process

if __name__ == "__main__":
    settings, directory, base, unit_weight = json.loads(sys.argv[1])
    settings, cluster = PrepareSettings(**settings), Cluster.from_environment(os.environ)
    with own_process(), unfinished_work(settings, base, cluster.nodes) as work:
        timing = Timing(silence=6, beat=0.1, settle=2)
        prepare_together(settings, Path(directory), work, cluster, unit_weight=unit_weight, timing=timing)
"""
TREES = "ash beech cedar date elm fir gum hazel ivy juniper kapok larch maple nutmeg oak pine rowan"
WORDS = TREES.split(" ")


def start(
    settings: PrepareSettings,
    directory: Path,
    base: str,
    unit_weight: int,
    environment: Mapping[str, str] | None = None,
) -> Started:
    """Begins a preparation; `directory` is where the dataset goes, `base` where unfinished work is."""
    script, log = directory.with_suffix(".py"), directory.with_suffix(f".{time.monotonic_ns()}.log")
    script.write_text(PREPARE)
    given = json.dumps([asdict(settings), str(directory), base, unit_weight])
    return start_python([str(script), given], log, {**os.environ, **(environment or {})})


def start_on(
    nodes: int, settings: PrepareSettings, folder: Path, bases: str | Iterator[str], unit_weight: int
) -> list[Started]:
    """Begins the same preparation on several machines, as Vertex AI does: each with a CLUSTER_SPEC.

    `bases` is where unfinished work is, for all or for each.
    """
    port = free_port()
    members = {"workerpool0": [f"127.0.0.1:{port}"], "workerpool1": [f"127.0.0.1:{port}"] * (nodes - 1)}
    tasks = [{"type": "workerpool0", "index": 0}, *({"type": "workerpool1", "index": n} for n in range(nodes - 1))]
    return [
        start(
            settings,
            folder / f"machine-{rank}",
            bases if isinstance(bases, str) else next(bases),
            unit_weight,
            {"CLUSTER_SPEC": json.dumps({"cluster": members, "task": task})},
        )
        for rank, task in enumerate(tasks)
    ]


def prepare_alone(settings: PrepareSettings, directory: Path, unit_weight: int) -> dict[str, str]:
    """Prepares without an interruption in this process, and returns the hashes of all files."""
    with unfinished_work(settings, f"{directory}-work") as work:
        prepare_together(settings, directory, work, Cluster(), unit_weight=unit_weight)
        work.remove()
    return sha256_of_tree(directory)


def units_done(base: str) -> list[str]:
    """The units that are done in a place of unfinished work."""
    if is_remote(base):
        names = RemoteFolder(base).names()
    else:
        names = [path.relative_to(base).as_posix() for path in Path(base).rglob("done.json")]
    return sorted(name for name in names if "/units/" in name and name.endswith("/done.json"))


def await_units(preparing: Started, base: str, number: int) -> None:
    """Waits until so many units are done."""
    deadline = time.monotonic() + 120
    while len(units_done(base)) < number:
        assert preparing.process.poll() is None, preparing.output
        assert time.monotonic() < deadline
        time.sleep(0.01)


def write_texts(folder: Path, files: int, rows: int, seed: int = 0) -> Path:
    """JSON lines of `text` and `label`, with the same rows again here and there, and some that are of no use."""
    generator = random.Random(seed)
    folder.mkdir(parents=True)
    old: list[dict[str, Any]] = []
    for file in range(files):
        lines = []
        for row in range(rows):
            if old and row % 10 == 3:
                lines.append(generator.choice(old))
            elif row % 50 == 7:
                lines.append({"text": "", "label": "none"})
            else:
                words = " ".join(generator.choices(WORDS, k=generator.randrange(5, 40)))
                old.append({"text": f"{file}-{row}: {words}", "label": generator.choice(["tree", "bush", "herb"])})
                lines.append(old[-1])
        (folder / f"{file}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder
