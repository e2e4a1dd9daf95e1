"""Metadata and experiments: what the SDK logs is found again, and what a pipeline's run leaves there."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import requests
import yaml
from kfp import compiler, dsl

PARENT = "projects/example-project/locations/us-central1"
STORE = f"v1/{PARENT}/metadataStores/default"


@dsl.component(install_kfp_package=False)
def measure(rate: float, metrics: dsl.Output[dsl.Metrics], model: dsl.Output[dsl.Model]):
    metrics.log_metric("accuracy", 0.5 + rate)
    with open(model.path, "w") as file:  # noqa: PTH123
        file.write("weights")


@dsl.component(install_kfp_package=False)
def use(model: dsl.Input[dsl.Model]):
    print(model.uri)


@dsl.pipeline(name="measured")
def measured(rate: float = 0.25):
    use(model=measure(rate=rate).outputs["model"])


LOGS = """
import json, sys
from google.cloud import aiplatform
init = dict(project="example-project", location="us-central1", staging_bucket="gs://example-bucket")
aiplatform.init(**init, experiment="first-look", experiment_description="d")
for number in (1, 2, 3):
    with aiplatform.start_run(f"run-{number}"):
        aiplatform.log_params({"rate": 0.1 * number, "model": "small"})
        aiplatform.log_metrics({"accuracy": number / 4})
with aiplatform.start_run("run-3", resume=True) as run:
    aiplatform.log_metrics({"accuracy": 0.9})
    print(run.get_state())
