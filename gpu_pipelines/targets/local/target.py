"""The local target: the pipeline on this machine, with KFP's own local runner, one subprocess for each step."""

from __future__ import annotations

import builtins
import logging
import shutil
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gpu_pipelines.accelerators import AcceleratorPlan, plan
from gpu_pipelines.component_interface.default_registry import DEFAULT_REGISTRY
from gpu_pipelines.dag.placement import LOOKING_STEPS, PREDICTS, PREPARES, RUNS_SCRIPT, TELLS, WATCHES
from gpu_pipelines.errors import ERROR_FILE, UserError
from gpu_pipelines.numbers import as_protobuf_writes
from gpu_pipelines.step_environment import (
    ACCELERATOR,
    INPUT_STATE,
    RUN_CHECKPOINTS,
    RUN_DIRECTORY,
    TRACKED_RUN,
    TRACKING,
    UNFINISHED_WORK,
    environment_with,
)
from gpu_pipelines.targets.compiled import compiled
from gpu_pipelines.targets.local.outputs.left import finite, written
from gpu_pipelines.targets.local.runner.kfp_runner import as_on_platforms
from gpu_pipelines.targets.local.runner.log import LocalLog
from gpu_pipelines.targets.local.runner.processes import no_process_left_behind
from gpu_pipelines.targets.own.plans import require_here
from gpu_pipelines.targets.runs.record import RunRecord
from gpu_pipelines.targets.steps import Observer, StepRecord

if TYPE_CHECKING:
    from gpu_pipelines.component_interface.parameter import Parameter
    from gpu_pipelines.notifications.recipients import Recipients


STEP_PACKAGES = ("jinja2", "matplotlib", "numpy", "PIL", "psutil", "pyarrow", "safetensors", "torch", "transformers")
# Steps that are run for their effect, such as a new version, and steps that check for changes.
NEVER_REUSED = ("upload-model", PREDICTS, TELLS, *LOOKING_STEPS)
#: The outputs of a run by their names in pipelines, each with the step and the name of the step's output.
_ARTIFACTS = {
    "data_report": ("prepare-data", "report"),
    "training_report": ("train-model", "training_report"),
    "evaluation_report": ("evaluate-checkpoints", "report"),
    "best_checkpoint": ("evaluate-checkpoints", "best_checkpoint"),
    "model": ("upload-model", "model"),
}
#: Folder for the results of a run without the cache, while it runs.
_OWN_CACHE = ".cache"
_TRACKING = "tracking"
_REASON = (WATCHES, "reason")


class LocalTarget:
    """Places steps on this machine.

    Args:
        state_by_step: for each step that reads more than its inputs, a digest of the rest; it becomes part of the key
            of the step's cached results.
        checkpoint_uri: directory in which a training continues; None for one of the run's own.
        unfinished_work: directory that keeps a preparation, or a prediction, until it is finished; None for one of the
            run's own.

    Attributes:
        registry: a directory where the command runs.
        pipeline_job: the run's name; the local runner knows no resource names.
        encryption_key: none; the registry uses that of the settings.
        recipients: None: the command itself sends messages when the run has ended.
        notification: None: the command's exit status and the run's outcome.json tell how it ended.
        parameters: none.
        note: nothing.
        for_check: that it runs on this machine.
    """

    registry = DEFAULT_REGISTRY
    pipeline_job = "{{$.pipeline_job_name}}"
    encryption_key = ""
    recipients: Recipients | None = None
    notification = None
    parameters: Mapping[str, Parameter] = MappingProxyType({})
    note = ""
    for_check: Mapping[str, Any] = MappingProxyType({"place": "local"})

    def __init__(
        self,
        state_by_step: Mapping[str, str] | None = None,
        checkpoint_uri: str | None = None,
        unfinished_work: Path | None = None,
    ) -> None:
        self.checkpoint_uri = checkpoint_uri
        self._state_by_step = dict(state_by_step or {})
        self._unfinished_work = unfinished_work

    def place(self, component: Any, plan: AcceleratorPlan | None) -> Callable[..., Any]:
        """The component itself, with the devices to use."""

        def task(**arguments: Any) -> Any:
            if component.name not in LOOKING_STEPS:
                # In the environment: an input would be part of the key of cached results.
                arguments.pop(_TRACKING, None)
            placed = component(**arguments)
            known = component.name != RUNS_SCRIPT or RUNS_SCRIPT in self._state_by_step
            placed.set_caching_options(known and component.name not in NEVER_REUSED)
            if plan is not None:
                placed.set_env_variable(ACCELERATOR, plan.spec)
            if component.name in (PREPARES, PREDICTS) and self._unfinished_work is not None:
                placed.set_env_variable(UNFINISHED_WORK, str(self._unfinished_work))
            if component.name in self._state_by_step:
                placed.set_env_variable(INPUT_STATE, self._state_by_step[component.name])
            return placed

        return task


