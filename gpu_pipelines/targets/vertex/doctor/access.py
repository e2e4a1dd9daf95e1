"""The doctor's checks of access: credentials, project, APIs, the user's permissions, the service account."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpu_pipelines.accelerators import AcceleratorPlan
from gpu_pipelines.google_cloud.rest import Answer, Rest
from gpu_pipelines.project_settings import ProjectSettings
from gpu_pipelines.step_environment import environment_with
from gpu_pipelines.targets.vertex.doctor.checks import MISSING, NOT_KNOWN, OK, Check

#: gcloud's own variable to send no credentials, such as to a test server.
NO_CREDENTIALS = "CLOUDSDK_AUTH_DISABLE_CREDENTIALS"
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_LOGIN = "gcloud auth application-default login"

#: APIs that jobs, pipelines and the building of images use.
APIS = (
    "aiplatform.googleapis.com",
    "artifactregistry.googleapis.com",
    "cloudbuild.googleapis.com",
    "compute.googleapis.com",
    "logging.googleapis.com",
    "storage.googleapis.com",
)
#: An image in Artifact Registry.
IMAGE = re.compile(
    r"(?P<location>[a-z0-9-]+)-docker\.pkg\.dev/(?P<project>[^/]+)/(?P<repository>[^/]+)/(?P<package>[^:@]+)"
    r"(:(?P<tag>[^@]+))?(@(?P<digest>sha256:[0-9a-f]+))?"
)
#: Permissions that a user needs to submit jobs, and the role with each.
_OWN_PERMISSIONS = {
    "aiplatform.customJobs.create": "roles/aiplatform.user",
    "aiplatform.pipelineJobs.create": "roles/aiplatform.user",
    "logging.logEntries.list": "roles/logging.viewer",
}
_PULL = "pull images"
#: Permissions that a service account of jobs needs, and the roles that contain them; the first is the smallest.
_ROLES_OF_JOBS = {
    "run steps of pipelines": ("roles/aiplatform.user", "roles/aiplatform.admin"),
    "read and write the pipeline root": (
        "roles/storage.objectUser",
        "roles/storage.objectAdmin",
        "roles/storage.admin",
    ),
    _PULL: ("roles/artifactregistry.reader", "roles/artifactregistry.writer", "roles/artifactregistry.admin"),
    "write logs": ("roles/logging.logWriter", "roles/logging.admin"),
}
_ROLES_OF_EVERYTHING = ("roles/owner", "roles/editor")
#: Members that mean everybody, as in the policies of public images.
_EVERYBODY = ("allUsers", "allAuthenticatedUsers")


@dataclass(frozen=True)
class Credentials:
    """The credentials that were found.

    Attributes:
        check: whether there are any.
        found: credentials of google.auth; None without any.
        member: their account, as policies name it, such as user:me@example.com.
    """

    check: Check
    found: Any
    member: str


@dataclass(frozen=True)
class AccessCheck:
    """The context of the checks of a project.

    Attributes:
        settings: settings of the project; the project is known.
        plan: the accelerator to use; None if there is none.
        rest: sends requests.
        member: the user's account, as policies name it.
        evaluation: the accelerator of the evaluation; None if there is none.
        number: number of the project; empty if it could not be read.
    """

    settings: ProjectSettings
    plan: AcceleratorPlan | None
    rest: Rest
    member: str
    evaluation: AcceleratorPlan | None = None
    number: str = ""


def find_credentials(*, offline: bool) -> Credentials:
    """Application-default credentials, which are tried unless `offline`."""
    if os.environ.get(NO_CREDENTIALS, "").lower() in ("true", "1"):
        return Credentials(Check("credentials", NOT_KNOWN, f"not used: {NO_CREDENTIALS} is set"), None, _member(None))
    import google.auth
    import google.auth.exceptions
    from google.auth.transport.requests import Request

    # Without a network, the search for the metadata server of a Google machine would take nine seconds.
    impatient = {"GCE_METADATA_TIMEOUT": "1", "GCE_METADATA_DETECT_RETRIES": "1"}
    try:
        with environment_with({name: os.environ.get(name, value) for name, value in impatient.items()}):
            found, _ = google.auth.default(scopes=[_SCOPE])
    except google.auth.exceptions.GoogleAuthError as error:
        told = str(error.args[0] if error.args else error).splitlines()[0]
        return Credentials(Check("credentials", MISSING, told, _LOGIN), None, _member(None))
    told = _member(found)
    if offline:
        return Credentials(Check("credentials", OK, f"{told}; not tried out"), found, told)
    try:
        found.refresh(_impatient(Request()))
    except google.auth.exceptions.TransportError:
        return Credentials(Check("credentials", NOT_KNOWN, f"{told}; not tried out: no network"), found, told)
    except google.auth.exceptions.GoogleAuthError as error:
        why = " ".join(str(error.args[0] if error.args else error).split())[:200]
        return Credentials(Check("credentials", MISSING, f"{told}: not valid any more ({why})", _LOGIN), None, told)
    return Credentials(Check("credentials", OK, told), found, told)


def _impatient(request: Any) -> Any:
    def send(*arguments: Any, **options: Any) -> Any:
        return request(*arguments, **{**options, "timeout": 5})

    return send


def _member(credentials: Any) -> str:
    account = getattr(credentials, "service_account_email", "")
    if account and account != "default":
        return f"serviceAccount:{account}"
    user = getattr(credentials, "account", "") or os.environ.get("CLOUDSDK_CORE_ACCOUNT", "")
    return f"user:{user or 'YOUR_EMAIL'}"


def look_at_project(access: AccessCheck) -> tuple[Check, str]:
    """Whether the project exists and is in use, and its number; empty if it could not be read."""
    project = str(access.settings.project)
    answer = access.rest.get("cloudresourcemanager", f"/v3/projects/{project}")
    if answer.ok:
        state, number = answer.content.get("state", ""), str(answer.content.get("name", "")).rpartition("/")[2]
        if state == "ACTIVE":
            return Check("project exists", OK, f"{project}, number {number}"), number
        return Check("project exists", MISSING, f"{project} is {state}", f"gcloud projects undelete {project}"), number
    if answer.status == 401:
        return Check("project exists", MISSING, answer.message, _LOGIN), ""
    if answer.status in (403, 404) and not _is_switched_off(answer):
        told = f"{project} does not exist, or you may not see it: {answer.message}"
        grant = _grants(project, access.member, ["roles/viewer"])
        return Check("project exists", MISSING, told, f"{grant}, by its owner; or gcloud projects create {project}"), ""
    return could_not(access, "project exists", answer), ""


def look_at_apis(access: AccessCheck) -> list[Check]:
    """Whether the APIs are enabled."""
    project = access.settings.project
    names = [f"projects/{project}/services/{api}" for api in APIS]
    answer = access.rest.get("serviceusage", f"/v1/projects/{project}/services:batchGet", {"names": names})
    if not answer.ok:
        return [could_not(access, "APIs", answer, "roles/serviceusage.serviceUsageViewer")]
    enabled = {
        str(service.get("name", "")).rpartition("/")[2]
        for service in answer.content.get("services", [])
        if service.get("state") == "ENABLED"
    }
    missing = [api for api in APIS if api not in enabled]
    if missing:
        told = f"not enabled: {', '.join(map(_short, missing))}"
        return [Check("APIs", MISSING, told, f"gcloud services enable {' '.join(missing)} --project={project}")]
    return [Check("APIs", OK, ", ".join(map(_short, APIS)))]


def look_at_permissions(access: AccessCheck) -> list[Check]:
    """Whether the user may submit jobs and pipelines and read their logs."""
    subject, project = "your permissions", access.settings.project
    wanted = list(_OWN_PERMISSIONS)
    answer = access.rest.post(
        "cloudresourcemanager", f"/v3/projects/{project}:testIamPermissions", {"permissions": wanted}
    )
    if not answer.ok:
        return [could_not(access, subject, answer)]
    missing = [name for name in wanted if name not in answer.content.get("permissions", [])]
    if missing:
        roles = sorted({_OWN_PERMISSIONS[name] for name in missing})
        return [Check(subject, MISSING, f"without {', '.join(missing)}", _grants(project, access.member, roles))]
    return [Check(subject, OK, "submit jobs and pipelines, read logs")]


def look_at_service_account(access: AccessCheck) -> list[Check]:
    """Whether the account of jobs exists, the user may use it, and it has the roles that it needs."""
    account, project = access.settings.service_account, str(access.settings.project)
    if account is None:
        default = f"{access.number or 'NUMBER'}-compute@developer.gserviceaccount.com"
        return [
            Check(
                "service account",
                NOT_KNOWN,
                f"none is set: jobs run as {default}, which may do more than they need",
                f"gcloud iam service-accounts create gpu-pipelines --project={project}, then write "
                f"service_account: gpu-pipelines@{project}.iam.gserviceaccount.com into gpu-pipelines.yaml.",
            )
        ]
    answer = access.rest.get("iam", f"/v1/projects/-/serviceAccounts/{account}")
    name, _, home = account.partition("@")
    owner = home.removesuffix(".iam.gserviceaccount.com")
    if owner == home:
        # An account that Google created has a number for its project, if any.
        owner = project
    if answer.status == 404:
        create = f"gcloud iam service-accounts create {name} --project={owner}"
        return [Check("service account", MISSING, f"{account} does not exist", create)]
    if not answer.ok:
        return [could_not(access, "service account", answer, "roles/iam.serviceAccountViewer", owner)]
    if answer.content.get("disabled"):
        enable = f"gcloud iam service-accounts enable {account} --project={project}"
        return [Check("service account", MISSING, f"{account} is disabled", enable)]
    return [Check("service account", OK, account), _may_act_as(access, account), _roles_of(access, account)]


def _may_act_as(access: AccessCheck, account: str) -> Check:
    subject, permission = "use of the account", "iam.serviceAccounts.actAs"
    answer = access.rest.post(
        "iam", f"/v1/projects/-/serviceAccounts/{account}:testIamPermissions", {"permissions": [permission]}
    )
    if not answer.ok:
        return could_not(access, subject, answer)
    if permission in answer.content.get("permissions", []):
        return Check(subject, OK, "you may have jobs run as it")
    return Check(
        subject,
        MISSING,
        f"without {permission} you may not have jobs run as it",
        f"gcloud iam service-accounts add-iam-policy-binding {account} --member={access.member} "
        f"--role=roles/iam.serviceAccountUser --project={access.settings.project}",
    )


def _roles_of(access: AccessCheck, account: str) -> Check:
    subject, project = "roles of the account", access.settings.project
    answer = access.rest.post("cloudresourcemanager", f"/v3/projects/{project}:getIamPolicy", {})
    if not answer.ok:
        return could_not(access, subject, answer, "roles/iam.securityReviewer")
    member = f"serviceAccount:{account}"
    policies, of_image = [answer.content], []
    if bucket := bucket_of(access.settings):
        policy = access.rest.get("storage", f"/storage/v1/b/{bucket}/iam")
        policies += [policy.content] if policy.ok else []
    if image := IMAGE.fullmatch(access.settings.image or ""):
        policy = access.rest.get("artifactregistry", f"{repository_of(image)}:getIamPolicy")
        of_image = [policy.content] if policy.ok else []

    def lacking(applies: Callable[[str], bool]) -> dict[str, str]:
        return _lacking(_roles_in(policies, applies), _roles_in(of_image, applies))

    def is_it(each: str) -> bool:
        return each in (member, *_EVERYBODY)

    roles = _roles_in([*policies, *of_image], is_it)
    without = lacking(is_it)
    owner = image["project"] if image else project
    # For an image in another project only the policy of the repository was read.
    pull = without.pop(_PULL, "") if owner != project else ""
    if not (without or pull):
        return Check(subject, OK, ", ".join(sorted(roles)))
    if not without:
        told = f"it may not {_PULL}, unless {owner} allows it"
        return Check(subject, NOT_KNOWN, told, _grants(owner, member, [pull]))
    told = f"it may not {'; '.join(without)}"
    if own := sorted(role for role in roles if not role.startswith("roles/")):
        return Check(subject, NOT_KNOWN, f"{told}, unless {', '.join(own)} allows it")
    if not without.keys() & lacking(lambda each: is_it(each) or each.startswith("group:")).keys():
        return Check(subject, NOT_KNOWN, f"{told}, unless it is in a group that may")
    return Check(subject, MISSING, told, _grants(project, member, list(without.values())))


def _roles_in(policies: Iterable[Mapping[str, Any]], applies: Callable[[str], bool]) -> set[str]:
    """Roles in policies for members that match `applies`."""
    bindings = [bound for policy in policies for bound in policy.get("bindings", [])]
    return {str(bound["role"]) for bound in bindings if any(map(applies, bound.get("members", [])))}


def _lacking(roles: set[str], roles_of_image: set[str]) -> dict[str, str]:
    """What the roles do not allow, each with the smallest role that does; image pulls may use the image's own roles."""
    held = {what: roles | roles_of_image if what == _PULL else roles for what in _ROLES_OF_JOBS}
    return {
        what: enough[0] for what, enough in _ROLES_OF_JOBS.items() if not held[what] & {*enough, *_ROLES_OF_EVERYTHING}
    }


