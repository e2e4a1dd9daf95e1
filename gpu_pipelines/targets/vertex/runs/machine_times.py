"""The machines of a run on Vertex AI, and their times, from the service's own jobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from gpu_pipelines.accelerators.catalog import load_catalog
from gpu_pipelines.accelerators.cost import LEFT_OUT, estimate_cost
from gpu_pipelines.accelerators.spent import OF_A_RESOURCE, MachineTime, Planned
from gpu_pipelines.errors import NotFoundError, UserError
from gpu_pipelines.google_cloud.connection import REQUEST_SECONDS, job_service, service_errors, tried_again, with_label
from gpu_pipelines.project_settings import ProjectSettings
from gpu_pipelines.targets.own.steps import steps_in
from gpu_pipelines.targets.vertex.placement.fallback import choices_in
from gpu_pipelines.targets.vertex.placement.machines import machines_of, of_several_jobs, searching
from gpu_pipelines.targets.vertex.runs.state import RunState, StepState

#: Label that Vertex AI Pipelines puts on a run and on every job that it creates:
#: https://cloud.google.com/vertex-ai/docs/pipelines/gcpc-label-propagation.
RUN_LABEL = "vertex-ai-pipelines-run-billing-id"
#: Costs that the figures of Vertex AI do not include.
NOT_COUNTED = (*LEFT_OUT, "the fee for a run of a pipeline", "the containers that wait for the jobs of steps")
#: The parameter of a pipeline that limits the cost of its search.
_BUDGET = "budget"
_STRATEGIES = {"SPOT": "spot", "LOW_COST": "spot", "FLEX_START": "flex-start"}
_RESERVED = ("ANY_RESERVATION", "SPECIFIC_RESERVATION")


def times_of_run(run: RunState, job: Any, settings: ProjectSettings) -> list[MachineTime]:
    """The machines of a run of a pipeline, separately for each try of a step.

    Args:
        run: its state.
        job: the same run as the service's `PipelineJob`.
        settings: project and region.

    Raises:
        UserError: the service cannot be reached, or does not allow it.
    """
    region, client = str(settings.region), job_service(settings)
    step_by_name = launchers(job.pipeline_spec)
    step_by_job = {name: step.task for step in run.steps for name in step.jobs}
    tried = {each.region for choices, _ in choices_in(job.pipeline_spec).values() for each in choices}
    jobs: dict[str, Any] = {}
    for place in sorted({region, *tried} - {""}):
        there = replace(settings, region=place)
        jobs |= {str(each.name): each for each in _labelled(job_service(there).list_custom_jobs, job, there)}
    for name in step_by_job.keys() - jobs.keys():
        # The jobs that Vertex AI Pipelines runs containers as may be invisible to the user.
        if found := _custom_job(client, name):
            jobs[name] = found
    found_times = []
    step_by_job = {
        name: step_by_job.get(name) or step_by_name.get(each.display_name) or str(each.display_name)
        for name, each in jobs.items()
    }
    # In order of time; those that never ran have no time, and no price.
    begun = {name: each for name, each in jobs.items() if each.start_time}
    for name, each in sorted(begun.items(), key=lambda named: named[1].start_time):
        found_times += times_of_job(step_by_job[name], each, name.split("/")[3])
    for tuning in _labelled(client.list_hyperparameter_tuning_jobs, job, settings):
        found_times += _of_trials(step_by_name.get(tuning.display_name, str(tuning.display_name)), tuning, region)
    # The container of a step with a job only waits for it, and an importer has none.
    known = {*step_by_job.values(), *(time.step for time in found_times)}
    others = {step.name for step in steps_in(job.pipeline_spec)} - known
    found_times += [_of_container(step, region) for step in run.steps if step.task in others and _has_run(step)]
    order = [step.task for step in run.steps]
    return sorted(found_times, key=lambda time: order.index(time.step) if time.step in order else len(order))


def times_of_job(step: str, job: Any, region: str) -> list[MachineTime]:
    """The machines of a custom job, separately for each worker pool.

    A job whose machines were preempted continues as the same job, with the same time.

    Args:
        step: the step of the job.
        job: the service's `CustomJob`.
        region: its region.
    """
    return _of_pools(step, str(job.name), job.job_spec, _seconds(job), region)


def planned_in(
    spec: Mapping[str, Any], region: str | None, values: Mapping[str, Any] | None = None
) -> dict[str, Planned]:
    """The planned cost of the steps of a compiled pipeline, as shown before the run.

    Args:
        spec: the pipeline.
        region: where it runs.
        values: the given values of its parameters.
    """
    try:
        machines = machines_of(spec, region)
    except UserError:  # compiled by another version, with machines of another catalog
        return {}
    found, choices_by_step = {}, choices_in(spec)
    trials, several = searching(spec), of_several_jobs(spec)
    budget = _budget(spec, values or {}) if trials else None
    for each in machines:
        cost = estimate_cost(each.plan)
        price = cost.per_hour(cost.here) if cost and cost.here else None
        choices, max_price = choices_by_step.get(each.step, ([], None))
        dearest = max((choice.per_hour for choice in choices if choice.per_hour), default=price)
        if dearest is not None and not each.persistent_resource:
            # Each of several jobs may run up to the limit: choices, trials, turns of a loop.
            is_one_job = len(choices) <= 1 and each.step not in several
            limit = budget if each.step in trials else max_price
            found[each.step] = Planned(dearest, each.plan.hours if is_one_job else None, limit)
    return found


def _budget(spec: Mapping[str, Any], values: Mapping[str, Any]) -> float | None:
    """The cost limit of a run's search; None for no limit."""
    declared = spec["root"].get("inputDefinitions", {}).get("parameters", {}).get(_BUDGET, {})
    return float(values.get(_BUDGET, declared.get("defaultValue")) or 0) or None


