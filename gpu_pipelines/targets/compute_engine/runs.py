"""A run of a whole pipeline on one VM: its folder in a bucket, the work of the VM, following and cancelling.

The folder is PIPELINE_ROOT/runs/RUN. `request.json` is the request; `run.json` the state. The VM knows only the folder,
and runs this module in the image of the steps at each of its starts, so that a preempted VM continues.
"""

from __future__ import annotations

import io
import json
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_pipelines.accelerators.cost import LEFT_OUT
from gpu_pipelines.accelerators.spent import spent_on
from gpu_pipelines.artifacts.remote_files import RemoteFolder
from gpu_pipelines.errors import (
    ERROR_PREFIX,
    INTERRUPTED,
    InvalidRequestError,
    NoMachinesError,
    NotFoundError,
    ProcessFailedError,
    UnavailableError,
    UserError,
    as_data,
    from_data,
)
from gpu_pipelines.project_settings import FILE as SETTINGS_FILE
from gpu_pipelines.targets.compute_engine.fallback import go_on, machines_tried, note_end, tries_of
from gpu_pipelines.targets.compute_engine.instance import Instance
from gpu_pipelines.targets.compute_engine.machine_times import moment, times_of_vm
from gpu_pipelines.targets.compute_engine.run_folder import (
    CHECKPOINTS,
    ENDED,
    LOGS,
    REQUEST,
    STATE,
    WORK,
    VmRun,
    ended_now,
)
from gpu_pipelines.targets.messages import Outcome
from gpu_pipelines.targets.runs.account import RunAccount, StepAccount
from gpu_pipelines.targets.runs.earlier import require_resumable
from gpu_pipelines.tracking.tracker import TrackedRun

if TYPE_CHECKING:
    from gpu_pipelines.targets.fallback.tries import Tries
    from gpu_pipelines.targets.messages import Watch
    from gpu_pipelines.targets.runs.record import RunRecord
    from gpu_pipelines.targets.steps import StepRecord
    from gpu_pipelines.terminal import Table

#: Costs that the figures of a VM do not include.
NOT_COUNTED = tuple(each for each in LEFT_OUT if "Vertex AI" not in each)
#: Most failed reads in a row, as nobody else starts a Spot VM again.
_MISSES = 5
#: States of a VM that is not running.
_OFF = ("TERMINATED", "STOPPED", "SUSPENDED")
#: The log's line about a failed start-up script; without that line, the VM was preempted.
_SCRIPT_FAILED = re.compile(r"gpu-pipelines: the start-up script ends with exit status")
#: A line with the error from the script, or from the program in the container if it cannot record it.
_SCRIPT_ERROR = re.compile(rf"^(?:[\d:]+ gpu-pipelines: )?{ERROR_PREFIX}(.*)", re.MULTILINE)
#: Settings that the steps read from the file of the project.
SETTINGS = ("project", "region", "pipeline_root", "image", "serving_image", "service_account", "encryption_key")


def follow(run: VmRun, watch: Watch, every: float) -> Outcome:
    """Waits for the end of a run, and starts a preempted Spot VM again.

    Args:
        run: the run.
        watch: gets the lines of its log.
        every: seconds between two reads.

    Raises:
        UserError: there is no such run, or its state could not be read several times in a row.
    """
    state = run.read(STATE)
    instance, at, misses = Instance(state["vm"]), 0, 0
    said: list[str] = []
    tries = tries_of(run, run.read(REQUEST))
    while True:
        if tries is not None and state["status"] not in ENDED and not (tries.current and tries.current.job):
            # The process that sent or followed it died before it recorded a VM, or the start was refused.
            instance = Instance(state["vm"])
            instance = _gone_on(run, tries, instance, watch) or instance
        try:
            # In this order: then the last output of the VM is seen.
            vm = instance.look()
            is_off = vm.get("status") in _OFF
            if vm and not is_off:
                lines, at = instance.serial_lines(at)
                said += lines
                for line in lines:
                    watch.say(line)
            state, misses = run.read(STATE), 0
        except UnavailableError:
            misses += 1
            if misses >= _MISSES:
                raise
            time.sleep(every)
            continue
        if state["status"] not in ENDED and (problem := _why_it_ended(run, state, vm, said)):
            run.end("failed", error=as_data(problem))
            state = run.read(STATE)
        if tries is not None and tries.current and state["status"] not in ENDED and tries.is_spent:
            run.end("failed", error=as_data(tries.too_dear()))
            state = run.read(STATE)
            instance.delete()
        if state["status"] in ENDED:
            if tries is not None:
                note_end(tries, str(state["status"]))
            return _outcome(run, state)
        if is_off:
            watch.tell(f"{instance.name} was preempted; starting it again")
            at, said = 0, []
            if tries is not None:
                instance = _gone_on(run, tries, instance, watch) or instance
            elif refused := instance.start():
                watch.warn(f"it was not started; trying again: {refused}")
        time.sleep(every)


