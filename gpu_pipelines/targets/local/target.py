"""The local target: the pipeline on this machine, with KFP's own local runner, one subprocess per step."""

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
from gpu_pipelines.targets.local.kfp_runner import as_on_platforms
from gpu_pipelines.targets.local.left import finite, written
from gpu_pipelines.targets.local.log import LocalLog
from gpu_pipelines.targets.local.processes import no_process_left_behind
from gpu_pipelines.targets.own.plans import require_here
from gpu_pipelines.targets.run_record import RunRecord
from gpu_pipelines.targets.steps import Observer, StepRecord

if TYPE_CHECKING:
    from gpu_pipelines.component_interface.parameter import Parameter
    from gpu_pipelines.notifications.recipients import Recipients


STEP_PACKAGES = ("jinja2", "matplotlib", "numpy", "PIL", "psutil", "pyarrow", "safetensors", "torch", "transformers")
# The effect of one, a new version, is what it is run for, and the others look at what may have changed.
NEVER_REUSED = ("upload-model", PREDICTS, TELLS, *LOOKING_STEPS)
#: The outputs of a run by the name that pipelines give them, each with the step and the step's own name of it.
_ARTIFACTS = {
    "data_report": ("prepare-data", "report"),
    "training_report": ("train-model", "training_report"),
    "evaluation_report": ("evaluate-checkpoints", "report"),
    "best_checkpoint": ("evaluate-checkpoints", "best_checkpoint"),
    "model": ("upload-model", "model"),
}
#: Where a run that takes no results of others keeps those of its steps, as long as it goes on.
_OWN_CACHE = ".cache"
_TRACKING = "tracking"
_REASON = (WATCHES, "reason")


class LocalTarget:
    """Places steps on this machine.

    Args:
        state_by_step: for each step that reads more than its inputs, a digest of that; it becomes part of the key under
            which the step's results are kept for reuse.
        checkpoint_uri: directory in which a training is to be continued; None for one of the run's own.
        unfinished_work: directory in which a preparation, or a prediction, is kept until it is finished; None for one
            of the run's own.

    Attributes:
        registry: a directory where the command is run.
        pipeline_job: the run's name; the local runner knows no resource names.
        encryption_key: none; the registry takes that of the settings.
        recipients: None: the command tells them itself, once the run has ended.
        notification: None: the command's exit status and the run's outcome.json tell how it ended.
        parameters: none.
        note: nothing.
        for_check: that it is here.
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
        """The component itself, told which devices to use."""

        def task(**arguments: Any) -> Any:
            if component.name not in LOOKING_STEPS:
                # The environment says it: as an input it would be in the key under which results are kept.
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
        UserError: the text is no accelerator, or one that is elsewhere.
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
    """How a run on this machine went.

    Attributes:
        status: succeeded, failed or interrupted.
        steps: the steps that began, in order.
        artifacts: place of each output that there is, by name; none unless the run succeeded.
        model: metadata of the registered version; empty if none was.
        reason: why there was, or was not, anything to train; empty if nobody asked.
        values: outputs of the pipeline that are no artifacts, by name.
    """

    status: str
    steps: list[StepRecord]
    artifacts: dict[str, str] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    reason: str = ""
    values: dict[str, Any] = field(default_factory=dict)


def require_step_packages() -> None:
    """Checks that what the steps import is installed, without importing it.

    Raises:
        UserError: something is not.
    """
    missing = [name for name in STEP_PACKAGES if find_spec(name) is None]
    if missing:
        raise UserError(
            f"Running on this machine needs {', '.join(missing)}.", "Install it: pip install 'gpu-pipelines[steps]'."
        )


@dataclass(frozen=True)
class RunPlace:
    """Where a run on this machine keeps what it makes, and what it takes of earlier runs.

    Attributes:
        directory: the run; gets `artifacts/` and `logs/`.
        cache: where results of steps are kept over runs.
        reuse: whether it takes results of earlier runs for steps whose inputs have not changed.
        checkpoints: below which the trainings of a pipeline of one's own have their checkpoints; empty for a place of
            this run.
    """

    directory: Path
    cache: Path
    reuse: bool
    checkpoints: str = ""

    @property
    def results(self) -> Path:
        """Where its steps look for results, and keep theirs: a run that takes none fills a cache of its own."""
        return self.cache if self.reuse else self.directory / _OWN_CACHE

    @property
    def error(self) -> Path:
        """Where a step leaves what it failed with."""
        return self.directory / ".error.json"

    def variables(self, tracking: str) -> dict[str, str]:
        """What the steps are told by their environment, with the tracker that they tell; empty for none."""
        run, own = self.directory.absolute(), f"artifacts/checkpoints/{self.directory.name}"
        return {
            ERROR_FILE: str(self.error.absolute()),
            RUN_DIRECTORY: str(run),
            # Below artifacts/checkpoints of the run that is continued.
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
        place: where it keeps what it makes.
        observer: is told how it goes.
        tracking: the tracker that the steps tell; empty for none.
        steps: gets the steps as they begin.
        unshown: names of tasks that are no steps.
        stopping: is called at once after a Ctrl-C or SIGTERM, with the step that runs, which may take a while to end; a
            second Ctrl-C kills it.
    """
    from kfp import local

    local.init(
        local.SubprocessRunner(use_venv=False),
        pipeline_root=str(place.directory / "artifacts"),
        workspace_root=str(place.directory / ".workspace"),
        enable_caching=True,
        cache_root=str(place.results),
    )
    log = LocalLog(place.directory, place.error, observer, steps, unshown)
    # Not variables of the tasks: they would be part of the key under which their results are kept.
    told = environment_with(place.variables(tracking))
    errors: list[Exception] = []
    try:
        with (
            told,
            redirect_stdout(log),
            _logging_to(log),
            _printing_to(log),
            # Ends after the processes have, for whose turns it waits.
            as_on_platforms(place.cache.parent) as errors,
            _no_process_left(log, stopping),
        ):
            # KFP takes no None: an optional parameter without a value is one that it is not told.
            outputs = pipeline(**{name: value for name, value in arguments.items() if value is not None}).outputs
        log.end_running("succeeded")
        return _succeeded(log.steps, place.directory, outputs)
    except KeyboardInterrupt:
        log.end_running("interrupted")
        return LocalRun("interrupted", log.steps)
    except RuntimeError as error:
        # The only way in which the runner says that a task failed; anything else it raises is a defect and passes.
        if not any(step.status == "failed" for step in log.steps):
            raise next(iter(errors), error) from None
        return LocalRun("failed", log.steps)
    finally:
        place.error.unlink(missing_ok=True)
        if not place.reuse:
            # It still leaves its results for a run that takes them.
            _merge(place.results, place.cache)


