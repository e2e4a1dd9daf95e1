"""Starts runs: on this machine each by the command line, as a process of its own that outlives the console."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from gpu_pipelines.console.emulator_runs import EmulatorRuns
from gpu_pipelines.console.pipelines import Pipeline
from gpu_pipelines.errors import NotFoundError, UserError
from gpu_pipelines.targets.run_record import RUN

#: Below the console's folder: what runs were started with, and what they print.
_STARTS = "starts"
_LAST_LINES = 40


@dataclass
class Start:
    """A run that was started on this machine.

    Attributes:
        key: by which addresses name it.
        pipeline: its name.
        process: that runs it.
        output: what it prints.
    """

    key: str
    pipeline: str
    process: subprocess.Popen[bytes]
    output: Path

    @property
    def said(self) -> str:
        """The last lines that it has printed."""
        lines = self.output.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(lines[-_LAST_LINES:])


class Starter:
    """Starts runs, and finds what has become of them.

    Args:
        folder: of the console.
        runs: of the runs on this machine.
    """

    def __init__(self, folder: Path, runs: Path) -> None:
        self._folder, self._runs = folder / _STARTS, runs
        self._starts: dict[str, Start] = {}

    def start_here(self, pipeline: Pipeline, given: Mapping[str, str], *, reuse: bool, containers: bool) -> Start:
        """Starts a run on this machine.

        Args:
            pipeline: what is run.
            given: values of parameters that are not their defaults, as texts.
            reuse: whether steps may take results of earlier runs.
            containers: whether container components run in containers.

        Raises:
            UserError: it cannot be started.
        """
        key = f"{datetime.now(timezone.utc):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
        what = str(pipeline.file) if pipeline.file else pipeline.listed.name
        parameters, output = self._folder / f"{key}.json", self._folder / f"{key}.log"
        command = [sys.executable, "-m", "gpu_pipelines.cli.main", "run", what, "--runs", str(self._runs)]
        command += ["--params", str(parameters), *(["--cache"] if reuse else [])]
        command += [] if containers else ["--no-containers"]
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            # JSON is YAML.
            parameters.write_text(json.dumps(dict(given)), encoding="utf-8")
            with output.open("wb") as file:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    # A Ctrl-C that ends the console is not for the runs that it has started.
                    start_new_session=True,
                    env={**os.environ, "PYTHONUNBUFFERED": "1"},
                )
        except OSError as error:
            raise UserError(
                f"The run cannot be started: {error.strerror or error}.", "Free space, and try again."
            ) from error
        self._starts[key] = Start(key, pipeline.listed.name, process, output)
        return self._starts[key]

    def start(self, key: str) -> Start:
        """A run that was started by this console.

        Raises:
            UserError: there is none of that key.
        """
        if key not in self._starts:
            raise NotFoundError("This console has not started that run.", "Look for it among the runs.")
        return self._starts[key]

    def run_of(self, start: Start) -> str:
        """The id of the run that was started; empty as long as there is none."""
        begun = start.output.with_suffix(".json").stat().st_mtime
        for file in sorted(self._runs.glob(f"*/{RUN}"), key=lambda file: file.stat().st_mtime_ns, reverse=True):
            try:
                if file.stat().st_mtime < begun:
                    break
                if json.loads(file.read_text(encoding="utf-8")).get("process_id") == start.process.pid:
                    return file.parent.name
            except (OSError, ValueError):
                continue
        return ""


def start_there(runs: EmulatorRuns, pipeline: Pipeline, values: Mapping[str, Any]) -> str:
    """Submits a compiled pipeline to the emulator, as it is.

    Args:
        runs: those of the emulator.
        pipeline: what is run.
        values: of the parameters that are given, with their types.

    Returns:
        The id of the job.

    Raises:
        UserError: it is no file, or the emulator refuses it.
    """
    if pipeline.file is None:
        raise UserError(
            f"The emulator runs compiled files, and {pipeline.listed.name} is none.",
            f"gpu-pipelines compile {pipeline.listed.name} --target vertex --accelerator l4:1 makes one.",
        )
    stamp = f"{datetime.now(timezone.utc):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    name = pipeline.file.stem.rpartition("-")[0]
    return runs.submit(pipeline.spec, values, f"{name if name[:1].isalpha() else 'pipeline'}-{stamp}")
