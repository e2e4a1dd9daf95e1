"""Vertex AI Model Registry: a version is a model of the service, its files are in Cloud Storage.

API: https://cloud.google.com/vertex-ai/docs/reference/rest/v1/projects.locations.models.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from gpu_pipelines.artifacts.documents import write_document_at
from gpu_pipelines.artifacts.evaluation import EVALUATION, Evaluation
from gpu_pipelines.artifacts.integrity import digest_of, model_files
from gpu_pipelines.artifacts.remote_files import RemoteFolder, md5_of_file
from gpu_pipelines.errors import NewerFormatError, UserError
from gpu_pipelines.google_cloud.connection import location_of, model_service, service_errors, tried_again
from gpu_pipelines.project_settings import FILE, ProjectSettings, load_project_settings
from gpu_pipelines.registry.missing import missing_version
from gpu_pipelines.registry.registered import (
    CHAMPION,
    VERSION,
    Check,
    Promotion,
    RegisteredVersion,
    Registry,
    hashes_in,
    made_at_once,
    record_in,
)
from gpu_pipelines.registry.serving_container import ServingContainer, serving_container
from gpu_pipelines.registry.summary import summary_of
from gpu_pipelines.registry.vertex_evaluation import import_evaluation, model_evaluation
from gpu_pipelines.registry.vertex_operations import wait_for
from gpu_pipelines.registry.vertex_permissions import require_may_upload
from gpu_pipelines.registry.vertex_step import step_image

#: Variables that Vertex AI sets in the containers of jobs: number of the project, and region.
_OF_THE_JOB = {"project": "CLOUD_ML_PROJECT_ID", "region": "CLOUD_ML_REGION"}
#: The service's default version; it moves with the champion.
_DEFAULT_ALIAS = "default"
_MANAGED_BY, _OURS = "managed-by", "gpu-pipelines"
_DIGEST = "gpu-pipelines-digest"
_DIGEST_CHARACTERS = 40
#: The folder in the bucket for the files of all versions.
_FOLDER = "models"
_PIPELINE_JOB = re.compile(r"projects/[^/]+/locations/[^/]+/pipelineJobs/[^/]+")
_POLL_SECONDS, _MOST_SECONDS = 2.0, 1800.0


class VertexRegistry(Registry):
    """The models of a project and region.

    Args:
        address: `PROJECT/REGION`; empty for those of the job that runs this, or of the settings.
        near: `gs://…`, whose bucket keeps the files of models; empty for that of the settings.
        serving_image: container that serves the models; empty for that of the settings, else one that fits the model.
        encryption_key: Cloud KMS key of the models, by its full name; empty for that of the settings, if there is one.

    Raises:
        UserError: the address does not have this form.
    """

    def __init__(self, address: str, near: str = "", serving_image: str = "", encryption_key: str = "") -> None:
        if address and not re.fullmatch(r"[a-z0-9][a-z0-9:.-]*/[a-z]+-[a-z]+[0-9]+/?", address):
            raise UserError(
                f"The registry vertex://{address} is not of the form vertex://PROJECT/REGION.",
                "vertex:// alone takes the job's own project and region.",
            )
        self._address = address.rstrip("/")
        self._near = near
        self._serving_image = serving_image
        self._encryption_key = encryption_key
        self._steps_images: dict[str, str] = {}

    def __repr__(self) -> str:
        # The service is not asked for this.
        return f"VertexRegistry vertex://{self._address}"

    @property
    def settings(self) -> ProjectSettings:
        """Project and region of the registry."""
        return self._settings

    def require_writable(self) -> None:
        """Checks that there is a place for files, and permission to list models and to add versions.

        Raises:
            UserError: there is no such place or permission.
        """
        place = self._place_of("model", "files")
        self.names()
        require_may_upload(str(self._settings.project), place)

    def where(self, name: str) -> str:
        """The console's page of a model."""
        model = self._model(name)
        project, region = self._settings.project, self._settings.region
        number = model.name.rpartition("/")[2] if model else ""
        return f"https://console.cloud.google.com/vertex-ai/models/locations/{region}/models/{number}?project={project}"

    def names(self) -> list[str]:
        """Names of all models that this project's components have uploaded."""
        with service_errors("Listing the models of the registry"):
            found = self._client.list_models(
                request={"parent": self._parent, "filter": f"labels.{_MANAGED_BY}={_OURS}"}, retry=tried_again()
            )
            return sorted({model.display_name for model in found})

    def versions(self, name: str) -> list[RegisteredVersion]:
        """All versions of a model, oldest first; none if there is no such model."""
        found = made_at_once(partial(self._version, name), self._service_versions(name))
        return sorted(found, key=lambda version: version.number)

    def version(self, name: str, reference: str | int) -> RegisteredVersion:
        """The version with a number or an alias.

        Raises:
            UserError: there is no such version.
        """
        reference = str(reference)
        for version in self._service_versions(name):
            if reference == version.version_id or reference in version.version_aliases:
                return self._version(name, version)
        raise missing_version(self, name, reference, self._parent)

    def aliases(self, name: str) -> dict[str, int]:
        """Version by alias, without the service's own `default`, which the first version has from the start."""
        return {
            alias: int(version.version_id)
            for version in self._service_versions(name)
            for alias in version.version_aliases
            if alias != _DEFAULT_ALIAS
        }

    def _point(self, name: str, alias: str, number: int) -> None:
        self._move_aliases(name, [alias], number)

    def add(
        self, name: str, model: Path, info: dict[str, Any], promotion: Promotion, check: Check | None = None
    ) -> RegisteredVersion:
        """Adds a version with its evaluation, unless the same model is already a version, and moves the aliases.

        All files are in Cloud Storage before the service gets the version, and aliases move last: an interrupted upload
        leaves no version, or a whole one that the next upload of the same model completes. See
        `Registry.add`.

        Raises:
            UserError: files, version, evaluation or aliases could not be written, or the check failed.
        """
        files = hashes_in(model)
        digest = digest_of(model_files(files))[:_DIGEST_CHARACTERS]
        number = same = self._with_digest(name, digest)
        if same is not None:
            self._mend(self.version(name, same), model, {"created": _now(), **info, "files": files})
        if number is None:
            place = self._place_of(name, digest)
            # A model that no known container serves is refused before anything is written.
            container = self.container_for(model, str(info.get("pipeline_job", "")))
            self._copy_files(model, place, {"created": _now(), **info, "files": files})
            if check:
                _checked(place, check)
            fields = {"container_spec": container.spec(), **_model_fields(model, info)}
            number = self._upload(name, place, {_DIGEST: digest, **_lineage_labels(info)}, fields)
        if (model / EVALUATION).is_file():
            evaluation = model_evaluation(Evaluation.load(model), _pipeline_job(info))
            resource = self.version(name, number).resource_name
            import_evaluation(self._client, resource, evaluation, f"version {number} of {name!r}")
        champion = self.aliases(name).get(CHAMPION)
        self._move_aliases(name, promotion.aliases(champion, number), number)
        return replace(self.version(name, number), added=same is None, led=champion == number)

    def steps_image(self, pipeline_job: str) -> str:
        """The image of the steps of a pipeline job on Vertex AI; empty if it is not such a job, or if the job may not
        be read."""
        if pipeline_job not in self._steps_images:
            found = step_image(self._settings, pipeline_job) if _PIPELINE_JOB.fullmatch(pipeline_job) else ""
            self._steps_images[pipeline_job] = found
        return self._steps_images[pipeline_job]

    def container_for(self, model: Path, pipeline_job: str) -> ServingContainer:
        """The container that serves a version: by default the image of the steps, which tested it."""
        image = self.steps_image(pipeline_job)
        if not image and Path(FILE).is_file():
            image = load_project_settings().image or ""
        return serving_container(model, self._serving_image, steps_image=image)

    @cached_property
    def _settings(self) -> ProjectSettings:
        project, _, region = self._address.partition("/")
        of_the_job = {name: os.environ.get(variable) for name, variable in _OF_THE_JOB.items()}
        given = {"project": project or of_the_job["project"], "region": region or of_the_job["region"]}
        if all(given.values()):
            return ProjectSettings(project=given["project"], region=given["region"])
        settings = load_project_settings(given)
        # Most commands of a registry have no options for them.
        if missing := [name for name in given if not getattr(settings, name)]:
            raise UserError(
                f"The registry vertex://{self._address} needs a project and a region: "
                f"{' and '.join(f'no {name}' for name in missing)} is known.",
                f"Write {' and '.join(missing)} into {FILE}, or give the registry as vertex://PROJECT/REGION.",
            )
        return settings

    @property
    def _parent(self) -> str:
        return location_of(self._settings)

    @cached_property
    def _client(self) -> Any:
        return model_service(self._settings)

    def _place_of(self, name: str, digest: str) -> str:
        """The place of a version's files: beside the pipeline root, from which old runs may be deleted."""
        bucket = re.match(r"gs://[^/]+", self._near or load_project_settings().pipeline_root or "")
        if bucket is None:
            raise UserError(
                "Models of Vertex AI's registry are kept in Cloud Storage, and no bucket is set.",
                f"Write pipeline_root: gs://BUCKET/FOLDER into {FILE}.",
            )
        return f"{bucket[0]}/{_FOLDER}/{name}/{digest}"

    def _model(self, name: str) -> Any | None:
        """The service's model of that name; None if there is none."""
        wanted = f'display_name="{name}" AND labels.{_MANAGED_BY}={_OURS}'
        with service_errors(f"Looking for the model {name!r}"):
            request = {"parent": self._parent, "filter": wanted}
            found = list(self._client.list_models(request=request, retry=tried_again()))
        if len(found) > 1:
            raise UserError(
                f"{self._parent} has {len(found)} models of the name {name!r}.",
                "Delete or rename all but one: " + ", ".join(model.name for model in found),
            )
        return found[0] if found else None

    def _service_versions(self, name: str) -> list[Any]:
        model = self._model(name)
        if model is None:
            return []
        with service_errors(f"Listing the versions of {name!r}"):
            return list(self._client.list_model_versions(request={"name": model.name}, retry=tried_again()))

    def _version(self, name: str, version: Any) -> RegisteredVersion:
        created = version.version_create_time.isoformat(timespec="seconds")
        recorded, unread = record_in(version.artifact_uri) if version.artifact_uri else ({}, None)
        info = {"created": created, "passed": False, "metrics": {}, **recorded}
        aliases = tuple(sorted(set(version.version_aliases) - {_DEFAULT_ALIAS}))
        labelled = str(version.labels.get(_DIGEST, ""))
        place, resource = version.artifact_uri, _resource_name(version)
        return RegisteredVersion(name, int(version.version_id), place, aliases, info, resource, labelled, unread)

    def _with_digest(self, name: str, digest: str) -> int | None:
        numbers = [int(v.version_id) for v in self._service_versions(name) if v.labels.get(_DIGEST) == digest]
        return max(numbers, default=None)

    @staticmethod
    def _copy_files(model: Path, place: str, info: dict[str, Any]) -> None:
        folder = RemoteFolder(place)
        folder.upload(model, sorted(info["files"]))
        folder.require_same(model, sorted(info["files"]))
        # With these, a version can be checked without downloading it.
        md5 = {name: md5_of_file(model / name) for name in sorted(info["files"])}
        write_document_at(f"{place}/{VERSION}", {**info, "md5": md5})

    def _mend(self, version: RegisteredVersion, model: Path, info: dict[str, Any]) -> None:
        """Writes the files of a version again if they are damaged; a newer record is never replaced."""
        if isinstance(version.unread, NewerFormatError):
            version.require_undamaged()
        if version.is_damaged:
            print(f"version {version.number} of {version.name} is damaged; its files are written again", flush=True)
            self._copy_files(model, version.place, info)
            self.version(version.name, version.number).require_undamaged()

    def _upload(self, name: str, place: str, labels: dict[str, str], fields: dict[str, Any]) -> int:
        """Adds a version to the service; if the answer is lost, looks for the version instead of adding it twice."""
        digest = labels[_DIGEST]
        parent_model = self._model(name)
        request: dict[str, Any] = {
            "parent": self._parent,
            "model": {
                "display_name": name,
                "artifact_uri": place,
                "labels": {_MANAGED_BY: _OURS, **labels},
                **fields,
            },
        }
        if key := self._encryption_key or load_project_settings().encryption_key:
            request["model"]["encryption_spec"] = {"kms_key_name": key}
        if parent_model is not None:
            request["parent_model"] = parent_model.name
        else:
            request["model_id"] = _model_id(name)
        try:
            with service_errors(f"Adding a version of {name!r} to the registry"):
                operation = self._client.transport.upload_model(self._message(request))
                wait_for(self._client, operation, _POLL_SECONDS, _MOST_SECONDS)
        except UserError as error:
            if (number := self._with_digest(name, digest)) is not None:
                return number
            raise UserError(error.problem, f"No version was added; upload again. {error.remedy}".rstrip()) from error
        number = self._with_digest(name, digest)
        if number is None:
            raise UserError(f"The service says it has added a version of {name!r}, but does not list it.")
        return number

    @staticmethod
    def _message(request: dict[str, Any]) -> Any:
        from google.cloud.aiplatform_v1.types import UploadModelRequest

        return UploadModelRequest(request)

    def _move_aliases(self, name: str, aliases: list[str], number: int) -> None:
        wanted = [*aliases, _DEFAULT_ALIAS] if CHAMPION in aliases else aliases
        with service_errors(f"Moving the aliases {', '.join(aliases)} of {name!r}"):
            for version in self._service_versions(name):
                if version.version_id == str(number) and set(wanted) - set(version.version_aliases):
                    request = {"name": _resource_name(version), "version_aliases": wanted}
                    self._client.merge_version_aliases(request=request, retry=tried_again())


