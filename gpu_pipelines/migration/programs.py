"""The programs of a job's replicas: a container, or Python packages in one of Google's images.

Source of these images, and of their dates of availability: page "Prebuilt containers for serverless training" of the
documentation of Vertex AI (by now Gemini Enterprise Agent Platform), in a copy of 2026:
docs.cloud.google.com/gemini-enterprise-agent-platform/machine-learning/training/pre-built-containers.
Runtimes of AI Platform Training had TensorFlow, scikit-learn and XGBoost; a training on GPUs can use the images with
TensorFlow.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

from gpu_pipelines.container_registry import shut_down
from gpu_pipelines.migration.notes import Notes
from gpu_pipelines.migration.packages import Packages
from gpu_pipelines.migration.replicas import ROLES

#: Placeholders for what the user has to fill in; the notes explain them.
IMAGE_PLACE, MODULE_PLACE, PACKAGE_PLACE = "IMAGE", "MODULE", "gs://BUCKET/PACKAGE.tar.gz"
#: Google's training images, the only ones that may run a Python package.
_PREBUILT = re.compile(r"(us|europe|asia)-docker\.pkg\.dev/vertex-ai/training/[\w.-]+(:latest)?")


@dataclass(frozen=True)
class PrebuiltImage:
    """One of Google's images with TensorFlow.

    Attributes:
        tensorflow: the version of TensorFlow, such as `2.17`.
        python: the version of Python.
        available_until: the date after which Google may remove it.
    """

    tensorflow: str
    python: str
    available_until: date

    def address(self, gpu: bool, region: str | None) -> str:
        """Its address in the registry nearest to a region."""
        place = (region or "").partition("-")[0]
        registry = place if place in ("europe", "asia") else "us"
        kind = "gpu" if gpu else "cpu"
        version, python = self.tensorflow.replace(".", "-"), self.python.replace(".", "")
        return f"{registry}-docker.pkg.dev/vertex-ai/training/tf-{kind}.{version}.py{python}:latest"


#: The newest first.
IMAGES = (
    PrebuiltImage("2.17", "3.10", date(2026, 7, 11)),
    PrebuiltImage("2.16", "3.10", date(2026, 6, 28)),
    PrebuiltImage("2.15", "3.10", date(2025, 11, 14)),
    PrebuiltImage("2.14", "3.10", date(2025, 9, 26)),
)


def image_for(runtime_version: str | None, today: date) -> PrebuiltImage | None:
    """The oldest available image that is not older than a runtime version; None if there is none.

    The oldest, because it requires the fewest changes of the code. There is none for TensorFlow 1.

    Args:
        runtime_version: the version of AI Platform Training, such as `2.11`, which equals that of TensorFlow.
        today: the date by which availability is judged.
    """
    wanted = _version(runtime_version or "")
    if wanted is None or wanted < (2, 0):
        return None
    there = [
        each for each in IMAGES if today < each.available_until and (_version(each.tensorflow) or wanted) >= wanted
    ]
    return there[-1] if there else None


def _version(text: str) -> tuple[int, int] | None:
    match = re.fullmatch(r"([0-9]{1,3})\.([0-9]{1,3})(\.[0-9]{1,3})?", text, re.ASCII)
    return (int(match[1]), int(match[2])) if match else None


@dataclass(frozen=True)
class Surroundings:
    """The conditions for the choice of an image, besides the job itself.

    Attributes:
        image: value of `--image`; None if none was given.
        region: the region of the job; None if that is open.
        gpu_roles: the roles with GPUs.
        today: the date by which images are judged.
    """

    image: str | None
    region: str | None
    gpu_roles: Collection[str]
    today: date


def programs(
    training: Mapping[str, Any], roles: Collection[str], packages: Packages, around: Surroundings, notes: Notes
) -> dict[str, dict[str, Any]]:
    """`containerSpec` or `pythonPackageSpec` of each role; contradictions are refused."""
    _require_one_kind(training, roles, packages, around, notes)
    if remark := shut_down(around.image or ""):
        notes.warn("--image", remark)
    for role in roles:
        if (training.get(f"{role}Config") or {}).get("tpuTfVersion"):
            notes.dropped(f"{role}Config.tpuTfVersion", "It is for TPUs.")
    if _image(training, "master"):
        if training.get("pythonVersion"):
            notes.dropped("pythonVersion", "The image has its own Python.")
        return {role: {"containerSpec": _container(training, role, notes)} for role in roles}
    if packages.uris or training.get("pythonModule") or training.get("runtimeVersion"):
        return _of_packages(training, roles, packages, around, notes)
    if around.image is None:
        notes.to_do(
            "trainingInput",
            f"The job says nothing of a program. Add the flags of its gcloud command to this one, or put your image in "
            f"the place of {IMAGE_PLACE}.",
        )
    spec = _with_arguments({"imageUri": around.image or IMAGE_PLACE}, training)
    return {role: {"containerSpec": copy.deepcopy(spec)} for role in roles}


def _image(training: Mapping[str, Any], role: str) -> str:
    return str((training.get(f"{role}Config") or {}).get("imageUri") or "")


def _require_one_kind(
    training: Mapping[str, Any], roles: Collection[str], packages: Packages, around: Surroundings, notes: Notes
) -> None:
    master_image = _image(training, "master")
    if master_image and training.get("runtimeVersion"):
        notes.refuse("Only one of masterConfig.imageUri and runtimeVersion can be given.")
    if master_image and (packages.uris or training.get("pythonModule")):
        notes.refuse("A job runs either masterConfig.imageUri or Python packages with a module, not both.")
    if master_image and around.image:
        notes.refuse("--image is for jobs with Python packages; give --master-image-uri for another container.")
    for role in ROLES:
        config = training.get(f"{role}Config") or {}
        if not master_image:
            given = [name for name in ("imageUri", "containerCommand", "containerArgs") if config.get(name)]
            for name in given:
                notes.refuse(f"{role}Config.{name} needs masterConfig.imageUri.")
        elif role in roles and training.get("args") and (config.get("containerArgs") or config.get("containerCommand")):
            notes.refuse(f"args and {role}Config's containerCommand or containerArgs cannot be given together.")


def _container(training: Mapping[str, Any], role: str, notes: Notes) -> dict[str, Any]:
    config, image = training.get(f"{role}Config") or {}, _image(training, role)
    if not image:
        image = _image(training, "master")
        notes.changed(f"{role}Config.imageUri", "None is given; that was the master's, which Vertex AI wants said.")
    if remark := shut_down(image):
        notes.warn(f"{role}Config.imageUri", remark)
    spec: dict[str, Any] = {"imageUri": image}
    if config.get("containerCommand"):
        spec["command"] = list(config["containerCommand"])
    if config.get("containerArgs"):
        spec["args"] = list(config["containerArgs"])
        return spec
    return _with_arguments(spec, training)


def _with_arguments(spec: dict[str, Any], training: Mapping[str, Any]) -> dict[str, Any]:
    return {**spec, "args": list(training["args"])} if training.get("args") else spec


def _of_packages(
    training: Mapping[str, Any], roles: Collection[str], packages: Packages, around: Surroundings, notes: Notes
) -> dict[str, dict[str, Any]]:
    module = training.get("pythonModule")
    if not module:
        module = MODULE_PLACE
        notes.to_do("pythonModule", f"None is given. Put the module to run in the place of {MODULE_PLACE}.")
    images = {role: _executor(training, role in around.gpu_roles, around, notes) for role in roles}
    if all(_PREBUILT.fullmatch(image) for image in images.values()):
        if not packages.uris:
            notes.to_do("packageUris", f"None are given. Put your package in the place of {PACKAGE_PLACE}.")
        return {
            role: {"pythonPackageSpec": _package(image, packages, module, training)} for role, image in images.items()
        }
    _note_own_image(packages, module, notes)
    spec = {"imageUri": around.image or IMAGE_PLACE, "command": ["python3", "-m", module]}
    return {role: {"containerSpec": _with_arguments(copy.deepcopy(spec), training)} for role in roles}


def _package(image: str, packages: Packages, module: str, training: Mapping[str, Any]) -> dict[str, Any]:
    spec = {
        "executorImageUri": image,
        "packageUris": list(packages.uris) or [PACKAGE_PLACE],
        "pythonModule": module,
    }
    return _with_arguments(spec, training)


def _executor(training: Mapping[str, Any], gpu: bool, around: Surroundings, notes: Notes) -> str:
    """The image that runs packages; empty if there is none."""
    runtime, python = training.get("runtimeVersion"), training.get("pythonVersion")
    told = f"runtime version {runtime or 'not given'}" + (f" with Python {python}" if python else "")
    if around.image:
        if runtime or python:
            notes.changed("runtimeVersion", f"Vertex AI has no runtime versions; {told} becomes {around.image}.")
        return around.image
    found = image_for(runtime, around.today)
    if found is None:
        newest = IMAGES[0]
        until = "was there" if around.today >= newest.available_until else "is there"
        notes.to_do(
            "runtimeVersion",
            f"Vertex AI has no runtime versions, and none of Google's images is left for {told}; the newest with "
            f"TensorFlow, {newest.tensorflow}, {until} until {newest.available_until}. Build an image with your code, "
            f"and give it by --image or put it in the place of {IMAGE_PLACE}.",
        )
        return ""
    address = found.address(gpu, around.region)
    notes.changed(
        "runtimeVersion",
        f"Vertex AI has no runtime versions; {told} becomes {address}, with TensorFlow {found.tensorflow} and Python "
        f"{found.python}, which is there until {found.available_until}.",
    )
    return address


def _note_own_image(packages: Packages, module: str, notes: Notes) -> None:
    notes.changed(
        "pythonModule",
        f"Python packages run only in Google's own images, so this is a container that runs python3 -m {module}.",
    )
    if packages.sources:
        notes.to_do("packageUris", f"The image must have installed: {', '.join(packages.sources)}.")
