"""The doctor's checks that need no network: versions of libraries, gcloud, and the settings."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from gpu_pipelines.accelerators.catalog import load_catalog
from gpu_pipelines.errors import nearest
from gpu_pipelines.project_settings import FILE, ProjectSettings, flag_of
from gpu_pipelines.targets.vertex.doctor.checks import MISSING, NOT_KNOWN, OK, Check

#: Each of them lists in its metadata the versions of the others that it supports.
LIBRARIES = ("kfp", "google-cloud-pipeline-components", "google-cloud-aiplatform")


def look_at_versions(libraries: tuple[str, ...] = LIBRARIES) -> Check:
    """Whether the libraries are installed, in versions that support each other by their own requirements."""
    found, problems = {}, []
    for name in libraries:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            problems.append(f"{name} is not installed")
    for name in ("gpu-pipelines", *found):
        problems += [f"{name} needs {needed}, but {found[of]} is there" for of, needed in _unmet(name, found)]
    if problems:
        return Check("libraries", MISSING, "; ".join(problems), "pip install --upgrade gpu-pipelines")
    return Check("libraries", OK, ", ".join(f"{name} {version}" for name, version in found.items()))


def _unmet(name: str, found: dict[str, str]) -> Iterator[tuple[str, str]]:
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    for text in metadata.requires(name) or []:
        required = Requirement(text)
        other = canonicalize_name(required.name)
        applies = required.marker is None or required.marker.evaluate({"extra": ""})
        if applies and other in found and not required.specifier.contains(found[other], prereleases=True):
            yield other, f"{other}{required.specifier}"


def look_at_gcloud() -> Check:
    """Whether gcloud is installed. It is not called here, but every remedy is one of its commands."""
    program = shutil.which("gcloud")
    if program is None:
        return Check("gcloud", MISSING, "not installed", "Install it: https://cloud.google.com/sdk/docs/install")
    try:
        # gcloud itself takes a second for that.
        version = (Path(program).resolve().parents[1] / "VERSION").read_text(encoding="utf-8").strip()
    except (OSError, IndexError, ValueError):
        return Check("gcloud", OK, program)
    return Check("gcloud", OK, f"{version[:40]} in {program}")


def look_at_settings(settings: ProjectSettings) -> Iterator[Check]:
    """Whether the settings that jobs need are known, and their sources."""
    for name in ("project", "region"):
        value = getattr(settings, name)
        if value is None:
            yield Check(name, MISSING, "not known", _remedy(name))
        elif name == "region" and value not in load_catalog().regions:
            known = list(load_catalog().regions)
            yield Check(name, MISSING, f"{value} is not a known region", nearest(value, known))
        elif name == "region" and load_catalog().regions[value].vertex_training == "no":
            yield Check(name, MISSING, f"{value} has no Vertex AI training", "gpu-pipelines accelerators list --json")
        else:
            yield Check(name, OK, f"{value}, from {settings.origins.get(name, 'the command line')}")
    for name in ("network", "network_attachment", "persistent_resource", "encryption_key", "tensorboard"):
        if value := getattr(settings, name):
            yield Check(name.replace("_", " "), NOT_KNOWN, f"{value}; not looked at")
    yield from _places_not_set(settings)


def _remedy(name: str) -> str:
    property_of_gcloud = {"project": "project PROJECT", "region": "ai/region REGION"}[name]
    return f"gcloud config set {property_of_gcloud}; or give {flag_of(name)}, or write {name} into {FILE}."


def _places_not_set(settings: ProjectSettings) -> Iterator[Check]:
    project, region = settings.project or "PROJECT", settings.region or "REGION"
    if settings.pipeline_root is None:
        yield _not_set("pipeline root", "pipeline_root", create_bucket(f"{project}-pipelines", region, project))
    if settings.image is None:
        yield _not_set("image", "image", create_repository("docker", "gpu-pipelines", region, project))


def _not_set(subject: str, name: str, command: str) -> Check:
    return Check(subject, MISSING, f"{name} is not set", f"{command}, then write {name} into {FILE}.")


def create_bucket(name: str, region: str, project: str) -> str:
    """The command that creates a bucket."""
    return (
        f"gcloud storage buckets create gs://{name} --location={region} --uniform-bucket-level-access "
        f"--project={project}"
    )


def create_repository(kind: str, name: str, location: str, project: str) -> str:
    """The command that creates a repository in Artifact Registry; `kind` is docker or kfp."""
    return (
        f"gcloud artifacts repositories create {name} --repository-format={kind} --location={location} "
        f"--project={project}"
    )
