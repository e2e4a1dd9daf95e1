"""The image of the server, built and run: `make test-images`. Needs a Docker engine; SERVING_IMAGE names the image."""

from __future__ import annotations

import base64
import io
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest
import requests
from docker.errors import DockerException, ImageNotFound
from PIL import Image

from gpu_pipelines import __version__
from gpu_pipelines.artifacts.image_features import ImageGeometry
from gpu_pipelines.emulator.json_server import free_port
from gpu_pipelines.tasks.image_classification.recipe import ImageClassification

pytestmark = [pytest.mark.slow, pytest.mark.images]

IMAGE = os.environ.get("SERVING_IMAGE", f"gpu-pipelines/serving:{__version__}")
HEALTH, PREDICT = "/v1/endpoints/1/deployedModels/2", "/v1/endpoints/1/deployedModels/2:predict"


@pytest.fixture(scope="module")
def engine() -> Iterator[docker.DockerClient]:
    """The Docker engine that DOCKER_HOST names, or the one of this machine."""
    try:
        client = docker.from_env()
        client.images.get(IMAGE)
    except ImageNotFound:
        pytest.fail(f"The engine has no image {IMAGE}: run make test-images, which builds it.", pytrace=False)
    except DockerException as error:
        pytest.fail(f"No Docker engine answers: {error} Start one, or name it in DOCKER_HOST.", pytrace=False)
    yield client
    client.close()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An exported image classifier, with random weights, that any user may read."""
    directory = tmp_path_factory.mktemp("model")
    geometry = ImageGeometry(16, "L")
    recipe = ImageClassification(["ant", "bee"], geometry.preprocessing(), geometry.shape)
    recipe.export(recipe.build_model("vit-micro"), directory)
    for path in (directory, *directory.iterdir()):
        path.chmod(0o755)
    return directory


def picture() -> str:
    file = io.BytesIO()
    Image.new("L", (16, 16)).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


@pytest.mark.parametrize("user", [None, "4321:4321"])
def test_the_container_keeps_vertex_ais_contract(engine: docker.DockerClient, model: Path, user: str | None) -> None:
    port = free_port()
    contract = {
        "AIP_HTTP_PORT": str(port),
        "AIP_HEALTH_ROUTE": HEALTH,
        "AIP_PREDICT_ROUTE": PREDICT,
        "AIP_STORAGE_URI": str(model),
    }
    container = engine.containers.run(
        IMAGE,
        detach=True,
        user=user,
        environment={**contract, "GPU_PIPELINES_SERVING_DRAIN_SECONDS": "0"},
        network_mode="host",
        read_only=True,
        volumes={str(model): {"bind": str(model), "mode": "ro"}},
    )
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until_ready(container, url)
        answer = requests.post(url + PREDICT, json={"instances": [{"b64": picture()}] * 2}, timeout=30)
        assert answer.status_code == 200, answer.text
        assert {each["label"] for each in answer.json()["predictions"]} <= {"ant", "bee"}
        assert requests.post(url + PREDICT, json={"instances": [{}]}, timeout=30).status_code == 400
        container.kill("SIGTERM")
        assert container.wait(timeout=30)["StatusCode"] == 0, container.logs().decode()
    finally:
        container.remove(force=True)


def wait_until_ready(container: Any, url: str) -> None:
    until = time.monotonic() + 180
    while time.monotonic() < until:
        container.reload()
        assert container.status != "exited", container.logs().decode()
        try:
            if requests.get(url + HEALTH, timeout=5).status_code == 200:
                return
        except requests.ConnectionError:
            pass
        time.sleep(0.2)
    pytest.fail(f"The server is not ready after 180 s: {container.logs().decode()}")


FINDS = """
import importlib.metadata, json, pathlib
print(json.dumps({"packages": [found.name for found in importlib.metadata.distributions()],
                  "caches": [str(path) for place in ("/root/.cache", "/wheel", "/sources", "/var/cache/apt")
                             for path in pathlib.Path(place).rglob("*") if path.is_file()]}))
"""


def test_the_image_holds_the_server_and_no_more(engine: docker.DockerClient) -> None:
    mine = engine.containers.run(IMAGE, ["-c", "import os; print(os.getuid())"], entrypoint="python3", remove=True)
    assert mine.decode().strip() == "10001"
    found = json.loads(engine.containers.run(IMAGE, ["-c", FINDS], entrypoint="python3", user="0", remove=True))
    assert {"fastapi", "uvicorn", "torch", "transformers", "gpu-pipelines"} <= set(found["packages"])
    trains = {"kfp", "google-cloud-aiplatform", "pyarrow", "matplotlib", "scikit-learn", "peft", "pytest"}
    assert not trains & set(found["packages"])
    assert found["caches"] == []


def test_the_image_says_what_it_is(engine: docker.DockerClient) -> None:
    labels = engine.images.get(IMAGE).labels
    assert labels["org.opencontainers.image.title"] == "gpu-pipelines serving"
    assert labels["org.opencontainers.image.version"] == __version__
