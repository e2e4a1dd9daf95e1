"""Runs over lists of machines on the emulator, by chance: machines and quota that are there or not and come and go,
preemptions, answers that are lost, a launcher that dies at any request; and what became of each."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_pipelines.accelerators.fallback import PriceLimits, fallback
from gpu_pipelines.distributed.signals import Signalled
from gpu_pipelines.errors import NoMachinesError, ProcessFailedError, UnavailableError
from gpu_pipelines.project_settings import ProjectSettings
from gpu_pipelines.targets.container import Container
from gpu_pipelines.targets.fallback import tries as tries_of_module
from gpu_pipelines.targets.fallback.tries import Choice, Try
from gpu_pipelines.targets.fallback.trying import INTERVAL, PATIENCE, try_in_order
from gpu_pipelines.targets.vertex.fallback_launcher import VertexJobs, tries_of
from gpu_pipelines.targets.vertex.jobs import custom_jobs
from gpu_pipelines.targets.vertex.placement.fallback import choice_of
from gpu_pipelines.targets.vertex.placement.job_spec import JobOptions, custom_job

if TYPE_CHECKING:
    from gpu_pipelines.emulator.jobs.bill import BillLine
    from gpu_pipelines.emulator.vertex_api import VertexApi

STAND_IN = Path(__file__).with_name("stand_in_training.py")
PROJECT, REGION = "example-project", "us-central1"
SPECS = ("l4:1", "l4:2", "t4:1", "t4:4", "a100:1", "h100:8")
STRATEGIES, REGIONS = ("spot", "flex-start", "standard"), ("us-central1", "europe-west4")
STEPS, SECONDS, MOST_LAUNCHERS = 8, 0.05, 60
LABEL = "fallback_run"


class Died(BaseException):
    """The launcher's process is gone, at once."""


@dataclass
class Outcome:
    """What became of a run.

    Attributes:
        state: `weights`, `refused` or `failed`; else what went wrong.
        said: the last error.
        weights: what was trained; empty where nothing was.
        tries: what was tried.
        lines: what the emulator has billed.
        launchers: processes that it took.
        gap_s: the longest time from an answer that there are no machines to the next request.
    """

    state: str
    said: str = ""
    weights: list[int] = field(default_factory=list)
    tries: list[Try] = field(default_factory=list)
    lines: list[BillLine] = field(default_factory=list)
    launchers: int = 0
    gap_s: float = 0.0

    @property
    def counted_usd(self) -> float:
        """What the record says that it cost, USD."""
        return sum(each.usd or 0.0 for each in self.tries)

    @property
    def changed_gpus(self) -> bool:
        """Whether it went on on another number of GPUs."""
        return len({made.told.split()[0].rpartition(":")[2] for made in self.tries if made.began is not None}) > 1

    @property
    def billed_usd(self) -> float:
        """What the emulator has billed, USD."""
        return sum(line.usd for line in self.lines)


@dataclass
class Weather:
    """What happens in a run.

    Attributes:
        chance: of all that is open.
        crashes: how likely a launcher dies at each of its requests, before or after it.
        preempts: how likely a Spot machine is taken away within a run.
        lost: how likely an answer to the creation of a job is lost.
        fails: whether the training itself fails.
        limited: whether the run has a limit of price.
    """

    chance: random.Random
    crashes: float = 0.0
    preempts: float = 0.0
    lost: float = 0.0
    fails: bool = False
    limited: bool = False


def weather_of(number: int, seed: int = 0) -> Weather:
    """What happens in a run, the same for the same seed."""
    chance = random.Random(f"{seed} {number}")
    return Weather(
        chance,
        crashes=chance.choice((0.0, 0.05, 0.1)),
        preempts=chance.choice((0.0, 0.6)),
        lost=chance.choice((0.0, 0.3)),
        fails=chance.random() < 0.05,
        limited=chance.random() < 0.1,
    )


