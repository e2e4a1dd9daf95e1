"""What the emulator does not have is refused by its name, over REST and gRPC."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import grpc
import pytest
import requests
from command_line import command
from rehearsed_jobs import PARENT

if TYPE_CHECKING:
    from gpu_pipelines.emulator.vertex_api import VertexApi


@pytest.mark.parametrize(
    ("verb", "path", "code", "named"),
    [
        ("POST", f"v1/{PARENT}/featurestores", 501, "FeaturestoreService.CreateFeaturestore"),
        ("POST", f"v1/{PARENT}/endpoints/1:explain", 501, "PredictionService.Explain"),
        ("POST", f"v1/{PARENT}/publishers/google/models/gemini:generateContent", 501, "GenerateContent"),
        ("GET", f"v1beta1/{PARENT}/customJobs", 501, "v1 of Vertex AI alone"),
        ("POST", f"v1/{PARENT}/dataLabelingJobs", 501, "JobService.CreateDataLabelingJob"),
        ("GET", "bigquery/v2/projects/example-project/datasets/d/routines", 501, "of BigQuery"),
        ("GET", "compute/v1/projects/example-project/zones", 501, "Compute Engine"),
        ("POST", f"v1/{PARENT}/nothing", 404, "There is no POST"),
    ],
)
def test_over_rest(vertex_api: VertexApi, verb: str, path: str, code: int, named: str) -> None:
    answer = requests.request(verb, f"{vertex_api.url}/{path}", json={} if verb == "POST" else None, timeout=60)
    assert answer.status_code == code
    assert answer.json()["error"]["status"] == {501: "UNIMPLEMENTED", 404: "NOT_FOUND"}[code]
    assert named in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("method", "told"),
    [
        ("/google.cloud.aiplatform.v1.IndexService/CreateIndex", "does not have IndexService.CreateIndex"),
        ("/google.cloud.bigquery.storage.v1.BigQueryWrite/AppendRows", "does not have BigQueryWrite.AppendRows"),
        ("/google.cloud.aiplatform.v1beta1.JobService/CreateCustomJob", "JobService.CreateCustomJob of v1beta1"),
    ],
)
def test_over_grpc(vertex_api: VertexApi, method: str, told: str) -> None:
    trusted = grpc.ssl_channel_credentials(vertex_api.certificates.authority.read_bytes())
    options = (("grpc.ssl_target_name_override", "us-central1-aiplatform.googleapis.com"),)
    address = f"127.0.0.1:{vertex_api.grpc_port}"
    with grpc.secure_channel(address, trusted, options) as channel, pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(method)(b"", timeout=30)
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
    assert told in caught.value.details()


@pytest.mark.parametrize(
    "asked", [["emulator", "start"], ["run", "train_evaluate_upload", "--target", "vertex", "--emulate"]]
)
def test_without_its_packages_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, asked: list[str]) -> None:
    for module in ("services", "start"):
        monkeypatch.setitem(sys.modules, f"gpu_pipelines.emulator.{module}", None)
    finished = command(*asked)
    assert finished.status == 2
    assert "pip install 'gpu-pipelines[emulator]'" in finished.err
