"""Versions behind an endpoint of Vertex AI: traffic, the test on the endpoint, and the way back."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from command_line import command
from conftest import set_variables
from exported_models import export
from server_process import started

import gpu_pipelines
from gpu_pipelines.artifacts.examples import Examples
from gpu_pipelines.artifacts.remote_files import RemoteFolder
from gpu_pipelines.distributed.signals import noted
from gpu_pipelines.emulator.json_server import JsonHandler, answering, server_of
from gpu_pipelines.errors import UserError
from gpu_pipelines.registry import Registry, open_registry
from gpu_pipelines.registry.registered import Promotion
from gpu_pipelines.registry.serving_container import HUGGING_FACE_IMAGE
from gpu_pipelines.registry.vertex_endpoint import DeploymentRequest, EndpointDeployer, shared

if TYPE_CHECKING:
    from gpu_pipelines.emulator.vertex_api import VertexApi

BUCKET, IMAGE = "gs://example-bucket", "europe-docker.pkg.dev/p/r/serving:0.1.0-cpu"
INFO = {"passed": True, "metrics": {}}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export("text_classification", tmp_path_factory.mktemp("exported") / "model")


@pytest.fixture(scope="module")
def address(model: Path) -> Iterator[str]:
    """A server of the model, which stands for all containers."""
    with started(model, AIP_HEALTH_ROUTE="/health", AIP_PREDICT_ROUTE="/predict") as server:
        yield server.url


@pytest.fixture
def registry(vertex_api: VertexApi, address: str, monkeypatch: pytest.MonkeyPatch) -> Registry:
    set_variables(monkeypatch, vertex_api.environment())
    monkeypatch.setattr("gpu_pipelines.registry.vertex._POLL_SECONDS", 0.02)
    monkeypatch.setattr("gpu_pipelines.registry.vertex_endpoint._POLL_SECONDS", 0.02)
    vertex_api.state.model_servers.stand_in = address
    return open_registry("vertex://", f"{BUCKET}/runs/1", IMAGE)


def add(registry: Registry, model: Path, folder: Path, number: int, label: str = "") -> Any:
    """A version with the model's files; with a label, one whose examples want another answer than the server gives."""
    copied = folder / str(number)
    copied.mkdir()
    for file in model.iterdir():
        os.link(file, copied / file.name)
    (copied / "number.txt").write_text(str(number))
    if label:
        examples = Examples.load(model)
        predictions = [{"label": label, "scores": {label: 0.99}} for _ in examples.predictions]
        (copied / "examples.json").unlink()
        Examples(examples.task, examples.instances, predictions).save(copied)
    return registry.add("animals", copied, INFO, Promotion(True, None))


def state_of(vertex_api: VertexApi) -> tuple[list[str], dict[str, int]]:
    """Versions that are deployed, and the traffic by version."""
    (endpoint,) = vertex_api.state.endpoints.endpoints.values()
    versions = {deployed.id: deployed.model_version_id for deployed in endpoint.deployed_models}
    return list(versions.values()), {versions[number]: share for number, share in endpoint.traffic_split.items()}


def test_a_version_takes_over_in_steps_and_a_wrong_one_goes_back(
    registry: Any, vertex_api: VertexApi, model: Path, tmp_path: Path
) -> None:
    first, second = add(registry, model, tmp_path, 1), add(registry, model, tmp_path, 2)
    wrong = add(registry, model, tmp_path, 3, label="ant")
    said: list[str] = []
    deployer = EndpointDeployer(registry.settings, said.append)
    deployer.deploy(first, DeploymentRequest("animals", 20, accelerator="t4:1"))
    assert state_of(vertex_api) == (["1"], {"1": 100})
    machine = (
        next(iter(vertex_api.state.endpoints.endpoints.values())).deployed_models[0].dedicated_resources.machine_spec
    )
    assert (machine.accelerator_type.name, machine.accelerator_count) == ("NVIDIA_TESLA_T4", 1)
    assert "the endpoint predicts 3 examples as they were evaluated" in said

    deployer.deploy(second, DeploymentRequest("animals", 20))
    assert state_of(vertex_api) == (["1", "2"], {"1": 80, "2": 20})
    rehearsed, *asked = list(vertex_api.state.endpoints.asked)[5:]
    assert len(set(asked)) == 2, "the test goes on until the new version has answered"
    assert rehearsed not in asked, "before that it was asked on an endpoint of its own"

    before = endpoint_of(vertex_api)
    with pytest.raises(UserError, match=r"example 0 of 3: the score of 'ant'.* animals was not touched"):
        deployer.deploy(wrong, DeploymentRequest("animals", 50))
    assert endpoint_of(vertex_api) == before, "the one of the rehearsal is gone, and nothing has moved"

    kept = [deployed.id for deployed in before.deployed_models]
    assert deployer.deploy(second, DeploymentRequest("animals", 50)).percent == 50
    assert state_of(vertex_api) == (["1", "2"], {"1": 50, "2": 50})
    deployed = deployer.deploy(second, DeploymentRequest("animals", 100))
    assert deployed.percent == 100
    assert "its share of the requests goes from 50 to 100 percent" in said[-3]
    assert state_of(vertex_api) == (["2"], {"2": 100}), "models without traffic are removed"
    assert endpoint_of(vertex_api).deployed_models[0].id == kept[1], "it was there already"


