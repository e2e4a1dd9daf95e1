"""The image of the steps, built and run: `make test-images`. Needs a Docker engine; IMAGE names the image in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest
import yaml
from docker.errors import DockerException, ImageNotFound

from gpu_pipelines.component_interface.image import STEPS_IMAGE
from gpu_pipelines.errors import INTERRUPTED
from gpu_pipelines.step_environment import REHEARSE

pytestmark = [pytest.mark.slow, pytest.mark.images]

IMAGE = os.environ.get("IMAGE", STEPS_IMAGE)
COMPILED = Path(__file__).parents[2] / "compiled"
# KFP lets the engine remove a container that ended, then asks for it, and takes Podman's answer for a failure.
STAYS_A_WHILE = ["/bin/bash", "-c", '"$@"; status=$?; sleep 2; exit $status', "step"]
OUTPUTS = ("checkpoints", "training_metrics", "training_report")


@pytest.fixture(scope="module")
def engine() -> Iterator[docker.DockerClient]:
    """The Docker engine that DOCKER_HOST names, or the one of this machine."""
    try:
        client = docker.from_env()
        client.ping()
    except DockerException as error:
        pytest.fail(f"No Docker engine answers: {error} Start one, or name it in DOCKER_HOST.", pytrace=False)
    try:
        client.images.get(IMAGE)
    except ImageNotFound:
        pytest.fail(f"The engine has no image {IMAGE}: run make test-images, which builds it.", pytrace=False)
    yield client
    client.close()


def output_of(engine: docker.DockerClient, program: str, **options: Any) -> str:
    """What a Python program prints in a container of the image; fails unless it ends with 0."""
    # Followed while it runs, the output of a container may lack its end.
    container = engine.containers.run(IMAGE, ["python3", "-c", program], detach=True, **options)
    try:
        status = container.wait()["StatusCode"]
        printed = container.logs(stdout=True, stderr=False).decode()
        assert status == 0, printed + container.logs(stdout=False, stderr=True).decode()
        return printed
    finally:
        container.remove(force=True)


@pytest.fixture(scope="module")
def place(engine: docker.DockerClient, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the compiled local pipeline ran in containers of the image, with KFP's DockerRunner."""
    from kfp import components, local

    place = tmp_path_factory.mktemp("docker")
    # The user of the image is none of this machine's.
    place.chmod(0o777)
    compiled = (COMPILED / "train_evaluate_upload/local/cpu-2.yaml").read_text()
    assert STEPS_IMAGE in compiled
    pipeline = components.load_component_from_text(compiled.replace(STEPS_IMAGE, IMAGE))
    local.init(local.DockerRunner(entrypoint=STAYS_A_WHILE), pipeline_root=str(place))
    task = pipeline(epochs=2.0, gates=["accuracy>=0"], registry=str(place / "registry"), model_name="digits")
    (place / "outputs.json").write_text(json.dumps({name: value.uri for name, value in task.outputs.items()}))
    return place


def test_the_compiled_pipeline_runs_in_the_image(place: Path) -> None:
    aliases = json.loads((place / "registry/digits/model.json").read_text())["aliases"]
    assert aliases == {"challenger": 1, "champion": 1}
    best = Path(json.loads((place / "outputs.json").read_text())["best_checkpoint"])
    evaluation = json.loads((best / "evaluation.json").read_text())
    assert len(evaluation["checkpoints"]) >= 2
    assert evaluation["test"]["metrics"]["accuracy"]["value"] > 0.3
    assert (place / "registry/digits/versions/1/model.safetensors").stat().st_uid not in (0, os.getuid())


def test_sigterm_to_the_container_ends_the_training_with_a_checkpoint(
    engine: docker.DockerClient, place: Path, tmp_path: Path
) -> None:
    tmp_path.chmod(0o777)
    container = engine.containers.run(
        IMAGE,
        training_command(next(place.glob("*/prepare-data/dataset")), tmp_path),
        environment={REHEARSE: "cpu:2"},
        volumes={str(path): {"bind": str(path), "mode": "rw"} for path in (place, tmp_path)},
        detach=True,
    )
    try:
        printed = until_first_step(container)
        started = time.monotonic()
        container.kill("SIGTERM")
        assert container.wait(timeout=60)["StatusCode"] == INTERRUPTED, container.logs().decode()
        assert time.monotonic() - started < 30, printed
    finally:
        container.remove(force=True)
    assert list(tmp_path.glob("resumable/step-*/checkpoint.json"))


def test_the_image_of_a_project_runs_its_pipeline(engine: docker.DockerClient, tmp_path: Path) -> None:
    from kfp import components, local

    program = str(Path(sys.executable).with_name("gpu-pipelines"))
    project, place = tmp_path / "reviews", tmp_path / "runs"
    place.mkdir()
    place.chmod(0o777)
    init = [program, "init", str(project), "--task", "text_classification", "-p", "registry=" + str(place / "registry")]
    subprocess.run(init, check=True)
    compiled = ["compile", "pipeline.py", "--target", "local", "--output", "local.yaml"]
    subprocess.run([program, *compiled], cwd=project, check=True)
    image, _ = engine.images.build(path=str(project), buildargs={"STEPS_IMAGE": IMAGE}, tag="reviews:test")
    try:
        document = (project / "local.yaml").read_text().replace(STEPS_IMAGE, image.tags[0])
        local.init(local.DockerRunner(entrypoint=STAYS_A_WHILE), pipeline_root=str(place))
        components.load_component_from_text(document)(max_steps=2)
    finally:
        engine.images.remove(image.tags[0], force=True)
    assert json.loads((place / "registry/reviews/model.json").read_text())["aliases"]["challenger"] == 1
    (dataset,) = place.glob("*/prepare-data/dataset/dataset.json")
    assert json.loads(dataset.read_text())["task"] == "reviews.task:Reviews"


