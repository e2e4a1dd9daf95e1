"""The settings of a project in Google Cloud: project, region, bucket, image; from a file and gcloud's environment."""

from __future__ import annotations

import configparser
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from gpu_pipelines.errors import UserError, nearest
from gpu_pipelines.yaml_input import data_of, node_of, read_text

FILE = "gpu-pipelines.yaml"

#: The variables from which gcloud and Google's libraries take a setting; the first that is set wins.
VARIABLES = {
    "project": ("CLOUDSDK_CORE_PROJECT", "GOOGLE_CLOUD_PROJECT"),
    "region": ("CLOUDSDK_AI_REGION", "CLOUDSDK_COMPUTE_REGION", "GOOGLE_CLOUD_REGION", "CLOUD_ML_REGION"),
}
#: Sections and keys of gcloud's own configuration, as written by `gcloud config set`.
_GCLOUD_PROPERTIES = {"project": (("core", "project"),), "region": (("ai", "region"), ("compute", "region"))}

#: Name of an object of Kubernetes (RFC 1123).
_NAME = r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?"
_BUCKET = (r"gs://[a-z0-9][a-z0-9._-]{1,}[a-z0-9](/\S*)?", "a place in Cloud Storage, gs://BUCKET/FOLDER")
#: Settings whose wrong values are not repeated, because they may be passwords.
_NOT_REPEATED = ("tracking", "registry", "mail_server", "mail_password")
_FORMS = {
    "project": (r"[a-z][a-z0-9:.-]{4,}[a-z0-9]", "the id of a project, such as my-project-123"),
    "region": (r"[a-z]+-[a-z]+[0-9]+", "a region, such as us-central1"),
    "pipeline_root": _BUCKET,
    "image": (r"[a-z0-9][\w./:@-]*", "an image, such as us-central1-docker.pkg.dev/PROJECT/REPOSITORY/steps:0.1.0"),
    "serving_image": (r"[a-z0-9][\w./:@-]*", "an image, such as us-central1-docker.pkg.dev/PROJECT/REPOSITORY/serving"),
    "repository": (
        r"https?://[\w.:-]+/[\w.:-]+/[\w-]+",
        "a repository of the format KFP, https://LOCATION-kfp.pkg.dev/PROJECT/REPOSITORY",
    ),
    "registry": (
        r"[^\s@]([^@]*[^\s@])?",
        "a registry of models: vertex://, mlflow:https://HOST without a password, or a directory",
    ),
    "service_account": (r"[^@\s]+@[^@\s]+", "the e-mail address of a service account"),
    "network": (
        r"projects/[0-9]+/global/networks/[a-z0-9-]+",
        "the full name of a network, projects/NUMBER/global/networks/NAME",
    ),
    "network_attachment": (
        r"projects/[^/\s]+/regions/[a-z]+-[a-z]+[0-9]+/networkAttachments/[a-z]([-a-z0-9]{0,61}[a-z0-9])?",
        "the full name of a network attachment, projects/P/regions/REGION/networkAttachments/NAME",
    ),
    "persistent_resource": (r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", "the id of a persistent resource of Vertex AI"),
    "failure_policy": (
        "fast|slow",
        "fast (steps that have not begun never do once one has failed) or slow (those that do not depend on it run)",
    ),
    "encryption_key": (
        r"projects/[^/\s]+/locations/[^/\s]+/keyRings/[^/\s]+/cryptoKeys/[^/\s]+",
        "the full name of a key, projects/P/locations/L/keyRings/R/cryptoKeys/K",
    ),
    "kubeflow_host": (
        r"https://[^\s/]+(/\S*)?|http://(localhost|127\.0\.0\.1)(:[0-9]+)?(/\S*)?",
        "the address of Kubeflow Pipelines, https://HOST/PATH, or http://localhost:PORT of a port-forward",
    ),
    "kubeflow_namespace": (_NAME, "a Kubernetes namespace"),
    "kubeflow_experiment": (r"\S(.{0,120}\S)?", "the name of an experiment of Kubeflow Pipelines"),
    "kubeflow_service_account": (_NAME, "a Kubernetes service account"),
    "kubeflow_runtime": (_NAME, "a training runtime of Kubeflow Trainer, such as torch-distributed"),
    "node_pool": (_NAME, "a node pool of GKE"),
    "pull_secret": (_NAME, "a Kubernetes secret of the type kubernetes.io/dockerconfigjson"),
    "kueue_queue": (_NAME, "a local queue of Kueue"),
    "volume_claim": (_NAME, "a PersistentVolumeClaim"),
    "checkpoints": _BUCKET,
    "mail_server": (
        r"smtps?://([^@\s/:]+@)?[a-zA-Z0-9.-]+(:[0-9]{1,5})?",
        "the server for e-mails, smtp://USER@HOST:587 or smtps://USER@HOST:465, without the password",
    ),
    "mail_sender": (r"[^@\s,<>\"]+@[^@\s,<>\"]+\.[^@\s,<>\"]+", "the e-mail address that messages come from"),
    "mail_password": (
        r"projects/[^/\s]+/secrets/[\w-]+/versions/[\w-]+|[A-Za-z_][A-Za-z0-9_]*",
        "where the password is, projects/P/secrets/S/versions/V or the name of a variable of the environment",
    ),
    "tensorboard": (
        r"projects/[^/\s]+/locations/[^/\s]+/tensorboards/[0-9]+",
        "the full name of a TensorBoard, projects/P/locations/L/tensorboards/NUMBER",
    ),
    "billing_table": (
        r"[a-z][a-z0-9:.-]{4,}[a-z0-9]\.[A-Za-z0-9_]+\.[A-Za-z0-9_-]+",
        "a table of billing export, PROJECT.DATASET.gcp_billing_export_resource_v1_ACCOUNT, or a view of it",
    ),
    "tracking": (
        r"[a-z][\w-]*(:[^\s@]+)?",
        "a tracker, such as mlflow, mlflow:https://HOST, vertex or wandb, without a password",
    ),
}
#: The fields of `fallback`: lists of words, and numbers (USD).
_FALLBACK_LISTS, _FALLBACK_NUMBERS = ("accelerator", "strategy", "regions"), ("max_price_per_hour", "max_price")
#: An environment variable, and a key of a Kubernetes secret after the secret's name.
_VARIABLE, _SECRET_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*"), re.compile(rf"{_NAME}/[-._a-zA-Z0-9]{{1,253}}")
#: Google Cloud's forms of labels.
_LABEL_KEY, _LABEL_VALUE = re.compile(r"[a-z][a-z0-9_-]{0,62}"), re.compile(r"[a-z0-9_-]{0,63}")


@dataclass(frozen=True)
class ProjectSettings:
    """Defaults of the commands that use Google Cloud. None: not given.

    Attributes:
        project: id of the project.
        region: region of jobs and pipelines.
        pipeline_root: where runs leave their artifacts, `gs://…`.
        image: image of the steps.
        serving_image: image that serves uploaded models.
        repository: Artifact Registry repository of pipelines, `https://LOCATION-kfp.pkg.dev/PROJECT/REPOSITORY`.
        registry: registry of models, as in the parameter of the pipelines.
        service_account: account of jobs and pipelines.
        network: VPC network for peering of jobs, by its full name.
        network_attachment: network attachment through which jobs reach a VPC network (Private Service Connect), by its
            full name.
        persistent_resource: persistent resource of Vertex AI for the steps with GPUs, by its id.
        failure_policy: what a run on Vertex AI does after a step has failed, `fast` or `slow`.
        encryption_key: Cloud KMS key for the outputs of jobs and pipelines, by its full name.
        tensorboard: Vertex AI TensorBoard for trainings, by its full name.
        mail_server: server for e-mails about runs, `smtp://USER@HOST:PORT` or `smtps://USER@HOST:PORT`.
        mail_sender: sender of these e-mails.
        mail_password: where the password of USER is: a secret of Secret Manager, or an environment variable.
        billing_table: table of billing export in BigQuery, `PROJECT.DATASET.TABLE`.
        tracking: tracker of runs, as in the parameter of the pipelines.
        kubeflow_host: address of Kubeflow Pipelines.
        kubeflow_namespace: namespace of its runs; empty for a deployment without profiles.
        kubeflow_experiment: experiment of Kubeflow Pipelines for runs.
        kubeflow_service_account: Kubernetes service account of the pods.
        kubeflow_runtime: training runtime for trainings on several nodes.
        node_pool: GKE node pool of the GPU steps.
        pull_secret: Kubernetes secret to pull the image.
        kueue_queue: queue of Kueue for the GPU steps.
        volume_claim: PersistentVolumeClaim mounted in every step on Kubeflow.
        checkpoints: place of checkpoints on Kubeflow, `gs://…`, instead of the claim.
        secret_env: variables of the steps on Kubeflow whose values are in Kubernetes secrets, each as SECRET/KEY.
        labels: labels of all jobs and pipelines.
        fallback: accelerators, provisioning and regions to try in order, and the highest price.
        origins: the origin of each setting, by name.
    """

    project: str | None = None
    region: str | None = None
    pipeline_root: str | None = None
    image: str | None = None
    serving_image: str | None = None
    repository: str | None = None
    registry: str | None = None
    service_account: str | None = None
    network: str | None = None
    network_attachment: str | None = None
    persistent_resource: str | None = None
    failure_policy: str | None = None
    encryption_key: str | None = None
    tensorboard: str | None = None
    mail_server: str | None = None
    mail_sender: str | None = None
    mail_password: str | None = None
    billing_table: str | None = None
    tracking: str | None = None
    kubeflow_host: str | None = None
    kubeflow_namespace: str | None = None
    kubeflow_experiment: str | None = None
    kubeflow_service_account: str | None = None
    kubeflow_runtime: str | None = None
    node_pool: str | None = None
    pull_secret: str | None = None
    kueue_queue: str | None = None
    volume_claim: str | None = None
    checkpoints: str | None = None
    secret_env: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    fallback: Mapping[str, Any] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict, compare=False)

    def require(self, *names: str) -> None:
        """Checks that settings are known.

        Raises:
            UserError: lists those that are not, with how to give each.
        """
        missing = [name for name in names if not getattr(self, name)]
        if missing:
            raise UserError.of_all([how_to_give(name) for name in missing])


