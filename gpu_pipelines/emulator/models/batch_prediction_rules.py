"""The rules for batch prediction jobs, and the features that the emulator refuses by name.

The rules follow the reference of the fields:
https://cloud.google.com/vertex-ai/docs/reference/rest/v1/projects.locations.batchPredictionJobs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from google.cloud import aiplatform_v1 as api

from gpu_pipelines.emulator.api_error import ApiError
from gpu_pipelines.emulator.jobs.rules import Found, check_machine, check_name_and_labels, raise_found

#: For models with their own container.
INPUT_FORMATS = ("jsonl", "bigquery", "csv", "tf-record", "tf-record-gzip", "file-list")
OUTPUT_FORMATS = ("jsonl", "bigquery")
_READ_HERE = ("jsonl", "csv", "bigquery")
_DATASET, _TABLE = re.compile(r"bq://[^.]+(\.[^.]+)?"), re.compile(r"bq://[^.]+\.[^.]+\.[^.]+")
_INSTANCE_TYPES = ("", "object", "array")


def check_batch_prediction(job: Any, region: str) -> None:
    """Checks a BatchPredictionJob.

    Args:
        job: the job to create.
        region: its region.

    Raises:
        ApiError: lists all problems; or names what the emulator does not support.
    """
    checks = (_check_model, _check_input, _check_instances, _check_output)
    found = [("batch_prediction_job." + name, text) for check in checks for name, text in check(job)]
    raise_found([*check_name_and_labels(job), *found, *_check_resources(job, region)])
    if missing := list(_not_emulated(job)):
        raise ApiError(501, f"The emulator does not run this batch prediction: {'; '.join(missing)}.")


def _check_model(job: Any) -> Found:
    unmanaged = job.unmanaged_container_model
    if bool(job.model) == ("unmanaged_container_model" in job):
        yield "model", "Exactly one of model and unmanaged_container_model must be set."
    elif not job.model and not unmanaged.container_spec.image_uri:
        yield "unmanaged_container_model.container_spec.image_uri", "Image URI is required."


def _check_input(job: Any) -> Found:
    source, name = job.input_config, "input_config"
    kind = source.instances_format
    if kind not in INPUT_FORMATS:
        formats = ", ".join(INPUT_FORMATS)
        yield f"{name}.instances_format", f"{kind!r} is not one of the formats of the model: {formats}."
    elif kind == "bigquery":
        if not _TABLE.fullmatch(source.bigquery_source.input_uri):
            yield f"{name}.bigquery_source.input_uri", "A table of the form bq://project.dataset.table is required."
    elif not source.gcs_source.uris:
        yield f"{name}.gcs_source.uris", f"Files are required of the format {kind}."
    for uri in source.gcs_source.uris:
        if not uri.startswith("gs://"):
            yield f"{name}.gcs_source.uris", f"{uri} is not a Google Cloud Storage URI."


def _check_instances(job: Any) -> Found:
    config, name = job.instance_config, "instance_config"
    if config.instance_type not in _INSTANCE_TYPES:
        yield f"{name}.instance_type", f"{config.instance_type!r} is neither object nor array."
    if config.included_fields and config.excluded_fields:
        yield f"{name}.included_fields", "Included and excluded fields cannot be set together."
    if job.input_config.instances_format == "csv" and (config.included_fields or config.excluded_fields):
        yield f"{name}.included_fields", "Fields of csv cannot be included or excluded."
    if job.manual_batch_tuning_parameters.batch_size < 0:
        yield "manual_batch_tuning_parameters.batch_size", "The size of a batch must not be negative."


def _check_output(job: Any) -> Found:
    target, name = job.output_config, "output_config"
    kind = target.predictions_format
    if kind not in OUTPUT_FORMATS:
        formats = ", ".join(OUTPUT_FORMATS)
        yield f"{name}.predictions_format", f"{kind!r} is not one of the formats of the model: {formats}."
    elif kind == "bigquery":
        if not _DATASET.fullmatch(target.bigquery_destination.output_uri):
            text = "A place of the form bq://project or bq://project.dataset is required."
            yield f"{name}.bigquery_destination.output_uri", text
    elif not target.gcs_destination.output_uri_prefix.startswith("gs://"):
        yield f"{name}.gcs_destination.output_uri_prefix", "A Google Cloud Storage URI is required."


def _check_resources(job: Any, region: str) -> Found:
    resources, name = job.dedicated_resources, "batch_prediction_job.dedicated_resources"
    # Custom training does not take machines as small as predictions do.
    yield from check_machine(f"{name}.machine_spec", resources.machine_spec, region, too_small=())
    if min(resources.starting_replica_count, resources.max_replica_count) < 0:
        yield f"{name}.max_replica_count", "Replica count must not be negative."
    elif 0 < resources.max_replica_count < resources.starting_replica_count:
        yield f"{name}.starting_replica_count", "It is greater than max_replica_count."


def _not_emulated(job: Any) -> Iterator[str]:
    if job.generate_explanation or "explanation_spec" in job:
        yield "it has no explanations (generate_explanation)"
    if (kind := job.input_config.instances_format) not in _READ_HERE:
        yield f"it reads no {kind}"
    for config in (job.input_config, job.output_config):
        for field in ("vertex_multimodal_dataset_source", "vertex_multimodal_dataset_destination"):
            if field in type(config).pb(config).DESCRIPTOR.fields_by_name and field in config:
                yield f"it has no {field}"
    if "publishers/" in job.model:
        yield f"it has no models of publishers ({job.model})"


def accelerators_of_batch(job: Any) -> dict[str, int]:
    """The accelerators of a job, by type."""
    resources = job.dedicated_resources
    machine = resources.machine_spec
    number = machine.accelerator_count * max(1, resources.starting_replica_count)
    return {api.AcceleratorType(machine.accelerator_type).name: number} if number else {}
