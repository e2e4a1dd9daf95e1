"""Checks the caller's permissions for an upload to Vertex AI Model Registry, without uploading."""

from __future__ import annotations

import os

from gpu_pipelines.errors import UserError
from gpu_pipelines.google_cloud.connection import ENDPOINT_VARIABLE, credentials
from gpu_pipelines.google_cloud.rest import Answer, Rest, UnreachableError

#: Permissions, each with its use. Source: https://cloud.google.com/vertex-ai/docs/general/iam-permissions.
_OF_MODELS = {
    "aiplatform.models.upload": "add versions",
    "aiplatform.models.update": "move aliases",
}
_OF_FILES = {"storage.objects.create": "write files", "storage.objects.get": "read files"}


def require_may_upload(project: str, place: str) -> None:
    """Checks that the caller may add versions, move aliases and write the files of models.

    Permissions that cannot be checked, because the service for it is disabled or unreachable, are left to the upload.

    Args:
        project: id or number of the project of the registry.
        place: `gs://…`, the destination of the files.

    Raises:
        UserError: names the missing permissions.
    """
    rest = Rest(credentials(os.environ.get(ENDPOINT_VARIABLE, "").rstrip("/")))
    bucket = place.removeprefix("gs://").partition("/")[0]
    problems = []
    try:
        answer = rest.post(
            "cloudresourcemanager", f"/v3/projects/{project}:testIamPermissions", {"permissions": list(_OF_MODELS)}
        )
        if without := _without(answer, _OF_MODELS):
            problems.append(
                f"Whoever runs this may not {without} in Vertex AI Model Registry of {project}. Ask for the role "
                "Vertex AI User (roles/aiplatform.user) there."
            )
        answer = rest.get("storage", f"/storage/v1/b/{bucket}/iam/testPermissions", {"permissions": list(_OF_FILES)})
        if without := _without(answer, _OF_FILES):
            problems.append(
                f"Whoever runs this may not {without} in gs://{bucket}. Ask for the role Storage Object User "
                "(roles/storage.objectUser) there."
            )
    except UnreachableError as error:
        print(f"permissions are not known before the upload: {error}", flush=True)
    if problems:
        raise UserError.of_all(problems)


def _without(answer: Answer, wanted: dict[str, str]) -> str:
    """What the caller may not do, in words; empty if nothing is missing, or it cannot be known."""
    if not answer.ok:
        print(f"permissions are not known before the upload: {answer.message}", flush=True)
        return ""
    held = answer.content.get("permissions", [])
    missing = [f"{what} ({name})" for name, what in wanted.items() if name not in held]
    return " or ".join(missing)
