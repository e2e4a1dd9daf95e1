"""The doctor's checks of storage: the bucket, the image, and the repository of pipelines."""

from __future__ import annotations

import re
from urllib.parse import quote

from gpu_pipelines.google_cloud.locations import is_in
from gpu_pipelines.project_settings import ProjectSettings
from gpu_pipelines.targets.vertex.doctor.access import IMAGE, AccessCheck, bucket_of, could_not, repository_of
from gpu_pipelines.targets.vertex.doctor.checks import MISSING, NOT_KNOWN, OK, Check
from gpu_pipelines.targets.vertex.doctor.local import create_bucket, create_repository

_BUCKET_PERMISSIONS = ("storage.objects.create", "storage.objects.get", "storage.objects.list")

_REPOSITORY = re.compile(r"https?://(?P<host>[^/]+)/(?P<project>[^/]+)/(?P<repository>[^/]+)")


def look_at_bucket(access: AccessCheck) -> list[Check]:
    """Whether the bucket of the pipeline root exists, is near the jobs, and can be written."""
    settings, bucket, subject = access.settings, bucket_of(access.settings), "pipeline root"
    if not bucket:
        return []
    answer = access.rest.get("storage", f"/storage/v1/b/{bucket}")
    if answer.status == 404:
        create = create_bucket(bucket, settings.region or "REGION", str(settings.project))
        return [Check(subject, MISSING, f"there is no bucket gs://{bucket}", create)]
    writable = _writable(access, bucket)
    if not answer.ok:
        return [could_not(access, subject, answer, "roles/storage.bucketViewer"), writable]
    location = str(answer.content.get("location", ""))
    return [_near(bucket, location, settings), writable]


def _near(bucket: str, location: str, settings: ProjectSettings) -> Check:
    subject, told, region = "pipeline root", f"gs://{bucket} in {location.lower()}", settings.region
    if region is None:
        return Check(subject, OK, told)
    near = is_in(location, region)
    if near:
        return Check(subject, OK, told)
    if near is None:
        return Check(subject, NOT_KNOWN, f"{told}; which regions that has is not known here")
    return Check(
        subject,
        MISSING,
        f"{told}, but jobs run in {region}: every artifact would travel, slowly and for money",
        create_bucket(f"{bucket}-{region}", region, str(settings.project)),
    )


def _writable(access: AccessCheck, bucket: str) -> Check:
    subject = "write to the root"
    answer = access.rest.get(
        "storage", f"/storage/v1/b/{bucket}/iam/testPermissions", {"permissions": list(_BUCKET_PERMISSIONS)}
    )
    if not answer.ok:
        return could_not(access, subject, answer)
    missing = [name for name in _BUCKET_PERMISSIONS if name not in answer.content.get("permissions", [])]
    if not missing:
        return Check(subject, OK, "you may write and read it")
    return Check(
        subject,
        MISSING,
        f"without {', '.join(missing)}",
        f"gcloud storage buckets add-iam-policy-binding gs://{bucket} --member={access.member} "
        "--role=roles/storage.objectUser",
    )


def look_at_image(access: AccessCheck) -> list[Check]:
    """Whether the image of the steps is in its repository."""
    subject, image = "image", access.settings.image
    if image is None:
        return []
    parts = IMAGE.fullmatch(image)
    if parts is None:
        told = f"{image} is not in Artifact Registry, which is what could be looked at"
        if re.match(r"([a-z]+\.)?gcr\.io/", image):
            told = f"{image} is in Container Registry, which is shut down, unless gcr.io was moved to Artifact Registry"
        return [Check(subject, NOT_KNOWN, told)]
    home = repository_of(parts)
    package = f"{home}/packages/{quote(parts['package'], safe='')}"
    version = f"versions/{parts['digest']}" if parts["digest"] else f"tags/{parts['tag'] or 'latest'}"
    answer = access.rest.get("artifactregistry", f"{package}/{version}")
    if answer.ok:
        return [Check(subject, OK, image)]
    if answer.status != 404:
        return [could_not(access, subject, answer, "roles/artifactregistry.reader", parts["project"])]
    if access.rest.get("artifactregistry", home).status == 404:
        create = create_repository("docker", parts["repository"], parts["location"], parts["project"])
        return [Check(subject, MISSING, f"there is no repository {parts['repository']} for {image}", create)]
    push = f"gcloud auth configure-docker {parts['location']}-docker.pkg.dev && docker push {image}"
    return [Check(subject, MISSING, f"{image} is not in its repository", push)]


def look_at_repository(access: AccessCheck) -> list[Check]:
    """Whether the repository of pipelines exists and is one for pipelines."""
    subject, address = "pipeline repository", access.settings.repository
    if address is None:
        return [Check(subject, NOT_KNOWN, "none is set; uploads and schedules of uploaded versions need one")]
    parts = _REPOSITORY.fullmatch(address)
    location = parts["host"].removesuffix("-kfp.pkg.dev") if parts else ""
    if parts is None or location == parts["host"]:
        return [Check(subject, NOT_KNOWN, f"{address} is not in Artifact Registry, which is what could be looked at")]
    home = f"/v1/projects/{parts['project']}/locations/{location}/repositories/{parts['repository']}"
    answer = access.rest.get("artifactregistry", home)
    create = create_repository("kfp", parts["repository"], location, parts["project"])
    if answer.status == 404:
        return [Check(subject, MISSING, f"there is no repository {address}", create)]
    if not answer.ok:
        return [could_not(access, subject, answer, "roles/artifactregistry.reader", parts["project"])]
    if answer.content.get("format") != "KFP":
        told = f"{address} has the format {answer.content.get('format')}; pipelines need KFP"
        return [Check(subject, MISSING, told, create.replace(parts["repository"], f"{parts['repository']}-kfp", 1))]
    return [Check(subject, OK, address)]
