"""The model registry: models, their versions and evaluations: upload, get, update, delete."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from google.cloud import aiplatform_v1 as api

from gpu_pipelines.emulator.api_error import ApiError, not_found
from gpu_pipelines.emulator.jobs.job_states import now
from gpu_pipelines.emulator.jobs.rules import check_name_and_labels, raise_found
from gpu_pipelines.emulator.models.batch_prediction_rules import INPUT_FORMATS, OUTPUT_FORMATS
from gpu_pipelines.emulator.names import Names, page, restored, restored_from
from gpu_pipelines.emulator.operations import Operations
from gpu_pipelines.emulator.state_folder import StateFolder, damaged
from gpu_pipelines.emulator.transcoding import as_json

_KIND, _EVALUATIONS, _NUMBERS = "models", "evaluations", "model-version-numbers"
#: Reference of `Model.version_aliases`: there must be exactly one for a model.
_DEFAULT = "default"
#: Reference of `UpdateModelRequest.model`: the fields of a model, and of a version, that can be updated.
_OF_MODEL, _OF_VERSION = {"display_name", "description", "labels"}, {"version_description", "labels"}
#: Reference of `UploadModelRequest.model_id` and of `MergeVersionAliasesRequest.version_aliases`.
_ID = re.compile(r"[a-z_][a-z0-9_-]{0,62}")
_ALIAS = re.compile(r"[a-z][a-zA-Z0-9-]{0,126}[a-z0-9-]")
#: https://cloud.google.com/vertex-ai/docs/model-registry/model-alias

_SCHEMA = r"gs://google-cloud-aiplatform/schema/modelevaluation/([a-z_]+)_metrics_1\.0\.0\.yaml"
#: Names of the fields of each schema, at every depth.
#: https://cloud.google.com/vertex-ai/docs/reference/rpc/google.cloud.aiplatform.v1/schema/modelevaluation.metrics
_METRICS = {
    "classification": {
        *("auPrc", "auRoc", "logLoss", "confidenceMetrics", "confusionMatrix"),
        *("annotationSpecs", "id", "displayName", "rows"),
        *("confidenceThreshold", "maxPredictions", "recall", "precision", "falsePositiveRate"),
        *("f1Score", "f1ScoreMicro", "f1ScoreMacro", "recallAt1", "precisionAt1", "falsePositiveRateAt1", "f1ScoreAt1"),
        *("truePositiveCount", "falsePositiveCount", "falseNegativeCount", "trueNegativeCount"),
    },
    "general_text_generation": {"bleu", "rougeLSum"},
}


class Models:
    """The models of all projects.

    Attributes:
        versions: the versions of each model by its name, the oldest first.
        evaluations: the evaluations of each version by its name and number, as in …/models/digits@1.
        page_size: the longest page of a list.
        endpoint_with: called with the name of a model and a version, or an empty one for any; returns the name of an
            endpoint to which it is deployed, or an empty text.
    """

    def __init__(self, names: Names, operations: Operations, page_size: int, state: StateFolder) -> None:
        self.versions: dict[str, list[Any]] = {}
        self.endpoint_with: Callable[[str, str], str] = lambda name, version: ""
        self.evaluations: dict[str, list[Any]] = {}
        self._state = state
        for model in sorted(restored(state, _KIND, api.Model), key=lambda model: int(model.version_id)):
            self.versions.setdefault(model.name, []).append(model)
        for path, document in state.documents(_EVALUATIONS):
            version = str(document.pop("version", ""))
            self.evaluations.setdefault(version, []).append(restored_from(path, document, api.ModelEvaluation))
        self.page_size = page_size
        self._names, self._operations = names, operations
        # A number is not reused after its version is deleted.
        self._last = {name: int(versions[-1].version_id) for name, versions in self.versions.items()}
        for path, document in state.documents(_NUMBERS):
            try:
                name, last = str(document["name"]), int(document["last"])
            except (KeyError, TypeError, ValueError) as error:
                raise damaged(path, "it is no number of a version") from error
            self._last[name] = max(last, self._last.get(name, 0))
        self._lock = threading.RLock()

    def upload(self, request: Any) -> Any:
        """UploadModel: a new model, or a new version of `parent_model`."""
        parent = self._names.number(request.parent)
        raise_found([(f"model.{name}", text) for name, text in check_name_and_labels(request.model)])
        if not request.model.container_spec.image_uri:
            raise ApiError(400, "The container_spec.image_uri of the model is required.")
        if not request.model.artifact_uri.startswith("gs://"):
            raise ApiError(400, f"The artifact_uri {request.model.artifact_uri!r} is not a Cloud Storage URI.")
        _check_aliases(request.model.version_aliases)
        with self._lock:
            model = api.Model(request.model)
            if request.parent_model:
                model.name = self._names.number(request.parent_model)
                self._versions(model.name)
            else:
                model.name = self._names.new(parent, "models", request.model_id)
                if not _ID.fullmatch(request.model_id) and request.model_id:
                    raise ApiError(400, f"The model id {request.model_id!r} does not match {_ID.pattern}.")
                if model.name in self.versions:
                    raise ApiError(409, f"Model {model.name} already exists.")
            self._add(model)
        response = api.UploadModelResponse(model=model.name, model_version_id=model.version_id)
        return self._operations.done(model.name, response)

    def get(self, request: Any) -> Any:
        """GetModel, by `…@version`, `…@alias`, or the default version."""
        name, _, version = self._names.number(request.name).partition("@")
        versions = self._versions(name)
        for model in reversed(versions):
            if (version or _DEFAULT) in (model.version_id, *model.version_aliases):
                return model
        raise not_found(request.name)

    def list(self, request: Any) -> Any:
        """ListModels."""
        with self._lock:
            latest = [versions[-1] for versions in self.versions.values()]
        found, token = page(latest, self._names.number(request.parent), request, self.page_size)
        return api.ListModelsResponse(models=found, next_page_token=token)

    def list_versions(self, request: Any) -> Any:
        """ListModelVersions."""
        name = self._names.number(request.name)
        parent = name.rpartition("/models/")[0]
        found, token = page(self._versions(name), parent, request, self.page_size)
        return api.ListModelVersionsResponse(models=found, next_page_token=token)

    def merge_aliases(self, request: Any) -> Any:
        """MergeVersionAliases: an alias with a dash before it is removed."""
        model = self.get(request)
        if not request.version_aliases:
            raise ApiError(400, "version_aliases is required.")
        _check_aliases([alias.removeprefix("-") for alias in request.version_aliases])
        if f"-{_DEFAULT}" in request.version_aliases:
            raise ApiError(400, f"A model must have exactly one version with the alias {_DEFAULT}.")
        with self._lock:
            for alias in request.version_aliases:
                for other in self._versions(model.name):
                    other.version_aliases = [held for held in other.version_aliases if held != alias.removeprefix("-")]
                if not alias.startswith("-"):
                    model.version_aliases.append(alias)
            self._keep(self._versions(model.name))
        return model

    def import_evaluation(self, request: Any) -> Any:
        """ImportModelEvaluation, with metrics that its schema has and no others."""
        model = self.get(api.GetModelRequest(name=request.parent))
        given = as_json(request.model_evaluation)
        schema = re.fullmatch(_SCHEMA, given.get("metricsSchemaUri", ""))
        if schema is None or schema[1] not in _METRICS:
            raise ApiError(400, f"Unsupported metrics_schema_uri: {given.get('metricsSchemaUri')!r}.")
        if not isinstance(given.get("metrics", {}), dict):
            raise ApiError(400, "The metrics do not match their schema: they are no object.")
        if unknown := sorted(_fields(given.get("metrics", {})) - _METRICS[schema[1]]):
            raise ApiError(400, f"The metrics do not match their schema: {unknown[0]}.")
        with self._lock:
            evaluation = api.ModelEvaluation(request.model_evaluation)
            version = f"{model.name}@{model.version_id}"
            evaluation.name = self._names.new(model.name, "evaluations")
            evaluation.create_time = now()
            # The name of an evaluation does not include the version.
            self._state.write(_EVALUATIONS, evaluation.name, {**as_json(evaluation), "version": version})
            self.evaluations.setdefault(version, []).append(evaluation)
        return evaluation

    def list_evaluations(self, request: Any) -> Any:
        """ListModelEvaluations, of the named version or the default one."""
        model = self.get(api.GetModelRequest(name=request.parent))
        held = self.evaluations.get(f"{model.name}@{model.version_id}", [])
        found, token = page(held, model.name, request, self.page_size)
        return api.ListModelEvaluationsResponse(model_evaluations=found, next_page_token=token)

    def update(self, request: Any) -> Any:
        """UpdateModel, for the fields in the mask: of a model, which all of its versions show, or of a version.

        The SDK names no version in the name; it sends the number of the version that it has read.
        """
        name, _, version = self._names.number(request.model.name).partition("@")
        fields = set(request.update_mask.paths)
        version = "" if version == "-" else version
        if not version and fields - _OF_MODEL and not fields - _OF_VERSION:
            version = request.model.version_id
        if unknown := sorted(fields - (_OF_VERSION if version else _OF_MODEL)):
            what = "a model version" if version else "a model"
            raise ApiError(400, f"The field {unknown[0]} of {what} cannot be updated.", "FAILED_PRECONDITION")
        raise_found([(f"model.{field}", text) for field, text in check_name_and_labels(request.model)])
        with self._lock:
            one = self.get(api.GetModelRequest(name=f"{name}@{version}" if version else name))
            changed = [one] if version else self._versions(name)
            for model in changed:
                for field in fields:
                    setattr(model, field, getattr(request.model, field))
                model.version_update_time = now()
                model.update_time = now()
            self._keep(changed)
        return one

    def delete(self, request: Any) -> Any:
        """DeleteModel, for one that is not deployed."""
        name = self._names.number(request.name)
        self._versions(name)
        self._require_undeployed(name)
        with self._lock:
            for model in self.versions.pop(name):
                self._forget(model)
        return self._operations.done(name)

    def delete_version(self, request: Any) -> Any:
        """DeleteModelVersion, for one that is neither deployed nor the default; the only version is always that."""
        name, _, version = self._names.number(request.name).partition("@")
        if not version:
            raise ApiError(400, f"The name {request.name} names no version.")
        model = self.get(request)
        if len(self._versions(name)) == 1:
            raise ApiError(
                400, f"The only version of {name} cannot be deleted; delete the model.", "FAILED_PRECONDITION"
            )
        if _DEFAULT in model.version_aliases:
            told = f"Version {model.version_id} of {name} is the default one, which cannot be deleted."
            raise ApiError(400, told, "FAILED_PRECONDITION")
        self._require_undeployed(name, model.version_id)
        with self._lock:
            self._state.write(_NUMBERS, name, {"name": name, "last": self._last[name]})
            self.versions[name].remove(model)
            self._forget(model)
        return self._operations.done(name)

    def _require_undeployed(self, name: str, version: str = "") -> None:
        if endpoint := self.endpoint_with(name, version):
            raise ApiError(400, f"The model {name} is deployed to {endpoint}; undeploy it.", "FAILED_PRECONDITION")

    def _forget(self, model: Any) -> None:
        version = f"{model.name}@{model.version_id}"
        self._state.remove(_KIND, version)
        for evaluation in self.evaluations.pop(version, []):
            self._state.remove(_EVALUATIONS, evaluation.name)

    def _add(self, model: Any) -> None:
        versions = self.versions.setdefault(model.name, [])
        self._last[model.name] = self._last.get(model.name, 0) + 1
        model.version_id = str(self._last[model.name])
        # The SDK deploys a model on dedicated machines only if the service says that it may.
        model.supported_deployment_resources_types = [api.Model.DeploymentResourcesType.DEDICATED_RESOURCES]
        model.supported_input_storage_formats, model.supported_output_storage_formats = INPUT_FORMATS, OUTPUT_FORMATS
        model.create_time = model.update_time = model.version_create_time = model.version_update_time = now()
        asked = list(model.version_aliases)
        for other in versions:
            other.version_aliases = [alias for alias in other.version_aliases if alias not in asked]
        if not versions and _DEFAULT not in asked:
            model.version_aliases.append(_DEFAULT)
        self._keep([model, *versions])
        versions.append(model)

    def _keep(self, models: Sequence[Any]) -> None:
        for model in models:
            self._state.write(_KIND, f"{model.name}@{model.version_id}", as_json(model))

    def _versions(self, name: str) -> Sequence[Any]:
        if name not in self.versions:
            raise not_found(name)
        return self.versions[name]


def _fields(value: Any) -> set[str]:
    """Names of all fields in a JSON value."""
    if isinstance(value, dict):
        return set(value).union(*(_fields(each) for each in value.values()))
    return set().union(*(_fields(each) for each in value)) if isinstance(value, list) else set()


def _check_aliases(aliases: Iterable[str]) -> None:
    if wrong := [alias for alias in aliases if not _ALIAS.fullmatch(alias)]:
        raise ApiError(400, f"The version alias {wrong[0]!r} does not match {_ALIAS.pattern}.")
