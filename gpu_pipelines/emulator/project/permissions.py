"""The permission that a request needs, and whether the sending account has it.

Without a file all accounts may do everything. With one, an account may do what the file says, and a missing account
nothing; but this machine's user and the service's own agents may do everything unless they are in the file.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from gpu_pipelines.emulator.api_error import ApiError
from gpu_pipelines.emulator.project.permission_file import Grants

#: Path prefix with the account of a process that cannot send credentials.
AS_ACCOUNT = re.compile(r"/as/([^/]+)(/.*)")
_TOKEN = "emulator-token."  # noqa: S105
_AGENTS = ("-compute@developer.gserviceaccount.com", "@gcp-sa-aiplatform-cc.iam.gserviceaccount.com")
_METHODS = {
    "WriteTensorboardRunData": "tensorboardRuns.write",
    "ReadTensorboardTimeSeriesData": "tensorboardTimeSeries.read",
    "BatchReadTensorboardTimeSeriesData": "tensorboardTimeSeries.batchRead",
    "UploadModel": "models.upload",
    "ListModelVersions": "models.list",
    "MergeVersionAliases": "models.update",
    "ImportModelEvaluation": "modelEvaluations.import",
    "DeployModel": "endpoints.deploy",
    "UndeployModel": "endpoints.undeploy",
    "Predict": "endpoints.predict",
    "PauseSchedule": "schedules.update",
    "ResumeSchedule": "schedules.update",
}
_METHOD = re.compile(r"(Create|Get|List|Update|Delete|Cancel)([A-Z]\w*)")
#: Methods of metadata, whose permissions include their whole names.
_OF_METADATA = re.compile(r"(?:Query|Add)(Context|Execution|Artifact)[A-Z]\w*")
_OBJECTS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "update", "DELETE": "delete"}
_STORAGE = re.compile(r"(/upload|/download)?/storage/v1/b(?:/([^/?]+)(/o(?:/(.+))?)?)?")
_BATCHED = re.compile(rb"^(GET|POST|PUT|PATCH|DELETE) (\S*/storage/v1/\S+)", re.MULTILINE)
_REGISTRY = [
    ("GET", r".*/repositories/[^/]+", "repositories.get"),
    ("GET", r".*/packages(/[^/]+)?", "packages.list"),
    ("GET", r".*/versions(/[^/]+)?", "versions.list"),
    ("GET", r".*/tags(/[^/]+)?", "tags.list"),
    ("POST", r".*/tags", "tags.create"),
    ("PATCH", r".*/tags/.*", "tags.update"),
    ("DELETE", r".*/tags/.*", "tags.delete"),
    ("DELETE", r".*/(packages|versions)/.*", "repositories.deleteArtifacts"),
]
_BIGQUERY = [
    ("GET", r".*/datasets", "bigquery.datasets.get"),
    ("POST", r".*/datasets", "bigquery.datasets.create"),
    ("GET", r".*/datasets/[^/]+", "bigquery.datasets.get"),
    ("PATCH", r".*/datasets/[^/]+", "bigquery.datasets.update"),
    ("DELETE", r".*/datasets/[^/]+", "bigquery.datasets.delete"),
    ("GET", r".*/tables", "bigquery.tables.list"),
    ("POST", r".*/tables", "bigquery.tables.create"),
    ("GET", r".*/tables/[^/]+", "bigquery.tables.get"),
    ("PATCH", r".*/tables/[^/]+", "bigquery.tables.update"),
    ("DELETE", r".*/tables/[^/]+", "bigquery.tables.delete"),
    ("GET", r".*/tables/[^/]+/data", "bigquery.tables.getData"),
    ("POST", r".*/tables/[^/]+/insertAll", "bigquery.tables.updateData"),
    ("POST", r".*/(jobs|queries)", "bigquery.jobs.create"),
]


class Permissions:
    """The accounts.

    Args:
        caller: account of this machine's user, for requests without credentials.
        grants: the permissions of accounts; None for everything.
    """

    def __init__(self, caller: str, grants: Mapping[str, Grants] | None = None) -> None:
        self.caller = caller
        self._grants = grants

    @property
    def are_checked(self) -> bool:
        """Whether there is a file."""
        return self._grants is not None

    def has(self, account: str, permission: str, bucket: str = "") -> bool:
        """Whether an account has a permission, in the project or on a bucket."""
        if self._grants is None:
            return True
        grants = self._grants.get(account)
        if grants is None:
            return account == self.caller or account.endswith(_AGENTS)
        patterns = (*grants.project, *grants.buckets.get(bucket, ()))
        return any(fnmatchcase(permission, pattern) for pattern in patterns)

    def account_of(self, authorization: str) -> str:
        """The account that sends a request, by its credentials."""
        token = authorization.removeprefix("Bearer ").strip()
        if token.startswith(_TOKEN):
            return token.removeprefix(_TOKEN)
        return issuer(token) or self.caller

    def check_method(self, account: str, name: str, request: Any, project: str) -> None:
        """Checks a call of a method of Vertex AI.

        Args:
            account: the caller.
            name: the name of the method.
            request: its protobuf request.
            project: id of the project.

        Raises:
            ApiError: the account lacks a permission.
        """
        if self._grants is None:
            return
        permission = f"aiplatform.{_permission_of(name)}"
        if not self.has(account, permission):
            resource = _resource_of(request) or f"projects/{project}"
            named = f"'//aiplatform.googleapis.com/{resource}'"
            raise ApiError(403, f"Permission '{permission}' denied on resource {named} (or it may not exist).")
        acted = _acted_for(request)
        if acted and not self.has(account, "iam.serviceAccounts.actAs"):
            raise ApiError(
                403, f"Permission 'iam.serviceAccounts.actAs' denied on service account {acted} (or it may not exist)."
            )

    def require(self, account: str, permission: str) -> None:
        """Raises ApiError if an account lacks a permission in the project."""
        if not self.has(account, permission):
            raise ApiError(403, f"Permission '{permission}' denied on resource (or it may not exist).")

    def check_path(self, account: str, verb: str, target: str, content: bytes) -> None:
        """Checks a request to Cloud Storage, Artifact Registry, Cloud Logging or BigQuery.

        Raises:
            ApiError: the account lacks a permission.
        """
        if self._grants is None:
            return
        for permission, bucket in _permissions_of_storage(verb, target, content):
            if not self.has(account, permission, bucket):
                kind = "object" if ".objects." in permission else "bucket"
                raise ApiError(
                    403,
                    f"{account} does not have {permission} access to the Google Cloud Storage {kind}. "
                    f"Permission '{permission}' denied on resource (or it may not exist).",
                )
        permission = _permission_of_path(verb, unquote(urlsplit(target).path))
        if permission:
            self.require(account, permission)


def token_of(assertion: str) -> str:
    """A token for the signer of an assertion; the signature is not checked."""
    return _TOKEN + (issuer(assertion) or "")


def issuer(token: str) -> str:
    """The signer of a JSON web token; empty if it is not one."""
    try:
        payload = token.split(".")[1]
        found = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        return str(found.get("iss", ""))
    except (IndexError, ValueError, AttributeError):
        return ""


def write_key(path: Path, like: Path, account: str) -> None:
    """Writes the key file of an account: that of another one with this account's name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**json.loads(like.read_text()), "client_email": account}))


