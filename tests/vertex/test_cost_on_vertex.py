"""What a run on Vertex AI has cost: from the times of its jobs, beside what was planned and what was billed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from billing_export.server import BillingExport, serving
from command_line import command as command_line_command
from google.cloud import aiplatform_v1 as api
from vertex_commands import PROJECT_FILE, command

from gpu_pipelines.accelerators import load_catalog
from gpu_pipelines.accelerators.spent import MachineTime, Spent
from gpu_pipelines.targets.vertex.runs.machine_times import launchers, planned_in, times_of_job
from gpu_pipelines.targets.vertex.runs.pipelines import parsed_spec
from gpu_pipelines.targets.vertex.runs.state import state_of

if TYPE_CHECKING:
    from gpu_pipelines.emulator.vertex_api import VertexApi

PARENT = "projects/example-project/locations/us-central1"
RUN_LABEL = "vertex-ai-pipelines-run-billing-id"
SEARCH = Path(__file__).parents[2] / "compiled" / "tune_train_evaluate_upload" / "vertex" / "l4-1.yaml"
LOOP = """
from kfp import dsl

from gpu_pipelines.components import accelerate, prepare_data, train_model


@dsl.pipeline(name="loop")
def loop(source: str):
    prepared = prepare_data(source=source)
    with dsl.ParallelFor([0.1, 0.01]) as rate:
        accelerate(train_model(dataset=prepared.outputs["dataset"], learning_rate=rate), "l4:1", hours=2)
