"""Runs hyperparameter tuning jobs: each trial is a custom job with its parameters as arguments.

A trial reports its metrics like cloudml-hypertune, in a file with a line of JSON for each. Values are chosen at random
or on a grid, the same with the same seed; the service's own search learns from trials, which this does not. If the
study has that rule, a trial below the median of the others ends early.
"""

from __future__ import annotations

import datetime
import itertools
import json
import math
import random
import statistics
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from google.cloud import aiplatform_v1 as api

from gpu_pipelines.emulator.api_error import ApiError, answer_to
from gpu_pipelines.emulator.jobs.custom_jobs import CustomJobs
from gpu_pipelines.emulator.jobs.job_states import STATES, now
from gpu_pipelines.emulator.jobs.tuning_jobs import MEDIAN, TuningJobs, check_emulated
from gpu_pipelines.numbers import whole

TRIAL_ID = "CLOUD_ML_TRIAL_ID"
_METRIC_FILE = "CLOUD_ML_HP_METRIC_FILE"
_TRIAL: Any = api.Trial.State
_SCALE: Any = api.StudySpec.ParameterSpec.ScaleType
_WEEK_S = 7 * 24 * 3600.0
_LOOK_S = 0.2


class Tuner:
    """Runs tuning jobs.

    Args:
        jobs: the tuning jobs.
        custom_jobs: creates the jobs of trials.
        folder: the folder for the files with their metrics.
        seed: the seed of the choice of values.
    """

    def __init__(self, jobs: TuningJobs, custom_jobs: CustomJobs, folder: Path, seed: int = 0) -> None:
        self._jobs, self._custom_jobs, self._folder, self._seed = jobs, custom_jobs, folder, seed
        self._stopped: set[str] = set()

    def run_jobs(self) -> None:
        """Makes new tuning jobs run, each in a thread."""
        self._jobs.check_study = check_emulated
        self._jobs.start = lambda name: threading.Thread(target=self._run, args=(name,), daemon=True).start()
        self._jobs.stop = self._stop

    def close(self) -> None:
        """Begins no more trials."""
        self._stopped.update(self._jobs.jobs)

    def _stop(self, name: str) -> bool:
        self._stopped.add(name)
        for trial in self._jobs.one(name).trials:
            if trial.state in (_TRIAL.ACTIVE, _TRIAL.STOPPING):
                self._cancel(trial.custom_job)
        return True

    def _cancel(self, custom_job: str) -> None:
        try:
            self._custom_jobs.cancel(api.CancelCustomJobRequest(name=custom_job))
        except ApiError:
            # It has ended meanwhile.
            return

    def _run(self, name: str) -> None:
        job = self._jobs.one(name)
        self._jobs.set_state(name, STATES.JOB_STATE_RUNNING)
        error = ""
        with ThreadPoolExecutor(job.parallel_trial_count, thread_name_prefix="trial") as pool:
            try:
                list(pool.map(lambda each: self._trial(name, *each), enumerate(self._values(job), 1)))
            except Exception as problem:
                # Whatever the error is, the job has to end, and to report it.
                error = answer_to(problem).message
        failed = [trial.id for trial in job.trials if trial.state == _TRIAL.INFEASIBLE]
        if name in self._stopped:
            self._jobs.set_state(name, STATES.JOB_STATE_CANCELLED)
        elif not error and not self._failed_too_often(job):
            self._jobs.set_state(name, STATES.JOB_STATE_SUCCEEDED)
        else:
            error = error or f"Too many trials failed. The failed trials are: [{', '.join(failed)}]."
            self._jobs.set_state(name, STATES.JOB_STATE_FAILED, error)

    def _values(self, job: Any) -> Iterator[dict[str, Any]]:
        """The parameters of each trial; a grid may end before the trials do."""
        parameters, most = list(job.study_spec.parameters), job.max_trial_count
        if job.study_spec.algorithm == api.StudySpec.Algorithm.GRID_SEARCH:
            levels = max(2, math.ceil(most ** (1 / len(parameters))))
            names = [parameter.parameter_id for parameter in parameters]
            grids = itertools.product(*(grid(parameter, levels) for parameter in parameters))
            found = (dict(zip(names, values, strict=True)) for values in grids)
            return itertools.islice(found, most)
        chance = random.Random(f"{self._seed} {job.display_name}")  # noqa: S311
        return iter([_by_chance(parameters, chance) for _ in range(most)])

    @staticmethod
    def _failed_too_often(job: Any) -> bool:
        failed = sum(trial.state == _TRIAL.INFEASIBLE for trial in job.trials)
        # With 0 the service decides; here the job fails with the last of them.
        return failed >= (job.max_failed_trial_count or max(1, len(job.trials)))

    def _trial(self, name: str, number: int, values: Mapping[str, Any]) -> None:
        job = self._jobs.one(name)
        begun = [trial for trial in job.trials if trial.state == _TRIAL.INFEASIBLE]
        if name in self._stopped or (begun and job.max_failed_trial_count and self._failed_too_often(job)):
            return
        file = self._folder / f"{name.rpartition('/')[2]}-{number}.metrics"
        file.parent.mkdir(parents=True, exist_ok=True)
        parent = name.rpartition("/hyperparameterTuningJobs/")[0]
        made = self._custom_jobs.begin(parent, self._job_of(job, number, values, file))
        trial = api.Trial(
            name=f"{name}/trials/{number}",
            id=str(number),
            state=_TRIAL.ACTIVE,
            parameters=[api.Trial.Parameter(parameter_id=key, value=value) for key, value in values.items()],
            start_time=now(),
            custom_job=made.name,
        )
        self._jobs.set_trial(name, trial)
        if name in self._stopped:
            self._cancel(made.name)
        ended = self._ended(name, trial, file)
        trial.end_time = now()
        is_stopped = trial.state == _TRIAL.STOPPING and ended.state == STATES.JOB_STATE_CANCELLED
        if (ended.state == STATES.JOB_STATE_SUCCEEDED or is_stopped) and trial.measurements:
            trial.state, trial.final_measurement = _TRIAL.SUCCEEDED, final(list(trial.measurements), job.study_spec)
        else:
            trial.state = _TRIAL.INFEASIBLE
            trial.infeasible_reason = ended.error.message or "The trial reported no metric of the study."
        self._jobs.set_trial(name, trial)

    def _ended(self, name: str, trial: Any, file: Path) -> Any:
        """The finished custom job of a trial; until then its measurements are read, and it may be stopped."""
        until, ended = time.monotonic() + _WEEK_S, None
        while ended is None:
            try:
                ended = self._custom_jobs.wait(trial.custom_job, _LOOK_S)
            except TimeoutError:
                if time.monotonic() > until:
                    raise
            self._read(name, trial, file)
        return ended

    def _read(self, name: str, trial: Any, file: Path) -> None:
        """Reads the reported metrics of a trial, and stops it if the rule of its study says so."""
        study = self._jobs.one(name).study_spec
        found = list(measurements(file, [metric.metric_id for metric in study.metrics], trial.start_time))
        # A file that is being rewritten has fewer lines for a moment.
        if len(found) <= len(trial.measurements):
            return
        trial.measurements = found
        if trial.state == _TRIAL.ACTIVE and is_below_the_median(trial, self._jobs.one(name).trials, study):
            trial.state = _TRIAL.STOPPING
            self._cancel(trial.custom_job)
        self._jobs.set_trial(name, trial)

    @staticmethod
    def _job_of(job: Any, number: int, values: Mapping[str, Any], file: Path) -> Any:
        """The custom job of a trial, with its parameters as arguments and a place of its own."""
        made = api.CustomJob(display_name=f"{job.display_name}-trial-{number}", job_spec=job.trial_job_spec)
        for place, pool in enumerate(made.job_spec.worker_pool_specs):
            container = pool.container_spec
            container.args = [*container.args, *(f"--{key}={text_of(value)}" for key, value in values.items())]
            # The metrics of the primary replica are those of the trial.
            at = str(file) if place == 0 else f"{file}.{place}"
            for variable, value in ((TRIAL_ID, str(number)), (_METRIC_FILE, at)):
                container.env.append(api.EnvVar(name=variable, value=value))
        output = made.job_spec.base_output_directory
        if output.output_uri_prefix:
            output.output_uri_prefix = f"{output.output_uri_prefix.rstrip('/')}/{number}"
        return made