def _permission_of(method: str) -> str:
    if method in _METHODS:
        return _METHODS[method]
    whole = method[0].lower() + method[1:]
    if match := _OF_METADATA.fullmatch(method):
        return f"{match[1].lower()}s.{whole}"
    match = _METHOD.fullmatch(method)
    if match is None:
        return whole
    verb, noun = match[1].lower(), match[2][0].lower() + match[2][1:]
    return f"{noun if noun.endswith('s') else noun + 's'}.{verb}"


def _resource_of(request: Any) -> str:
    for name in ("parent", "name", "endpoint"):
        if isinstance(found := getattr(request, name, None), str) and found:
            return found
    return ""


def _acted_for(request: Any) -> str:
    """The service account that a request assigns to a job."""
    places = ("custom_job.job_spec", "hyperparameter_tuning_job.trial_job_spec", "batch_prediction_job")
    for name in (*places, "pipeline_job", "deployed_model"):
        found = request
        for part in name.split("."):
            found = getattr(found, part, None)
        if address := getattr(found, "service_account", ""):
            return str(address)
    schedule = getattr(request, "schedule", None)
    return _acted_for(schedule.create_pipeline_job_request) if schedule is not None else ""


def _permissions_of_storage(verb: str, target: str, content: bytes) -> Iterator[tuple[str, str]]:
    """The permissions for a request to Cloud Storage, each with its bucket."""
    path = urlsplit(target).path
    if path.startswith("/batch/"):
        for inner, place in _BATCHED.findall(content):
            yield from _permissions_of_storage(inner.decode(), urlsplit(place.decode()).path, b"")
        return
    match = _STORAGE.fullmatch(path)
    if match is None or path.endswith("/iam/testPermissions"):
        return
    way, bucket, objects, name = match.groups()
    if way == "/upload":
        yield "storage.objects.create", bucket
    elif objects:
        copied = verb == "POST" and re.search(r"/(copyTo|rewriteTo|compose)(/|$)", name or "")
        yield f"storage.objects.{'create' if copied else _OBJECTS[verb] if name else 'list'}", bucket
    else:
        yield f"storage.buckets.{_OBJECTS[verb] if bucket or verb != 'GET' else 'list'}", bucket or ""


def _permission_of_path(verb: str, path: str) -> str:
    """The permission for a request to another service; empty for none."""
    if path == "/v2/entries:list":
        return "logging.logEntries.list"
    if path.startswith(("/bigquery/v2/projects/", "/upload/bigquery/v2/projects/")):
        return next((each for wanted, pattern, each in _BIGQUERY if verb == wanted and re.fullmatch(pattern, path)), "")
    if "/repositories/" in path:
        for wanted, pattern, permission in _REGISTRY:
            if verb == wanted and re.fullmatch(pattern, path):
                return f"artifactregistry.{permission}"
    return ""