def plan_here(spec: str) -> AcceleratorPlan | None:
    """The plan for `cpu:N`; None for an empty text, which means all GPUs of this machine, else two CPU processes.

    Raises:
        UserError: the text is not an accelerator, or one that is elsewhere.
    """
    if not spec:
        return None
    planned = plan(spec)
    require_here(planned)
    return planned


def compiled_for_here(name: str, planned: AcceleratorPlan, task: str = "") -> str:
    """The text of the file of a pipeline for this machine.

    Raises:
        UserError: there is no such pipeline, or the plan is for another place.
    """
    from gpu_pipelines.dag import load_pipeline

    require_here(planned)
    return compiled(load_pipeline(name).build(LocalTarget(), planned, task=task))


@dataclass(frozen=True)
class LocalRun:
    """The result of a run on this machine.

    Attributes:
        status: succeeded, failed or interrupted.
        steps: the steps that began, in order.
        artifacts: place of each existing output, by name; none unless the run succeeded.
        model: metadata of the registered version; empty if none was.
        reason: why there was, or was not, anything to train; empty if that was not checked.
        values: outputs of the pipeline that are not artifacts, by name.
    """

    status: str
    steps: list[StepRecord]
    artifacts: dict[str, str] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    reason: str = ""
    values: dict[str, Any] = field(default_factory=dict)


def require_step_packages() -> None:
    """Checks that the packages of the steps are installed, without importing them.

    Raises:
        UserError: one is not.
    """
    missing = [name for name in STEP_PACKAGES if find_spec(name) is None]
    if missing:
        raise UserError(
            f"Running on this machine needs {', '.join(missing)}.", "Install it: pip install 'gpu-pipelines[steps]'."
        )


@dataclass(frozen=True)
class RunPlace:
    """Where a run on this machine keeps its results, and where it finds those of earlier runs.

    Attributes:
        directory: directory of the run; gets `artifacts/` and `logs/`.
        cache: folder of cached results.
        reuse: whether it reuses results of earlier runs for steps whose inputs have not changed.
        checkpoints: folder of the checkpoints of a user's own pipeline; empty for a place of this run.
    """

    directory: Path
    cache: Path
    reuse: bool
    checkpoints: str = ""

    @property
    def results(self) -> Path:
        """Where its steps find and keep results: a run without the cache has a cache of its own."""
        return self.cache if self.reuse else self.directory / _OWN_CACHE

    @property
    def error(self) -> Path:
        """The file for the error of a step."""
        return self.directory / ".error.json"

    def variables(self, tracking: str) -> dict[str, str]:
        """The environment variables of the steps, including their tracker; empty for none."""
        run, own = self.directory.absolute(), f"artifacts/checkpoints/{self.directory.name}"
        return {
            ERROR_FILE: str(self.error.absolute()),
            RUN_DIRECTORY: str(run),
            # Below artifacts/checkpoints of the continued run.
            TRACKED_RUN: str(Path(self.checkpoints).parents[2] if self.checkpoints else run),
            TRACKING: tracking,
            RUN_CHECKPOINTS: self.checkpoints or str(run / own),
        }


def run_locally(
    pipeline: Any,
    arguments: Mapping[str, Any],
    place: RunPlace,
    observer: Observer,
    *,
    tracking: str = "",
    steps: list[StepRecord] | None = None,
    unshown: Collection[str] = (),
    stopping: Callable[[StepRecord | None], None] = lambda step: None,
) -> LocalRun:
    """Runs a pipeline and waits for it.

    Args:
        pipeline: a KFP pipeline, built for `LocalTarget`.
        arguments: its parameters; those left out have their defaults.
        place: where it keeps its results.
        observer: gets the events of the run.
        tracking: the tracker of the steps; empty for none.
        steps: gets the steps as they begin.
        unshown: names of tasks that are not steps.
        stopping: called at once after a Ctrl-C or SIGTERM, with the running step, which may take a while to end; a
            second Ctrl-C kills it.
    """
    from kfp import local

    local.init(
        local.SubprocessRunner(use_venv=False),
        pipeline_root=str(place.directory / "artifacts"),
        workspace_root=str((place.directory / ".workspace").absolute()),
        enable_caching=True,
        cache_root=str(place.results),
    )
    log = LocalLog(place.directory, place.error, observer, steps, unshown)
    # Not variables of the tasks: they would be part of the key of cached results.
    told = environment_with(place.variables(tracking))
    errors: list[Exception] = []
    try:
        with (
            told,
            redirect_stdout(log),
            _logging_to(log),
            _printing_to(log),
            # It ends after the processes, because it waits for their turns.
            as_on_platforms(place.cache.parent) as errors,
            _no_process_left(log, stopping),
        ):
            # KFP does not take None: an optional parameter without a value is left out.
            outputs = pipeline(**{name: value for name, value in arguments.items() if value is not None}).outputs
        log.end_running("succeeded")
        return _succeeded(log.steps, place.directory, outputs)
    except KeyboardInterrupt:
        log.end_running("interrupted")
        return LocalRun("interrupted", log.steps)
    except RuntimeError as error:
        # The runner's only sign that a task failed; anything else that it raises is a defect and passes.
        if not any(step.status == "failed" for step in log.steps):
            raise next(iter(errors), error) from None
        return LocalRun("failed", log.steps)
    finally:
        place.error.unlink(missing_ok=True)
        if not place.reuse:
            # It still keeps its results for later runs with the cache.
            _merge(place.results, place.cache)