def _checked(place: str, check: Check) -> None:
    """Checks files in the bucket that no version names yet; after a failure they are deleted."""
    try:
        check(place)
    except BaseException:
        folder = RemoteFolder(place)
        folder.delete(folder.names())
        raise


def _pipeline_job(info: dict[str, Any]) -> str:
    """Resource name of the pipeline job of a model; empty if it was made elsewhere."""
    job = str(info.get("pipeline_job", ""))
    return job if _PIPELINE_JOB.fullmatch(job) else ""


def _lineage_labels(info: dict[str, Any]) -> dict[str, str]:
    """Labels to list the models of a dataset, or of the files that it was prepared from."""
    named = {"dataset": info.get("dataset_fingerprint"), "source": info.get("source_fingerprint")}
    return {f"{_OURS}-{name}": str(value)[:_DIGEST_CHARACTERS] for name, value in named.items() if value}


def _model_fields(model: Path, info: dict[str, Any]) -> dict[str, str]:
    """Fields of the service's model for the origin and the quality of a version."""
    fields = {"pipeline_job": _pipeline_job(info)}
    if (model / EVALUATION).is_file():
        fields["version_description"] = summary_of(Evaluation.load(model))
    return {name: value for name, value in fields.items() if value}


def _resource_name(version: Any) -> str:
    """The full name of a version; the service's name may lack the number."""
    return f"{version.name.partition('@')[0]}@{version.version_id}"


def _model_id(name: str) -> str:
    """A valid id, derived from the name, so that two simultaneous first uploads create one model, not two."""
    made = re.sub(r"[^a-z0-9_-]", "-", name)
    return (made if made[:1].isalpha() else f"model-{made}")[:63]


def _now() -> str:
    from datetime import datetime, timezone

    return datetime.now(timezone.utc).isoformat(timespec="seconds")