"""
BEGAN = datetime(2026, 11, 20, 8, 30, tzinfo=timezone.utc)


def read_spec(path: Path) -> dict[str, Any]:
    return parsed_spec(path.read_text(), path.name)


def price(machine: str, kind: str = "on_demand") -> float:
    return float(getattr(load_catalog().prices[(machine, "machine", "us-central1")], kind))


def pool(machine: str, gpus: int, replicas: int = 1) -> dict[str, Any]:
    spec: dict[str, Any] = {"machine_type": machine}
    if gpus:
        spec |= {"accelerator_type": "NVIDIA_L4", "accelerator_count": gpus}
    return {"machine_spec": spec, "replica_count": replicas, "container_spec": {"image_uri": "i", "command": ["x"]}}


def put_job(
    vertex_api: VertexApi,
    name: str,
    pools: list[Any],
    hours: float,
    strategy: str = "STANDARD",
    state: str = "SUCCEEDED",
    after: float = 0.0,
    **labels: str,
) -> str:
    """A custom job that has run for so long, and 0 hours for one that was never given machines."""
    scheduling = {"strategy": strategy, "timeout": "3600s"}
    job = {"display_name": name, "labels": labels, "job_spec": {"worker_pool_specs": pools, "scheduling": scheduling}}
    made = vertex_api.state.custom_jobs.create(api.CreateCustomJobRequest(parent=PARENT, custom_job=job))
    if hours:
        vertex_api.state.custom_jobs.set_state(made.name, "JOB_STATE_RUNNING")
    vertex_api.state.custom_jobs.set_state(made.name, f"JOB_STATE_{state}")
    if hours:
        held = vertex_api.state.custom_jobs.one(made.name)
        begun = BEGAN + timedelta(hours=after)
        held.start_time, held.end_time = begun, begun + timedelta(hours=hours)
    return str(made.name)


def submitted(vertex_api: VertexApi, folder: Path, *given: str) -> Any:
    """A run of the pipeline, begun."""
    where = ("--target", "vertex", "--accelerator", "l4:4", "--hours", "12", "-p", "registry=vertex://", *given)
    done = command(vertex_api, folder, "run", "train_evaluate_upload", *where)
    assert done.status == 0, done.err
    [job] = vertex_api.state.pipeline_jobs.jobs.values()
    vertex_api.state.pipeline_jobs.begin(job.name)
    return job


@pytest.fixture
def ended(vertex_api: VertexApi, tmp_path: Path) -> Any:
    """A run whose training has had three tries: one without machines, one on Spot that failed, and one that ended."""
    job = submitted(vertex_api, tmp_path)
    state, label = vertex_api.state.pipeline_jobs, {RUN_LABEL: job.labels[RUN_LABEL]}
    spot = [pool("g2-standard-48", 4)]
    put_job(vertex_api, "train-model", spot, 0.0, "SPOT", "FAILED", **label)
    put_job(vertex_api, "train-model", spot, 1.5, "SPOT", "FAILED", **label)
    last = put_job(
        vertex_api, "train-model", [pool("g2-standard-48", 4), pool("g2-standard-48", 4, 3)], 0.5, after=2, **label
    )
    put_job(vertex_api, "train-model", spot, 100.0, **{RUN_LABEL: "another"})
    for task in ("check-request", "prepare-data", "train-model"):
        state.set_task(job.name, task, "RUNNING")
        state.set_task(job.name, task, "SUCCEEDED", custom_job=last if task == "train-model" else "")
    detail = next(each for each in state.one(job.name).job_detail.task_details if each.task_name == "prepare-data")
    detail.end_time = detail.start_time + timedelta(minutes=3)
    state.end(job.name, "SUCCEEDED")
    return job


def test_each_try_is_priced_as_it_was_bought_beside_what_was_planned(
    vertex_api: VertexApi, ended: Any, tmp_path: Path
) -> None:
    name = ended.name.rpartition("/")[2]
    done = command(vertex_api, tmp_path, "runs", "show", name, "--target", "vertex", "--json")
    assert done.status == 0, done.err
    cost = json.loads(done.out)["cost"]
    training = [each for each in cost["machines"] if each["step"] == "train-model"]
    assert [(each["strategy"], each["machines"], each["hours"]) for each in training] == [
        ("spot", 1, 1.5),
        ("standard", 1, 0.5),
        ("standard", 3, 1.5),
    ]
    wanted = 1.5 * price("g2-standard-48", "spot") + 4 * 0.5 * price("g2-standard-48")
    assert cost["usd"] == pytest.approx(wanted, abs=0.001)
    assert "prepare-data" in cost["without_price"]
    assert cost["planned"]["train-model"]["usd_per_hour"] == pytest.approx(price("g2-standard-48"))
    assert cost["as_of"].startswith("2026-")
    assert any("fee for a run of a pipeline" in each for each in cost["left_out"])


def test_a_step_whose_jobs_never_had_machines_has_no_machine_of_unknown_price(
    vertex_api: VertexApi, tmp_path: Path
) -> None:
    job = submitted(vertex_api, tmp_path)
    state = vertex_api.state.pipeline_jobs
    label = {RUN_LABEL: job.labels[RUN_LABEL]}
    put_job(vertex_api, "train-model", [pool("g2-standard-48", 4)], 0.0, state="FAILED", **label)
    for task in ("check-request", "train-model"):
        state.set_task(job.name, task, "RUNNING")
        state.set_task(job.name, task, "FAILED")
    for detail in state.one(job.name).job_detail.task_details:
        detail.end_time = detail.start_time and detail.start_time + timedelta(minutes=3)
    state.end(job.name, "FAILED")
    done = command(vertex_api, tmp_path, "runs", "show", job.name.rpartition("/")[2], "--target", "vertex", "--json")
    assert json.loads(done.out)["cost"]["without_price"] == ["check-request"]


def test_it_is_told_at_the_end_of_follow_and_by_runs_show_as_lines_and_as_a_page(
    vertex_api: VertexApi, ended: Any, tmp_path: Path
) -> None:
    name = ended.name.rpartition("/")[2]
    followed = command(vertex_api, tmp_path, "follow", name, "--interval", "0.1")
    assert followed.status == 0, followed.err
    [cost] = [line for line in followed.out.splitlines() if line.startswith("cost: ")]
    assert cost.startswith("cost: at least $")
    assert "for 3.55 machine hours (list prices of 2026-" in cost
    page = tmp_path / "cost.html"
    shown = command(vertex_api, tmp_path, "runs", "show", name, "--target", "vertex", "--report", str(page))
    assert cost in shown.out
    assert "3 × g2-standard-48 with l4:4" in shown.out
    assert f"${price('g2-standard-48'):,.2f}" in shown.out
    assert "an unknown machine" in page.read_text()
    assert "Planned before the run" in page.read_text()


def test_a_search_costs_its_budget_at_most_and_more_than_one_job_has_no_limit_without_one(tmp_path: Path) -> None:
    spec = read_spec(SEARCH)
    search = planned_in(spec, "us-central1", {"budget": 7.0})
    evaluation = search["evaluate-checkpoints"].at_most
    assert evaluation == pytest.approx(24 * price("g2-standard-8"))
    assert Spent(planned=search).at_most == pytest.approx(7 + evaluation)
    spec["root"]["inputDefinitions"]["parameters"]["budget"]["defaultValue"] = 5.0
    assert Spent(planned=planned_in(spec, "us-central1")).at_most == pytest.approx(5 + evaluation)
    assert Spent(planned=planned_in(spec, "us-central1", {"budget": 0.0})).at_most is None, "any trial has 24 hours"
    (tmp_path / "loop.py").write_text(LOOP)
    where = ("--target", "vertex", "--image", "us-docker.pkg.dev/p/i/steps:1", "-o", "loop.yaml")
    done = command_line_command("compile", "loop.py", *where, cwd=tmp_path)
    assert done.status == 0, done.err
    assert planned_in(read_spec(tmp_path / "loop.yaml"), "us-central1")["train-model"].at_most is None


def test_trials_are_of_the_step_that_searches_and_a_branch_that_was_not_taken_does_not_wait() -> None:
    spec = read_spec(SEARCH)
    assert launchers(spec)["study"] == "hyperparameter-tuning-job"
    tasks = spec["root"]["dag"]["tasks"]
    twice = {**tasks, "another": tasks["hyperparameter-tuning-job"]}
    assert "study" not in launchers({**spec, "root": {"dag": {"tasks": twice}}}), "whose is not told by the name"
    states = {"finish-study": "PENDING", "finish-study-2": "SUCCEEDED"}
    details = [
        {"task_id": number, "parent_task_id": 1, "task_name": name, "state": state}
        for number, (name, state) in enumerate(states.items(), 2)
    ]
    job = api.PipelineJob(pipeline_spec=spec, job_detail={"task_details": details}, state="PIPELINE_STATE_RUNNING")
    assert {step.name: step.state for step in state_of(job).steps}["finish-study"] == "waiting"
    job.state = api.PipelineState.PIPELINE_STATE_SUCCEEDED
    assert {step.name: step.state for step in state_of(job).steps}["finish-study"] == "not triggered"


@pytest.fixture
def export() -> Iterator[BillingExport]:
    with serving() as found:
        yield found


def test_what_was_billed_stands_beside_it_by_the_label_of_the_run(
    vertex_api: VertexApi, ended: Any, export: BillingExport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = vertex_api.state.pipeline_jobs.one(ended.name)
    job.start_time, job.end_time = BEGAN, BEGAN + timedelta(hours=2)
    hour = ("2026-11-20T09:00:00", "2026-11-20T10:00:00")
    export.add("L4 in Iowa", 7.25, hour, credit=1.0, **{RUN_LABEL: job.labels[RUN_LABEL]})
    export.add("L4 in Iowa", 99.0, hour, **{RUN_LABEL: "another"})
    environment = vertex_api.environment() | {
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_BIGQUERY": f"{export.address}/bigquery/v2/"
    }
    where = ("runs", "show", ended.name.rpartition("/")[2], "--target", "vertex")

    def shown(*given: str) -> Any:
        return command_line_command(*where, *given, cwd=tmp_path, environment=environment)

    assert "billed" not in shown().out
    done = shown("--billing-table", export.table)
    assert "billed: 6.25 EUR after credits, usage until 2026-11-20T10:00 UTC" in done.out, done.err
    (tmp_path / "gpu-pipelines.yaml").write_text(
        PROJECT_FILE.format(url=vertex_api.url) + f"billing_table: {export.table}\n"
    )
    assert json.loads(shown("--json").out)["cost"]["billed"]["by_sku"] == {"L4 in Iowa": 6.25}
    # A bill that cannot be read takes nothing away.
    export.refusal = 403
    done = shown()
    assert done.status == 0
    assert "Ask for BigQuery Data Viewer" in done.out
    assert "cost: at least $" in done.out


def test_a_job_without_a_pipeline_has_its_cost_as_well(vertex_api: VertexApi, tmp_path: Path) -> None:
    name = put_job(vertex_api, "mine", [pool("g2-standard-8", 1)], 2.0, gpu_pipelines_request="77")
    done = command(vertex_api, tmp_path, "runs", "show", name.rpartition("/")[2], "--target", "vertex", "--json")
    cost = json.loads(done.out)["cost"]
    assert cost["usd"] == pytest.approx(2 * price("g2-standard-8"), abs=0.001)


def test_a_cost_that_is_not_known_is_a_warning_and_no_failure(
    vertex_api: VertexApi, ended: Any, tmp_path: Path
) -> None:
    vertex_api.fail_next("GET .*/customJobs(\\?|$)", 403, times=99, message="Permission 'customJobs.list' denied.")
    done = command(vertex_api, tmp_path, "follow", ended.name.rpartition("/")[2], "--interval", "0.1")
    assert done.status == 0
    assert "warning: the cost of the run is not known: " in done.err


def test_machines_of_a_resource_and_of_a_reservation_are_told_apart() -> None:
    def times(**spec: Any) -> MachineTime:
        first = pool("g2-standard-8", 1)
        if affinity := spec.pop("affinity", None):
            first["machine_spec"]["reservation_affinity"] = affinity
        job = api.CustomJob(name=f"{PARENT}/customJobs/7", job_spec={"worker_pool_specs": [first], **spec})
        job.start_time, job.end_time = BEGAN, BEGAN + timedelta(hours=1)
        [found] = times_of_job("train-model", job, "us-central1")
        return found

    assert "pool-1" in times(persistent_resource_id="pool-1").free
    assert times(affinity={"reservation_affinity_type": "ANY_RESERVATION"}).strategy == "reservation"
    assert times(scheduling={"strategy": "FLEX_START"}).strategy == "flex-start"
    assert times().strategy == "standard"