def _grants(project: str | None, member: str, roles: Sequence[str]) -> str:
    return " && ".join(
        f"gcloud projects add-iam-policy-binding {project} --member={member} --role={role} --condition=None"
        for role in roles
    )


def bucket_of(settings: ProjectSettings) -> str:
    """Name of the bucket of the pipeline root; empty if there is none."""
    return (settings.pipeline_root or "").removeprefix("gs://").partition("/")[0]


def repository_of(image: re.Match[str]) -> str:
    """Path of the repository of an image in Artifact Registry's interface; the image as `IMAGE` matches it."""
    return f"/v1/projects/{image['project']}/locations/{image['location']}/repositories/{image['repository']}"


def could_not(access: AccessCheck, subject: str, answer: Answer, role: str = "", project: str = "") -> Check:
    """A check that could not be made, from the service's error.

    Args:
        access: the context of the checks.
        subject: subject of the check.
        answer: answer of the service.
        role: the role that the check needs, if it is known.
        project: the project for that role; empty for the project of the settings.
    """
    told = f"could not be looked at: {answer.message}"
    if _is_switched_off(answer):
        found = re.search(r"[a-z]+\.googleapis\.com", str(answer.content))
        api = found[0] if found else "API"
        return Check(subject, NOT_KNOWN, told, f"gcloud services enable {api} --project={access.settings.project}")
    if answer.status == 403 and role:
        return Check(subject, NOT_KNOWN, told, _grants(project or access.settings.project, access.member, [role]))
    return Check(subject, NOT_KNOWN, told)


def _is_switched_off(answer: Answer) -> bool:
    return "has not been used in project" in answer.message or "SERVICE_DISABLED" in str(answer.content)


def _short(api: str) -> str:
    return api.removesuffix(".googleapis.com")
