"""Batch prediction jobs, by the SDK, REST and gRPC: what the model gets, what is written, and how jobs end."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import requests
import yaml
from kfp import compiler
from pipelines_of_tests import scores
from rehearsed_jobs import L4, PARENT
from sample_runs import run_spec

from gpu_pipelines.emulator.start import EmulatorSettings, running_emulator

if TYPE_CHECKING:
    from gpu_pipelines.emulator.certificates import Certificates
    from gpu_pipelines.emulator.vertex_api import VertexApi

#: A server as people write them: it echoes instances and parameters, and refuses a batch with a `bad` one in it.
SERVER = """
import http.server, json, os
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer(200 if self.path == os.environ["AIP_HEALTH_ROUTE"] else 404, {})
    def do_POST(self):
        assert self.path == os.environ["AIP_PREDICT_ROUTE"]
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        print("asked for", len(body["instances"]), flush=True)
        if "bad" in json.dumps(body["instances"]):
            return self.answer(400, {"error": "it is bad"})
        self.answer(200, {"predictions": [[each, body.get("parameters"), os.environ["AIP_STORAGE_URI"]]
                                          for each in body["instances"]]})
    def answer(self, status, document):
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(document).encode())
    def log_message(self, *_):
        pass
http.server.ThreadingHTTPServer(("", int(os.environ["AIP_HTTP_PORT"])), Handler).serve_forever()
"""
CONTAINER = {"imageUri": "europe-docker.pkg.dev/p/r/theirs:1", "command": ["python", "-c", SERVER]}
MACHINE = {"machineSpec": {"machineType": "n1-standard-2"}}


def post(emulator: VertexApi, path: str, body: dict[str, Any]) -> requests.Response:
    return requests.post(f"{emulator.url}/v1/{path}", json=body, timeout=60)


def upload(emulator: VertexApi, **container: Any) -> str:
    model = {
        "displayName": "theirs",
        "artifactUri": "gs://example-bucket/m",
        "containerSpec": {**CONTAINER, **container},
    }
    answer = post(emulator, f"{PARENT}/models:upload", {"model": model})
    return str(answer.json()["response"]["model"])


def wanted(model: str, kind: str = "jsonl", uri: str = "gs://example-bucket/in/*.txt", **more: Any) -> dict[str, Any]:
    return {
        "displayName": "scores",
        "model": model,
        "inputConfig": {"instancesFormat": kind, "gcsSource": {"uris": [uri]}},
        "outputConfig": {
            "predictionsFormat": "jsonl",
            "gcsDestination": {"outputUriPrefix": "gs://example-bucket/out"},
        },
        "dedicatedResources": MACHINE,
        **more,
    }


def finished(emulator: VertexApi, body: dict[str, Any]) -> Any:
    answer = post(emulator, f"{PARENT}/batchPredictionJobs", body)
    assert answer.ok, answer.text
    return emulator.wait(answer.json()["name"], 60)


def written(emulator: VertexApi, job: Any, name: str = "prediction.results-00000-of-00001") -> list[Any]:
    folder = emulator.folder / "gcs" / job.output_info.gcs_output_directory.removeprefix("gs://")
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def test_the_sdk_predicts_files_and_reads_the_result(vertex_emulator: VertexApi) -> None:
    from google.cloud import aiplatform

    aiplatform.init(project="example-project", location="us-central1")
    vertex_emulator.storage.put("in/b.txt", b'{"x": 3}\n')
    vertex_emulator.storage.put("in/a.txt", b'{"x": 1}\n\n{"x": "bad"}\n{"x": 2}\nnone\n')
    model = aiplatform.Model(upload(vertex_emulator))
    assert "jsonl" in model.supported_output_storage_formats
    job = model.batch_predict(
        job_display_name="scores",
        gcs_source="gs://example-bucket/in/*.txt",
        gcs_destination_prefix="gs://example-bucket/out",
        machine_type="n1-standard-2",
        starting_replica_count=1,
        max_replica_count=1,
        model_parameters={"top": 2},
        sync=False,
    )
    job.wait_for_resource_creation()
    vertex_emulator.wait(job.resource_name, 60)
    job = aiplatform.BatchPredictionJob(job.resource_name)
    assert (job.completion_stats.successful_count, job.completion_stats.failed_count) == (3, 2)
    assert any("Non-OK result 400" in failure.message for failure in job.partial_failures)
    results, errors = sorted(job.iter_outputs(), key=lambda blob: str("errors" in blob.name))
    assert results.name.startswith("out/prediction-theirs-20")
    assert results.name.endswith("Z/prediction.results-00000-of-00001")
    lines = [json.loads(line) for line in results.download_as_text().splitlines()]
    assert [line["instance"] for line in lines] == [{"x": 1}, {"x": 2}, {"x": 3}]
    assert lines[0]["prediction"] == [{"x": 1}, {"top": 2}, "gs://example-bucket/m"]
    refused = [json.loads(line) for line in errors.download_as_text().splitlines()]
    assert sorted(str(line["instance"]) for line in refused) == ["None", "{'x': 'bad'}"]
    assert refused[0]["error"]["code"] == 3
    assert job.start_time >= job.create_time
    (listed,) = aiplatform.BatchPredictionJob.list(filter='display_name="scores"')
    listed.delete()
    assert vertex_emulator.state.batch_prediction_jobs.jobs == {}


@pytest.mark.parametrize(
    ("kind", "content", "config", "sent", "told"),
    [
        ("csv", "id,x,name\r\n7,0.5,cat\r\n", {}, [7, 0.5, "cat"], {"instance": [7, 0.5, "cat"]}),
        ("csv", "id,x,name\r\n7,0.5,cat\r\n", {"keyField": "id"}, [0.5, "cat"], {"key": 7}),
        ("jsonl", '{"id": 7, "x": 1, "y": 2}', {"keyField": "id"}, {"x": 1, "y": 2}, {"key": 7}),
        ("jsonl", '{"x": 1, "y": 2}', {"excludedFields": ["y"]}, {"x": 1}, {"instance": {"x": 1, "y": 2}}),
        (
            "jsonl",
            '{"x": 1, "y": 2}',
            {"instanceType": "array", "includedFields": ["y", "x"]},
            [2, 1],
            {"instance": {"x": 1, "y": 2}},
        ),
        ("jsonl", "[1, 2]", {}, [1, 2], {"instance": [1, 2]}),
        ("jsonl", '"a text"', {}, "a text", {"instance": "a text"}),
    ],
)
def test_an_instance_is_what_its_configuration_says(
    vertex_emulator: VertexApi, kind: str, content: str, config: dict[str, Any], sent: Any, told: dict[str, Any]
) -> None:
    vertex_emulator.storage.put("in/a.txt", content.encode())
    job = finished(vertex_emulator, wanted(upload(vertex_emulator), kind, instanceConfig=config))
    assert job.state.name == "JOB_STATE_SUCCEEDED", job.error.message
    assert written(vertex_emulator, job) == [{**told, "prediction": [sent, None, "gs://example-bucket/m"]}]


def test_instances_go_in_batches_of_the_size_that_was_asked_for(vertex_emulator: VertexApi) -> None:
    vertex_emulator.storage.put("in/a.txt", b"1\n" * 7)
    model = {"artifactUri": "gs://example-bucket/m", "containerSpec": {**CONTAINER, "predictRoute": "/p"}}
    body = wanted("", manualBatchTuningParameters={"batchSize": 3}, unmanagedContainerModel=model)
    del body["model"]
    job = finished(vertex_emulator, body)
    assert job.completion_stats.successful_count == 7
    lines = [
        line for line in vertex_emulator.state.logs.messages(job_id=job.name.rpartition("/")[2]) if "asked" in line
    ]
    assert lines == ["asked for 3", "asked for 3", "asked for 1"]


@pytest.mark.parametrize(
    ("container", "uri", "message"),
    [
        ({"command": ["false"]}, "gs://example-bucket/in/*.txt", "never became ready: it exited with the status 1"),
        ({"command": ["no-such-program"]}, "gs://example-bucket/in/*.txt", "never became ready"),
        ({}, "gs://example-bucket/none*", "Unable to find objects that match gs://example-bucket/none*"),
        ({}, "gs://other/in", "The specified bucket does not exist"),
        ({}, "gs://example-bucket/in/../../../etc/passwd", "is not a Google Cloud Storage URI"),
        ({}, "gs://example-bucket/bad", "All 1 instances failed"),
    ],
)
def test_a_job_that_cannot_go_on_fails_and_says_why(
    vertex_emulator: VertexApi, container: dict[str, Any], uri: str, message: str
) -> None:
    vertex_emulator.storage.put("in/a.txt", b"1\n")
    vertex_emulator.storage.put("bad", b'"bad"\n')
    job = finished(vertex_emulator, wanted(upload(vertex_emulator, **container), uri=uri))
    assert job.state.name == "JOB_STATE_FAILED"
    assert message in job.error.message


def test_an_endpoint_predicts_with_the_same_server(vertex_emulator: VertexApi) -> None:
    model = upload(vertex_emulator)
    endpoint = post(vertex_emulator, f"{PARENT}/endpoints", {"displayName": "e"}).json()["response"]["name"]
    deployed = {"deployedModel": {"model": model, "dedicatedResources": {**MACHINE, "minReplicaCount": 1}}}
    assert post(vertex_emulator, f"{endpoint}:deployModel", {**deployed, "trafficSplit": {"0": 100}}).ok
    answer = post(vertex_emulator, f"{endpoint}:predict", {"instances": [5], "parameters": {"a": 1}}).json()
    assert answer["predictions"] == [[5, {"a": 1}, "gs://example-bucket/m"]]
    number = answer["deployedModelId"]
    (server,) = vertex_emulator.state.model_servers._held.values()
    assert post(vertex_emulator, f"{endpoint}:undeployModel", {"deployedModelId": number}).ok
    assert server.process.poll() is not None


def test_a_table_is_predicted_to_a_table(vertex_emulator: VertexApi) -> None:
    from google.cloud import aiplatform, bigquery

    aiplatform.init(project="example-project", location="us-central1")
    client = bigquery.Client(project="example-project")
    client.create_dataset("shop")
    rows = [{"id": 1, "text": "a", "score": 0.5}, {"id": 2, "text": "bad", "score": 1.5}]
    configuration = bigquery.LoadJobConfig(autodetect=True)
    client.load_table_from_json(rows, "shop.reviews", job_config=configuration).result()
    body = wanted(
        upload(vertex_emulator),
        inputConfig={
            "instancesFormat": "bigquery",
            "bigquerySource": {"inputUri": "bq://example-project.shop.reviews"},
        },
        outputConfig={
            "predictionsFormat": "bigquery",
            "bigqueryDestination": {"outputUri": "bq://example-project.shop"},
        },
    )
    job = finished(vertex_emulator, {**body, "instanceConfig": {"instanceType": "object", "excludedFields": ["id"]}})
    assert job.output_info.bigquery_output_dataset == "bq://example-project.shop"
    (row,) = aiplatform.BatchPredictionJob(job.name).iter_outputs()
    assert {**dict(row), "prediction": json.loads(row["prediction"])[0]} == {
        **rows[0],
        "prediction": {"text": "a", "score": 0.5},
    }
    errors = job.output_info.bigquery_output_table.replace("predictions", "errors")
    (refused,) = client.list_rows(f"shop.{errors}")
    assert (refused["id"], refused["errors"]["code"]) == (2, 3)
    body["outputConfig"]["bigqueryDestination"]["outputUri"] = "bq://example-project"
    job = finished(vertex_emulator, {**body, "instanceConfig": {"keyField": "id"}})
    assert job.output_info.bigquery_output_dataset.startswith("bq://example-project.prediction_theirs_20")
    (row,) = aiplatform.BatchPredictionJob(job.name).iter_outputs()
    assert (row["key"], json.loads(row["prediction"])[0]) == (1, ["a", 0.5])
    body["inputConfig"]["bigquerySource"]["inputUri"] = "bq://example-project.shop.none"
    assert "Not found: Table" in finished(vertex_emulator, body).error.message


def test_the_component_of_gcpc_predicts_in_a_pipeline(vertex_emulator: VertexApi, tmp_path: Path) -> None:
    vertex_emulator.storage.put("in/a.txt", b'{"x": 1}\n')
    compiler.Compiler().compile(scores, str(tmp_path / "scores.yaml"))
    spec = yaml.safe_load((tmp_path / "scores.yaml").read_text())
    ended = run_spec(vertex_emulator, spec, resource_name=upload(vertex_emulator))
    assert ended.state.name == "PIPELINE_STATE_SUCCEEDED", "\n".join(vertex_emulator.state.logs.messages())
    (job,) = vertex_emulator.state.batch_prediction_jobs.jobs.values()
    assert written(vertex_emulator, job)[0]["instance"] == {"x": 1}
    (task,) = [task for task in ended.job_detail.task_details if task.task_name == "model-batch-predict"]
    assert task.outputs["gcs_output_directory"].artifacts[0].uri == job.output_info.gcs_output_directory


def until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_cancelling_ends_the_server(vertex_emulator: VertexApi) -> None:
    vertex_emulator.storage.put("in/a.txt", b"1\n")
    body = wanted(upload(vertex_emulator, command=["sleep", "60"]))
    name = post(vertex_emulator, f"{PARENT}/batchPredictionJobs", body).json()["name"]
    servers = vertex_emulator.state.model_servers._held
    until(lambda: bool(servers))
    refused = requests.delete(f"{vertex_emulator.url}/v1/{name}", timeout=60)
    assert "Cannot delete a job in state JOB_STATE_PENDING" in refused.text
    assert post(vertex_emulator, f"{name}:cancel", {}).ok
    assert vertex_emulator.wait(name, 30).state.name == "JOB_STATE_CANCELLED"
    assert not servers


def test_a_restart_fails_what_ran_and_keeps_what_has_ended(tmp_path: Path, vertex_certificates: Certificates) -> None:
    settings = EmulatorSettings(state=tmp_path, certificates=vertex_certificates)
    with running_emulator(settings) as emulator:
        emulator.storage.put("in/a.txt", b"1\n")
        ended = finished(emulator, wanted(upload(emulator))).name
        body = wanted(upload(emulator, command=["sleep", "60"]))
        cut = post(emulator, f"{PARENT}/batchPredictionJobs", body).json()["name"]
    with running_emulator(settings) as emulator:
        assert emulator.wait(ended, 1).completion_stats.successful_count == 1
        assert "The emulator ended while this was running" in emulator.wait(cut, 1).error.message


def test_machines_are_held_to_quota_and_capacity(tmp_path: Path, vertex_certificates: Certificates) -> None:
    place = ("us-central1:NVIDIA_L4=1",)
    settings = EmulatorSettings(state=tmp_path, certificates=vertex_certificates, quota=place)
    two = {"dedicatedResources": {"machineSpec": L4, "startingReplicaCount": 2}}
    with running_emulator(settings) as emulator:
        refused = post(emulator, f"{PARENT}/batchPredictionJobs", wanted(upload(emulator), **two))
        assert refused.status_code == 429
        assert "aiplatform.googleapis.com/custom_model_serving_nvidia_l4_gpus" in refused.json()["error"]["message"]
    with running_emulator(EmulatorSettings(certificates=vertex_certificates, capacity=place)) as emulator:
        job = finished(emulator, wanted(upload(emulator), **two))
        assert "Resources are insufficient in region: us-central1" in job.error.message
        assert not emulator.state.replicas.capacity.used()


@pytest.mark.parametrize(
    ("changed", "code", "message"),
    [
        ({"inputConfig": {"instancesFormat": "file-list", "gcsSource": {"uris": ["gs://a/b"]}}}, 501, "no file-list"),
        ({"generateExplanation": True}, 501, "no explanations"),
        ({"inputConfig": {"instancesFormat": "parquet"}}, 400, "'parquet' is not one of the formats"),
        (
            {"outputConfig": {"predictionsFormat": "csv", "gcsDestination": {"outputUriPrefix": "gs://a"}}},
            400,
            "'csv' is not one of the formats of the model: jsonl, bigquery",
        ),
        ({"dedicatedResources": {"machineSpec": {"machineType": "none"}}}, 400, '"none" is not supported'),
        ({"dedicatedResources": {"machineSpec": {**L4, "acceleratorCount": 3}}}, 400, "Accelerator count 3"),
        ({"model": f"{PARENT}/models/0"}, 404, "is not found"),
        ({"displayName": ""}, 400, "Display name is required"),
        ({"instanceConfig": {"includedFields": ["a"], "excludedFields": ["b"]}}, 400, "cannot be set together"),
    ],
)
def test_what_the_service_would_not_take_is_refused(
    vertex_emulator: VertexApi, changed: dict[str, Any], code: int, message: str
) -> None:
    answer = post(vertex_emulator, f"{PARENT}/batchPredictionJobs", {**wanted(upload(vertex_emulator)), **changed})
    assert answer.status_code == code, answer.text
    assert message in answer.json()["error"]["message"]
    assert vertex_emulator.state.batch_prediction_jobs.jobs == {}


def test_a_container_without_a_command_is_refused(vertex_emulator: VertexApi) -> None:
    answer = post(vertex_emulator, f"{PARENT}/batchPredictionJobs", wanted(upload(vertex_emulator, command=[])))
    assert "has no command, and images are not run here" in answer.json()["error"]["message"]


@pytest.mark.parametrize(("machine", "problems"), [("n1-standard-2", 0), ("n1-standrd-2", 1), ("e2-standard-2", 1)])
def test_small_machines_of_predictions_have_gpus(machine: str, problems: int) -> None:
    from google.cloud import aiplatform_v1

    from gpu_pipelines.emulator.jobs.rules import check_machine

    wanted = {"machine_type": machine, "accelerator_type": "NVIDIA_TESLA_T4", "accelerator_count": 1}
    found = list(check_machine("machine_spec", aiplatform_v1.MachineSpec(wanted), "us-central1", too_small=()))
    assert len(found) == problems
