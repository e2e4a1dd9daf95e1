"""What Vertex AI Pipelines makes of a task before its container starts: its inputs and its resolved placeholders.

https://www.kubeflow.org/docs/components/pipelines/reference/component-spec and the placeholders of kfp.dsl.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_pipelines.numbers import as_protobuf_writes

_NUMBER = "NUMBER_INTEGER"
_EMPTY = {"STRUCT": {}, "LIST": [], "STRING": "", "BOOLEAN": False}
_TYPES = {"NUMBER_INTEGER": int, "NUMBER_DOUBLE": int | float, "LIST": list, "STRUCT": dict}
_BOOLEANS = {
    **dict.fromkeys(("1", "t", "T", "true", "TRUE", "True"), True),
    **dict.fromkeys(("0", "f", "F", "false", "FALSE", "False"), False),
}
_PARAMETER = re.compile(r"\{\{\$\.inputs\.parameters\['([^']+)'\]\}\}")
_ARTIFACT = re.compile(
    r"\{\{\$\.(inputs|outputs)\.artifacts\['([^']+)'\](?:\.(uri|path|metadata)(?:\['([^']+)'\])?)?\}\}"
)
_OUTPUT_FILE = re.compile(r"\{\{\$\.outputs\.parameters\['([^']+)'\]\.output_file\}\}")


@dataclass(frozen=True)
class PipelineRun:
    """The pipeline run of a task.

    Attributes:
        root: the place of its artifacts.
        files: local directory in place of the mounted bucket: output parameters and `executor_output.json`.
        parameters: values of the pipeline's parameters; missing ones have their defaults.
        job_id: id of the pipeline job.
        project: id of the project.
        location: the region.
        encryption_key: Cloud KMS key of the run; empty for none.
        created: the creation time of its job, in the API's form.
    """

    root: str
    files: Path
    parameters: Mapping[str, Any]
    job_id: str = "train-20260101"
    project: str = "example-project"
    location: str = "us-central1"
    encryption_key: str = ""
    created: str = ""

    def placeholders(self, task: str) -> dict[str, str]:
        """Values of the placeholders that are the same for all containers of a task."""
        name = f"projects/{self.project}/locations/{self.location}/pipelineJobs/{self.job_id}"
        return {
            "{{$.pipeline_root}}": self.root,
            "{{$.pipeline_job_name}}": self.job_id,
            "{{$.pipeline_job_uuid}}": str(4611686018427387904 + zlib.crc32(self.job_id.encode())),
            "{{$.pipeline_job_resource_name}}": name,
            "{{$.pipeline_task_name}}": task,
            "{{$.pipeline_task_uuid}}": "2305843009213693952",
            "{{$.pipeline_google_cloud_project_id}}": self.project,
            "{{$.pipeline_google_cloud_location}}": self.location,
            "{{$.pipeline_persistent_resource_id}}": "",
            "{{$.pipeline_job_create_time_utc}}": self.created,
            "{{$.pipeline_job_schedule_time_utc}}": self.created,
            "{{$.pipeline_encryption_key_name}}": self.encryption_key,
        }


def executor_input_with(
    component: Mapping[str, Any],
    task: str,
    run: PipelineRun,
    values: Mapping[str, Any],
    artifacts: Mapping[str, Sequence[str | Mapping[str, Any]]],
) -> dict[str, Any]:
    """The executor input of a task with known inputs.

    Args:
        component: the task's component, in a compiled pipeline.
        task: the name of its folder.
        run: its run.
        values: its parameters; missing ones have their defaults.
        artifacts: its input artifacts by name: one, or a list's.
    """
    inputs, outputs = component.get("inputDefinitions", {}), component.get("outputDefinitions", {})
    place = f"{run.root}/{run.job_id}/{task}"
    # The service omits an optional one with neither a value nor a default: a function gets None for it.
    defaults = {
        name: definition.get("defaultValue", _EMPTY.get(definition["parameterType"]))
        for name, definition in inputs.get("parameters", {}).items()
        if name in values or "defaultValue" in definition or not definition.get("isOptional")
    }
    return {
        "inputs": {
            "parameterValues": {
                name: as_stored(values.get(name, default), inputs["parameters"][name])
                for name, default in defaults.items()
            },
            "artifacts": {
                name: {"artifacts": [_artifact(name, held, definition) for held in artifacts[name]]}
                for name, definition in inputs.get("artifacts", {}).items()
                # The service omits an optional one that no earlier step has made.
                if name in artifacts or not definition.get("isOptional")
            },
        },
        "outputs": {
            "parameters": {
                name: {"outputFile": str(run.files / task / name)} for name in outputs.get("parameters", {})
            },
            "artifacts": {
                name: {"artifacts": [_artifact(name, f"{place}/{name}", definition)]}
                for name, definition in outputs.get("artifacts", {}).items()
            },
            "outputFile": str(run.files / task / "executor_output.json"),
        },
    }


def tasks_outside_of_loops(spec: Mapping[str, Any], part: Mapping[str, Any]) -> Iterator[str]:
    """The names of the tasks of a sub-DAG and of those in it, except for loops, whose iterations are not known yet."""
    for name, task in part["dag"]["tasks"].items():
        yield name
        inner = spec.get("components", {}).get(task["componentRef"]["name"], {})
        if "dag" in inner and "parameterIterator" not in task and "artifactIterator" not in task:
            yield from tasks_outside_of_loops(spec, inner)


def resolved_texts(
    texts: Sequence[str], component: Mapping[str, Any], task: str, run: PipelineRun, executor_input: Mapping[str, Any]
) -> list[str]:
    """Texts of a task's container with every placeholder resolved; some become several texts, or none."""
    inputs = component.get("inputDefinitions", {}).get("parameters", {})
    values = executor_input["inputs"]["parameterValues"]
    empty = {
        name
        for name, held in inputs.items()
        if "defaultValue" not in held and values.get(name) == _EMPTY.get(held["parameterType"])
    }
    given = frozenset({*values, *executor_input["inputs"]["artifacts"]} - empty)
    return [_resolved(part, component, run, task, executor_input) for text in texts for part in _expanded(text, given)]