def _gone_on(run: VmRun, tries: Tries, before: Instance, watch: Watch) -> Instance | None:
    """The VM on which a run continues; None if the run has ended, or is to be tried again."""
    try:
        vm = go_on(run, tries, before if before.look() else None, watch.tell)
    except NoMachinesError as error:
        run.end("failed", error=as_data(error))
        return None
    except UserError as error:
        watch.warn(f"it was not started; trying again: {error}")
        return None
    return Instance(vm.place)


def _why_it_ended(run: VmRun, state: Mapping[str, Any], vm: Mapping[str, Any], said: Sequence[str]) -> UserError | None:
    """Why a run ended without recording it; None while its VM runs, or if it was preempted and is to continue.

    Args:
        run: the run.
        state: recorded state of the run.
        vm: its VM; empty if it is gone.
        said: the lines of the start-up script since the VM was started.
    """
    is_off = not vm or vm.get("status") in _OFF
    log = "\n".join(said)
    if is_off and not _SCRIPT_FAILED.search(log):
        # The last output of a VM is no longer on its serial port.
        log = run.last_log(int(state.get("earlier_logs", 0)))
    if _SCRIPT_FAILED.search(log):
        found = _SCRIPT_ERROR.findall(log)
        told = found[-1].rstrip(".") if found else "the container left no message"
        return ProcessFailedError(
            f"The start-up script of {run.name} failed: {told}.", f"Its log is in {run.uri}/{LOGS}."
        )
    if not vm:
        return NotFoundError(
            f"The VM {run.name} was deleted before the run ended.",
            f"A new run with -p checkpoint_uri={run.uri}/{CHECKPOINTS} continues from its checkpoints.",
        )
    if not is_off:
        return None
    again = "gcloud compute instances start {name} --zone={zone} --project={project}".format(**state["vm"])
    again += " continues it."
    limit = int(vm.get("scheduling", {}).get("maxRunDuration", {}).get("seconds", 0))
    if limit and _seconds_it_ran(vm) >= limit:
        return ProcessFailedError(f"The VM {run.name} was stopped after {limit / 3600:g} h, its limit.", again)
    if state["strategy"] != "spot":
        return ProcessFailedError(f"The VM {run.name} was stopped before the run ended.", again)
    return None


def _seconds_it_ran(vm: Mapping[str, Any]) -> float:
    with suppress(KeyError, ValueError):
        began, ended = (datetime.fromisoformat(vm[key]) for key in ("lastStartTimestamp", "lastStopTimestamp"))
        # The limit and the time of a stop are only known to the second.
        return (ended - began + timedelta(seconds=1)).total_seconds()
    return 0.0


def _outcome(run: VmRun, state: Mapping[str, Any]) -> Outcome:
    lines = list(state.get("shown", ()))
    if state.get("error"):
        lines = [f"{ERROR_PREFIX}{from_data(state['error'])}"]
    elif state["status"] == "cancelled":
        lines = [f"{ERROR_PREFIX}{run.name} was cancelled"]
    return Outcome(str(state["status"]), [*lines, f"folder: {run.uri}"], state)


def account(run: VmRun) -> RunAccount:
    """The state of a run, and the cost of its VM.

    Args:
        run: the run.

    Raises:
        UserError: there is no such run, or the state of the VM cannot be read.
    """
    state = run.read(STATE)
    instance, record = Instance(state["vm"]), state.get("record", {})
    vm, operations = instance.look(), instance.operations()
    region = str(state["vm"]["zone"]).rpartition("-")[0]
    request, machine = run.read(REQUEST), state.get("machine")
    if tries := tries_of(run, request):
        times = machines_tried(tries, state["pipeline"])
    else:
        times = times_of_vm(machine, vm, operations, region, state["pipeline"]) if machine else []
    ended = datetime.fromisoformat(state["ended"]) if state["status"] in ENDED and state.get("ended") else None
    began = min((moment(each["insertTime"]) for each in operations), default=None)
    tracked = TrackedRun(f"{WORK}/runs/{record['run_id']}", record["run_id"]) if record else None
    return RunAccount(
        run=run.name,
        target="compute_engine",
        state=str(state["status"]),
        steps=[StepAccount(step["name"], step["status"], step["seconds"]) for step in record.get("steps", [])],
        spent=spent_on(times, NOT_COUNTED),
        began=began or (moment(vm["creationTimestamp"]) if vm.get("creationTimestamp") else None),
        ended=ended,
        error=str(from_data(state["error"]) or "") if state.get("error") else "",
        tracking=str(request["arguments"].get("tracking") or ""),
        tracked=tracked,
    )