def how_to_give(name: str) -> str:
    """A sentence that a setting is missing, with the ways to give it."""
    variables = VARIABLES.get(name, ())
    by_variable = f", or set {variables[0]}" if variables else ""
    form = _FORMS[name][1]
    return f"No {name} is known: {form}. Give {flag_of(name)}, write {name} into {FILE}{by_variable}."


def has_form(name: str, value: Any) -> bool:
    """Whether a value has the form of a setting."""
    return isinstance(value, str) and re.fullmatch(_FORMS[name][0], value) is not None


def flag_of(name: str) -> str:
    """The flag of a setting."""
    return f"--{name.replace('_', '-')}"


def load_project_settings(flags: Mapping[str, str | None] | None = None, directory: Path = Path()) -> ProjectSettings:
    """Finds each setting: a flag, else `gpu-pipelines.yaml`, else gcloud's variables, else gcloud's configuration.

    Args:
        flags: values from the command line, by setting; None or missing if not given.
        directory: the directory of `gpu-pipelines.yaml`.

    Raises:
        UserError: the file cannot be read, or a value does not have its form.
    """
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for origin, found in (
        *_from_gcloud(),
        *_from_environment(),
        (FILE, _from_file(directory / FILE)),
        *((flag_of(name), {name: value}) for name, value in (flags or {}).items() if value),
    ):
        values.update(found)
        origins.update(dict.fromkeys(found, origin))
    problems = [problem for name, value in values.items() for problem in _problems(name, value, origins[name])]
    if "network" in values and "network_attachment" in values:
        problems.append(
            f"network (from {origins['network']}) and network_attachment (from {origins['network_attachment']}) are "
            "two ways into a network; a job of Vertex AI takes one of them. Leave the other out."
        )
    if problems:
        raise UserError.of_all(problems)
    return ProjectSettings(**values, origins=origins)


