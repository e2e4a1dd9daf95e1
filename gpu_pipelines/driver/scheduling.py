"""A new schedule, or a change of one, from a command line or a Python program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_pipelines.errors import UserError

if TYPE_CHECKING:
    from gpu_pipelines.targets.cron import Cron
    from gpu_pipelines.targets.messages import Compiled, Submission
    from gpu_pipelines.targets.scheduling import Timing


def new_schedule(
    target: Any,
    pipeline: str,
    name: str,
    when: Cron,
    limits: tuple[str | date | None, str | date | None, int],
    assignments: Sequence[str],
    file: Path | None = None,
    cache: bool | None = None,
) -> tuple[Compiled, Submission]:
    """The version that a schedule will run, and the schedule as it will be sent.

    Args:
        target: one that has schedules.
        pipeline: an uploaded version, or a file, which is sent.
        name: of the schedule.
        when: when runs start.
        limits: the first and the last time, None for none, and the most runs at the same time.
        assignments: values of parameters, `key=value`.
        file: a YAML file of further values; assignments win over it.
        cache: whether steps may take results of earlier runs; None leaves each step its own setting.

    Raises:
        UserError: there is no such version, a value is wrong, or nothing would ever run.
    """
    from gpu_pipelines.driver.data_check import warn_of_data
    from gpu_pipelines.driver.parameters.arguments import checked_values
    from gpu_pipelines.targets.scheduling import Wanted

    timing = timing_of(when, *limits)
    compiled = target.schedules.version(pipeline)
    values = checked_values(compiled, target, assignments, file)
    warn_of_data(compiled, values, target.settings, target.registry)
    return compiled, target.schedules.submission(Wanted(name, timing, compiled, values, cache))


def changed_schedule(
    target: Any,
    schedule: str,
    wanted: tuple[str | None, str | None, str | None, str | None],
    limits: tuple[str | date | None, str | date | None, int | None],
    assignments: Sequence[str],
    file: Path | None = None,
) -> tuple[list[str], Submission]:
    """The lines to print about a change of a schedule, and the change as it will be sent. What is None stays.

    Args:
        target: one that has schedules.
        schedule: its name or id.
        wanted: another version, another name, a cron expression, and a time zone.
        limits: as of `new_schedule`.
        assignments: values of parameters, `key=value`.
        file: a YAML file of further values; assignments win over it.

    Raises:
        UserError: the target cannot change schedules, there is no such schedule or version, a value is wrong, or no run
            would ever start.
    """
    from gpu_pipelines.driver.data_check import warn_of_data
    from gpu_pipelines.driver.parameters.arguments import checked_values, defaults_of_project, values_given
    from gpu_pipelines.targets.cron import parse_cron
    from gpu_pipelines.targets.scheduling import Wanted

    if not hasattr(target.schedules, "contents"):
        raise UserError(
            f"The target {target.name} has no schedule update.", "Delete the schedule, and create another one."
        )
    pipeline, name, cron, time_zone = wanted
    found = target.schedules.find(schedule)
    present = target.schedules.cron_of(found)
    when = present
    if cron or time_zone:
        when = parse_cron(cron or present.fields, time_zone or (None if cron and "TZ=" in cron else present.zone))
    timing = timing_of(when, *limits)
    if when == present:
        timing = replace(timing, when=None)
    compiled = values = None
    told: list[str] = []
    if pipeline or assignments or file:
        compiled, before = target.schedules.contents(found)
        kept = values_given(compiled, before)
        if pipeline:
            compiled, before = target.schedules.another(pipeline), {**defaults_of_project(target), **kept}
        values = checked_values(compiled, target, assignments, file, before)
        if pipeline:
            told = _told_kept(kept, values.arguments)
        warn_of_data(compiled, values, target.settings, target.registry)
    return told, target.schedules.submission(Wanted(name, timing, compiled, values, found=found))


def _told_kept(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Which given parameters of the version before another version keeps, and which it does not have."""
    from gpu_pipelines.component_interface.parameter import shown_value

    # The service writes every number with a decimal point.
    shown = {name: f"{value:g}" if isinstance(value, float) else shown_value(value) for name, value in before.items()}
    kept = [f"{name} = {shown[name]}" for name, value in before.items() if now.get(name) == value]
    rest = "other parameters have the new version's defaults"
    told = [f"kept from the version before: {', '.join(kept) or 'nothing'}; {rest}"]
    if lost := [name for name in before if name not in now]:
        told.append(f"warning: the new version has no parameter {', '.join(lost)}, which the one before was given")
    return told


def timing_of(when: Cron, start: str | date | None, end: str | date | None, max_concurrent: int | None) -> Timing:
    """When runs start, which at least one must do.

    Raises:
        UserError: a text is not a time, or no run falls due between start and end.
    """
    from gpu_pipelines.targets.cron import next_times, parse_time
    from gpu_pipelines.targets.scheduling import Timing

    def time_of(given: str | date | None, flag: str) -> datetime | None:
        return parse_time(given, when.zone, flag) if given else None

    begins, ends = time_of(start, "--start"), time_of(end, "--end")
    if begins and ends and ends <= begins:
        raise UserError(f"--end {ends.isoformat()} is not after --start {begins.isoformat()}.")
    if not next_times(when, begins, ends, 1):
        raise UserError(
            f"No run of {when.text!r} is between --start and --end; nothing would ever run.", "Give a later --end."
        )
    return Timing(when, begins, ends, max_concurrent)
