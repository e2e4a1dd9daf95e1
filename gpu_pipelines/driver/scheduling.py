"""What a new schedule is to be, from what a command line or a Python program has given."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
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
    limits: tuple[str | None, str | None, int],
    assignments: Sequence[str],
    file: Path | None = None,
    cache: bool | None = None,
) -> tuple[Compiled, Submission]:
    """The version that a schedule will run, and the schedule as it will be sent.

    Args:
        target: one that has schedules.
        pipeline: an uploaded version, or a file, which is sent.
        name: of the schedule.
        when: runs start.
        limits: the first and the last time, None for none, and how many runs there are at the same time at most.
        assignments: values of parameters, `key=value`.
        file: more of them; the former win.
        cache: whether steps may take results of earlier runs; None leaves each step its own setting.

    Raises:
        UserError: there is no such version, a value is wrong, or nothing would ever run.
    """
    from gpu_pipelines.driver.arguments import checked_values
    from gpu_pipelines.driver.data_check import warn_of_data
    from gpu_pipelines.targets.scheduling import Wanted

    timing = timing_of(when, *limits)
    compiled = target.schedules.version(pipeline)
    values = checked_values(compiled, target, assignments, file)
    warn_of_data(compiled, values, target.settings, target.registry)
    return compiled, target.schedules.submission(Wanted(name, timing, compiled, values, cache))


def timing_of(when: Cron, start: str | None, end: str | None, max_concurrent: int | None) -> Timing:
    """When runs start, which at least one must do.

    Raises:
        UserError: a text is no time, or no run falls due between start and end.
    """
    from gpu_pipelines.targets.cron import next_times, parse_time
    from gpu_pipelines.targets.scheduling import Timing

    def time_of(text: str | None, flag: str) -> datetime | None:
        return parse_time(text, when.zone, flag) if text else None

    begins, ends = time_of(start, "--start"), time_of(end, "--end")
    if begins and ends and ends <= begins:
        raise UserError(f"--end {ends.isoformat()} is not after --start {begins.isoformat()}.")
    if not next_times(when, begins, ends, 1):
        raise UserError(
            f"No run of {when.text!r} is between --start and --end; nothing would ever run.", "Give a later --end."
        )
    return Timing(when, begins, ends, max_concurrent)
