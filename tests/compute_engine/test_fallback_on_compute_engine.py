"""A run over a list of VMs: the next where none is left, the VM before deleted first, and each try written down."""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from command_line import command
from compute_api import ComputeApi
from conftest import PIPELINE

from gpu_pipelines.artifacts.remote_files import RemoteFolder

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = "gs://bucket/root"
PLACE = ("--project", "my-project", "--pipeline-root", ROOT)
ON_VMS = (
    *("run", PIPELINE, "--target", "compute_engine", "--accelerator", "l4:2,l4:1", "--strategy", "spot,standard"),
    *("--regions", "us-central1,europe-west4", "--image", "us-docker.pkg.dev/p/r/steps:1", *PLACE),
    *("-p", "source=sample:digits", "-p", "epochs=2"),
)
US = {f"us-central1-{zone}" for zone in "abcf"}

pytestmark = pytest.mark.usefixtures("no_project_settings", "bucket")


def document(run: str, name: str = "run.json") -> dict[str, Any]:
    content: dict[str, Any] = json.loads(RemoteFolder(f"{ROOT}/runs/{run}").read(name))
    return content


def tries(run: str) -> list[dict[str, Any]]:
    folder = RemoteFolder(f"{ROOT}/fallback/{run}")
    (name,) = folder.names()
    return list(json.loads(folder.read(name))["tries"])


def soon(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def followed_while(run: str, happens: Callable[[], None]) -> Any:
    """What following a run printed, while something else happens to it."""
    life = threading.Thread(target=happens)
    life.start()
    followed = command("follow", run, "--target", "compute_engine", *PLACE, "--interval", "0.1")
    life.join()
    return followed


def require_the_cost_of_all(run: str, *, tries: int) -> None:
    """The run costs what its tries with machines did, each on its own machine and in its own region."""
    told = json.loads(command("runs", "show", run, "--target", "compute_engine", *PLACE, "--json").out)
    made = [each for each in told["tries"]["vm"]["tries"] if each["began"]]
    assert len(told["cost"]["machines"]) == len(made) == tries
    for line, each in zip(told["cost"]["machines"], made, strict=True):
        assert f"{line['gpu']}:{line['gpus']} {line['strategy']} in {line['region']}" == each["told"]
        assert line["usd"] == pytest.approx(each["usd"], abs=1e-3)


@pytest.mark.slow
def test_the_next_vm_is_tried_and_a_preempted_one_is_deleted_before_it(compute_api: ComputeApi) -> None:
    compute_api.exhausted = set(US)
    done = command(*ON_VMS, "--json")
    assert done.status == 0, done.err
    assert "else l4:2 spot in europe-west4: about" in done.err
    run = json.loads(done.out)["run"]
    (vm,) = compute_api.instances
    assert vm.zone.startswith("europe-west4-")
    assert [(each["told"], each["state"]) for each in tries(run)] == [
        ("l4:2 spot in us-central1", "no capacity"),
        ("l4:2 spot in europe-west4", "sent"),
    ]
    assert "ZONE_RESOURCE_POOL_EXHAUSTED" in tries(run)[0]["reason"] or "enough resources" in tries(run)[0]["reason"]

    def happens() -> None:
        compute_api.exhausted = {vm.zone}
        compute_api.stop(run)
        # The VM that cannot be started again is gone before there is another, in the region where there are machines.
        soon(lambda: [each.zone[:11] for each in compute_api.instances] == ["us-central1"])
        content = {**document(run), "status": "succeeded", "shown": ["registered digits version 1"]}
        RemoteFolder(f"{ROOT}/runs/{run}").write("run.json", json.dumps(content).encode())

    followed = followed_while(run, happens)
    assert followed.status == 0, followed.err
    made = tries(run)
    assert [each["state"] for each in made] == ["no capacity", "preempted", "no capacity", "succeeded"]
    assert [each["choice"] for each in made] == [0, 1, 1, 2]
    assert all(each["usd"] > 0 for each in made if each["began"])
    assert document(run)["strategy"] == "standard"
    require_the_cost_of_all(run, tries=2)
    [instance] = compute_api.instances
    script = next(item.value for item in instance.metadata.items if item.key == "startup-script")
    assert "GPU_PIPELINES_TRIES=" in script
    shown = command("runs", "show", run)
    assert shown.status == 2, "no project settings say where it is"


@pytest.mark.slow
def test_a_run_for_which_there_is_no_vm_at_all_is_refused_with_what_was_tried(compute_api: ComputeApi) -> None:
    compute_api.refusal = "Quota 'GPUS_ALL_REGIONS' exceeded. Limit: 0.0 globally."
    done = command(*ON_VMS, "--max-price-per-hour", "1.5")
    assert done.status == 2
    assert "left out: l4:2 standard in us-central1: costs $2.00 an hour" in done.err
    assert "choices was available. Tried: l4:2 spot in us-central1: no quota; " in done.err
    assert compute_api.instances == []


@pytest.mark.slow
def test_a_follower_creates_the_vm_that_a_process_that_died_has_only_written_down(
    compute_api: ComputeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPU_PIPELINES_FALLBACK_PATIENCE", "0.1")
    run = json.loads(command(*ON_VMS, "--json").out)["run"]
    [before] = compute_api.instances
    folder = RemoteFolder(f"{ROOT}/fallback/{run}")
    (name,) = folder.names()
    content = json.loads(folder.read(name))
    content["tries"][0] |= {"state": "asked", "job": "", "began": None}
    folder.write(name, json.dumps(content).encode())
    ended = {**document(run), "status": "succeeded", "shown": []}
    timer = threading.Timer(3, lambda: RemoteFolder(f"{ROOT}/runs/{run}").write("run.json", json.dumps(ended).encode()))
    timer.start()
    followed = command("follow", run, "--target", "compute_engine", *PLACE, "--interval", "0.1")
    assert followed.status == 0, followed.err
    # The one that was there was found, and no other was created.
    assert [(each.name, each.zone) for each in compute_api.instances] == [(before.name, before.zone)]
    assert [each["state"] for each in tries(run)] == ["succeeded"]
    require_the_cost_of_all(run, tries=1)


@pytest.mark.slow
def test_a_start_that_is_refused_is_tried_again_and_no_second_vm_is_created(compute_api: ComputeApi) -> None:
    compute_api.exhausted = {"us-central1-a"}
    run = json.loads(command(*ON_VMS, "--json").out)["run"]
    [before] = compute_api.instances
    compute_api.exhausted, compute_api.refused_starts = set(), 1
    compute_api.stop(run)

    def happens() -> None:
        soon(lambda: compute_api.started or len(compute_api.instances) > 1)
        content = {**document(run), "status": "succeeded", "shown": []}
        RemoteFolder(f"{ROOT}/runs/{run}").write("run.json", json.dumps(content).encode())

    followed = followed_while(run, happens)
    assert followed.status == 0, followed.err
    assert "it was not started; trying again" in followed.err
    assert [(each.name, each.zone) for each in compute_api.instances] == [(run, before.zone)]
    assert compute_api.started == [run]
