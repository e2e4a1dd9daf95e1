"""The file for `gcloud ai custom-jobs create --config`, read as gcloud reads it: a `CustomJobSpec`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpu_pipelines.errors import UserError
from gpu_pipelines.yaml_input import data_of, node_of, read_text

_MOST_POOLS = 4


def read_job_file(path: Path) -> tuple[dict[str, Any], list[str]]:
    """A `CustomJobSpec`, with the field names of the API's protobuf types, each checked against the API's own types.

    Returns:
        The spec, and remarks about the file.

    Raises:
        UserError: the file cannot be read, or is not a `CustomJobSpec`.
    """
    what = f"The file {path}"
    root = node_of(read_text(path, what), what)
    content = data_of(root, what) if root is not None else None
    if not isinstance(content, dict):
        raise UserError(f"{path} is not a mapping, so it is not the config of a custom job.")
    if "jobSpec" in content or "job_spec" in content:
        raise UserError(
            f"{path} is a whole CustomJob; gcloud takes only its jobSpec.",
            "Move what is below jobSpec to the top, and give name and labels as flags.",
        )
    if "trialJobSpec" in content or "trial_job_spec" in content:
        raise UserError(
            f"{path} is a HyperparameterTuningJob, which is many jobs.",
            "gcloud ai hp-tuning-jobs create --config takes it.",
        )
    hints: list[str] = []
    spec = _checked(content, path, hints)
    pools = spec.get("worker_pool_specs")
    if not pools:
        raise UserError(f"{path} has no workerPoolSpecs.", "gpu-pipelines job config writes a whole file.")
    if len(pools) > _MOST_POOLS:
        raise UserError(f"{path} has {len(pools)} pools; a job has at most {_MOST_POOLS}.")
    if pools[0].get("replica_count", 1) != 1:
        raise UserError(f"The first pool of {path} has {pools[0]['replica_count']} replicas; it holds only rank 0.")
    return spec, hints


def _checked(content: dict[str, Any], path: Path, hints: list[str]) -> dict[str, Any]:
    # Importing only these types takes a second; the whole of google.cloud.aiplatform takes seven.
    from google.cloud.aiplatform_v1.types import custom_job
    from google.protobuf import json_format

    message = custom_job.CustomJobSpec.pb()()
    content = _with_lists(content, message.DESCRIPTOR, path, hints)
    _require_pools(content, path)
    try:
        json_format.ParseDict(content, message)
    except (json_format.ParseError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{path} is not the config of a custom job: {' '.join(str(error).split())[:600]}") from None
    spec: dict[str, Any] = json_format.MessageToDict(message, preserving_proto_field_name=True)
    for pool in spec.get("worker_pool_specs", []):
        if "replica_count" in pool:
            # JSON of protocol buffers has 64-bit numbers as texts.
            pool["replica_count"] = int(pool["replica_count"])
    return spec


def _with_lists(content: dict[str, Any], descriptor: Any, path: Path, hints: list[str]) -> dict[str, Any]:
    """The same with a list wherever the API has one: gcloud takes a single value for a list of it."""
    fields = {name: field for field in descriptor.fields for name in (field.name, field.json_name)}
    found = {}
    for name, value in content.items():
        field = fields.get(name)
        if field is not None and field.is_repeated and not isinstance(value, (list, type(None))):
            hints.append(f"{name} of {path} is not in a list; it was taken as a list of one, the usual form.")
            value = [value]
        if field is not None and field.type == field.TYPE_STRING:
            _require_texts(name, value if isinstance(value, list) else [value], path)
        if field is not None and field.message_type is not None:
            found[name] = _with_lists_below(value, field.message_type, path, hints)
        else:
            found[name] = value
    return found


def _with_lists_below(value: Any, descriptor: Any, path: Path, hints: list[str]) -> Any:
    if isinstance(value, list):
        return [_with_lists_below(item, descriptor, path, hints) for item in value]
    return _with_lists(value, descriptor, path, hints) if isinstance(value, dict) else value


def _require_texts(name: str, values: list[Any], path: Path) -> None:
    for value in values:
        if not isinstance(value, (str, list, dict, type(None))):
            told = str(value).lower() if isinstance(value, bool) else str(value)
            raise UserError(f"{name} of {path} has {told}, which YAML does not read as text.", f'Write "{told}".')


def _require_pools(content: dict[str, Any], path: Path) -> None:
    """Checks that pools are mappings, none with 0 replicas: protocol buffers take 0 for a missing number, so for 1."""
    for index, pool in enumerate(content.get("workerPoolSpecs") or content.get("worker_pool_specs") or []):
        if not isinstance(pool, dict | None):
            raise UserError(f"Pool {index} of {path} is {str(pool)[:60]!r}.", "A pool is a mapping, with machineSpec.")
        counts = [pool[name] for name in ("replicaCount", "replica_count") if name in pool] if pool else []
        if any(str(count) == "0" for count in counts):
            raise UserError(f"Pool {index} of {path} has 0 replicas.", "A pool that is not used is empty: {}.")
