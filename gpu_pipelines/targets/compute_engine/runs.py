"""A run of a whole pipeline on one VM: its folder in a bucket, what the VM does, and how it is followed and cancelled.

The folder is PIPELINE_ROOT/runs/RUN. `request.json` says what to run; `run.json` how it goes. The VM is told the folder
alone, and runs this module in the image of the steps at each of its starts, so that one that was preempted goes on.
"""

from __future__ import annotations

import io
import json
import os
import re
import secrets
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_pipelines.artifacts.remote_files import RemoteFolder, read_remote
from gpu_pipelines.errors import (
    ERROR_PREFIX,
    INTERRUPTED,
    NotFoundError,
    ProcessFailedError,
    UnavailableError,
    UserError,
    as_data,
    from_data,
)
from gpu_pipelines.project_settings import FILE as SETTINGS_FILE
from gpu_pipelines.project_settings import ProjectSettings
from gpu_pipelines.targets.compute_engine.create import run_gcloud
from gpu_pipelines.targets.messages import Outcome

if TYPE_CHECKING:
    from gpu_pipelines.targets.local.log import StepRecord
    from gpu_pipelines.targets.messages import Watch
    from gpu_pipelines.targets.run_record import RunRecord
    from gpu_pipelines.terminal import Table

#: What stands in the folder of a run.
REQUEST, STATE, CHECKPOINTS, LOGS = "request.json", "run.json", "checkpoints", "vm-logs"
#: States that a run does not leave.
ENDED = ("succeeded", "failed", "cancelled")
#: States of a VM that does not run.
_OFF = ("TERMINATED", "STOPPED", "SUSPENDED")
#: How the log of the start-up script says that it has failed; without that, the VM was taken from it.
_SCRIPT_FAILED = re.compile(r"gpu-pipelines: the start-up script ends with exit status")
_SCRIPT_ERROR = re.compile(r"gpu-pipelines: error: (.*)")
#: What Google's guest agent puts before a line of the start-up script on the serial port.
_OF_SCRIPT = "startup-script: "
#: Settings that the steps look for in the file of the project.
SETTINGS = ("project", "region", "pipeline_root", "image", "serving_image", "service_account", "encryption_key")


def new_run_name(pipeline: str) -> str:
    """A name that no other run has, which the VM has as well."""
    stamp = datetime.now(timezone.utc).strftime("%Y%m%d-%H%M%S")
    return f"{pipeline.replace('_', '-')[:40]}-{stamp}-{secrets.token_hex(2)}"


@dataclass(frozen=True)
class VmRun:
    """A run, by its folder.

    Attributes:
        uri: the folder, `gs://…`.
    """

    uri: str

    @classmethod
    def of(cls, run: str, settings: ProjectSettings) -> VmRun:
        """The run of a name, or of the URI of its folder.

        Raises:
            UserError: it is a name, and the project has no pipeline root.
        """
        if "://" in run:
            return cls(run.rstrip("/"))
        settings.require("pipeline_root")
        return cls(f"{str(settings.pipeline_root).rstrip('/')}/runs/{run}")

    @property
    def name(self) -> str:
        return self.uri.rpartition("/")[2]

    def read(self, file: str) -> dict[str, Any]:
        """A document of the folder.

        Raises:
            NotFoundError: there is none.
        """
        try:
            content: dict[str, Any] = json.loads(read_remote(f"{self.uri}/{file}"))
        except FileNotFoundError:
            raise NotFoundError(
                f"There is no run {self.name} on Compute Engine: {self.uri} has no {file}.",
                "Give the name that run has printed, and the same pipeline root.",
            ) from None
        return content

    def write(self, file: str, content: Mapping[str, Any]) -> None:
        """Writes a document of the folder in the place of the one that is there."""
        RemoteFolder(self.uri).write(file, json.dumps(content, indent=2, ensure_ascii=False).encode())

    def end(self, status: str, **more: Any) -> None:
        """Notes that the run has ended, unless it was cancelled before."""
        state = self.read(STATE)
        if state["status"] != "cancelled":
            ended = datetime.now(timezone.utc).isoformat(timespec="seconds")
            self.write(STATE, {**state, "status": status, "ended": ended, **more})

    def last_log(self) -> str:
        """The newest log of the VM that it has copied here; empty if there is none."""
        folder = RemoteFolder(f"{self.uri}/{LOGS}")
        names = folder.names()
        return folder.read(names[-1]).decode(errors="replace") if names else ""


