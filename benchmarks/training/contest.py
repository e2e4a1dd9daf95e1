"""Runs the contenders in turns, each in its own processes, and summarizes the results."""

from __future__ import annotations

import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import stopwatch
from workloads import Workload

HERE = Path(__file__).parent
NAMES = ("ours", "hand-written", "lightning", "transformers")
#: Ours again with compiled layers, as auto does on GPUs in a training of minutes.
COMPILED = "ours compiled"


@dataclass(frozen=True)
class Run:
    """The result of one training.

    Attributes:
        samples_per_second: the throughput of all processes together.
        cpu_seconds_per_step: the CPU time of the first process.
        val_loss: the final loss on val.
    """

    samples_per_second: float
    cpu_seconds_per_step: float
    val_loss: float


class ContenderFailedError(Exception):
    """A training ended with an error, which is in the message."""


@dataclass(frozen=True)
class Machine:
    """The devices of the contenders.

    Attributes:
        device: cpu or cuda.
        processes: processes of one training.
    """

    device: str
    processes: int

    @classmethod
    def of(cls, device: str) -> Machine:
        """Two processes on CPUs, or one for each GPU; ends the program if there is none."""
        if device == "cpu":
            return cls(device, 2)
        import torch

        if not torch.cuda.device_count():
            print("no GPU here: not run")
            sys.exit(0)
        return cls(device, torch.cuda.device_count())

    def __str__(self) -> str:
        where = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
        if self.device == "cpu":
            return where
        import torch

        return f"{self.processes} × {torch.cuda.get_device_name()}, {where}"


def run(
    name: str,
    workload: Workload,
    prepared: tuple[Path, str],
    machine: Machine,
    warmup: int,
    steps: int,
    save_every: int,
) -> Run:
    """Trains once.

    Args:
        name: the contender.
        workload: the workload to train.
        prepared: dataset and model of the workload.
        machine: the devices.
        warmup: steps that are not timed.
        steps: steps in all.
        save_every: steps between two checkpoints; 0 for none (ours always writes one after the last step, which is not
            timed).
    """
    dataset, model = prepared
    output = Path(tempfile.mkdtemp(prefix="contest-"))
    try:
        job, seconds = output / "job.json", output / "seconds.json"
        settings = asdict(workload.settings(model, steps, save_every or steps))
        settings["compile_model"] = "on" if name == COMPILED else "off"
        content = {"settings": settings, "dataset": str(dataset), "output": str(output), "device": machine.device}
        job.write_text(json.dumps({**content, "save_every": save_every}), encoding="utf-8")
        watch = {"file": str(seconds), "warmup_steps": warmup, "steps": steps}
        _execute(_command("ours" if name == COMPILED else name, job, machine.processes), watch, machine)
        timed, watched = steps - warmup, _read(seconds)
        rate = timed * workload.batch / watched["seconds"]
        return Run(rate, watched["cpu_seconds"] / timed, _read(output / "val_loss.json"))
    finally:
        shutil.rmtree(output)


def _command(name: str, job: Path, processes: int) -> list[str]:
    program = [str(HERE / "contenders.py"), name, str(job)]
    if name == "ours":
        return [sys.executable, *program]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    return [sys.executable, *torchrun, *program]


def _execute(command: list[str], watch: dict[str, Any], machine: Machine) -> None:
    environment = {**os.environ, "PYTHONPATH": str(HERE), stopwatch.VARIABLE: json.dumps(watch)}
    environment["GPU_PIPELINES_ACCELERATOR"] = ""
    if machine.device == "cpu":
        environment |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ContenderFailedError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")


def _read(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def median_ratio(above: list[float], below: list[float]) -> float:
    """The median of the ratios of adjacent runs."""
    return round(statistics.median(a / b for a, b in zip(above, below, strict=True)), 3)


def conclude(benchmark: str, machine: Any, results: dict[str, Any], ratios: dict[str, Any]) -> None:
    """Prints the JSON object that ends a benchmark."""
    print(json.dumps({"benchmark": benchmark, "machine": str(machine), "results": results, "ratios": ratios}))
