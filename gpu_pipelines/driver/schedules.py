"""Schedules of pipelines in a Python program: what the commands `schedule` do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from os import PathLike, fspath
from typing import Any

from gpu_pipelines.driver.opening import fields_of_command, target_and_others, target_with
from gpu_pipelines.driver.parameters.given import assignments_of, parameters_given
from gpu_pipelines.driver.run import teller

_CAN = "schedules"


@dataclass(frozen=True, repr=False)
class Schedule:
    """A schedule as it was when it was read.

    Attributes:
        id: its id in the service.
        name: its name.
        target: vertex, kubeflow, or that of another package.
        document: all that the service reports, as `gpu-pipelines schedule describe --json` prints it.
    """

    id: str
    name: str
    target: str
    document: Mapping[str, Any]
    _options: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def pause(self) -> Schedule:
        """Stops it from starting runs, as `gpu-pipelines schedule pause`. Runs that have begun continue.

        Returns:
            The schedule as it is then.

        Raises:
            UserError: it no longer exists, or the service cannot be reached.
        """
        return self._after("pause", {})

    def resume(self, **options: Any) -> Schedule:
        """Lets it start runs again, as `gpu-pipelines schedule resume`.

        Args:
            options: of vertex `catch_up=True`, which also starts the runs that were due in between.

        Returns:
            The schedule as it is then.

        Raises:
            UserError: it no longer exists, there is no such option, or the service cannot be reached.
        """
        return self._after("resume", options)

    def delete(self) -> None:
        """Deletes it, as `gpu-pipelines schedule delete`. Runs that have begun continue.

        Raises:
            UserError: it no longer exists, or the service cannot be reached.
        """
        self._schedules("delete", {}).delete(self.id)

    def update(
        self,
        *,
        pipeline: str | None = None,
        name: str | None = None,
        cron: str | None = None,
        time_zone: str | None = None,
        start: str | date | None = None,
        end: str | date | None = None,
        max_concurrent: int | None = None,
        arguments: Mapping[str, Any] | None = None,
        progress: bool = True,
        **parameters: Any,
    ) -> Schedule:
        """Changes it, as `gpu-pipelines schedule update`; Kubeflow Pipelines cannot change schedules.

        What is None or left out stays, parameters included. Another version brings its own defaults; parameters that
        differ from the defaults of the version before stay.

        Args:
            pipeline: another uploaded version, `NAME/TAG` or its address.
            name: another name.
            cron: five fields.
            time_zone: such as Europe/Paris.
            start: no run before this time, such as `2027-01-31T03:00` or a `datetime`.
            end: no run after this time.
            max_concurrent: most runs at the same time.
            arguments: parameters that share a name with an option or an argument of this function.
            progress: print to stderr which parameters another version keeps.
            parameters: options of the target (`max_runs`), and parameters of the pipeline.

        Returns:
            The schedule as it is then.

        Raises:
            UserError: it cannot be changed, there is no such version, a value is wrong, or nothing would ever run.
        """
        from gpu_pipelines.driver.scheduling import changed_schedule

        opened, others = target_and_others(self.target, "schedule update", {**self._options, **parameters}, _CAN)
        limits, assignments = (start, end, max_concurrent), assignments_of(parameters_given(others, arguments))
        told, submission = changed_schedule(opened, self.id, (pipeline, name, cron, time_zone), limits, assignments)
        for line in told:
            teller(progress)(line)
        there: Any = opened.schedules
        return _of(opened, there.send(submission), self._options)

    def _schedules(self, verb: str, options: Mapping[str, Any]) -> Any:
        return target_with(self.target, f"schedule {verb}", {**self._options, **options}, _CAN).schedules

    def _after(self, verb: str, options: Mapping[str, Any]) -> Schedule:
        getattr(self._schedules(verb, options), verb)(self.id)
        return open_schedule(self.id, self.target, **self._options)

    def __repr__(self) -> str:
        return f"Schedule {self.name} ({self.id}) on {self.target}"


def schedule(
    pipeline: str | PathLike[str],
    name: str,
    cron: str,
    target: str = "vertex",
    *,
    time_zone: str | None = None,
    start: str | date | None = None,
    end: str | date | None = None,
    max_concurrent: int = 1,
    cache: bool | None = None,
    arguments: Mapping[str, Any] | None = None,
    **parameters: Any,
) -> Schedule:
    """Schedules runs of an uploaded pipeline, as `gpu-pipelines schedule create`.

    Args:
        pipeline: an uploaded version, `NAME`, `NAME/TAG` or `NAME/VERSION` or its address; or a file, which is sent.
        name: of the schedule; it must be unique.
        cron: five fields; `0 3 * * *` is daily at 3.
        target: vertex, kubeflow, or that of another package that has schedules.
        time_zone: such as Europe/Paris; None for UTC.
        start: no run before this time, such as `2027-01-31T03:00` or a `datetime`; None for now.
        end: no run after this time; None for none.
        max_concurrent: most runs at the same time.
        cache: whether steps may take results of earlier runs; None leaves each step its own setting.
        arguments: parameters that share a name with an option or an argument of this function.
        parameters: options of the target, and parameters of the pipeline.

    Returns:
        The schedule.

    Raises:
        UserError: there is no such version, something is wrong with a value, or nothing would ever run.
    """
    from gpu_pipelines.driver.scheduling import new_schedule
    from gpu_pipelines.targets.cron import parse_cron

    opened, others = target_and_others(target, "schedule create", parameters, _CAN)
    limits, assignments = (start, end, max_concurrent), assignments_of(parameters_given(others, arguments))
    when = parse_cron(cron, time_zone)
    _, submission = new_schedule(opened, fspath(pipeline), name, when, limits, assignments, cache=cache)
    there: Any = opened.schedules
    known = {each for each, *_ in fields_of_command(opened.Options, "schedule describe")}
    options = {option: value for option, value in parameters.items() if option in known}
    return _of(opened, there.send(submission), options)


def list_schedules(target: str = "vertex", **options: Any) -> list[Schedule]:
    """The schedules of a project in a region, or those of Kubeflow Pipelines, as `gpu-pipelines schedule list`.

    Args:
        target: vertex, kubeflow, or that of another package that has schedules.
        options: those of the target, such as `project` and `region`.

    Raises:
        UserError: the target has no schedules, there is no such option, or the service cannot be reached.
    """
    opened = target_with(target, "schedule list", options, _CAN)
    there: Any = opened.schedules
    return [_of(opened, found, options) for found in there.all()]


def open_schedule(name: str, target: str = "vertex", **options: Any) -> Schedule:
    """A schedule as it is now, as `gpu-pipelines schedule describe`.

    Args:
        name: its name or id.
        target: vertex, kubeflow, or that of another package that has schedules.
        options: those of the target, such as `project` and `region`.

    Returns:
        The schedule, which can be paused, resumed, changed and deleted.

    Raises:
        UserError: there is no such schedule, several have the name, or the service cannot be reached.
    """
    opened = target_with(target, "schedule describe", options, _CAN)
    there: Any = opened.schedules
    return _of(opened, there.find(name), options)


def _of(opened: Any, found: Any, options: Mapping[str, Any]) -> Schedule:
    number, name = opened.schedules.named(found)
    return Schedule(number, name, opened.name, dict(opened.schedules.document(found)), options)