def test_what_a_killed_test_has_left_is_removed_by_the_next(
    registry: Any, vertex_api: VertexApi, model: Path, tmp_path: Path
) -> None:
    version = add(registry, model, tmp_path, 1)
    deployer = EndpointDeployer(registry.settings)
    left = DeploymentRequest("animals-test-animals-1", force=True, keep=True)
    deployer.deploy(version, replace(left, untested=True))
    deployer.deploy(version, replace(left, untested=True))
    (endpoint,) = vertex_api.state.endpoints.endpoints.values()
    assert len(endpoint.deployed_models) == 2
    deployer.deploy(version, DeploymentRequest("animals"))
    deployer.deploy(version, DeploymentRequest("animals", 100, force=True))
    assert endpoint_of(vertex_api).display_name == "animals"


@pytest.mark.parametrize("deployments", [1, 2])
def test_traffic_that_somebody_moves_before_the_version_gets_any_stays_moved(
    registry: Any, vertex_api: VertexApi, model: Path, tmp_path: Path, deployments: int
) -> None:
    said: list[str] = []
    good, poor, new = (add(registry, model, tmp_path, number) for number in (1, 2, 3))
    EndpointDeployer(registry.settings).deploy(good, DeploymentRequest("animals"))
    EndpointDeployer(registry.settings).deploy(poor, DeploymentRequest("animals", 40))

    def rolled_back(told: str) -> None:
        said.append(told)
        # To the endpoint of the rehearsal, then to the one with the traffic.
        if told.startswith("deploying") and sum(each.startswith("deploying") for each in said) == deployments:
            EndpointDeployer(registry.settings).deploy(good, DeploymentRequest("animals"))

    EndpointDeployer(registry.settings, rolled_back).deploy(new, DeploymentRequest("animals", 10))
    assert state_of(vertex_api) == (["1", "3"], {"1": 90, "3": 10})


@pytest.mark.parametrize(
    ("moved", "left"), [({"1": 100}, {"1": 100}), ({"1": 30, "3": 70}, {"1": 100}), ({"3": 100}, {"1": 60, "2": 40})]
)
def test_traffic_that_somebody_moves_during_the_last_test_is_not_moved_back(
    registry: Any,
    vertex_api: VertexApi,
    model: Path,
    tmp_path: Path,
    moved: dict[str, int],
    left: dict[str, int],
) -> None:
    from google.cloud import aiplatform_v1 as api

    first, second, new = (add(registry, model, tmp_path, number) for number in (1, 2, 3))
    EndpointDeployer(registry.settings).deploy(first, DeploymentRequest("animals"))
    EndpointDeployer(registry.settings).deploy(second, DeploymentRequest("animals", 40))

    class Handler(JsonHandler):
        def do_POST(self) -> None:
            self.body()
            endpoint = endpoint_of(vertex_api)
            ids = {deployed.model_version_id: deployed.id for deployed in endpoint.deployed_models}
            endpoint.traffic_split = {ids[version]: share for version, share in moved.items()}
            changed = api.UpdateEndpointRequest(endpoint=endpoint, update_mask={"paths": ["traffic_split"]})
            vertex_api.state.endpoints.update(changed)
            self.send(503, {"error": "the container has ended"})

    with answering(server_of(Handler)) as address:

        def rehearsed(told: str) -> None:
            if told.startswith("the endpoint predicts"):
                vertex_api.state.model_servers.stand_in = address

        with pytest.raises(UserError, match="traffic is as somebody has set it meanwhile, and the version is not dep"):
            EndpointDeployer(registry.settings, rehearsed).deploy(new, DeploymentRequest("animals", 10))
    versions, traffic = state_of(vertex_api)
    assert (versions, {version: share for version, share in traffic.items() if share}) == (["1", "2"], left)