def _from_file(path: Path) -> dict[str, Any]:
    if not os.path.lexists(path):
        return {}
    root = node_of(read_text(path, str(path)), str(path))
    content = data_of(root, str(path)) if root is not None else None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UserError(f"{path} is not a mapping of settings to values.")
    names = [setting.name for setting in fields(ProjectSettings) if setting.name != "origins"]
    if unknown := [str(name) for name in content if name not in names]:
        raise UserError.of_all([f"{path} has a setting {name[:60]!r}. {nearest(name, names)}" for name in unknown])
    return {name: value for name, value in content.items() if value is not None}


def _from_environment() -> list[tuple[str, dict[str, str]]]:
    found = []
    for name, variables in VARIABLES.items():
        variable = next((variable for variable in variables if os.environ.get(variable)), None)
        if variable:
            found.append((variable, {name: os.environ[variable]}))
    return found


def _from_gcloud() -> list[tuple[str, dict[str, str]]]:
    """The settings of `gcloud config set`, read from its file because gcloud itself takes a second."""
    folder = Path(os.environ.get("CLOUDSDK_CONFIG") or Path.home() / ".config" / "gcloud")
    try:
        active = os.environ.get("CLOUDSDK_ACTIVE_CONFIG_NAME") or (folder / "active_config").read_text().strip()
        parser = configparser.ConfigParser(interpolation=None)
        parser.read_string((folder / "configurations" / f"config_{active}").read_text())
    except (OSError, ValueError, configparser.Error):
        return []
    found = []
    for name, places in _GCLOUD_PROPERTIES.items():
        for section, key in places:
            if value := parser.get(section, key, fallback=""):
                found.append((f"gcloud config ({section}/{key})", {name: value}))
                break
    return found