class DyingJobs(VertexJobs):
    """A launcher's jobs, at each of whose requests its process may die."""

    weather: Weather

    def _may_die(self) -> None:
        if self.weather.chance.random() < self.weather.crashes:
            raise Died

    def send(self, choice: Choice, made: Try, seconds: float | None) -> str:
        self._may_die()
        name = super().send(choice, made, seconds)
        self._may_die()
        return name

    def look(self, choice: Choice, job: str) -> Any:
        self._may_die()
        return super().look(choice, job)


def undisturbed(folder: Path) -> list[int]:
    """The weights of a run that nothing happens to."""
    subprocess.run([sys.executable, str(STAND_IN), str(folder), str(STEPS), "0"], check=True, capture_output=True)
    found: list[int] = json.loads((folder / "weights.json").read_text())
    return found


@contextmanager
def quick() -> Iterator[None]:
    """Times of seconds in the place of minutes: between looks, until a lost request is known, the shortest job."""
    import os

    least, looks = tries_of_module.LEAST_SECONDS, custom_jobs._LOOKS
    tries_of_module.LEAST_SECONDS, custom_jobs._LOOKS = 0.05, (0.0, 0.05, 0.05)
    os.environ.update({INTERVAL: "0.05", PATIENCE: "0.3"})
    try:
        yield
    finally:
        tries_of_module.LEAST_SECONDS, custom_jobs._LOOKS = least, looks
        for name in (INTERVAL, PATIENCE):
            os.environ.pop(name, None)


def random_list(chance: random.Random) -> tuple[list[str], list[str], list[str]]:
    """Accelerators, strategies and regions; those that cannot be had together are left out by the planning."""
    # With l4, which is sold in each way, something can always be planned.
    specs = [*chance.sample([spec for spec in SPECS if spec != "l4:1"], chance.randint(0, 2)), "l4:1"]
    chance.shuffle(specs)
    return specs, chance.sample(STRATEGIES, chance.randint(1, 2)), chance.sample(REGIONS, chance.randint(1, 2))


def choices_for(
    lists: tuple[list[str], list[str], list[str]], command: list[str]
) -> tuple[list[Choice], dict[str, Any]]:
    """The choices of the lists, and the job of the first as GCPC's launcher would get it."""
    settings, container = ProjectSettings(project=PROJECT, region=REGION), Container("image", command)
    plans = fallback(*lists, PriceLimits()).plans
    found = []
    for each in plans:
        environment = {"GPU_PIPELINES_ACCELERATOR": each.spec}
        wait = 0.0003 if each.strategy == "flex-start" else None  # a second, for machines
        options = JobOptions(environment=environment, max_wait_hours=wait)
        found.append((choice_of(each, custom_job(each, "train", container, settings, options)["job_spec"]), options))
    job = custom_job(plans[0], "train-model", container, settings, found[0][1])
    return [choice for choice, _ in found], job