def test_a_program_deploys_as_the_command_does(
    registry: Any, vertex_api: VertexApi, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add(registry, model, tmp_path, 1)
    assert gpu_pipelines.deploy("animals@1", "animals", progress=False).percent == 100
    assert capsys.readouterr() == ("", "")
    add(registry, model, tmp_path, 2)
    done = gpu_pipelines.deploy("animals@2", "animals", traffic=20)
    assert done == (endpoint_of(vertex_api).name, 20)
    assert state_of(vertex_api) == (["1", "2"], {"1": 80, "2": 20})
    told = capsys.readouterr()
    assert (told.out, "the endpoint predicts 3 examples" in told.err) == ("", True)
    with pytest.raises(UserError, match="registry is not a registry of Vertex AI"):
        gpu_pipelines.deploy("animals", "animals", registry="./registry")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_ends_the_command_in_its_test_leaves_no_machine(
    registry: Any, vertex_api: VertexApi, model: Path, tmp_path: Path, number: int
) -> None:
    add(registry, model, tmp_path, 1)
    deploy = ("models", "deploy", "animals@1", "--endpoint", "animals")
    assert command(*deploy, cwd=tmp_path).status == 0
    before = endpoint_of(vertex_api)

    class Handler(JsonHandler):
        def do_POST(self) -> None:
            self.body()
            os.kill(os.getpid(), number)
            self.send(503, {"error": "the test has been ended"})

    with answering(server_of(Handler)) as address, noted():
        vertex_api.state.model_servers.stand_in = address
        done = command(*deploy, "--force", cwd=tmp_path)
    assert (done.status, done.err.splitlines()[-1]) == (130, "interrupted")
    assert endpoint_of(vertex_api) == before, "the endpoint of the test is gone, and nothing has moved"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_ends_the_command_while_the_service_deploys_says_what_remains(
    registry: Any, vertex_api: VertexApi, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    from google.cloud.aiplatform_v1.types import DeployModelResponse

    add(registry, model, tmp_path, 1)
    operations = vertex_api.state.operations
    made = operations.done

    def ended_meanwhile(resource: str, response: Any = None) -> Any:
        if isinstance(response, DeployModelResponse):
            os.kill(os.getpid(), number)
        return made(resource, response)

    monkeypatch.setattr(operations, "done", ended_meanwhile)
    with noted():
        done = command("models", "deploy", "animals@1", "--endpoint", "animals", cwd=tmp_path)
    assert (done.status, done.err.splitlines()[-1]) == (130, "interrupted")
    name = endpoint_of(vertex_api).name
    assert "goes on deploying animals version 1, which is not tested" in " ".join(done.out.split())
    assert f"\n  gcloud ai endpoints undeploy-model {name} --deployed-model-id=ID\n" in done.out
    assert state_of(vertex_api) == (["1"], {}), "it is there without requests"
    again = command("models", "deploy", "animals@1", "--endpoint", "animals", cwd=tmp_path)
    assert again.status == 0, again.err
    assert "is deployed to animals already" in again.out
    assert "the endpoint predicts 3 examples as they were evaluated" in again.out, "the test is made up for"


def test_a_wrong_version_that_is_deployed_without_a_test_is_told_of(
    registry: Any, vertex_api: VertexApi, model: Path, tmp_path: Path
) -> None:
    wrong, deployer = add(registry, model, tmp_path, 1, label="ant"), EndpointDeployer(registry.settings)
    deployer.deploy(wrong, DeploymentRequest("animals", untested=True))
    with pytest.raises(UserError, match=r"the score of 'ant'.* It still gets requests\."):
        deployer.deploy(wrong, DeploymentRequest("animals"))
    assert state_of(vertex_api) == (["1"], {"1": 100})


def endpoint_of(vertex_api: VertexApi) -> Any:
    """The only endpoint there is, as it is now."""
    (endpoint,) = vertex_api.state.endpoints.endpoints.values()
    return type(endpoint)(endpoint)


def test_what_is_deployed_already_stays_unless_something_else_is_wanted(
    registry: Any, vertex_api: VertexApi, model: Path, tmp_path: Path
) -> None:
    version, said = add(registry, model, tmp_path, 1), []  # type: ignore[var-annotated]
    deployer = EndpointDeployer(registry.settings, said.append)
    deployer.deploy(version, DeploymentRequest("animals"))
    before, asked = endpoint_of(vertex_api), len(vertex_api.state.endpoints.asked)
    assert deployer.deploy(version, DeploymentRequest("animals", 30)).percent == 100, "there is no other"
    assert "animals version 1 is deployed to animals already, with 100 percent" in said[-2]
    assert "--force" in said[-2]
    assert "the endpoint predicts 3 examples as they were evaluated" in said[-1]
    assert (endpoint_of(vertex_api), len(vertex_api.state.endpoints.asked)) == (before, asked + 3)
    for request in (DeploymentRequest("animals", force=True), DeploymentRequest("animals", max_replicas=2)):
        deployer.deploy(version, request)
        (deployed,) = endpoint_of(vertex_api).deployed_models
        assert deployed.id not in [each.id for each in before.deployed_models]
    # A share that cannot be had goes back to the one before.
    other = add(registry, model, tmp_path, 2)
    deployer.deploy(other, DeploymentRequest("animals", 10))
    before = endpoint_of(vertex_api)
    vertex_api.fail_next("POST .*:predict", 400)
    with pytest.raises(UserError, match="traffic is as it was before"):
        deployer.deploy(other, DeploymentRequest("animals", 90))
    assert endpoint_of(vertex_api) == before


@pytest.fixture(scope="module")
def hugging_faces(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, Path], str]]:
    """Models of each task, and a server that does with them what VertexAIHandler of Hugging Face's container does:
    each instance and the parameters go to the library's pipeline. It serves the model whose task has this field."""
    from transformers import pipeline

    tasks = {"image_classification": "image-classification", "causal_lm": "text-generation"}
    folder = tmp_path_factory.mktemp("exported")
    models = {task: export(task, folder / task) for task in tasks}
    pipelines = {task: pipeline(name, model=str(models[task])) for task, name in tasks.items()}

    class Handler(JsonHandler):
        def do_POST(self) -> None:
            body = json.loads(self.body())
            parameters = {name: int(value) for name, value in body.get("parameters", {}).items()}
            called = pipelines["image_classification" if "top_k" in parameters else "causal_lm"]
            self.send(200, {"predictions": [called(each, **parameters) for each in body["instances"]]})

    with answering(server_of(Handler)) as address:
        yield models, address