def adopt_results(runs: Path, cache: Path) -> None:
    """Keeps for reuse what the steps of runs have left that were killed, and could not do that themselves.

    Args:
        runs: directory of runs.
        cache: where results of steps are kept over runs.
    """
    for left in runs.glob(f"*/{_OWN_CACHE}"):
        with suppress(UserError):  # a damaged record is told of by `runs list`; it stops no other run
            if left.is_dir() and RunRecord.load(left.parent).status == "died":
                _merge(left, cache)


def _succeeded(steps: list[StepRecord], directory: Path, outputs: Mapping[str, Any]) -> LocalRun:
    """A run with what its steps have left, read from where KFP's executor wrote it.

    The local runner hands over a pipeline's own outputs, and one with a branch that may not be taken has none.

    Args:
        steps: those that have run.
        directory: the run's.
        outputs: the pipeline's own, by name; they win, because a step whose results are reused wrote them elsewhere.
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
    """An output as JSON has it: of a list of artifacts their places, and of what is no finite number its text."""
    if isinstance(output, list):
        return [_plain(each) for each in output]
    if isinstance(output, float) and finite(output) is None:
        return str(output)
    return str(output.uri) if hasattr(output, "uri") else output


def _is_of(name: str, step: str) -> bool:
    """Whether a task is one of a step of this project, which KFP numbers from the second on."""
    return name == step or (name.startswith(f"{step}-") and name.removeprefix(f"{step}-").isdigit())


def _no_process_left(log: LocalLog, stopping: Callable[[StepRecord | None], None]) -> AbstractContextManager[None]:
    def interrupted() -> None:
        log.is_interrupted = True
        stopping(log.running)

    return no_process_left_behind(interrupted)


@contextmanager
def _printing_to(log: LocalLog) -> Iterator[None]:
    """Lets `print` be the log's, whatever the runner puts around it."""
    before = builtins.print
    builtins.print = log.print
    try:
        with warnings.catch_warnings():
            # The image's name, and CPUs and memory, are no matter here.
            warnings.filterwarnings("ignore", message=".*custom or non-Python base image")
            warnings.filterwarnings("ignore", message=".*have no effect in the current local runner")
            yield
    finally:
        builtins.print = before


@contextmanager
def _logging_to(stream: LocalLog) -> Iterator[None]:
    """Sends log records to `stream`: that a step is reused is logged where the runner's own handler is not in place."""
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
        entry.replace(target / entry.name)
    shutil.rmtree(source, ignore_errors=True)