def _by_chance(parameters: Iterable[Any], chance: random.Random) -> dict[str, Any]:
    """Random values of parameters, and of those that depend on them."""
    found: dict[str, Any] = {}
    for parameter in parameters:
        value = found[parameter.parameter_id] = drawn(parameter, chance)
        for below in parameter.conditional_parameter_specs:
            kind = api.StudySpec.ParameterSpec.ConditionalParameterSpec.pb(below).WhichOneof("parent_value_condition")
            if kind and value in list(getattr(below, kind).values):
                found |= _by_chance([below.parameter_spec], chance)
    return found


def drawn(parameter: Any, chance: random.Random) -> Any:
    """A random value of a parameter, on its scale."""
    for kind in ("categorical_value_spec", "discrete_value_spec"):
        if kind in parameter:
            return chance.choice(list(getattr(parameter, kind).values))
    return _at(parameter, chance.random())


def grid(parameter: Any, levels: int) -> list[Any]:
    """Values of a parameter on a grid: a whole list, or this many of a range."""
    for kind in ("categorical_value_spec", "discrete_value_spec"):
        if kind in parameter:
            return list(getattr(parameter, kind).values)
    return list(dict.fromkeys(_at(parameter, level / (levels - 1)) for level in range(levels)))


def _at(parameter: Any, share: float) -> Any:
    """The value at a fraction of a range, on the parameter's scale."""
    is_whole = "integer_value_spec" in parameter
    spec = parameter.integer_value_spec if is_whole else parameter.double_value_spec
    low, high = float(spec.min_value), float(spec.max_value)
    if parameter.scale_type == _SCALE.UNIT_LOG_SCALE and low > 0:
        found = low * (high / low) ** share
    elif parameter.scale_type == _SCALE.UNIT_REVERSE_LOG_SCALE and low > 0:
        found = high + low - low * (high / low) ** (1 - share)
    else:
        found = low + (high - low) * share
    return round(found) if is_whole else min(max(found, low), high)


