"""An evaluation in the form that Vertex AI shows beside a version of a model, and its import.

Fields: https://cloud.google.com/vertex-ai/docs/reference/rpc/google.cloud.aiplatform.v1/schema/modelevaluation.metrics.
Schemas: PROBLEM_TYPE_TO_SCHEMA_URI in import_model_evaluation.py of google-cloud-pipeline-components 2.22.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpu_pipelines.artifacts.evaluation import MATRIX_CLASSES_SENT, Evaluation
from gpu_pipelines.errors import UserError
from gpu_pipelines.google_cloud.connection import service_errors, tried_again

_SCHEMA = "gs://google-cloud-aiplatform/schema/modelevaluation/{}_metrics_1.0.0.yaml"
_CLASSIFICATION, _TEXT = _SCHEMA.format("classification"), _SCHEMA.format("general_text_generation")
#: The service's names of this project's figures.
_SCALARS = {"log_loss": "logLoss", "roc_auc": "auRoc"}


def model_evaluation(evaluation: Evaluation, pipeline_job: str) -> dict[str, Any]:
    """A `ModelEvaluation` of the API.

    The schema of a text model only has BLEU and ROUGE; its loss and other figures are in the metadata.

    Args:
        evaluation: the evaluation of the model.
        pipeline_job: resource name of the pipeline job that made it; empty if none did.
    """
    metadata: dict[str, Any] = {
        "evaluation_dataset_type": "gpu-pipelines dataset",
        "evaluation_dataset_fingerprint": evaluation.dataset_fingerprint,
        "checkpoint": evaluation.best,
        "test_rows": evaluation.test["rows"],
        "test_metrics": _known(evaluation.test["metrics"]),
        "passed": evaluation.passed,
    }
    if pipeline_job:
        # google-cloud-aiplatform finds the job of an evaluation by this key.
        metadata |= {"pipeline_job_id": pipeline_job.rpartition("/")[2], "pipeline_job_resource_name": pipeline_job}
    return {
        "display_name": f"{evaluation.best} on test",
        "metrics_schema_uri": _CLASSIFICATION if evaluation.labels else _TEXT,
        "metrics": _classification(evaluation) if evaluation.labels else {},
        "metadata": metadata,
    }


def import_evaluation(client: Any, version: str, evaluation: dict[str, Any], title: str) -> None:
    """Adds an evaluation to a version, once; if the answer is lost, checks whether it is there.

    If the schema has changed since, the model is kept all the same: the evaluation is also among its files.

    Args:
        client: the client of models.
        version: the version's resource name.
        evaluation: from `model_evaluation`.
        title: the version's name in messages.
    """
    from google.api_core.exceptions import BadRequest
    from google.cloud.aiplatform_v1.types import ModelEvaluation
    from google.protobuf import json_format

    if _has_evaluation(client, version):
        return
    message = ModelEvaluation()
    json_format.ParseDict(evaluation, ModelEvaluation.pb(message))
    try:
        with service_errors(f"Importing the evaluation of {title}"):
            client.import_model_evaluation(request={"parent": version, "model_evaluation": message})
    except UserError as error:
        if isinstance(error.__cause__, BadRequest):
            print(f"warning: {error.problem} The version is without it in the console.", flush=True)
        elif not _has_evaluation(client, version):
            raise UserError(error.problem, f"Upload again to complete it. {error.remedy}".rstrip()) from error


def _has_evaluation(client: Any, version: str) -> bool:
    with service_errors("Looking for the evaluation of a version"):
        return any(True for _ in client.list_model_evaluations(request={"parent": version}, retry=tried_again()))


def _known(metrics: Mapping[str, Any]) -> dict[str, float]:
    return {name: metric["value"] for name, metric in metrics.items() if metric["value"] is not None}


def _classification(evaluation: Evaluation) -> dict[str, Any]:
    known = _known(evaluation.test["metrics"])
    found: dict[str, Any] = {ours: known[name] for name, ours in _SCALARS.items() if name in known}
    if "accuracy" in known:
        found["confidenceMetrics"] = [_for_every_row(known)]
    labels, rows = evaluation.labels, evaluation.test.get("confusion", [])
    if rows and len(labels) <= MATRIX_CLASSES_SENT:
        found["confusionMatrix"] = {
            "annotationSpecs": [{"id": str(number), "displayName": label} for number, label in enumerate(labels)],
            "rows": [row[: len(labels)] for row in rows],
        }
    return found


def _for_every_row(known: Mapping[str, float]) -> dict[str, float]:
    """The metrics at the threshold 0, where each row gets only its most probable class.

    Summed over the classes, precision, recall and their mean then all equal the share of correct rows.
    """
    accuracy = known["accuracy"]
    names = ("recall", "precision", "f1Score", "f1ScoreMicro", "recallAt1", "precisionAt1", "f1ScoreAt1")
    found = {"confidenceThreshold": 0.0, "maxPredictions": 1, **dict.fromkeys(names, accuracy)}
    return {**found, "f1ScoreMacro": known["macro_f1"]} if "macro_f1" in known else found