def test_a_container_of_hugging_faces_is_tested_in_its_own_form(
    registry: Any, vertex_api: VertexApi, hugging_faces: tuple[dict[str, Path], str], tmp_path: Path
) -> None:
    models, address = hugging_faces
    vertex_api.state.model_servers.stand_ins[HUGGING_FACE_IMAGE] = address
    registry, said = open_registry("vertex://", f"{BUCKET}/runs/1"), []  # type: ignore[var-annotated]
    deployer = EndpointDeployer(registry.settings, said.append)
    version = add(registry, models["image_classification"], tmp_path, 1)
    deployer.deploy(version, DeploymentRequest("animals"))
    assert said[-1] == "the endpoint predicts 3 examples as they were evaluated"
    wrong = add(registry, models["image_classification"], tmp_path, 2, label="ant")
    before = endpoint_of(vertex_api)
    with pytest.raises(UserError, match=r"the score of 'ant'.*animals was not touched") as refused:
        deployer.deploy(wrong, DeploymentRequest("animals", 10))
    assert HUGGING_FACE_IMAGE in refused.value.remedy
    assert endpoint_of(vertex_api) == before
    text = registry.add("texts", models["causal_lm"], INFO, Promotion(True, None))
    deployer.deploy(text, DeploymentRequest("texts"))
    assert "nothing of what was evaluated, so they are not compared" in said[-1]


def test_a_version_without_examples_is_not_deployed_by_chance(
    registry: Any, vertex_api: VertexApi, model: Path, address: str, tmp_path: Path
) -> None:
    copied = shutil.copytree(model, tmp_path / "model")
    (copied / "examples.json").rename(tmp_path / "given.json")
    version = registry.add("animals", copied, INFO, Promotion(True, None))
    said: list[str] = []
    deployer = EndpointDeployer(registry.settings, said.append)
    with pytest.raises(UserError, match=r"(?s)there is no examples.json.*--examples FILE.*--untested"):
        deployer.deploy(version, DeploymentRequest("animals"))
    assert vertex_api.state.endpoints.endpoints == {}, "nothing was deployed"
    deployer.deploy(version, DeploymentRequest("untested", untested=True))
    assert said[-1] == "no test on the endpoint: --untested was given"
    deployer.deploy(version, DeploymentRequest("animals", examples=str(tmp_path / "given.json")))
    assert said[-1] == "the endpoint predicts 3 examples as they were evaluated"
    given = Examples.load(tmp_path, "given.json")
    Examples("own", given.instances, [{"label": "zebra"}] * 3).save(tmp_path)
    with pytest.raises(UserError, match=r"example 0 of 3: got .*, not \{'label': 'zebra'\}"):
        deployer.deploy(version, DeploymentRequest("other", examples=str(tmp_path / "examples.json")))
    with pytest.raises(UserError, match="needs no examples"):
        deployer.deploy(version, DeploymentRequest("other", examples="a", untested=True))