def text_of(value: Any) -> str:
    """A value as an argument: integers without a decimal point."""
    return str(whole(value))


def measurements(file: Path, metrics: list[str], start: Any = None) -> Iterator[Any]:
    """The metrics of the study that a trial has reported, in order; lines of another form are ignored.

    Args:
        file: the file of the trial.
        metrics: ids.
        start: the start of the trial, for the elapsed time; None if that does not matter.
    """
    if not file.exists():
        return
    for line in file.read_text(errors="replace").splitlines():
        try:
            told = json.loads(line)
            found = [
                api.Measurement.Metric(metric_id=each, value=float(told[each])) for each in metrics if each in told
            ]
            step, moment = int(told.get("global_step", 0)), float(told.get("timestamp", 0.0))
        except (ValueError, TypeError, AttributeError):
            continue
        if found:
            elapsed = max(0.0, moment - start.timestamp()) if start and moment else 0.0
            yield api.Measurement(step_count=step, metrics=found, elapsed_duration=datetime.timedelta(seconds=elapsed))


def is_below_the_median(trial: Any, others: Iterable[Any], study: Any) -> bool:
    """Whether the median rule ends a trial: its best value is worse than the median of the others' means so far.

    https://cloud.google.com/vertex-ai/docs/reference/rest/v1/StudySpec#MedianAutomatedStoppingSpec.

    Args:
        trial: a running trial.
        others: the trials of its job; those that have ended with success count.
        study: the study with the rule; without one no trial is ended.
    """
    if api.StudySpec.pb(study).WhichOneof("automated_stopping_spec") != MEDIAN:
        return False
    by_time, metric = study.median_automated_stopping_spec.use_elapsed_duration, study.metrics[0]
    sign = 1 if metric.goal == api.StudySpec.MetricSpec.GoalType.MAXIMIZE else -1

    def values(of: Any, until: float) -> list[float]:
        told = [(_moment(each, by_time=by_time), each.metrics) for each in of.measurements]
        return [
            sign * one.value
            for moment, found in told
            for one in found
            if one.metric_id == metric.metric_id and moment <= until
        ]

    until = max(_moment(each, by_time=by_time) for each in trial.measurements)
    ended = [each for each in others if each.id != trial.id and each.state == _TRIAL.SUCCEEDED]
    means = [statistics.fmean(found) for each in ended if (found := values(each, until))]
    own = values(trial, until)
    return bool(means and own) and max(own) < statistics.median(means)


def _moment(measurement: Any, *, by_time: bool) -> float:
    return measurement.elapsed_duration.total_seconds() if by_time else float(measurement.step_count)


def final(found: list[Any], study: Any) -> Any:
    """The measurement by which a trial is judged: its last one, or the best of the first metric."""
    metric = study.metrics[0]
    if study.measurement_selection_type != api.StudySpec.MeasurementSelectionType.BEST_MEASUREMENT:
        return found[-1]
    wanted = [each for each in found if each.metrics[0].metric_id == metric.metric_id] or list(found)
    best = max if metric.goal == api.StudySpec.MetricSpec.GoalType.MAXIMIZE else min
    return best(wanted, key=lambda each: each.metrics[0].value)
