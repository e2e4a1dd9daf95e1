"""A step that tries one choice of machines after the other, as a compiled file describes it.

In place of GCPC's launcher, which creates one CustomJob, the step runs a launcher of this project, in the image of the
steps. It gets the same payload and the choices: `gpu_pipelines.targets.vertex.fallback_launcher`. So the list is in the
file, and also applies to schedules.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from gpu_pipelines.accelerators import AcceleratorPlan
from gpu_pipelines.accelerators.cost import dollars_per_hour
from gpu_pipelines.accelerators.fallback import named
from gpu_pipelines.project_settings import ProjectSettings
from gpu_pipelines.step_environment import ACCELERATOR, PREEMPTION_HOURS
from gpu_pipelines.step_environment import TRIES as TRIES_SO_FAR
from gpu_pipelines.targets.compiled import steps_of
from gpu_pipelines.targets.fallback.tries import FOLDER, Choice
from gpu_pipelines.targets.vertex.placement.job_spec import in_another_region

LAUNCHER = "gpu_pipelines.targets.vertex.fallback_launcher"
#: Its options: the choices, as JSON; the most that all tries may cost; the place of the record of tries.
CHOICES, MAX_PRICE, TRIES = "--choices", "--max_price", "--tries"
#: Variables of the containers that depend on the machine.
_OF_MACHINE = (ACCELERATOR, PREEMPTION_HOURS)


def choice_of(plan: AcceleratorPlan, spec: Mapping[str, Any]) -> Choice:
    """A plan in the form for the launcher.

    Args:
        plan: the machines; without a region they are in that of the run.
        spec: the `CustomJobSpec` of the step on them.
    """
    pools = copy.deepcopy(spec["worker_pool_specs"])
    own = pools[0]["container_spec"]
    told = [each for each in own.get("env", []) if each["name"] in _OF_MACHINE]
    for pool in pools:
        # Reduction servers have a container of their own.
        if pool["container_spec"].get("image_uri") == own.get("image_uri"):
            del pool["container_spec"]
    machines = {"pools": pools, "scheduling": spec["scheduling"], "environment": told}
    return Choice(named(plan), plan.region or "", dollars_per_hour(plan), plan.hours, machines)


def become_fallback(task: Any, choices: Sequence[Choice], max_price: float | None, image: Any) -> None:
    """Replaces the program of a task, GCPC's launcher, by the one that tries choices in order."""
    from kfp import dsl

    container = task.container_spec
    place = f"{dsl.PIPELINE_ROOT_PLACEHOLDER}/{FOLDER}/{dsl.PIPELINE_JOB_NAME_PLACEHOLDER}"
    limit = [] if max_price is None else [MAX_PRICE, f"{max_price:g}"]
    container.args = [CHOICES, json.dumps([asdict(each) for each in choices]), *limit, TRIES, place, *container.args]
    container.command = ["python3", "-u", "-m", LAUNCHER]
    task.set_container_image(image)


def choices_in(spec: Mapping[str, Any]) -> dict[str, tuple[list[Choice], float | None]]:
    """The steps of a compiled pipeline that have choices, with these and the price limit."""
    executors = spec.get("deploymentSpec", {}).get("executors", {})
    found = {}
    for key, component in spec.get("components", {}).items():
        container = executors.get(component.get("executorLabel"), {}).get("container", {})
        if LAUNCHER in container.get("command", []):
            given = list(container["args"])
            choices = Choice.each_of(json.loads(given[given.index(CHOICES) + 1]))
            limit = float(given[given.index(MAX_PRICE) + 1]) if MAX_PRICE in given else None
            found[key.removeprefix("comp-")] = (choices, limit)
    return found


def told_choices(spec: Mapping[str, Any]) -> list[str]:
    """The choices of the steps of a compiled pipeline and their prices, line by line."""
    lines, found = [], choices_in(spec)
    for step, (choices, limit) in ((step, found[step]) for step in steps_of(spec) if step in found):
        for number, each in enumerate(choices, 1):
            price = f"about ${each.per_hour:,.2f} an hour" if each.per_hour else "no price is known"
            lines.append(f"{step}, choice {number} of {len(choices)}: {each.told}, {price}")
        if limit is not None:
            lines.append(f"{step}: all tries of the run together cost ${limit:,.2f} at most, by the list")
    return lines


def job_on(
    payload: Mapping[str, Any], choice: Choice, first: Choice, seconds: float | None, tried: str = ""
) -> dict[str, Any]:
    """The `CustomJob` of a payload on the machines of a choice.

    Args:
        payload: payload of GCPC's launcher, for the first choice.
        choice: the machines.
        first: the first choice, whose variables the payload has.
        seconds: the longest that it may run; None for the choice's own limit.
        tried: the tries so far, for its report; empty for none.
    """
    job = without_empty(copy.deepcopy(dict(payload)))
    spec = job["job_spec"]
    own = spec["worker_pool_specs"][0]["container_spec"]
    of_first = first.machines["environment"]
    env = [each for each in own.get("env", []) if each not in of_first] + choice.machines["environment"]
    own = {**own, "env": [*env, {"name": TRIES_SO_FAR, "value": tried}] if tried else env}
    pools = copy.deepcopy(choice.machines["pools"])
    spec["worker_pool_specs"] = [{"container_spec": own, **pool} for pool in pools]
    spec["scheduling"] = dict(choice.machines["scheduling"])
    if seconds is not None:
        limit = int(spec["scheduling"]["timeout"].removesuffix("s"))
        spec["scheduling"]["timeout"] = f"{max(1, min(limit, int(seconds)))}s"
    return job


def without_empty(value: Any) -> Any:
    """JSON without empty values, as GCPC's launcher sends it: a parameter that was not given is an empty text."""
    if isinstance(value, dict):
        kept = {name: without_empty(each) for name, each in value.items()}
        return {name: each for name, each in kept.items() if each not in (None, "", {}, [])}
    if isinstance(value, list):
        return [without_empty(each) for each in value]
    return value


def not_in(settings: ProjectSettings, region: str) -> str:
    """Why a job with these settings cannot run in a region: a resource that it needs is in another; empty if it can."""
    if settings.persistent_resource:
        return f"the persistent resource {settings.persistent_resource} is one choice; leave the lists out"
    return next(iter(in_another_region(settings, region)), "")