@pytest.mark.parametrize(("status", "took_effect"), [(503, True), (403, False)])
def test_a_deployment_whose_answer_is_lost_is_found(
    registry: Any, vertex_api: VertexApi, model: Path, tmp_path: Path, status: int, took_effect: bool
) -> None:
    version = add(registry, model, tmp_path, 1)
    vertex_api.fail_next("POST .*:deployModel", status, took_effect=took_effect)
    deployer = EndpointDeployer(registry.settings)
    if took_effect:
        deployer.deploy(version, DeploymentRequest("animals"))
        assert state_of(vertex_api) == (["1"], {"1": 100})
    else:
        with pytest.raises(UserError, match="Deploying animals version 1 failed"):
            deployer.deploy(version, DeploymentRequest("animals"))
        assert state_of(vertex_api) == ([], {})


def test_an_endpoint_that_refuses_to_predict_leads_back(
    registry: Any, vertex_api: VertexApi, model: Path, tmp_path: Path
) -> None:
    version = add(registry, model, tmp_path, 1)
    vertex_api.fail_next("POST .*:predict", 400)
    with pytest.raises(UserError, match="Asking the endpoint for a prediction failed"):
        EndpointDeployer(registry.settings).deploy(version, DeploymentRequest("animals"))
    assert state_of(vertex_api) == ([], {})


def test_a_damaged_version_is_not_deployed(registry: Any, vertex_api: VertexApi, model: Path, tmp_path: Path) -> None:
    version = add(registry, model, tmp_path, 1)
    RemoteFolder(version.place).write("model.safetensors", b"nothing")
    with pytest.raises(UserError, match=r"Version 1 of 'animals' .*model\.safetensors is not as it was uploaded"):
        EndpointDeployer(registry.settings).deploy(version, DeploymentRequest("animals"))
    assert not vertex_api.state.endpoints.endpoints


def test_the_command_deploys_what_an_alias_names(
    registry: Any, vertex_api: VertexApi, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(registry, model, tmp_path, 1)
    monkeypatch.chdir(tmp_path)
    done = command("models", "deploy", "animals@champion", "--endpoint", "animals", "--traffic", "30")
    assert done.status == 0, done.err
    assert "made the endpoint projects/" in done.out
    assert "animals@champion gets 100 percent of the requests" in done.out
    assert state_of(vertex_api) == (["1"], {"1": 100})
    again = command("models", "deploy", "animals@champion", "--endpoint", "animals", columns=80)
    assert "is deployed to animals already" in again.out
    # A line that is wider than the terminal is a name.
    assert not [line for line in again.out.splitlines() if len(line) > 80 and len(line.split()) > 1]
    refused = command("models", "deploy", "animals", "--endpoint", "a", "--registry", "./registry")
    assert refused.status == 2
    assert "./registry is not a registry of Vertex AI" in refused.err


def test_wrong_requests_are_refused_before_anything_is_sent(registry: Any, vertex_api: VertexApi) -> None:
    deployer, version = EndpointDeployer(registry.settings), None
    with pytest.raises(UserError, match=r"2 things are wrong:\n.*0 percent.*\n.*3 to 2 replicas"):
        deployer.deploy(version, DeploymentRequest("a", 0, min_replicas=3, max_replicas=2))  # type: ignore[arg-type]
    with pytest.raises(UserError, match="l5"):
        deployer.deploy(version, DeploymentRequest("a", accelerator="l5:1"))  # type: ignore[arg-type]
    assert vertex_api.state.endpoints.endpoints == {}


@pytest.mark.parametrize(
    ("before", "percent", "after"),
    [
        ({}, 10, {"0": 100}),
        ({"1": 100}, 10, {"1": 90, "0": 10}),
        ({"1": 50, "2": 50}, 1, {"1": 50, "2": 49, "0": 1}),
        ({"1": 34, "2": 33, "3": 33}, 50, {"1": 17, "2": 17, "3": 16, "0": 50}),
        ({"1": 100, "2": 0}, 100, {"1": 0, "0": 100}),
        ({"1": 90}, 50, {"1": 50, "0": 50}),
        ({"1": 60, "2": 30}, 40, {"1": 40, "2": 20, "0": 40}),
    ],
)
def test_shares_add_up(before: dict[str, int], percent: int, after: dict[str, int]) -> None:
    assert shared(before, percent) == after
    assert sum(after.values()) == 100