def cancel(run: VmRun) -> str:
    """Marks a run as cancelled and deletes its VM; returns what was done.

    Raises:
        UserError: there is no such run, or the VM was not deleted.
    """
    state = run.read(STATE)
    if state["status"] not in ENDED:
        # First, so that no follower starts the VM again.
        run.write(STATE, {**state, "status": "cancelled", "error": None, "ended": ended_now()})
    if refused := Instance(state["vm"]).delete():
        raise UserError(
            f"The VM {run.name} was not deleted: {refused}", "It is billed until it is deleted. Cancel the run again."
        )
    told = f"it had {state['status']} before" if state["status"] in ENDED else "cancelled"
    return f"{run.name}: {told}; its VM is deleted\nfolder: {run.uri}"


def require_restartable(run: VmRun) -> dict[str, str]:
    """Checks that a run has failed and that its VM exists; returns name, zone and project of the VM.

    Raises:
        UserError: it is running, has succeeded, or its VM is gone with its results.
    """
    state = run.read(STATE)
    require_resumable(run.name, state["status"], state["status"] in ENDED)
    vm: dict[str, str] = state["vm"]
    anew = f"A new run with -p checkpoint_uri={run.uri}/{CHECKPOINTS} continues from its checkpoints."
    if tries_of(run, run.read(REQUEST)):
        # Its VM would belong to no try, and would not count towards the price limit.
        raise InvalidRequestError(f"{run.name} used a list of machines, so it cannot be resumed.", anew)
    if not Instance(vm).look():
        raise NotFoundError(f"The VM of {run.name} is deleted, and the results of its steps with it.", anew)
    return vm


def restart(run: VmRun) -> None:
    """Starts the VM of a run again; it continues at the step that failed.

    Raises:
        UserError: it was not started.
    """
    state = run.read(STATE)
    # They are about the failure, not about the start that follows.
    run.write(STATE, {**state, "status": "starting", "error": None, "earlier_logs": len(run.logs())})
    if refused := Instance(state["vm"]).start():
        run.write(STATE, state)
        raise UnavailableError(f"The VM {run.name} was not started: {refused}", "Try again later.")


class _Lines:
    """Prints the steps of a run line by line, for the log of the VM."""

    def step_began(self, step: str) -> None:
        print(f"{step}: started", file=sys.__stdout__, flush=True)

    def step_said(self, step: str, line: str) -> None:
        print(f"{step}: {line}", file=sys.__stdout__, flush=True)

    def step_ended(self, step: StepRecord) -> None:
        print(f"{step.name}: {step.status} after {step.seconds:.0f} s", file=sys.__stdout__, flush=True)


def run_on_vm(run: VmRun, work: Path) -> int:
    """Runs the pipeline of a run on this machine; the program of the VM.

    Args:
        run: the run.
        work: a directory that outlives the container, for prepared data and results of finished steps.

    Returns:
        Exit status: 0 if it succeeded, 1 if not, `INTERRUPTED` if it was signalled and continues at the next start.
    """
    from gpu_pipelines.notifications.recipients import Recipients
    from gpu_pipelines.targets.local.telling import tell_of, told_of_errors

    request, state = run.read(REQUEST), run.read(STATE)
    if state["status"] in ("succeeded", "cancelled"):
        print(f"{run.name} has {state['status']} already", flush=True)
        return 0
    run.write(STATE, {**state, "status": "running", "error": None})
    os.chdir(work)
    Path(SETTINGS_FILE).write_text(json.dumps(request["settings"]), encoding="utf-8")
    told = Recipients.from_json(request["told"]) if "told" in request else None
    try:
        with told_of_errors(request["pipeline"], told):
            record = _recorded(run, request, work)
    except UserError as error:
        print(f"{ERROR_PREFIX}{error}", file=sys.stderr, flush=True)
        run.end("failed", error=as_data(error))
        return 1
    if record.status == "interrupted":
        return INTERRUPTED
    status = _ended(run, record)
    tell_of(record, told, run.uri, request.get("dollars_per_hour", 0.0))
    return status


def _recorded(run: VmRun, request: Mapping[str, Any], work: Path) -> RunRecord:
    from gpu_pipelines.dag import load_pipeline
    from gpu_pipelines.targets.local.own import own_here
    from gpu_pipelines.targets.local.runner.digests import state_of_steps
    from gpu_pipelines.targets.local.runs import LocalRequest, run_and_record
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
    reuse = request["cache"] or bool(list(runs.glob("*/run.json")))
    cost = f"the cost of the VM: gpu-pipelines runs show {run.name} --target compute_engine"
    return run_and_record(local, runs, _Lines(), reuse=reuse, cost=cost)


def _ended(run: VmRun, record: RunRecord) -> int:
    """Copies the results of a run into its folder, and records how it ended."""
    from gpu_pipelines.targets.local.outputs.result_lines import shown_result

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
    """Lines and tables as plain lines, as wide as they need."""
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
    try:
        sys.exit(run_on_vm(VmRun(sys.argv[1].rstrip("/")), Path(sys.argv[2])))
    except UserError as error:
        # An error of the bucket, which cannot be recorded there.
        sys.exit(f"{ERROR_PREFIX}{error}")
