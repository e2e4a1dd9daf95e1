"""Migrates an old job, its file and its flags together, to Vertex AI."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from gpu_pipelines.accelerators import AcceleratorPlan
from gpu_pipelines.accelerators.catalog import Catalog, load_catalog
from gpu_pipelines.accelerators.together import share_zone
from gpu_pipelines.errors import UserError
from gpu_pipelines.migration.gcloud_flags import GcloudCommand, merged
from gpu_pipelines.migration.notes import Notes
from gpu_pipelines.migration.packages import Packages, find_packages, root_of
from gpu_pipelines.migration.pools import Conditions, Pool, worker_pools
from gpu_pipelines.migration.programs import Surroundings, programs
from gpu_pipelines.migration.replicas import ROLES
from gpu_pipelines.migration.result import Migration
from gpu_pipelines.migration.schedule import schedule
from gpu_pipelines.migration.study import MigratedStudy, study_of
from gpu_pipelines.migration.tuning import tuning_fields
from gpu_pipelines.project_settings import ProjectSettings, has_form, problems_of_labels
from gpu_pipelines.submit_commands import NOT_BY_GCLOUD, leaves_a_pool_out
from gpu_pipelines.targets.vertex.jobs.request import checked_name


@dataclass(frozen=True)
class MigrationOptions:
    """How to migrate.

    Attributes:
        keep: refuse GPUs that are gone instead of replacing them.
        image: image for a job with Python packages; None takes one of Google's if there is one.
        today: the date by which the ends of GPUs and images are judged.
        catalog: the catalog of machines and prices.
    """

    keep: bool = False
    image: str | None = None
    today: date = field(default_factory=date.today)
    catalog: Catalog = field(default_factory=load_catalog)


def migrate(
    file: Mapping[str, Any],
    command: GcloudCommand,
    settings: ProjectSettings | None = None,
    options: MigrationOptions | None = None,
) -> Migration:
    """A job of Vertex AI for a job of AI Platform Training.

    Args:
        file: the `Job` of its file, from `read_job_file`; empty without a file.
        command: its command line, which takes precedence over the file.
        settings: the settings of the project: project, and the region if the job has none.
        options: how to migrate.

    Raises:
        UserError: lists what the old service would have refused, and what Vertex AI does not offer.
    """
    settings, options, notes = settings or ProjectSettings(), options or MigrationOptions(), Notes()
    job = merged(file, command.job)
    training: dict[str, Any] = job.get("trainingInput") or {}
    _require_training(training)
    region = _region(training, settings, notes)
    project = command.project or settings.project
    timing = schedule(training.get("scheduling") or {}, notes)
    conditions = Conditions(region, timing.strategy, timing.hours, options.keep, options.catalog, options.today)
    pools = worker_pools(training, conditions, notes)
    plans = {role: pool.plan for role, pool in pools.items() if pool.plan}
    packages = _packages(training, job, command, notes)
    around = Surroundings(options.image, region, tuple(plans), options.today)
    running = programs(training, tuple(pools), packages, around, notes)
    spec = {"workerPoolSpecs": _pool_specs(pools, running), **timing.fields(), **_rest(training, notes)}
    if leaves_a_pool_out(spec["workerPoolSpecs"]) and not training.get("hyperparameters"):
        notes.changed("trainingInput", NOT_BY_GCLOUD)
    _note_rest(training, command, pools, notes)
    key = _key(training, command, project, notes)
    config, labels, name = spec, _labels(job, notes), _name(job, command, notes)
    if training.get("hyperparameters"):
        config = {"displayName": name, **tuning_fields(training["hyperparameters"], notes), "trialJobSpec": spec}
        config |= {"labels": labels} if labels else {}
        config |= {"encryptionSpec": {"kmsKeyName": key}} if key else {}
    notes.require_none_refused()
    uses_packages = any("pythonPackageSpec" in each for each in running.values())
    if uses_packages and command.package_path:
        _note_setup(command.package_path, notes)
    return Migration(
        name=name,
        config=config,
        is_tuning=bool(training.get("hyperparameters")),
        region=region,
        regions=share_zone(list(plans.values()), options.catalog).regions if plans and region is None else (),
        project=project,
        labels=labels,
        encryption_key=key,
        plans=plans,
        notes=notes.sorted(),
        upload=packages.upload if uses_packages else (),
        study=_study(training, plans, project, region),
    )


def _study(
    training: Mapping[str, Any], plans: Mapping[str, AcceleratorPlan], project: str | None, region: str | None
) -> MigratedStudy | None:
    given = training.get("hyperparameters")
    return study_of(given, next(iter(plans.values()), None), project, region) if given else None


def _require_training(training: Mapping[str, Any]) -> None:
    if not training:
        raise UserError(
            "There is no training: neither the file nor the flags have a trainingInput.",
            "Give the file of your job, or the flags of its gcloud command.",
        )
    if training.get("nasJobSpec"):
        raise UserError("The job is a neural architecture search; Vertex AI has a NasJob for that, not a CustomJob.")


def _region(training: Mapping[str, Any], settings: ProjectSettings, notes: Notes) -> str | None:
    region: str | None = training.get("region")
    if region is None:
        if settings.region:
            notes.changed("region", f"None is given; {settings.region} is that of {settings.origins.get('region')}.")
            return settings.region
        notes.to_do("region", "None is given. Put one in the place of REGION.")
        return None
    if not has_form("region", region):
        notes.refuse(f"The region is {region[:60]!r}; it is written like us-central1.")
        return None
    return region


def _packages(training: Mapping[str, Any], job: Mapping[str, Any], command: GcloudCommand, notes: Notes) -> Packages:
    staging = None
    if command.staging_bucket:
        bucket = f"gs://{command.staging_bucket.removeprefix('gs://').rstrip('/')}"
        staging = f"{bucket}/{job.get('jobId') or 'migrated'}"
    elif training.get("jobDir"):
        staging = f"{training['jobDir'].rstrip('/')}/packages"
    try:
        return find_packages(training.get("packageUris", []), command.package_path, command.packages, staging)
    except UserError as error:
        notes.refuse(error.problem, error.remedy)
        return Packages()


def _note_setup(package_path: str, notes: Notes) -> None:
    """gcloud wrote a setup.py for a package that had none; the command that builds it now does not."""
    folder, package = root_of(package_path)
    if not any(Path(folder, name).is_file() for name in ("setup.py", "pyproject.toml")):
        notes.to_do(
            "packageUris",
            f"There is no {Path(folder, 'setup.py')}; gcloud took one of its own then. Write it: "
            f"from setuptools import find_packages, setup; "
            f"setup(name='{package}', packages=find_packages(include=['{package}'])).",
        )


def _pool_specs(pools: Mapping[str, Pool], running: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The pools in the order of Vertex AI; an unused one is empty, so that the others keep their places."""
    found: list[dict[str, Any]] = []
    for role in ROLES:
        pool = pools.get(role)
        spec: dict[str, Any] = {}
        if pool is not None:
            spec = {"machineSpec": pool.machine_spec(), "replicaCount": pool.replicas}
            spec |= {"diskSpec": dict(pool.disk)} if pool.disk else {}
            spec |= running[role]
        found.append(spec)
    while found and not found[-1]:
        found.pop()
    return found