def _expanded(text: str, given: frozenset[str]) -> list[str]:
    """The texts of KFP's `ConcatPlaceholder` and `IfPresentPlaceholder`; any other text is returned itself."""
    if not text.startswith(('{"Concat"', '{"IfPresent"')):
        return [text]
    try:
        return _expanded_part(json.loads(text), given)
    except (ValueError, KeyError, TypeError, AttributeError):
        return [text]


def _expanded_part(part: Any, given: frozenset[str]) -> list[str]:
    if isinstance(part, str):
        return [part]
    if isinstance(part, list):
        return [text for each in part for text in _expanded_part(each, given)]
    if "Concat" in part:
        return ["".join(_expanded_part(part["Concat"], given))]
    asked = part["IfPresent"]
    return _expanded_part(asked["Then"] if asked["InputName"] in given else asked.get("Else", []), given)


def as_stored(value: Any, definition: Mapping[str, Any]) -> Any:
    """A parameter's value for its container: in the service's JSON, integers have a decimal point."""
    return int(value) if definition["parameterType"] == _NUMBER and value is not None else value


def read_parameter(name: str, kind: str, text: str) -> Any:
    """The value of an output parameter, from the file that a container wrote.

    Raises:
        ValueError: it does not have that type.
    """
    if kind == "STRING":
        return text
    text = text.strip()
    try:
        if kind == "BOOLEAN":
            # As read by Go, the language of the service's launcher.
            return _BOOLEANS[text]
        found = json.loads(text)
    except (ValueError, KeyError):
        found = None
    if not isinstance(found, _TYPES.get(kind, object)) or isinstance(found, bool):
        raise ValueError(f"The output parameter {name} is no {kind}: {text[:100]!r}.")
    return found


def _artifact(name: str, given: str | Mapping[str, Any], definition: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(given, str):
        return {**given, "name": name}
    return {"name": name, "type": definition["artifactType"], "uri": given, "metadata": {}}


def _resolved(
    text: str, component: Mapping[str, Any], run: PipelineRun, task: str, executor_input: Mapping[str, Any]
) -> str:
    values, definitions = executor_input["inputs"]["parameterValues"], component.get("inputDefinitions", {})
    kinds = {name: held["parameterType"] for name, held in definitions.get("parameters", {}).items()}
    lists = {name for name, held in definitions.get("artifacts", {}).items() if held.get("isArtifactList")}

    def parameter(match: re.Match[str]) -> str:
        kind = kinds[match[1]]
        value = values.get(match[1], _EMPTY.get(kind))
        return value if kind == "STRING" else _json(value)

    def artifact(match: re.Match[str]) -> str:
        side, name, what, key = match.groups()
        all_of_it = executor_input[side]["artifacts"][name]["artifacts"]
        if what is None:
            return _json(all_of_it if name in lists else all_of_it[0])
        held = all_of_it[0]
        if what == "metadata":
            value = held["metadata"] if key is None else held["metadata"].get(key)
            # A text is inserted as it is: GCPC's components have the quotes around it.
            return value if isinstance(value, str) else _json(value)
        uri = str(held["uri"])
        return uri.replace("gs://", "/gcs/", 1) if what == "path" else uri

    text = _PARAMETER.sub(parameter, text)
    text = _ARTIFACT.sub(artifact, text)
    text = _OUTPUT_FILE.sub(lambda match: executor_input["outputs"]["parameters"][match[1]]["outputFile"], text)
    for placeholder, value in run.placeholders(task).items():
        text = text.replace(placeholder, value)
    # The fields of the job are for the launcher; the inner component only knows its own inputs.
    inner = _json(_without_the_job(executor_input))
    return text.replace("{{$.json_escape[1]}}", json.dumps(inner)[1:-1]).replace("{{$}}", inner)


def _without_the_job(executor_input: Mapping[str, Any]) -> dict[str, Any]:
    inputs = executor_input["inputs"]
    values = {name: value for name, value in inputs["parameterValues"].items() if name != "worker_pool_specs"}
    return {**executor_input, "inputs": {**inputs, "parameterValues": values}}


def _json(value: Any) -> str:
    return json.dumps(as_protobuf_writes(value))
