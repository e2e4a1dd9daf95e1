"""Hyperparameter tuning jobs: create, get, list, cancel, delete; checked against the rules for their jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from google.cloud import aiplatform_v1 as api

from gpu_pipelines.emulator.api_error import ApiError
from gpu_pipelines.emulator.jobs.job_states import ENDED, STATES, Jobs, now
from gpu_pipelines.emulator.jobs.rules import check_custom_job, check_name_and_labels, raise_found
from gpu_pipelines.emulator.names import Names, region_of
from gpu_pipelines.emulator.operations import Operations
from gpu_pipelines.emulator.state_folder import StateFolder

_ALGORITHMS = (
    api.StudySpec.Algorithm.ALGORITHM_UNSPECIFIED,
    api.StudySpec.Algorithm.RANDOM_SEARCH,
    api.StudySpec.Algorithm.GRID_SEARCH,
)
#: The rule of early stopping that is emulated.
MEDIAN = "median_automated_stopping_spec"


class TuningJobs(Jobs):
    """The hyperparameter tuning jobs of all projects.

    Attributes:
        jobs, stop, hold_s: as in `Jobs`.
        start: called with the name of a new job, to run it; does nothing unless trials are run.
        check: called with project and region, and the `CustomJobSpec` of a trial; raises ApiError to refuse it.
        check_study: called with the study of a job; raises ApiError if it cannot be run.
    """

    def __init__(self, names: Names, operations: Operations, page_size: int, state: StateFolder) -> None:
        super().__init__(names, api.ListHyperparameterTuningJobsResponse, page_size, state)
        self.start: Callable[[str], None] = lambda name: None
        self.check_study: Callable[[Any], None] = lambda study: None
        self.check: Callable[[str, Any], None] = lambda parent, spec: None
        self._operations = operations

    def create(self, request: Any) -> Any:
        """CreateHyperparameterTuningJob."""
        parent, asked = self._names.number(request.parent), request.hyperparameter_tuning_job
        raise_found(list(check_name_and_labels(asked)))
        trial = api.CustomJob(display_name=asked.display_name, job_spec=asked.trial_job_spec, labels=dict(asked.labels))
        check_custom_job(trial, region_of(parent))
        self.check(parent, asked.trial_job_spec)
        _check_study(asked)
        self.check_study(asked.study_spec)
        moment = now()
        job = api.HyperparameterTuningJob(asked, name=self._names.new(parent, self._kind))
        job.trials, job.state = [], STATES.JOB_STATE_PENDING
        job.create_time = job.update_time = moment
        self.keep(job)
        self.start(job.name)
        return self._copy(job)

    def delete(self, request: Any) -> Any:
        """DeleteHyperparameterTuningJob, for a job that has ended."""
        return self._operations.done(self.remove(request.name))

    def set_trial(self, name: str, trial: Any) -> None:
        """Adds a trial to a job, or replaces its earlier version."""
        job = self.one(name)
        with self._lock:
            others = [each for each in job.trials if each.id != trial.id]
            job.trials = sorted([*others, trial], key=lambda each: int(each.id))
            job.update_time = now()
            self.keep(job)

    def end_of_before(self) -> None:
        """Ends the jobs that were running when the previous emulator ended, and their trials."""
        for job in list(self.held.values()):
            for trial in () if job.state in ENDED else job.trials:
                if trial.state in (api.Trial.State.ACTIVE, api.Trial.State.STOPPING):
                    trial.state, trial.end_time = api.Trial.State.INFEASIBLE, now()
        super().end_of_before()


def _check_study(job: Any) -> None:
    """Raises ApiError if a study breaks a rule of the service."""
    study = job.study_spec
    if not (study.metrics and study.parameters):
        raise ApiError(400, "A study needs metrics and parameters.")
    if job.max_trial_count < 1 or job.parallel_trial_count < 1:
        raise ApiError(400, "There is at least one trial.")
    for parameter in _with_those_below(study.parameters):
        if not parameter.parameter_id:
            raise ApiError(400, "parameter_id is required.")
        if not api.StudySpec.ParameterSpec.pb(parameter).WhichOneof("parameter_value_spec"):
            raise ApiError(400, f"The parameter {parameter.parameter_id} has no values.")
        for kind in ("double_value_spec", "integer_value_spec"):
            if kind in parameter and getattr(parameter, kind).min_value > getattr(parameter, kind).max_value:
                raise ApiError(400, f"The parameter {parameter.parameter_id} has a minimum over its maximum.")
        for kind in ("categorical_value_spec", "discrete_value_spec"):
            if kind in parameter and not getattr(parameter, kind).values:
                raise ApiError(400, f"The parameter {parameter.parameter_id} has no values.")


def _with_those_below(parameters: Iterable[Any]) -> Iterator[Any]:
    """Parameters, including those that count only for some values of another."""
    for parameter in parameters:
        yield parameter
        yield from _with_those_below(each.parameter_spec for each in parameter.conditional_parameter_specs)


def check_emulated(study: Any) -> None:
    """Raises ApiError if the emulator cannot make trials for a study."""
    if found := list(_not_emulated(study)):
        raise ApiError(501, f"The emulator does not run this study: {'; '.join(found)}.")


def _not_emulated(study: Any) -> Iterator[str]:
    if study.algorithm not in _ALGORITHMS:
        yield f"it has no algorithm {api.StudySpec.Algorithm(study.algorithm).name}"
    found = api.StudySpec.pb(study).WhichOneof("automated_stopping_spec")
    if found not in (None, MEDIAN):
        yield f"it has no early stopping ({found})"
    if study.algorithm == api.StudySpec.Algorithm.GRID_SEARCH:
        for parameter in study.parameters:
            if parameter.conditional_parameter_specs:
                yield f"{parameter.parameter_id} has conditional parameters, of which it makes no grid"