job = aiplatform.PipelineJob("measured", sys.argv[1], pipeline_root="gs://example-bucket/r", job_id="measured-1")
job.submit(experiment="first-look")
job._block_until_complete()
print(job.get_associated_experiment().name)
frame = aiplatform.get_experiment_df("first-look").set_index("run_name").sort_index()
print(json.dumps(json.loads(frame.to_json(orient="index"))))
frame = aiplatform.get_pipeline_df("measured")
print(json.dumps(json.loads(frame.to_json(orient="records"))))
"""


@pytest.mark.slow
def test_experiments_of_the_sdk_and_runs_of_pipelines_are_found_again(vertex_emulator, tmp_path: Path) -> None:
    compiler.Compiler().compile(measured, str(tmp_path / "measured.yaml"))
    environment = {**os.environ, **vertex_emulator.environment()}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LOGS, str(tmp_path / "measured.yaml")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    lines = done.stdout.splitlines()
    assert "RUNNING" in lines
    assert "first-look" in lines
    experiment, pipeline = (json.loads(line) for line in lines if line.startswith(('{"', '[{"')))
    assert {name: row["metric.accuracy"] for name, row in experiment.items()} == {
        "run-1": 0.25,
        "run-2": 0.5,
        "run-3": 0.9,
        "measured-1": 0.75,
    }
    assert [experiment[f"run-{number}"]["param.model"] for number in (1, 2, 3)] == ["small"] * 3
    assert {row["state"] for row in experiment.values()} == {"COMPLETE"}
    assert experiment["measured-1"]["run_type"] == "system.PipelineRun"
    (row,) = pipeline
    assert (row["pipeline_name"], row["run_name"], row["metric.accuracy"]) == ("measured", "measured-1", 0.75)


def ask(emulator, verb: str, path: str, body=None, status: int = 200):
    answer = requests.request(verb, f"{emulator.url}/{path}", json=body, timeout=30)
    assert answer.status_code == status, answer.text
    return answer.json()


def submitted(emulator, folder: Path, name: str) -> None:
    """Runs `measured` to its end."""
    compiler.Compiler().compile(measured, str(folder / "compiled.yaml"))
    spec = next(yaml.safe_load_all((folder / "compiled.yaml").read_text()))
    body = {"displayName": "p", "pipelineSpec": spec, "runtimeConfig": {"gcsOutputDirectory": "gs://example-bucket/r"}}
    ask(emulator, "POST", f"v1/{PARENT}/pipelineJobs?pipelineJobId={name}", body)
    until = time.monotonic() + 60
    while ask(emulator, "GET", f"v1/{PARENT}/pipelineJobs/{name}")["state"] != "PIPELINE_STATE_SUCCEEDED":
        assert time.monotonic() < until
        time.sleep(0.1)


def test_what_a_task_has_made_leads_to_the_task_that_has_read_it(vertex_emulator, tmp_path: Path) -> None:
    submitted(vertex_emulator, tmp_path, "m-1")
    within = f'in_context("{STORE.removeprefix("v1/")}/contexts/m-1")'
    path = f"{STORE}/artifacts?filter=schema_title%3D%22system.Model%22 AND {within}"
    (model,) = ask(vertex_emulator, "GET", path)["artifacts"]
    graph = ask(vertex_emulator, "GET", f"v1/{model['name']}:queryArtifactLineageSubgraph")
    assert sorted(each["displayName"] for each in graph["executions"]) == ["measure", "use"]
    events = {(each["execution"], each["type"]) for each in graph["events"] if each["artifact"] == model["name"]}
    by_name = {each["displayName"]: each["name"] for each in graph["executions"]}
    assert events == {(by_name["measure"], "OUTPUT"), (by_name["use"], "INPUT")}
    job = ask(vertex_emulator, "GET", f"v1/{PARENT}/pipelineJobs/m-1")["jobDetail"]
    assert job["pipelineContext"]["schemaTitle"] == "system.Pipeline"
    assert job["pipelineRunContext"]["parentContexts"] == [job["pipelineContext"]["name"]]
    assert not ask(vertex_emulator, "GET", f"{STORE}/executions?filter={within.replace('m-1', 'm-2')}")


def test_nodes_are_made_changed_and_taken_away(vertex_api) -> None:
    made = ask(vertex_api, "POST", f"{STORE}/contexts?contextId=c-1", {"schemaTitle": "system.Experiment"})
    name = f"v1/{made['name']}"
    assert ask(vertex_api, "POST", f"{STORE}/contexts?contextId=c-1", {}, 409)["error"]["status"] == "ALREADY_EXISTS"
    ask(vertex_api, "POST", f"{STORE}/contexts?contextId=C_1", {}, 400)
    changed = ask(vertex_api, "PATCH", name, {"metadata": {"a": 1}, "etag": made["etag"]})
    assert (changed["metadata"], changed["schemaTitle"]) == ({"a": 1}, "system.Experiment")
    refused = ask(vertex_api, "PATCH", name, {"metadata": {"a": 2}, "etag": made["etag"]}, 409)
    assert refused["error"]["status"] == "ABORTED"
    assert "does not match server `etag`" in refused["error"]["message"]
    ask(vertex_api, "PATCH", f"{name}?updateMask=schemaVersion", {"metadata": {"a": 3}, "schemaVersion": "0.0.2"})
    held = ask(vertex_api, "GET", name)
    assert (held["metadata"], held["schemaVersion"]) == ({"a": 1}, "0.0.2")
    artifact = ask(vertex_api, "POST", f"{STORE}/artifacts", {"uri": "gs://b/o"})["name"]
    ask(vertex_api, "POST", f"{name}:addContextArtifactsAndExecutions", {"artifacts": [artifact]})
    ask(vertex_api, "POST", f"{name}:addContextChildren", {"childContexts": [made["name"]]}, 400)
    assert len(ask(vertex_api, "GET", f"{name}:queryContextLineageSubgraph")["artifacts"]) == 1
    assert ask(vertex_api, "DELETE", name, None, 400)["error"]["status"] == "FAILED_PRECONDITION"
    ask(vertex_api, "DELETE", f"{name}?force=true")
    ask(vertex_api, "GET", name, None, 404)
    ask(vertex_api, "GET", f"v1/{PARENT}/metadataStores/other/contexts/c-1", None, 404)
    ask(vertex_api, "POST", f"v1/{PARENT}/metadataStores?metadataStoreId=other", {}, 501)


def test_metadata_is_there_after_a_restart(tmp_path: Path) -> None:
    from google.cloud import aiplatform_v1 as api

    from gpu_pipelines.emulator.services import State
    from gpu_pipelines.emulator.state_folder import StateFolder

    folder = StateFolder(tmp_path)
    first = State(folder).metadata
    store = f"{PARENT}/metadataStores/default"
    context = first.create(first.contexts, api.CreateContextRequest(parent=store, context_id="c"))
    execution = first.create(first.executions, api.CreateExecutionRequest(parent=store, execution_id="e"))
    artifact = first.create(
        first.artifacts, api.CreateArtifactRequest(parent=store, artifact=api.Artifact(uri="gs://b/o"))
    )
    first.note(execution.name, [(artifact.name, "OUTPUT")])
    first.put_in(context.name, [execution.name])
    asked = api.QueryContextLineageSubgraphRequest(context=context.name)
    before = first.context_graph(asked)
    assert len(before.events) == 1
    folder.close()
    again = StateFolder(tmp_path)
    assert State(again).metadata.context_graph(asked) == before
    again.close()
