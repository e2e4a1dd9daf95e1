"""Starts runs: on this machine each with the command line, as a separate process that outlives the console."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from gpu_pipelines.console.emulator_runs import EmulatorRuns
from gpu_pipelines.console.pipelines import Pipeline
from gpu_pipelines.errors import NotFoundError, UserError
from gpu_pipelines.targets.runs.names import new_run_name
from gpu_pipelines.targets.runs.record import RUN

#: Below the console's folder: the parameters of started runs, and their output.
_STARTS = "starts"
_LAST_LINES = 40
#: An image for the steps, which must be named; an emulator ignores it.
_ANY_IMAGE = "passed-over:1"


@dataclass
class Start:
    """A run that was started on this machine.

    Attributes:
        key: its key in addresses.
        pipeline: its name.
        process: the process of the run.
        output: the file with its output.
    """

    key: str
    pipeline: str
    process: subprocess.Popen[bytes]
    output: Path

    @property
    def said(self) -> str:
        """The last lines of its output."""
        lines = self.output.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(lines[-_LAST_LINES:])


class Starter:
    """Starts runs, and finds their ids.

    Args:
        folder: the folder of the console.
        runs: the folder of the runs on this machine.
    """

    def __init__(self, folder: Path, runs: Path) -> None:
        self._folder, self._runs = folder / _STARTS, runs
        self._starts: dict[str, Start] = {}

    def start_here(self, pipeline: Pipeline, given: Mapping[str, str], *, reuse: bool, containers: bool) -> Start:
        """Starts a run on this machine.

        Args:
            pipeline: the pipeline.
            given: values of parameters that differ from the defaults, as texts.
            reuse: whether steps may reuse results of earlier runs.
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
                    # A Ctrl-C that ends the console must not end the runs that it started.
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
            UserError: there is none with that key.
        """
        if key not in self._starts:
            raise NotFoundError("This console did not start that run.", "Look for it among the runs.")
        return self._starts[key]

    def run_of(self, start: Start) -> str:
        """The id of the run that was started; empty until it is known."""
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


def start_there(
    runs: EmulatorRuns, pipeline: Pipeline, values: Mapping[str, Any], given: Collection[str], accelerator: str
) -> str:
    """Submits a compiled pipeline to the emulator as it is; a pipeline of this project is compiled for it first.

    Args:
        runs: the runs of the emulator.
        pipeline: the pipeline.
        values: the values of all parameters, with their types.
        given: names of those that differ from the defaults.
        accelerator: the accelerator to compile a pipeline of this project for, such as l4:1.

    Returns:
        The id of the job.

    Raises:
        UserError: there is no such accelerator, or the emulator refuses it.
    """
    sent = {name: values[name] for name in given}
    if pipeline.file is None:
        spec, sent = _compiled_for(pipeline.listed.name, sent, accelerator)
    else:
        spec = pipeline.spec
    return runs.submit(spec, sent, new_run_name(str(spec.get("pipelineInfo", {}).get("name", "pipeline"))))


def _compiled_for(name: str, given: Mapping[str, Any], accelerator: str) -> tuple[Mapping[str, Any], dict[str, Any]]:
    """A pipeline of this project compiled for Vertex AI, and the values in the form that it takes."""
    from gpu_pipelines.driver.opening import open_target
    from gpu_pipelines.driver.parameters.advanced_fields import ADVANCED
    from gpu_pipelines.driver.programs import ONE_AT_A_TIME
    from gpu_pipelines.targets.compiled import documents_of
    from gpu_pipelines.targets.vertex.target import IMAGE_PARAMETER

    target: Any = open_target("vertex", {"accelerator": accelerator}, "compile")
    with ONE_AT_A_TIME:
        spec = documents_of(target.compile(name, str(given.get("task", ""))).text)[0]
    known = spec["root"].get("inputDefinitions", {}).get("parameters", {})
    own = {key: value for key, value in given.items() if key in known}
    # The task is compiled in.
    others = {key: value for key, value in given.items() if key not in known and key != "task"}
    image = {IMAGE_PARAMETER: _ANY_IMAGE} if IMAGE_PARAMETER in known else {}
    return spec, {**own, **image, **({ADVANCED: others} if others else {})}
