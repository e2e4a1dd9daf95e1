"""The container that serves a registered model on Vertex AI: its image, and how to start it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_pipelines.artifacts.evaluation import EVALUATION
from gpu_pipelines.errors import UserError
from gpu_pipelines.project_settings import FILE, load_project_settings
from gpu_pipelines.serving.served_models import why_not_served

#: Hugging Face's inference container serves exported models as they are, from AIP_STORAGE_URI. Source:
#: https://github.com/huggingface/Google-Cloud-Containers, README.
HUGGING_FACE_IMAGE = (
    "us-docker.pkg.dev/deeplearning-platform-release/gcr.io/"
    "huggingface-pytorch-inference-cpu.2-3.transformers.4-48.ubuntu2204.py311"
)
#: vLLM in Google's build for Vertex AI, which reads `gs://`. Source: the notebooks of Model Garden in
#: GoogleCloudPlatform/vertex-ai-samples at cc0d791e (2026-08-19); routes, port and shared memory are theirs as well.
VLLM_IMAGE = "us-docker.pkg.dev/vertex-ai/vertex-vision-model-garden-dockers/pytorch-vllm-serve:20251205_0916_RC01"
#: The name of this project's image of the server, before its tag; see docs/images.md.
OUR_IMAGE = "serving"
#: A model without an evaluation and without one of these files is of no known kind.
_KNOWN_FILES = (EVALUATION, "config.json", "*.safetensors")
#: The server in an image of the steps, which also contains it.
OUR_COMMAND = ("python3", "-m", "gpu_pipelines.serving")
#: Bytes of weights from which on a language model is served by vLLM.
LARGE = 1 << 30

_PORT = 8080
_SHARED_MEMORY_MB, _DEPLOYMENT_SECONDS = 16 << 10, 7200
_LANGUAGE_MODELS = ("ForCausalLM", "LMHeadModel")


@dataclass(frozen=True)
class ServingContainer:
    """An image and its settings.

    Attributes:
        image: URI of the image.
        command, args: the command; empty for the image's own.
        port: the HTTP port.
        predict_route, health_route: empty for those that Vertex AI chooses and gives the container.
        shared_memory_mb: size of /dev/shm, MiB; 0 for the service's own.
        deployment_seconds: how long it may take to be ready; 0 for the service's own.
    """

    image: str
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    port: int = _PORT
    predict_route: str = ""
    health_route: str = ""
    shared_memory_mb: int = 0
    deployment_seconds: int = 0

    @property
    def is_of_others(self) -> bool:
        """Whether this project does not know its answers: a user's image, or vLLM."""
        return not self.is_ours and not self.is_hugging_faces

    @property
    def is_ours(self) -> bool:
        """Whether it is this project's server, by its name or by its command."""
        name = self.image.rpartition("/")[2].partition("@")[0].partition(":")[0]
        return name == OUR_IMAGE or self.command == OUR_COMMAND

    @property
    def is_hugging_faces(self) -> bool:
        """Whether it is Hugging Face's inference container, in any version."""
        return "/huggingface-pytorch-inference-" in self.image

    @property
    def is_vllm(self) -> bool:
        """Whether it is vLLM."""
        return "vllm" in self.image

    def spec(self) -> dict[str, Any]:
        """The fields of Vertex AI's ModelContainerSpec, without those left to the service."""
        given = {
            "image_uri": self.image,
            "command": list(self.command),
            "args": list(self.args),
            "predict_route": self.predict_route,
            "health_route": self.health_route,
            "shared_memory_size_mb": self.shared_memory_mb,
            "ports": [{"container_port": self.port}] if self.args else [],
        }
        if self.deployment_seconds:
            given["deployment_timeout"] = {"seconds": self.deployment_seconds}
        return {name: value for name, value in given.items() if value}


def serving_container(model: Path, image: str = "", steps_image: str = "") -> ServingContainer:
    """The container for an exported model.

    Args:
        model: its directory.
        image: the user's image; empty for that of the settings, else vLLM for a large language model, else the image of
            the steps, else Hugging Face's.
        steps_image: the image that runs the upload and its smoke test; empty if it is not known.

    Raises:
        UserError: no known container serves such files.
    """
    # This setting is only in the file; the job's own variables are not read for it.
    asked = image or (load_project_settings().serving_image if Path(FILE).is_file() else "") or ""
    if "vllm" in asked or (not asked and _is_large_language_model(model)):
        return _vllm(asked or VLLM_IMAGE)
    if asked:
        return ServingContainer(asked)
    # Models of other recipes than this project's cannot be served by its server.
    if steps_image and not why_not_served(model):
        return ServingContainer(steps_image, command=OUR_COMMAND)
    if not any(file for pattern in _KNOWN_FILES for file in model.glob(pattern)):
        raise UserError(
            f"No known container serves the model in {model}: it does not have Hugging Face's layout.",
            "Vertex AI registers a model with the container that serves it; give serving_image.",
        )
    return ServingContainer(HUGGING_FACE_IMAGE)


def _vllm(image: str) -> ServingContainer:
    return ServingContainer(
        image,
        command=("python", "-m", "vllm.entrypoints.api_server"),
        # Vertex AI fills in the place of its copy of the files here:
        # https://cloud.google.com/vertex-ai/docs/reference/rest/v1/ModelContainerSpec.
        args=("--host=0.0.0.0", f"--port={_PORT}", "--model=$(AIP_STORAGE_URI)", "--tensor-parallel-size=1"),
        predict_route="/generate",
        health_route="/ping",
        shared_memory_mb=_SHARED_MEMORY_MB,
        deployment_seconds=_DEPLOYMENT_SECONDS,
    )


def _is_large_language_model(model: Path) -> bool:
    if sum(file.stat().st_size for file in model.glob("*.safetensors")) < LARGE:
        return False
    try:
        config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    architectures = config.get("architectures") if isinstance(config, dict) else None
    return any(str(name).endswith(_LANGUAGE_MODELS) for name in architectures or ())
