"""What the VM of a run has cost, over its starts."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest
from command_line import command
from test_run_on_compute_engine import ON_A_VM, PLACE, ROOT, followed

from gpu_pipelines.accelerators import load_catalog
from gpu_pipelines.artifacts.remote_files import RemoteFolder
from gpu_pipelines.targets.compute_engine.machine_times import times_of_vm

if TYPE_CHECKING:
    from compute_api import ComputeApi

pytestmark = pytest.mark.usefixtures("no_project_settings", "bucket")
MACHINE = {"machine": "g2-standard-24", "gpu": "l4", "gpus": 2, "strategy": "spot"}
BEGAN = datetime(2026, 11, 20, 8, tzinfo=timezone.utc)


def at(minutes: float) -> str:
    return (BEGAN + timedelta(minutes=minutes)).isoformat().replace("+00:00", "Z")


def operation(kind: str, minutes: float, **more: Any) -> dict[str, Any]:
    return {"operationType": kind, "status": "DONE", "insertTime": at(minutes), "endTime": at(minutes), **more}


def minutes_of(operations: list[dict[str, Any]], **vm: str) -> list[float]:
    return [time.seconds / 60 for time in times_of_vm(MACHINE, vm, operations, "us-central1", "run")]


def test_each_start_counts_from_its_begin_to_whatever_stopped_it() -> None:
    operations = [
        operation("insert", 0),
        operation("setLabels", 1),
        operation("compute.instances.preempted", 30),
        operation("start", 32, error={"errors": [{"code": "ZONE_RESOURCE_POOL_EXHAUSTED"}]}),
        operation("start", 45),
        operation("compute.instances.guestTerminate", 105),
        operation("delete", 200),
    ]
    assert minutes_of(operations) == [30, 60]
    assert minutes_of(operations[::-1]) == [30, 60], "the service lists them in no order that matters"


def test_a_stop_that_no_operation_tells_is_that_of_the_vm() -> None:
    assert minutes_of([operation("insert", 0)], lastStopTimestamp=at(90)) == [90]
    assert minutes_of([], lastStartTimestamp=at(0), lastStopTimestamp=at(15)) == [15], "operations are forgotten"
    assert minutes_of([]) == []
    running = minutes_of([{**operation("insert", 0), "endTime": datetime.now(timezone.utc).isoformat()}])
    assert 0 <= running[0] < 1


def test_the_vm_of_a_run_has_its_name_as_a_label(compute_api: ComputeApi) -> None:
    done = command(*ON_A_VM, "--dry-run")
    assert done.status == 0, done.err
    name = re.search(r"instances create (\S+)", done.out)
    assert name
    assert f"gpu_pipelines_run={name[1]}" in done.out


def test_the_cost_of_a_spot_vm_over_two_starts(compute_api: ComputeApi) -> None:
    run, zone = "train-evaluate-upload-20261120-080000-0a1b", "us-central1-b"
    for kind, minutes in (("insert", 0), ("compute.instances.preempted", 90), ("start", 120), ("delete", 150)):
        compute_api.note("my-project", zone, run, kind, at(minutes))
    compute_api.note("my-project", zone, "another", "insert", at(0))
    vm = {"name": run, "zone": zone, "project": "my-project"}
    steps = [{"name": "train-model", "status": "succeeded", "seconds": 100.0}]
    state = {"run": run, "pipeline": "train_evaluate_upload", "vm": vm, "machine": MACHINE, "strategy": "spot"}
    state |= {"status": "succeeded", "ended": at(150), "shown": ["done"], "record": {"run_id": "r-1", "steps": steps}}
    for file, content in (("run.json", state), ("request.json", {"arguments": {"tracking": "none"}})):
        RemoteFolder(f"{ROOT}/runs/{run}").write(file, json.dumps(content).encode())
    done = followed(run)
    assert done.status == 0, done.err
    price = load_catalog().prices[("g2-standard-24", "machine", "us-central1")].spot
    assert f"cost: ${2 * price:,.2f} for 2.00 machine hours (list prices of 2026-" in done.out
    assert done.out.splitlines()[-1].startswith("folder: ")
    shown = command("runs", "show", run, "--target", "compute_engine", *PLACE, "--json")
    assert shown.status == 0, shown.err
    document = json.loads(shown.out)
    assert document["cost"]["usd"] == pytest.approx(2 * price, abs=0.001)
    assert [each["hours"] for each in document["cost"]["machines"]] == [1.5, 0.5]
    assert [each["name"] for each in document["steps"]] == ["train-model"]
    assert not any("Vertex" in each for each in document["cost"]["left_out"])