def launchers(spec: Any) -> dict[str, str]:
    """The tasks that launch custom jobs, their own or those of trials, by the display name of the job.

    A name that several tasks use does not identify a job, and is left out.
    """
    found: dict[str, list[str]] = {}
    for step in steps_in(spec):
        parameters = step.spec.get("inputDefinitions", {}).get("parameters", {})
        if "worker_pool_specs" in parameters:
            default = parameters.get("display_name", {}).get("defaultValue")
            name = step.inputs.get("display_name", {}).get("runtimeValue", {}).get("constant", default)
            found.setdefault(str(name), []).append(step.name)
    return {name: steps[0] for name, steps in found.items() if len(steps) == 1}


def _labelled(list_jobs: Any, job: Any, settings: ProjectSettings) -> Iterator[Any]:
    """The jobs that a run created, including its failed tries; none if it has no label."""
    if not (label := job.labels.get(RUN_LABEL)):
        return
    with service_errors("Looking for the jobs of the run"):
        yield from with_label(list_jobs, settings, RUN_LABEL, label)


def _custom_job(client: Any, name: str) -> Any:
    try:
        with service_errors(f"Looking at {name.rpartition('/')[2]}"):
            return client.get_custom_job(name=name, timeout=REQUEST_SECONDS, retry=tried_again())
    except NotFoundError:
        return None


def _of_trials(step: str, tuning: Any, region: str) -> Iterator[MachineTime]:
    """The machines of the trials of a tuning job."""
    for trial in tuning.trials:
        yield from _of_pools(step, f"trial {trial.id}", tuning.trial_job_spec, _seconds(trial), region)


def _of_pools(step: str, job: str, spec: Any, seconds: float, region: str) -> list[MachineTime]:
    catalog = load_catalog()
    gpu_by_enum = {gpu.enum: gpu.name for gpu in catalog.gpus.values()}
    resource, found = str(spec.persistent_resource_id), []
    for pool in spec.worker_pool_specs:
        machine, count = pool.machine_spec, int(pool.replica_count)
        if not count:
            continue
        gpu = gpu_by_enum.get(machine.accelerator_type.name, "") if machine.accelerator_count else ""
        reserved = machine.reservation_affinity.reservation_affinity_type.name in _RESERVED
        strategy = _STRATEGIES.get(spec.scheduling.strategy.name, "standard")
        found.append(
            MachineTime(
                step=step,
                job=job.rpartition("/")[2],
                machine=str(machine.machine_type),
                gpu=gpu,
                gpus=int(machine.accelerator_count),
                machines=count,
                seconds=seconds,
                strategy="reservation" if reserved else strategy,
                region=region,
                free=OF_A_RESOURCE.format(resource) if resource else "",
            )
        )
    return found


def _of_container(step: StepState, region: str) -> MachineTime:
    """The machine of a step that is a container of the pipeline, which the service does not report."""
    return MachineTime(step.task, "", "", "", 0, 1, step.seconds, "standard", region)


def _has_run(step: StepState) -> bool:
    return step.seconds > 0 and step.state != "reused"


def _seconds(job: Any) -> float:
    """The seconds that a job or a trial has run; 0 if it never did."""
    if not job.start_time:
        return 0.0
    ended = job.end_time or datetime.now(timezone.utc)
    return max(0.0, float((ended - job.start_time).total_seconds()))