def run(emulator: VertexApi, number: int, folder: Path, weather: Weather) -> Outcome:
    """One run by chance.

    Args:
        emulator: where; nothing else runs there.
        number: of the run.
        folder: where its checkpoints go.
        weather: what happens in it.
    """
    chance, place = weather.chance, folder / f"run-{number}"
    command = [sys.executable, "-I", "-S", str(STAND_IN), str(place), str(STEPS), str(SECONDS)]
    command += [str(STEPS // 2)] if weather.fails else []
    choices, job = choices_for(random_list(chance), command)
    job["labels"] = {LABEL: str(number)}
    _set_machines(emulator, choices, chance)
    limit = None
    if weather.limited:
        limit = (choices[0].per_hour or 1.0) * chance.uniform(0.1, 1.5) / 3600
    outcome = Outcome("never ended")
    with _weather(emulator, number, weather):
        for outcome.launchers in range(1, MOST_LAUNCHERS + 1):
            tries = tries_of(job, f"gs://example-bucket/r/fallback/{number}", choices, limit)
            jobs = DyingJobs(job, choices[0], ProjectSettings(project=PROJECT, region=REGION))
            jobs.weather = weather
            if chance.random() < weather.lost:
                emulator.fail_next("POST .*/customJobs$", 503, took_effect=chance.random() < 0.5)
            try:
                try_in_order(tries, jobs, Signalled(), lambda line: None)
                outcome.state = "weights"
            except Died:
                continue
            except UnavailableError as error:
                outcome.said = str(error)
                continue  # as Vertex AI Pipelines begins a step again
            except NoMachinesError as error:
                outcome.state, outcome.said = "refused", str(error)
            except ProcessFailedError as error:
                outcome.state, outcome.said = "failed", str(error)
            break
    kept = place / "weights.json"
    outcome.weights = json.loads(kept.read_text()) if kept.exists() else []
    outcome.tries = tries_of(job, f"gs://example-bucket/r/fallback/{number}", choices, limit).made
    bill = emulator.state.replicas.bill
    outcome.lines = [line for line in bill.lines if line.labels.get(LABEL) == str(number)]
    gaps = [after.asked - (before.ended or before.asked) for before, after in pairwise(outcome.tries)]
    outcome.gap_s = max(gaps, default=0.0)
    return outcome


def _set_machines(emulator: VertexApi, choices: list[Choice], chance: random.Random) -> None:
    """Lets there be machines for some of the choices, and quota for some."""
    from gpu_pipelines.emulator.jobs.capacity import limits_of

    quota = {}
    for choice in choices:
        pool = choice.machines["pools"][0]["machine_spec"]
        place = (choice.region, pool["accelerator_type"])
        emulator.state.replicas.capacity.limit(*place, chance.choice((0, pool["accelerator_count"])))
        quota[place] = chance.choice((0, 64, 64, 64))
    emulator.state.project.limits.clear()
    emulator.state.project.limits.update(limits_of(quota))


@contextmanager
def _weather(emulator: VertexApi, number: int, weather: Weather) -> Iterator[None]:
    """Takes machines away while a run goes on, and gives others."""
    over, chance = threading.Event(), random.Random(weather.chance.random())

    def blow() -> None:
        while not over.wait(chance.uniform(0.1, 0.5)):
            for name, job in list(emulator.state.custom_jobs.jobs.items()):
                is_ours = dict(job.labels).get(LABEL) == str(number) and job.state.name == "JOB_STATE_RUNNING"
                if is_ours and job.job_spec.scheduling.strategy.name == "SPOT" and chance.random() < weather.preempts:
                    machine = job.job_spec.worker_pool_specs[0].machine_spec
                    place = name.split("/")[3], machine.accelerator_type.name
                    emulator.state.replicas.capacity.limit(*place, chance.choice((0, machine.accelerator_count)))
                    emulator.state.replicas.preempt(name)

    thread = threading.Thread(target=blow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        emulator.faults._faults.clear()


def overlaps(lines: Sequence[BillLine]) -> int:
    """How often a job had machines while another of these had some too."""
    ordered = sorted(lines, key=lambda line: line.began)
    return sum(before.ended is None or after.began < before.ended for before, after in pairwise(ordered))


def what_is_wrong(outcome: Outcome, weights: list[int], weather: Weather) -> list[str]:
    """What a run has not kept of what is promised; empty if it has."""
    found = []
    if outcome.state not in ("weights", "refused", "failed"):
        found.append(f"ended as {outcome.state}: {outcome.said}")
    if outcome.state == "weights" and outcome.weights != weights:
        found.append("other weights than those of an undisturbed run")
    if outcome.state == "failed" and not weather.fails:
        found.append(f"failed, though the training does not: {outcome.said}")
    if outcome.state == "refused" and not outcome.said:
        found.append("refused without a reason")
    if count := overlaps(outcome.lines):
        found.append(f"{count} jobs that overlapped in time")
    if any(line.ended is None for line in outcome.lines):
        found.append("a job that still costs")
    if outcome.gap_s > 60:
        found.append(f"{outcome.gap_s:.0f} s until the next was sent")
    return found
