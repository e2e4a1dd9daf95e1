"""Checks of a request for `tune_train_evaluate_upload`; see `train_evaluate_upload`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpu_pipelines.component_interface.step import fields_from
from gpu_pipelines.dag import train_evaluate_upload as one_training
from gpu_pipelines.dag.places import Place, places_of_space
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.tuning.halving import shares_of_rungs, usual_sizes
from gpu_pipelines.tuning.sampler import problems_of_sampler
from gpu_pipelines.tuning.settings import TuningSettings

#: The settings of the steps, by the output of `check_request` that has their fields of `advanced`.
SETTINGS = {**one_training.SETTINGS, "train": TuningSettings}


def problems(arguments: Mapping[str, Any]) -> list[str]:
    """Everything that is wrong with the parameters of a run, without reading any data.

    Args:
        arguments: all parameters; and, if known, `processes`, the number on the machine of the search.
    """
    settings = fields_from(TuningSettings, arguments)
    return one_training.problems_around(arguments, lambda task: settings.problems(task, arguments.get("processes", 0)))


def told(arguments: Mapping[str, Any], by_service: bool = False) -> list[str]:
    """What a run will do: how much it trains, and what it costs.

    Args:
        arguments: all parameters.
        by_service: whether a service starts the trials, each on machines of its own.
    """
    settings = fields_from(TuningSettings, arguments)
    trials, price, budget = settings.trials, settings.dollars_per_hour, settings.budget
    most = trials + (settings.longer if settings.longer > 1 else 0)
    steps = f", {round(most * settings.max_steps):,} steps" if settings.max_steps else ""
    at_a_time = f"search: {trials:,} trials, {settings.parallel_trials} at a time"
    at_most = f"at most {most:,.6g}{steps}"
    if by_service:
        lines = [
            f"{at_a_time}, each on machines of its own",
            f"search: of whole trainings {at_most}; the service ends those that fall behind",
        ]
    else:
        ends, usual = _usual(settings)
        early = f"{at_a_time}; where early losses tell, {', '.join(ends)}"
        lines = [early, f"search: then as much as {usual:,.1f} whole trainings; {at_most}"]
    if not price:
        return [*lines, "search: no price is known of what it runs on, so that it has no budget"]
    machines = f"on {'machines' if by_service else 'a machine'} of ${price:,.2f} an hour"
    limit = f"at most ${budget:,.2f}, {budget / price:,.1f} hours" if budget else "no budget: it ends with its trials"
    return [*lines, f"search: {limit}, {machines}"]


def _usual(settings: TuningSettings) -> tuple[list[str], float]:
    """How far trials go if those that lead early also lead later, and the same in whole trainings."""
    shares = shares_of_rungs(settings.reduction, settings.first_rung)
    sizes = usual_sizes(settings.trials, len(shares), settings.reduction)
    rungs = list(zip(sizes, shares, [0.0, *shares], strict=False))
    usual = sum(size * (share - before) for size, share, before in rungs)
    return [
        f"{size:,} {'to the end' if share == 1 else f'for {share:.0%} of the steps'}" for size, share, _ in rungs
    ], usual


def places(arguments: Mapping[str, Any]) -> list[Place]:
    """The places that a run reads from and writes to."""
    return [*one_training.places(arguments), *places_of_space(fields_from(TuningSettings, arguments).space)]


def problems_of_access(arguments: Mapping[str, Any], storage: str = "") -> list[str]:
    """What cannot be opened from this process, which should be where the steps run.

    Args:
        arguments: all parameters.
        storage: where the run leaves its artifacts; empty for this machine.
    """
    settings = fields_from(TuningSettings, arguments)

    def of_search(prepare: PrepareSettings) -> list[str]:
        of_base = one_training.problems_of_model(settings.base, prepare)
        return [*problems_of_sampler(), *of_base, *settings.problems_of_space(prepare.task)]

    return one_training.problems_of_access_around(arguments, storage, of_search)
