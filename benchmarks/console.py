"""The time of the console to its first page, and for a page with a thousand runs.

Run with `python benchmarks/console.py [--starts N] [--runs N]`. The start is measured from the command to the answer of
the first page, in an empty folder; beside it TensorBoard, which is also a page of runs on this machine, from the
command to its first answer. The page of runs is requested once after the start, when the record of every run is read,
and then again, when only changed ones are. Each run has a record like that of a training; the page has all of them.
Beside the wall time there is the CPU time, which other work on the machine does not lengthen.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.cookiejar import CookieJar
from pathlib import Path
from urllib.error import URLError
from urllib.request import HTTPCookieProcessor, OpenerDirector, ProxyHandler, build_opener

import psutil

from gpu_pipelines.emulator.json_server import free_port
from gpu_pipelines.targets.runs.record import RunRecord
from gpu_pipelines.targets.steps import StepRecord

BIN = Path(sys.executable).parent
CONSOLE = [str(BIN / "gpu-pipelines"), "console", "--no-open", "--port", "0", "--emulator", "none"]
#: The goals, seconds.
LIMITS = {"console: start to first page": 2.0, "first page with all runs": 0.5, "page with all runs": 0.5}
REPEATS = 11


def cpu_of(process: psutil.Process) -> float:
    """CPU seconds of a process."""
    times = process.cpu_times()
    return float(times.user + times.system)


@dataclass
class Console:
    """A running console: its address without the token, a client, its start time, its process."""

    address: str
    client: OpenerDirector
    start: float
    process: psutil.Process

    @property
    def cpu(self) -> float:
        """CPU seconds of the console."""
        return cpu_of(self.process)

    def page(self, path: str) -> tuple[str, float, float]:
        """A page, its wall time and its CPU time, seconds."""
        start, before = time.perf_counter(), self.cpu
        text = self.client.open(self.address + path).read().decode()
        return text, time.perf_counter() - start, self.cpu - before


@contextmanager
def console(folder: Path) -> Iterator[Console]:
    """A console of a folder, with a client that has sent the token."""
    start = time.perf_counter()
    with subprocess.Popen(CONSOLE, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = re.findall(r"http://\S+", process.stdout.readline())[0]
        client = build_opener(ProxyHandler({}), HTTPCookieProcessor(CookieJar()))
        client.open(address).read()
        try:
            yield Console(address.partition("/?")[0], client, start, psutil.Process(process.pid))
        finally:
            process.terminate()


def console_start() -> tuple[float, float]:
    """Seconds from the command to the complete first page, and its CPU seconds."""
    with tempfile.TemporaryDirectory() as folder, console(Path(folder)) as started:
        text, _, _ = started.page("/runs")
        assert "There are no runs yet" in text
        return time.perf_counter() - started.start, started.cpu


def tensorboard_start() -> tuple[float, float]:
    """The same for TensorBoard."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        command = [str(BIN / "tensorboard"), "--logdir", folder, "--port", str(port), "--host", "127.0.0.1"]
        start = time.perf_counter()
        quiet = subprocess.DEVNULL
        with subprocess.Popen(command, stdout=quiet, stderr=quiet) as process:
            client = build_opener(ProxyHandler({}))
            try:
                while True:
                    try:
                        client.open(f"http://127.0.0.1:{port}/").read()
                        return time.perf_counter() - start, cpu_of(psutil.Process(process.pid))
                    except (URLError, OSError):
                        time.sleep(0.02)
            finally:
                process.terminate()


def make_runs(folder: Path, count: int) -> None:
    """Records of runs of a training."""
    names = ("check-request", "prepare-data", "train-model", "evaluate-checkpoints", "upload-model")
    parameters = {f"parameter_{number}": number for number in range(80)}
    for number in range(count):
        directory = folder / "runs" / f"train_evaluate_upload-{number:05}"
        directory.mkdir(parents=True)
        RunRecord(
            run_id=directory.name,
            pipeline="train_evaluate_upload",
            started=f"2026-11-{1 + number % 28:02}T10:00:{number % 60:02}+00:00",
            parameters=parameters,
            accelerator="",
            dependencies={name: list(names[:place]) for place, name in enumerate(names)},
            directory=directory,
            status="failed" if number % 7 == 0 else "succeeded",
            seconds=100.0,
            steps=[StepRecord(name, "succeeded", 20.0, f"logs/{name}.log") for name in names],
            metrics={"test_accuracy": 0.9},
            key_metric="test_accuracy",
            versions={"python": "3"},
        ).save()


def pages_of_runs(count: int) -> dict[str, dict[str, float]]:
    """The page with this many runs: the first time, and the median of further ones."""
    with tempfile.TemporaryDirectory() as folder:
        make_runs(Path(folder), count)
        with console(Path(folder)) as started:
            # What every first page waits for is measured at the start.
            started.page("/models")
            text, *first = started.page("/runs")
            assert text.count('class="tick"><input') == min(count, 1000), "all runs are on the page"
            again = [started.page("/runs")[1:] for _ in range(REPEATS)]
            one = [started.page("/runs/local/train_evaluate_upload-00001")[1:] for _ in range(REPEATS)]
    measured: dict[str, Sequence[Sequence[float]]] = {
        "first page with all runs": [first],
        "page with all runs": again,
        "page of one of them": one,
    }
    return {name: median(values) for name, values in measured.items()}


def median(values: Sequence[Sequence[float]]) -> dict[str, float]:
    """The medians of wall time and of CPU time."""
    walls, cpus = zip(*values, strict=True)
    return {"wall_s": statistics.median(walls), "cpu_s": statistics.median(cpus)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--runs", type=int, default=1000)
    given = parser.parse_args()
    console_start()  # not counted: files are read from the disk
    tensorboard_start()
    starts: dict[str, list[tuple[float, float]]] = {"console: start to first page": [], "TensorBoard: the same": []}
    for _ in range(given.starts):
        for name, measure in zip(starts, (console_start, tensorboard_start), strict=True):
            starts[name].append(measure())
    results = {**{name: median(values) for name, values in starts.items()}, **pages_of_runs(given.runs)}
    print(f"{'with ' + format(given.runs, ',') + ' runs':<32} {'wall s':>8} {'CPU s':>8} {'limit':>6}")
    for name, value in results.items():
        print(f"{name:<32} {value['wall_s']:>8.3f} {value['cpu_s']:>8.3f} {LIMITS.get(name, ''):>6}")
    first, second = (results[name]["wall_s"] for name in starts)
    machine = {"cpus": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()}
    ratios = {"TensorBoard / console: start": second / first}
    print(json.dumps({"benchmark": "console", "machine": machine, "results": results, "ratios": ratios}))


if __name__ == "__main__":
    main()
