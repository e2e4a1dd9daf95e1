"""Documented limits of names, labels, payloads and the machines of steps: what is within is taken, the rest refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import requests
from rehearsed_jobs import PARENT, pool

from gpu_pipelines.emulator.json_server import JsonHandler, answering, server_of

if TYPE_CHECKING:
    from gpu_pipelines.emulator.vertex_api import VertexApi


def post(emulator: VertexApi, path: str, body: dict[str, Any]) -> requests.Response:
    return requests.post(f"{emulator.url}/v1/{path}", json=body, timeout=30)


@pytest.mark.parametrize(
    ("labels", "taken"),
    [
        ({"k" * 63: "v" * 63, "größe": "klein", "数": "1", "a_b-1": ""}, True),
        ({f"l{n}": "" for n in range(64)}, True),
        ({f"l{n}": "" for n in range(65)}, False),
        ({"k" * 64: ""}, False),
        ({"k": "v" * 64}, False),
        ({"K": ""}, False),
        ({"k": "V"}, False),
        ({"1k": ""}, False),
        ({"": "v"}, False),
        ({"k.l": ""}, False),
        ({"k": "a b"}, False),
        ({"GRÖSSE": ""}, False),
    ],
)
def test_labels(vertex_api: VertexApi, labels: dict[str, str], taken: bool) -> None:
    job = {"displayName": "n" * 128, "jobSpec": {"workerPoolSpecs": [pool("true")]}, "labels": labels}
    for path, body in ((f"{PARENT}/customJobs", job), (f"{PARENT}/endpoints", {"displayName": "e", "labels": labels})):
        assert post(vertex_api, path, body).ok == taken
    assert post(vertex_api, f"{PARENT}/customJobs", {**job, "displayName": "n" * 129}).status_code == 400


def model(**more: Any) -> dict[str, Any]:
    described = {"displayName": "m", "artifactUri": "gs://example-bucket/m", "containerSpec": {"imageUri": "i"}}
    return {"model": {**described, **more}}


@pytest.mark.parametrize(
    ("name", "taken"), [("a" * 63, True), ("_a-1", True), ("a" * 64, False), ("1a", False), ("-a", False), ("A", False)]
)
def test_ids_of_models(vertex_api: VertexApi, name: str, taken: bool) -> None:
    assert post(vertex_api, f"{PARENT}/models:upload", {**model(), "modelId": name}).ok == taken


@pytest.mark.parametrize(
    ("alias", "taken"), [("a" * 128, True), ("aB-1", True), ("a" * 129, False), ("1a", False), ("a_b", False)]
)
def test_aliases_of_versions(vertex_api: VertexApi, alias: str, taken: bool) -> None:
    assert post(vertex_api, f"{PARENT}/models:upload", model(versionAliases=[alias])).ok == taken


def pipeline(**resources: Any) -> dict[str, Any]:
    container = {"image": "i", "command": ["true"], "resources": resources}
    task = {"componentRef": {"name": "comp-a"}, "taskInfo": {"name": "a"}}
    spec = {
        "pipelineInfo": {"name": "p"},
        "root": {"dag": {"tasks": {"a": task}}},
        "components": {"comp-a": {"executorLabel": "exec-a"}},
        "deploymentSpec": {"executors": {"exec-a": {"container": container}}},
        "schemaVersion": "2.1.0",
    }
    return {"displayName": "p", "pipelineSpec": spec, "runtimeConfig": {"gcsOutputDirectory": "gs://example-bucket/r"}}


@pytest.mark.parametrize(
    ("resources", "message"),
    [
        ({"cpuLimit": 96, "memoryLimit": 624}, ""),
        ({"accelerator": {"type": "NVIDIA_L4", "count": "1"}}, ""),
        ({"accelerator": {"resourceType": "{{$.inputs.parameters['gpu']}}", "resourceCount": "1"}}, ""),
        ({"cpuLimit": 97}, "exec-a.resources.cpu_limit; Message: A step has at most 96 vCPUs."),
        ({"memoryLimit": 625}, "A step has at most 624 GB of memory."),
        ({"accelerator": {"type": "nvidia.com/gpu", "count": "1"}}, 'Accelerator "nvidia.com/gpu" is not supported.'),
        ({"accelerator": {"count": "1"}}, "Both `accelerator_type` and `accelerator_count`"),
        ({"cpuLimit": "many"}, "Failed to parse the pipeline spec"),
    ],
)
def test_machines_of_steps(vertex_api: VertexApi, resources: dict[str, Any], message: str) -> None:
    answer = post(vertex_api, f"{PARENT}/pipelineJobs", pipeline(**resources))
    assert answer.ok == (not message), answer.text
    assert message in answer.json().get("error", {}).get("message", "")


def test_an_emulator_keeps_no_requests_unless_a_test_asks_for_them(vertex_emulator: VertexApi) -> None:
    state = vertex_emulator.state
    for keeps, number in ((False, 0), (True, 1)):
        state.keeps_requests = keeps
        assert requests.get(f"{vertex_emulator.url}/v1/{PARENT}/models", timeout=60).ok
        assert len(state.requests) == number


class Predictor(JsonHandler):
    def do_POST(self) -> None:
        (wanted,) = json.loads(self.body())["instances"]
        self.send(200, {"predictions": ["x" * int(wanted["answer"])]})


def test_payloads_of_predictions(vertex_api: VertexApi) -> None:
    uploaded = post(vertex_api, f"{PARENT}/models:upload", model()).json()["response"]["model"]
    endpoint = post(vertex_api, f"{PARENT}/endpoints", {"displayName": "e"}).json()["response"]["name"]
    resources = {"machineSpec": {"machineType": "n1-standard-4"}, "minReplicaCount": 1}
    deployed = {"deployedModel": {"model": uploaded, "dedicatedResources": resources}, "trafficSplit": {"0": 100}}
    assert post(vertex_api, f"{endpoint}:deployModel", deployed).ok
    with answering(server_of(Predictor)) as vertex_api.state.model_servers.stand_in:
        for filler, wanted, what in ((10, 10, ""), (1_600_000, 1, "Request"), (1, 1_600_000, "Response")):
            instance = {"filler": "x" * filler, "answer": wanted}
            answer = post(vertex_api, f"{endpoint}:predict", {"instances": [instance]})
            assert answer.ok == (not what)
            if what:
                assert answer.json()["error"]["message"] == f"{what} payload size exceeds the limit: 1572864 bytes."
