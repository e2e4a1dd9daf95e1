"""Suggestions after a run on this machine: a few commands to copy."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_pipelines.artifacts.checkpoint import CONFIGURATION, METRICS
from gpu_pipelines.artifacts.checkpoint_lock import LOCK
from gpu_pipelines.artifacts.remote_files import is_remote
from gpu_pipelines.dag import PIPELINES, load_request
from gpu_pipelines.dag.placement import TRAINING_STEPS
from gpu_pipelines.dag.places import DATA
from gpu_pipelines.errors import InvalidRequestError, UnfitParametersError, UserError, said_by
from gpu_pipelines.evaluation.user_function import file_of
from gpu_pipelines.registry import is_local
from gpu_pipelines.serving.served_models import task_of
from gpu_pipelines.targets.options import declared, flag_of
from gpu_pipelines.targets.options import given as given_options
from gpu_pipelines.targets.runs.recorded import checkpoints_of
from gpu_pipelines.targets.runs.trial_record import RUNS
from gpu_pipelines.tracking.trackers import problems_of_tracking

if TYPE_CHECKING:
    from gpu_pipelines.targets.messages import Request
    from gpu_pipelines.targets.options import Options
    from gpu_pipelines.targets.runs.record import RunRecord
    from gpu_pipelines.targets.steps import StepRecord

_REGISTRY = Path("registry")
#: Placeholders, as in the messages of targets.
_BUCKET, _MOUNTED = "gs://BUCKET", "/gcs/BUCKET"
#: Rows of a table that are read to find its images.
_ROWS_LOOKED_AT = 1000
#: Accelerator for a first training on a GPU.
_GPU = "l4:1"


def next_commands(record: RunRecord, request: Request, options: Options, of_kubernetes: bool = False) -> list[str]:
    """The commands that are useful after a run, line by line.

    Args:
        record: record of the run.
        request: its request.
        options: its options on this machine.
        of_kubernetes: whether the pipeline has settings for Kubernetes, which Vertex AI does not take.
    """
    target = "kubeflow" if of_kubernetes else "vertex"
    return ["next:", *(f"  {command}" for command in _commands(record, request, options, target))]


def _commands(record: RunRecord, request: Request, options: Options, target: str) -> Iterator[str]:
    runs = record.directory.parent
    yield f"gpu-pipelines runs open {record.run_id}" + ("" if runs == RUNS else f" --runs {shlex.quote(str(runs))}")
    if record.tensorboard:
        yield f"tensorboard --logdir {shlex.quote(str(record.tensorboard))}"
    # It continues with the step that failed; a run interrupted in its first step has the same command for that.
    if record.status in ("failed", "interrupted") and len(record.steps) > 1:
        yield shlex.join([*_going_on(record, request), *_flags(options)])
    if record.status != "succeeded":
        return
    if record.model:
        yield from _commands_of_model(record)
    if record.tensorboard:
        here = _copied_of(record, request)
        for name in ("source", "test_source") if not request.is_own else ():
            if name in here and not record.parameters.get("image_root"):
                here[name] = here[name].with_images(str(record.parameters.get("image_column", "")))
        there = replace(request, given=_given_there(request.given, here, target))
        if not _is_found_there(record, there):
            return
        if here:
            copied = dict.fromkeys(path for each in here.values() for path in each.paths)
            yield shlex.join(["gcloud", "storage", "cp", "--recursive", *copied, f"{_BUCKET}/"])
        yield shlex.join([*_again(there), "--target", target, "--accelerator", _GPU])


@dataclass(frozen=True)
class _Copied:
    """The copies in a bucket for a parameter.

    Attributes:
        paths: paths on this machine.
        place: new value of the parameter, in the bucket.
    """

    paths: tuple[str, ...]
    place: str

    @classmethod
    def of(cls, given: object) -> _Copied | None:
        """The copies for a path, or for the file of a function, which is imported from the mounted bucket.

        For a list, or a text with commas, for each of them. None if nothing is on this machine.
        """
        if isinstance(given, str) and (_is_here(given) or _is_function_here(given)):
            path, colon, function = given.rpartition(":") if _is_function_here(given) else (given, "", "")
            name = Path(path).expanduser().resolve().name
            return cls((path,), f"{_MOUNTED if function else _BUCKET}/{name}{colon}{function}")
        parts = given.split(",") if isinstance(given, str) and "," in given else given
        each = {part: cls.of(part) for part in (str(part).strip() for part in parts)} if isinstance(parts, list) else {}
        paths = [path for copied in each.values() if copied for path in copied.paths]
        return cls(tuple(paths), ",".join(it.place if it else part for part, it in each.items())) if paths else None

    def with_images(self, column: str) -> _Copied:
        """With the images that a table names, which are in its folder; others stay as they are.

        Args:
            column: column with the paths of the images.
        """
        table = Path(self.paths[0]).expanduser().resolve()
        if not column or not table.is_file() or not (named := _images_named(table, column)):
            return self
        if not Path.cwd().is_relative_to(table.parent):
            return _Copied((str(Path(self.paths[0]).parent),), f"{_BUCKET}/{table.parent.name}/{table.name}")
        # The folder of the table has everything else, too.
        beside = sorted({name.partition("/")[0] for name in named})
        return replace(self, paths=(*self.paths, *(str(Path(self.paths[0]).parent / name) for name in beside)))


def _copied_of(record: RunRecord, request: Request) -> dict[str, _Copied]:
    """The given parameters that name files, folders or functions in files of this machine, with their copies."""
    found = {name: _Copied.of(value) for name, value in request.given.items() if name != "registry"}
    given = {name: copied for name, copied in found.items() if copied}
    if request.is_own:  # the meaning of its parameters is not known
        return given
    named = {place.parameter for place in load_request(request.pipeline).places(record.parameters)}
    return {name: copied for name, copied in given.items() if name in named}


def _images_named(table: Path, column: str) -> list[str]:
    """The images in the folder of a table that its first rows name; none for other tables."""
    from gpu_pipelines.data.settings import PrepareSettings
    from gpu_pipelines.data.sources.file_source import find_files
    from gpu_pipelines.data.sources.row_streams import Meter, Problem
    from gpu_pipelines.data.sources.rows import rows_of

    try:
        source = find_files(PrepareSettings(source=str(table), image_column=column))
        rows = [row for _, (_, row) in islice(rows_of(source, [column], Meter(source)), _ROWS_LOOKED_AT)]
    except UserError:
        return []
    values = [row.get(column) for row in rows if not isinstance(row, Problem)]
    names = [
        name.replace("\\", "/") for name in values if isinstance(name, str)
    ]  # Windows paths, as prepare_data reads them
    return [name for name in names if (table.parent / name).is_file()]


def _given_there(given: Mapping[str, object], here: Mapping[str, _Copied], target: str) -> dict[str, object]:
    """Parameters for another target, which sees no files, and keeps no registry or tracker, of this machine."""
    is_lost = {
        "registry": is_local(str(given.get("registry", ""))),
        "tracking": problems_of_tracking(str(given.get("tracking", "")), target, is_here=False),
    }
    return {name: here[name].place if name in here else value for name, value in given.items() if not is_lost.get(name)}


def _is_found_there(record: RunRecord, there: Request) -> bool:
    """Whether the data of a request is read on other machines: not that of a database here, or of a pattern."""
    from gpu_pipelines.data.sources.sources import source_of

    if there.is_own:
        return True
    places = load_request(there.pipeline).places({**record.parameters, **there.given})
    return all(source_of(place.uri).is_read_anywhere(place.uri) for place in places if place.kind == DATA)


def _is_function_here(value: str) -> bool:
    """Whether the value of a parameter is a function in a file of this machine."""
    return file_of(value) is not None and _is_here(value.rpartition(":")[0])


def _is_here(value: str) -> bool:
    """Whether the value of a parameter is a file or a folder of this machine."""
    if not value or is_remote(value):
        return False
    try:
        return Path(value).expanduser().exists()
    except (OSError, RuntimeError, ValueError):  # a text that cannot be a path
        return False


def _commands_of_model(record: RunRecord) -> Iterator[str]:
    name, place = record.model["model_name"], Path(record.artifacts["model"])
    if not place.is_dir():
        registry = record.parameters.get("registry", "")
        yield f"gpu-pipelines models show {name}" + (f" --registry {registry}" if registry else "")
        return
    # The path is that of NAME/versions/NUMBER below it.
    root = place.resolve().parents[2]
    where = "" if root == _REGISTRY.resolve() else f" --registry {shlex.quote(str(root))}"
    yield f"gpu-pipelines models show {name}{where}"
    if not said_by(lambda: task_of(place)):
        yield f"gpu-pipelines serve {name}@{int(record.model['version'])}{where}"


def _going_on(record: RunRecord, request: Request) -> list[str]:
    """The command that continues a run that failed or was interrupted, without its options."""
    begun_anew = _is_of_another_training(record) or not (record.resumes or _has_trained(record))
    if record.status == "failed" and begun_anew:
        return [*_again(request), "--cache"]
    # Only the run knows what a training continues from, and what it reused from another place.
    if request.is_own:
        return ["gpu-pipelines", "run", request.pipeline, "--resume", record.run_id]
    if request.pipeline.replace("-", "_") in PIPELINES:
        return ["gpu-pipelines", "run", "--resume", record.run_id]
    # Only the continued run has the file of a user's own pipeline.
    return ["gpu-pipelines", "run", "--resume", record.resumes, *_parameters(request)]


def _has_trained(record: RunRecord) -> bool:
    """Whether `--cache` might repeat a training of the run: one that is done, but whose script is edited since, or one
    that failed and can continue from its files."""
    if any(_trains(step) and step.status in ("succeeded", "reused") for step in record.steps):
        return True
    step = record.failed_step
    place = checkpoints_of(record) if _trains(step) and step.kind != UnfitParametersError.kind else ""
    # A script may save files, without folders.
    return bool(place) and any(each.name not in (CONFIGURATION, METRICS, LOCK) for each in Path(place).glob("*"))


def _is_of_another_training(record: RunRecord) -> bool:
    """Whether a training was refused its checkpoints, for example because they are for other data."""
    step = record.failed_step
    return _trains(step) and step.kind == InvalidRequestError.kind


def _trains(step: StepRecord) -> bool:
    return any(step.task.startswith(each) for each in TRAINING_STEPS)


def _again(request: Request) -> list[str]:
    """The command of the request with its parameters only."""
    return ["gpu-pipelines", "run", request.pipeline, *_parameters(request)]


def _parameters(request: Request) -> list[str]:
    return [part for name, value in request.given.items() for part in ("-p", f"{name}={_text(value)}")]


def _flags(options: Options) -> Iterator[str]:
    """The options of a run as given: with other processes, for example, a training would be a different one."""
    known = declared(type(options))
    for name, value in given_options(options).items():
        if "run" not in known[name].commands or known[name].hidden:
            continue
        flag = flag_of(name)
        if isinstance(value, bool):
            yield flag if value else f"--no-{flag[2:]}"
        else:
            yield from (part for each in (value if isinstance(value, list) else [value]) for part in (flag, str(each)))


def _text(value: object) -> str:
    """A parameter's value for `-p`; values from a file need not be texts."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