class Instance:
    """The VM of a run: looked at through the Compute API, started and deleted by gcloud, which has made it.

    Args:
        vm: `name`, `zone` and `project`.
    """

    def __init__(self, vm: Mapping[str, str]) -> None:
        from gpu_pipelines.google_cloud.connection import credentials
        from gpu_pipelines.google_cloud.rest import Rest, endpoint

        where = endpoint("compute")
        self._rest = Rest(credentials(where))
        # gcloud's endpoint has the path of the interface in it.
        prefix = "" if where.endswith("/compute/v1") else "/compute/v1"
        self._path = f"{prefix}/projects/{vm['project']}/zones/{vm['zone']}/instances/{vm['name']}"
        self.name = vm["name"]
        self._place = [vm["name"], f"--zone={vm['zone']}", f"--project={vm['project']}", "--quiet"]

    def look(self) -> dict[str, Any]:
        """The VM; empty if it is gone."""
        return self._get("", {})

    def serial_lines(self, start: int) -> tuple[list[str], int]:
        """Whole lines of the start-up script from a byte of the serial port on, and the byte to go on from."""
        answer = self._get("/serialPort", {"port": 1, "start": start})
        text, end = str(answer.get("contents", "")), int(answer.get("next", start))
        whole, _, rest = text.rpartition("\n")
        lines = [line.partition(_OF_SCRIPT)[2] for line in whole.splitlines() if _OF_SCRIPT in line]
        return lines, end - len(rest.encode())

    def start(self) -> str:
        """Starts it again; what gcloud says against it, empty if nothing."""
        done = run_gcloud(["gcloud", "compute", "instances", "start", *self._place])
        return "" if done.returncode == 0 else done.stderr.strip()

    def delete(self) -> str:
        """Deletes it; what gcloud says against it, empty if nothing."""
        done = run_gcloud(["gcloud", "compute", "instances", "delete", *self._place])
        return "" if done.returncode == 0 or not self.look() else done.stderr.strip()

    def _get(self, path: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        from gpu_pipelines.google_cloud.rest import UnreachableError
        from gpu_pipelines.network_errors import error_of_status

        try:
            answer = self._rest.get("compute", self._path + path, parameters)
        except UnreachableError as error:
            raise UnavailableError(f"{self.name} cannot be looked at: {error}.", "Check your network.") from error
        if answer.status == 404:
            return {}
        if not answer.ok:
            raise error_of_status(answer.status, f"{self.name} cannot be looked at: {answer.message}", "")
        return dict(answer.content)


def follow(run: VmRun, watch: Watch, every: float) -> Outcome:
    """Waits for the end of a run, and starts a Spot VM again that was taken from it.

    Args:
        run: the run.
        watch: is told the lines of its log.
        every: seconds between two looks.

    Raises:
        UserError: there is no such run, or it cannot be looked at.
    """
    state = run.read(STATE)
    instance, at = Instance(state["vm"]), 0
    said: list[str] = []
    while True:
        # In this order: what the VM has written before its end is seen then.
        vm = instance.look()
        is_off = vm.get("status") in _OFF
        if vm and not is_off:
            lines, at = instance.serial_lines(at)
            said += lines
            for line in lines:
                watch.say(line)
        state = run.read(STATE)
        if state["status"] not in ENDED and (problem := _why_it_ended(run, state, vm, said)):
            run.end("failed", error=as_data(problem))
            state = run.read(STATE)
        if state["status"] in ENDED:
            return _outcome(run, state)
        if is_off:
            watch.tell(f"{instance.name} was preempted; starting it again")
            at, said = 0, []
            if refused := instance.start():
                watch.warn(f"it was not started, and is tried again: {refused}")
        time.sleep(every)


def _why_it_ended(run: VmRun, state: Mapping[str, Any], vm: Mapping[str, Any], said: Sequence[str]) -> UserError | None:
    """Why a run has ended without a word of it; None while its VM runs, or where it was preempted and is to go on.

    Args:
        run: the run.
        state: what is known of it.
        vm: its VM; empty if it is gone.
        said: the lines of the start-up script since the VM was started.
    """
    is_off = not vm or vm.get("status") in _OFF
    log = "\n".join(said)
    if is_off and not _SCRIPT_FAILED.search(log):
        # What a VM has said last is not on its serial port any more.
        log = run.last_log()
    if _SCRIPT_FAILED.search(log):
        found = _SCRIPT_ERROR.findall(log)
        told = found[-1] if found else "the container has left no word of it"
        return ProcessFailedError(
            f"The start-up script of {run.name} failed: {told}.", f"Its log is in {run.uri}/{LOGS}."
        )
    if not vm:
        return NotFoundError(
            f"The VM {run.name} was deleted before the run had ended.",
            f"A new run with -p checkpoint_uri={run.uri}/{CHECKPOINTS} goes on from its checkpoints.",
        )
    if not is_off:
        return None
    again = "gcloud compute instances start {name} --zone={zone} --project={project}".format(**state["vm"])
    again += " continues it."
    limit = int(vm.get("scheduling", {}).get("maxRunDuration", {}).get("seconds", 0))
    if limit and _seconds_it_ran(vm) >= limit:
        return ProcessFailedError(f"The VM {run.name} was stopped after {limit / 3600:g} h, its limit.", again)
    if state["strategy"] != "spot":
        return ProcessFailedError(f"The VM {run.name} was stopped before the run had ended.", again)
    return None


def _seconds_it_ran(vm: Mapping[str, Any]) -> float:
    with suppress(KeyError, ValueError):
        began, ended = (datetime.fromisoformat(vm[key]) for key in ("lastStartTimestamp", "lastStopTimestamp"))
        # The limit and the time that stopping takes are told to the second.
        return (ended - began + timedelta(seconds=1)).total_seconds()
    return 0.0


def _outcome(run: VmRun, state: Mapping[str, Any]) -> Outcome:
    lines = list(state.get("shown", ()))
    if state.get("error"):
        lines = [f"{ERROR_PREFIX}{from_data(state['error'])}"]
    elif state["status"] == "cancelled":
        lines = [f"{ERROR_PREFIX}{run.name} was cancelled"]
    return Outcome(str(state["status"]), [*lines, f"folder: {run.uri}"], state)


def cancel(run: VmRun) -> str:
    """Marks a run as cancelled and deletes its VM; gives what was done.

    Raises:
        UserError: there is no such run, or the VM was not deleted.
    """
    state = run.read(STATE)
    if state["status"] not in ENDED:
        # First, so that nobody who follows it starts the VM again.
        run.write(STATE, {**state, "status": "cancelled", "error": None})
    if refused := Instance(state["vm"]).delete():
        raise UserError(f"The VM {run.name} was not deleted: {refused}", "It is billed until it is: cancel it again.")
    told = f"it had {state['status']} before" if state["status"] in ENDED else "cancelled"
    return f"{run.name}: {told}; its VM is deleted\nfolder: {run.uri}"


class _Lines:
    """Tells the steps of a run line by line, for the log of the VM."""

    def step_began(self, step: str) -> None:
        print(f"{step}: started", file=sys.__stdout__, flush=True)

    def step_said(self, step: str, line: str) -> None:
        print(f"{step}: {line}", file=sys.__stdout__, flush=True)

    def step_ended(self, step: StepRecord) -> None:
        print(f"{step.name}: {step.status} after {step.seconds:.0f} s", file=sys.__stdout__, flush=True)


def run_on_vm(run: VmRun, work: Path) -> int:
    """Runs the pipeline of a run on this machine; a program of the VM.

    Args:
        run: the run.
        work: a directory that outlives the container, for what is prepared and for results of finished steps.

    Returns:
        Exit status: 0 it has succeeded, 1 it has not, `INTERRUPTED` it was told to stop and goes on at the next start.
    """
    request, state = run.read(REQUEST), run.read(STATE)
    if state["status"] in ("succeeded", "cancelled"):
        print(f"{run.name} has {state['status']} already", flush=True)
        return 0
    run.write(STATE, {**state, "status": "running", "error": None})
    os.chdir(work)
    Path(SETTINGS_FILE).write_text(json.dumps(request["settings"]), encoding="utf-8")
    try:
        record = _recorded(run, request, work)
    except UserError as error:
        print(f"{ERROR_PREFIX}{error}", file=sys.stderr, flush=True)
        run.end("failed", error=as_data(error))
        return 1
    if record.status == "interrupted":
        return INTERRUPTED
    return _ended(run, record)


def _recorded(run: VmRun, request: Mapping[str, Any], work: Path) -> RunRecord:
    from gpu_pipelines.dag import load_pipeline
    from gpu_pipelines.targets.local.own import own_here
    from gpu_pipelines.targets.local.runs import LocalRequest, run_and_record
    from gpu_pipelines.targets.local.state import state_of_steps
    from gpu_pipelines.targets.local.target import LocalTarget
    from gpu_pipelines.targets.messages import Values
    from gpu_pipelines.targets.own.pipeline import OwnPipeline

    arguments, runs = request["arguments"], work / "runs"
    checkpoints, unfinished, spec = f"{run.uri}/{CHECKPOINTS}", runs / ".unfinished", request.get("spec", {})
    if spec:
        own, target = OwnPipeline([spec]), LocalTarget(None, checkpoints, unfinished)
        spec, built = own_here(own, target, {}, arguments, containers=False, may_install=True)
    else:
        target = LocalTarget(state_of_steps(arguments), checkpoints, unfinished)
        built = load_pipeline(request["pipeline"]).build(target, None)
    local = LocalRequest(request["pipeline"], built, Values(arguments, request["taken"]), "", spec)
    # Steps that an earlier start has finished are not run again.
    return run_and_record(local, runs, _Lines(), reuse=request["cache"] or bool(list(runs.glob("*/run.json"))))


def _ended(run: VmRun, record: RunRecord) -> int:
    """Copies what a run has left into its folder, and says how it has ended."""
    from gpu_pipelines.targets.local.runs import shown_result

    shown = [line.replace(str(record.directory), run.uri) for line in _as_text(shown_result(record))]
    files = [path for path in (record.report, *record.directory.glob("logs/*.log")) if path.is_file()]
    names = [str(path.relative_to(record.directory)) for path in files]
    RemoteFolder(run.uri).upload(record.directory, names)
    told = json.loads((record.directory / "run.json").read_text(encoding="utf-8"))
    if record.status == "succeeded":
        run.end("succeeded", record=told, shown=shown)
        return 0
    step = record.failed_step
    error = ProcessFailedError(
        f"{step.name} failed: {step.message or 'it left no error'}", f"Its log: {run.uri}/{step.log}"
    )
    run.end("failed", record=told, error=as_data(error))
    return 1


def _as_text(lines: Sequence[str | Table]) -> list[str]:
    """Lines and tables as lines, as wide as they need."""
    from gpu_pipelines.terminal import console_on

    text = io.StringIO()
    console = console_on(text)
    for line in lines:
        if isinstance(line, str):
            text.write(f"{line}\n")
        else:
            line.print(console)
    return text.getvalue().splitlines()


if __name__ == "__main__":
    sys.exit(run_on_vm(VmRun(sys.argv[1].rstrip("/")), Path(sys.argv[2])))