def _rest(training: Mapping[str, Any], notes: Notes) -> dict[str, Any]:
    """The fields of the job that belong to no pool."""
    found: dict[str, Any] = {}
    if account := training.get("serviceAccount"):
        found["serviceAccount"] = account
    if network := training.get("network"):
        if not has_form("network", network):
            notes.refuse(
                f"The network is {network[:100]!r}.", "Give its full name, projects/NUMBER/global/networks/NAME."
            )
        found["network"] = network
    if training.get("enableWebAccess"):
        found["enableWebAccess"] = True
    if directory := training.get("jobDir"):
        if not has_form("pipeline_root", directory):
            notes.refuse(f"jobDir is {directory[:100]!r}.", "Give a place in Cloud Storage, gs://BUCKET/FOLDER.")
        found["baseOutputDirectory"] = {"outputUriPrefix": directory}
        # Args are the same for all trials, so they would all write to the same folder.
        otherwise = (
            "which are other folders in each trial. A --job-dir among its args would be one folder for all trials."
            if training.get("hyperparameters")
            else f"or takes --job-dir={directory} among its args."
        )
        notes.changed(
            "jobDir",
            "It becomes baseOutputDirectory. --job-dir is no longer passed to the program: it reads AIP_MODEL_DIR, "
            f"AIP_CHECKPOINT_DIR and AIP_TENSORBOARD_LOG_DIR from its environment, {otherwise}",
        )
    return found


def _note_rest(training: Mapping[str, Any], command: GcloudCommand, pools: Mapping[str, Pool], notes: Notes) -> None:
    if training.get("useChiefInTfConfig") is not None:
        notes.dropped("useChiefInTfConfig", "Vertex AI decides on the names in TF_CONFIG itself.")
    if sum(pool.replicas for pool in pools.values()) > 1:
        notes.changed(
            "trainingInput",
            "The machines find each other by CLUSTER_SPEC, whose pools are workerpool0 to workerpool3, and by "
            "TF_CONFIG, which has no evaluator in its cluster.",
        )
    if command.stream_logs:
        notes.dropped(
            "--stream-logs", "Add --follow to gpu-pipelines job submit, or use gcloud ai custom-jobs stream-logs."
        )


def _key(training: Mapping[str, Any], command: GcloudCommand, project: str | None, notes: Notes) -> str | None:
    parts = command.key_parts
    if not parts:
        key = (training.get("encryptionConfig") or {}).get("kmsKeyName")
    elif "--kms-key" not in parts:
        notes.refuse(f"{', '.join(parts)} need --kms-key.")
        return None
    else:
        key = parts["--kms-key"]
        if "/" not in key:
            place = parts.get("--kms-project") or project
            key = (
                f"projects/{place}/locations/{parts.get('--kms-location', '')}/keyRings/"
                f"{parts.get('--kms-keyring', '')}/cryptoKeys/{key}"
            )
            if place is None:
                notes.refuse("--kms-key is not a full name, and there is no project.", "Give --kms-project.")
                return None
    if not key:
        return None
    if not has_form("encryption_key", key):
        notes.refuse(
            f"The key is {key[:150]!r}.", "Give its full name, projects/P/locations/L/keyRings/R/cryptoKeys/K."
        )
        return None
    if not training.get("hyperparameters"):
        notes.changed("encryptionConfig", "The key is not a field of a CustomJobSpec; it is a flag of the command.")
    return str(key)


def _labels(job: Mapping[str, Any], notes: Notes) -> dict[str, str]:
    labels = dict(job.get("labels") or {})
    for problem in problems_of_labels(labels, "the job"):
        notes.refuse(problem)
    return labels


def _name(job: Mapping[str, Any], command: GcloudCommand, notes: Notes) -> str:
    name = str(job.get("jobId") or (command.file.stem if command.file else "") or "migrated")
    try:
        return checked_name(name)
    except UserError as error:
        notes.refuse(error.problem, error.remedy)
        return name
