"""The results of a run on this machine, line by line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gpu_pipelines.component_interface.parameter import shown_value
from gpu_pipelines.dag.placement import PREDICTS, PREPARES
from gpu_pipelines.errors import (
    ERROR_PREFIX,
    UnavailableError,
)
from gpu_pipelines.reports.durations import format_seconds
from gpu_pipelines.targets.steps import last_lines
from gpu_pipelines.terminal import Column, Table

if TYPE_CHECKING:
    from gpu_pipelines.artifacts.evaluation import Evaluation
    from gpu_pipelines.targets.runs.record import RunRecord

LINES_OF_LOG_SHOWN = 12
METRICS_SHOWN = 4
CHARACTERS_SHOWN = 200
_WORD = re.compile(r"[\w.]+")
#: The error of a step that opens the path that KFP makes of the URI of an artifact in a bucket.
_NO_MOUNT = re.compile(r"No such file or directory: '/(gcs|s3|minio)/")


def shown_result(record: RunRecord) -> list[str | Table]:
    """The results of a run, line by line."""
    if record.status != "succeeded":
        return list(_failure(record))
    end = [f"finished in {format_seconds(record.seconds)}", f"report: {record.report}"]
    outputs = [f"{name}: {_short(value)}" for name, value in record.outputs.items()]
    came = [*_evaluation(record), *_version(record)] if record.model else [record.reason] if record.reason else []
    return [*came, *outputs, *end]


def _short(value: Any) -> str:
    """A value on one line."""
    text = " ".join(shown_value(value).split())
    return text if len(text) <= CHARACTERS_SHOWN else f"{text[:CHARACTERS_SHOWN]}…"


def _evaluation(record: RunRecord) -> list[str | Table]:
    from gpu_pipelines.numbers import figure

    evaluation = record.evaluation
    if evaluation is None:
        return []
    # The report has all of them.
    asked = [evaluation.select_by, *(word for gate in evaluation.gates for word in _WORD.findall(gate["gate"]))]
    places = {name: place for place, name in reversed(list(enumerate(asked)))}
    metrics = sorted(evaluation.test["metrics"], key=lambda name: places.get(name, len(asked)))[:METRICS_SHOWN]
    table = Table("checkpoint", "", *(Column.number(name, spare=place) for place, name in enumerate(metrics)))
    for scored in evaluation.checkpoints_shown:
        values = [figure(scored["val"].get(name)) for name in metrics]
        table.add_row(scored["name"], "val", *values, style="bold" if scored["name"] == evaluation.best else "")
    test = [figure(evaluation.test["metrics"][name]["value"]) for name in metrics]
    table.add_row(evaluation.best, "test", *test, style="bold")
    return [
        table,
        *_benchmarks(evaluation),
        *(f"{'✓' if gate['passed'] else '✗'} {gate['gate']}: {gate['why']}" for gate in evaluation.gates),
    ]


def _benchmarks(evaluation: Evaluation) -> list[str]:
    """A line with the first metric of each benchmark of the best checkpoint; the report has all."""
    from gpu_pipelines.artifacts.benchmark_results import first_metrics
    from gpu_pipelines.numbers import figure

    if evaluation.benchmarks is None:
        return []
    metrics = evaluation.benchmarks["checkpoints"][0]["metrics"]
    shown = "  ".join(f"{name} {figure(metrics[name]['value'])}" for name in first_metrics(evaluation.benchmarks))
    return [f"benchmarks of {evaluation.best}: {shown}"]


def _version(record: RunRecord) -> list[str]:
    done = "registered" if record.added else "nothing was registered: the same model is"
    aliases = " and ".join(record.model["aliases"])
    place = f" in {record.parameters['registry']}" if "registry" in record.parameters else ""
    version = f"{done} {record.model['model_name']} version {int(record.model['version'])} as {aliases}{place}"
    return [version, *([] if record.is_champion else [record.instead])]


def _failure(record: RunRecord) -> Iterator[str]:
    if record.status == "interrupted":
        # Their work is kept and found automatically. A run that resumed another was started with --resume.
        goes_on_itself = record.steps and record.steps[-1].name in (PREPARES, PREDICTS)
        yield f"interrupted; logs: {record.directory / 'logs'}"
        yield f"run the same command {'again' if goes_on_itself or record.resumes else 'with --resume'} to continue"
        return
    step = record.failed_step
    log = record.directory / str(step.log)
    if step.message:
        yield f"{ERROR_PREFIX}{step.name} failed: {step.message}"
    else:
        lines = last_lines(log, LINES_OF_LOG_SHOWN)
        yield f"{ERROR_PREFIX}{step.name} failed; its log ends:"
        yield from (f"  {line}" for line in lines)
        if any(_NO_MOUNT.search(line) for line in lines):
            yield "no bucket is mounted here: open the uri of the artifact, not its path, or give a local one"
    yield f"log: {log}"
    if step.kind == UnavailableError.kind:
        yield f"it is an error of a service; to continue at this step: gpu-pipelines run --resume {record.run_id}"
