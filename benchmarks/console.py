"""How long the console takes to its first page, and to a page with a thousand runs.

Run with `python benchmarks/console.py [--starts N] [--runs N]`. The start is measured from the command to the answer of
the first page, in an empty folder; beside it TensorBoard, which is also a page of runs on this machine, from the
command to its first answer. The page of runs is asked for once after the start, when the record of every run is read,
and then again, when only those that have changed are. Each run has its record as a training leaves it; the page has all
of them.
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
from collections.abc import Iterator
from contextlib import contextmanager
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import HTTPCookieProcessor, OpenerDirector, ProxyHandler, build_opener

from gpu_pipelines.emulator.json_server import free_port
from gpu_pipelines.targets.local.log import StepRecord
from gpu_pipelines.targets.run_record import RunRecord

BIN = Path(sys.executable).parent
CONSOLE = [str(BIN / "gpu-pipelines"), "console", "--no-open", "--port", "0"]
#: That the issue asks for, seconds.
LIMITS = {"console: start to first page": 2.0, "first page with all runs": 0.5, "page with all runs": 0.5}
REPEATS = 11


@contextmanager
def console(folder: Path) -> Iterator[tuple[str, OpenerDirector, float]]:
    """A console of a folder: its address without the token, a client that has given that, and when it was started."""
    start = time.perf_counter()
    with subprocess.Popen(CONSOLE, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = re.findall(r"http://\S+", process.stdout.readline())[0]
        client = build_opener(ProxyHandler({}), HTTPCookieProcessor(CookieJar()))
        client.open(address).read()
        try:
            yield address.partition("/?")[0], client, start
        finally:
            process.terminate()


def page(client: OpenerDirector, address: str) -> tuple[str, float]:
    """A page, and how long it took, seconds."""
    start = time.perf_counter()
    text = client.open(address).read().decode()
    return text, time.perf_counter() - start


def console_start() -> float:
    """Seconds from the command to the whole first page."""
    with tempfile.TemporaryDirectory() as folder, console(Path(folder)) as (address, client, start):
        text, _ = page(client, f"{address}/runs")
        assert "There are no runs yet" in text
        return time.perf_counter() - start


def tensorboard_start() -> float:
    """Seconds from TensorBoard's command to its first page."""
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
                        return time.perf_counter() - start
                    except (URLError, OSError):
                        time.sleep(0.02)
            finally:
                process.terminate()


def make_runs(folder: Path, count: int) -> None:
    """Runs of a training, as they are recorded."""
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


def pages_of_runs(count: int) -> dict[str, float]:
    """Seconds of the page with so many runs: the first time, and the median of others."""
    with tempfile.TemporaryDirectory() as folder:
        make_runs(Path(folder), count)
        with console(Path(folder)) as (address, client, _):
            # What every first page waits for is measured at the start.
            page(client, f"{address}/models")
            text, first = page(client, f"{address}/runs")
            assert text.count('class="tick"><input') == min(count, 1000), "all runs are on the page"
            again = [page(client, f"{address}/runs")[1] for _ in range(REPEATS)]
            one = [page(client, f"{address}/runs/local/train_evaluate_upload-00001")[1] for _ in range(REPEATS)]
    return {
        "first page with all runs": first,
        "page with all runs": statistics.median(again),
        "page of one of them": statistics.median(one),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--runs", type=int, default=1000)
    given = parser.parse_args()
    console_start()  # not counted: files are read from the disk
    tensorboard_start()
    starts: dict[str, list[float]] = {"console: start to first page": [], "TensorBoard: the same": []}
    for _ in range(given.starts):
        for name, measure in zip(starts, (console_start, tensorboard_start), strict=True):
            starts[name].append(measure())
    results: dict[str, Any] = {name: statistics.median(values) for name, values in starts.items()}
    results |= pages_of_runs(given.runs)
    print(f"{'with ' + format(given.runs, ',') + ' runs':<32} {'seconds':>8} {'limit':>6}")
    for name, value in results.items():
        print(f"{name:<32} {value:>8.3f} {LIMITS.get(name, ''):>6}")
    first, second = (results[name] for name in starts)
    machine = {"cpus": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()}
    ratios = {"TensorBoard / console: start": second / first}
    print(json.dumps({"benchmark": "console", "machine": machine, "results": results, "ratios": ratios}))


if __name__ == "__main__":
    main()