def adopt_results(runs: Path, cache: Path) -> None:
    """Caches the results of steps of killed runs, which could not do that themselves.

    Args:
        runs: directory of runs.
        cache: folder of cached results.
    """
    for left in runs.glob(f"*/{_OWN_CACHE}"):
        with suppress(UserError):  # `runs list` reports a damaged record; it stops no other run
            if left.is_dir() and RunRecord.load(left.parent).status == "died":
                _merge(left, cache)


def _succeeded(steps: list[StepRecord], directory: Path, outputs: Mapping[str, Any]) -> LocalRun:
    """A run with the outputs of its steps, read from where KFP's executor wrote them.

    The local runner returns a pipeline's own outputs, but none if the pipeline has a branch that may not be taken.

    Args:
        steps: the steps that ran.
        directory: directory of the run.
        outputs: the pipeline's own, by name; they win, because a reused step wrote them elsewhere.
    """
    contents = list(written(directory))
    found: dict[str, Any] = {}
    for name, (step, output) in _ARTIFACTS.items():
        for left in (content for of, content in contents if _is_of(of, step)):
            if output in left.get("artifacts", {}):
                found[name] = left["artifacts"][output]["artifacts"][0]
    reasons = [content.get("parameterValues", {}).get(_REASON[1], "") for of, content in contents if of == _REASON[0]]
    values = {}
    for name, output in outputs.items():
        if isinstance(output, str | int | float | bool | list | dict | None):
            values[name] = _plain(as_protobuf_writes(output) if isinstance(output, list | dict) else output)
        else:
            found[name] = {"uri": output.uri, "metadata": dict(output.metadata)}
    return LocalRun(
        "succeeded",
        steps,
        artifacts={name: str(artifact["uri"]) for name, artifact in found.items()},
        model=found["model"].get("metadata", {}) if "version" in found.get("model", {}).get("metadata", {}) else {},
        reason=str(next(iter(reasons), "")),
        values=values,
    )


def _plain(output: Any) -> Any:
    """An output as JSON: the places of a list of artifacts, and the text of a number that is not finite."""
    if isinstance(output, list):
        return [_plain(each) for each in output]
    if isinstance(output, float) and finite(output) is None:
        return str(output)
    return str(output.uri) if hasattr(output, "uri") else output


def _is_of(name: str, step: str) -> bool:
    """Whether a task belongs to a step of this project, which KFP numbers from the second on."""
    return name == step or (name.startswith(f"{step}-") and name.removeprefix(f"{step}-").isdigit())


def _no_process_left(log: LocalLog, stopping: Callable[[StepRecord | None], None]) -> AbstractContextManager[None]:
    def interrupted() -> None:
        log.is_interrupted = True
        stopping(log.running)

    return no_process_left_behind(interrupted)


@contextmanager
def _printing_to(log: LocalLog) -> Iterator[None]:
    """Makes `print` the log's, despite the runner's own wrapping."""
    before = builtins.print
    builtins.print = log.print
    try:
        with warnings.catch_warnings():
            # The image's name, and CPUs and memory, do not matter here. A bucket does only for a step that opens a path
            # in it, which is told then.
            warnings.filterwarnings("ignore", message=".*custom or non-Python base image")
            warnings.filterwarnings("ignore", message=".*have no effect in the current local runner")
            warnings.filterwarnings("ignore", message=".*using the remote file")
            yield
    finally:
        builtins.print = before


@contextmanager
def _logging_to(stream: LocalLog) -> Iterator[None]:
    """Sends log records to `stream`: the reuse of a step is logged while the runner's own handler is not installed."""
    root = logging.getLogger()
    handler, level = logging.StreamHandler(stream), root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(level)


def _merge(source: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for entry in source.glob("*.json"):
        with suppress(FileNotFoundError):  # another run that begins now adopts the same results
            entry.replace(target / entry.name)
    shutil.rmtree(source, ignore_errors=True)