def _problems(name: str, value: Any, origin: str) -> list[str]:
    if name == "labels":
        return problems_of_labels(value, origin)
    if name == "fallback":
        return _problems_of_fallback(value, origin)
    if name == "secret_env":
        return _problems_of_secret_env(value, origin)
    if has_form(name, value):
        return []
    if name in _NOT_REPEATED:
        return [f"{name} (from {origin}) takes {_FORMS[name][1]}."]
    return [f"{name} (from {origin}) is {str(value)[:100]!r}; it takes {_FORMS[name][1]}."]


def _problems_of_fallback(value: Any, origin: str) -> list[str]:
    known = (*_FALLBACK_LISTS, *_FALLBACK_NUMBERS)
    if not isinstance(value, dict):
        return [f"fallback (from {origin}) is {str(value)[:100]!r}; it takes a mapping of {', '.join(known)}."]
    found = [f"fallback (from {origin}) has {str(n)[:60]!r}. {nearest(str(n), known)}" for n in value if n not in known]
    for name in _FALLBACK_LISTS:
        words = value.get(name, "")
        if not isinstance(words, str) and not (isinstance(words, list) and all(isinstance(w, str) for w in words)):
            found.append(f"fallback.{name} (from {origin}) is {str(words)[:100]!r}; it takes a list of names.")
    for name in _FALLBACK_NUMBERS:
        number = value.get(name, 0)
        if isinstance(number, bool) or not isinstance(number, (int, float)) or number < 0:
            found.append(f"fallback.{name} (from {origin}) is {str(number)[:100]!r}; it takes an amount in USD.")
    return found


def _problems_of_secret_env(variables: Any, origin: str) -> list[str]:
    # The value is not repeated: it may be the secret itself.
    if not isinstance(variables, dict):
        return [f"secret_env (from {origin}) is not a mapping of variable to SECRET/KEY."]
    return [
        f"secret_env (from {origin}): the entry {str(name)[:70]!r} is none. It takes the name of a variable, such as "
        "HF_TOKEN, and where its value is, SECRET/KEY; the value itself belongs into the secret."
        for name, _ in _unfit(variables, _VARIABLE, _SECRET_KEY)
    ]


def problems_of_labels(labels: Any, origin: str) -> list[str]:
    """Problems with labels, which have a form in Google Cloud; `origin` says where they were given."""
    if not isinstance(labels, dict):
        return [f"labels (from {origin}) is {str(labels)[:100]!r}; it takes a mapping of label to value."]
    return [
        f"The label {str(key)[:70]!r}: {str(value)[:70]!r} (from {origin}) cannot be: a label begins with a lower-case "
        "letter, label and value have lower-case letters, digits, dashes and underscores, and at most 63 of them."
        if isinstance(key, str) and isinstance(value, str)
        else f"The label {str(key)[:70]}: {str(value)[:70]} (from {origin}) is not a text. YAML takes numbers, dates "
        "and words such as yes for something else: write it in quotes."
        for key, value in _unfit(labels, _LABEL_KEY, _LABEL_VALUE)
    ]


def _unfit(pairs: Mapping[Any, Any], *forms: re.Pattern[str]) -> list[tuple[Any, Any]]:
    """The pairs whose name or value does not have its form."""
    return [
        pair
        for pair in pairs.items()
        if not all(isinstance(part, str) and form.fullmatch(part) for part, form in zip(pair, forms, strict=True))
    ]