def training_command(dataset: Path, place: Path) -> list[str]:
    """What Vertex AI starts a replica of the step train-model with, here for a training of minutes."""
    document = yaml.safe_load((COMPILED / "train_evaluate_upload/vertex/image_classification/l4-1.yaml").read_text())
    inputs = document["components"]["comp-train-model"]["inputDefinitions"]["parameters"]
    container = inputs["worker_pool_specs"]["defaultValue"][0]["container_spec"]
    executor_input = {
        "inputs": {
            "parameterValues": {"epochs": 500.0, "checkpoint_uri": str(place / "resumable")},
            "artifacts": {"dataset": {"artifacts": [artifact("dataset", "Dataset", dataset)]}},
        },
        "outputs": {
            "artifacts": {name: {"artifacts": [artifact(name, "Artifact", place / name)]} for name in OUTPUTS},
            "outputFile": str(place / "output.json"),
        },
    }
    filled = [json.dumps(executor_input) if part.startswith("{{$") else part for part in container["args"]]
    return [*container["command"], *filled]


def artifact(name: str, kind: str, path: Path) -> dict[str, Any]:
    return {"name": name, "uri": str(path), "type": {"schemaTitle": f"system.{kind}"}, "metadata": {}}


def until_first_step(container: Any) -> str:
    printed = b""
    for piece in container.logs(stream=True):
        printed += piece
        if b"samples/s" in printed:
            return printed.decode()
    pytest.fail(f"No step was taken: {printed.decode()}")


WRITES = """
import getpass, json, os, pathlib, sys, tempfile
import huggingface_hub.constants, matplotlib
home = pathlib.Path.home()
(home / "written").write_text("")
tempfile.TemporaryFile()
pathlib.Path(huggingface_hub.constants.HF_HOME).mkdir(parents=True)
print(json.dumps({"uid": os.getuid(), "user": getpass.getuser(), "home": str(home), "python": sys.executable,
                  "matplotlib": matplotlib.get_cachedir(), "hub": huggingface_hub.constants.HF_HOME,
                  "code is mine": os.access(matplotlib.__file__, os.W_OK)}))
"""


@pytest.mark.parametrize("user", [None, "4321:4321"])
def test_the_user_is_not_root_and_can_write_to_its_home_only(engine: docker.DockerClient, user: str | None) -> None:
    found = json.loads(output_of(engine, WRITES, user=user))
    assert found["uid"] == (4321 if user else 10001)
    assert found["user"] == "steps"
    assert found["python"] == "/opt/venv/bin/python3"
    assert all(found[cache].startswith(found["home"]) for cache in ("matplotlib", "hub"))
    assert not found["code is mine"]


FINDS = """
import importlib.metadata, json, pathlib
print(json.dumps({"packages": [found.name for found in importlib.metadata.distributions()],
                  "caches": [str(path) for place in ("/root/.cache", "/home/steps/.cache", "/wheel", "/sources")
                             for path in pathlib.Path(place).rglob("*")],
                  "lists": [path.name for path in pathlib.Path("/var/lib/apt/lists").glob("*Packages*")]}))
"""


def test_nothing_is_left_over_from_the_build(engine: docker.DockerClient) -> None:
    found = json.loads(output_of(engine, FINDS, user="0"))
    assert found["caches"] == found["lists"] == []
    assert {"kfp", "torch", "gpu-pipelines", "google-cloud-aiplatform"} <= set(found["packages"])
    # A TrainJob is started through Kubeflow's SDK, which brings kubernetes.
    assert not {"kfp-server-api", "pytest", "mypy"} & set(found["packages"])


IMPORTS = """
import importlib, pkgutil
import google.cloud.aiplatform
import gpu_pipelines
steps = ("artifacts", "components", "data", "distributed", "evaluation", "registry", "tasks", "training")
for package in steps:
    package = importlib.import_module(f"gpu_pipelines.{package}")
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if module.name.rsplit(".")[-1] not in ("component", "script_component", "readme", "catalog"):
            importlib.import_module(module.name)
            print(module.name)
"""


def test_whatever_steps_use_can_be_imported(engine: docker.DockerClient) -> None:
    """A step imports most of it late, from within functions, and kfp is there without its dependencies."""
    printed = output_of(engine, IMPORTS, environment={"_KFP_RUNTIME": "true"}).split()
    assert {"gpu_pipelines.registry.vertex", "gpu_pipelines.training.worker"} <= set(printed)


def test_the_image_says_what_it_is(engine: docker.DockerClient) -> None:
    labels = engine.images.get(IMAGE).labels
    assert labels["org.opencontainers.image.version"] == STEPS_IMAGE.rsplit(":", 1)[1]
    assert len(labels["org.opencontainers.image.revision"]) == 40


def test_models_can_be_compiled(engine: docker.DockerClient) -> None:
    program = "import torch; print(torch.compile(lambda x: x.sin() + 1)(torch.zeros(3)).tolist())"
    assert output_of(engine, program).strip() == "[1.0, 1.0, 1.0]"
