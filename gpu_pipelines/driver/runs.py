"""The runs on this machine and elsewhere as a program gets them: listed, opened, compared and removed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_pipelines.driver.opening import target_with
from gpu_pipelines.driver.run import Run
from gpu_pipelines.errors import InvalidRequestError, NotFoundError, UserError, nearest
from gpu_pipelines.targets.runs.trial_record import RUNS

if TYPE_CHECKING:
    from gpu_pipelines.targets.runs.account import RunAccount
    from gpu_pipelines.targets.runs.record import RunRecord
    from gpu_pipelines.targets.target import Target

_HERE = "local"


def list_runs(runs: str | PathLike[str] = RUNS) -> list[Run]:
    """The runs on this machine, the newest first, as `gpu-pipelines runs list`.

    A run whose record cannot be read is left out, with a warning on stderr.

    Args:
        runs: directory of the runs.
    """
    return [Run.of_record(record) for record in readable_runs(Path(runs))]


def readable_runs(runs: Path) -> list[RunRecord]:
    """The records of `list_runs`."""
    from gpu_pipelines.targets.runs.recorded import runs_and_problems

    records, problems = runs_and_problems(runs)
    for problem in problems:
        print(f"warning: a run is not listed: {problem}", file=sys.stderr)
    return records


def open_run(name: str = "latest", runs: str | PathLike[str] = RUNS, target: str = _HERE, **options: Any) -> Run:
    """A run as it is now, as `gpu-pipelines runs show`; on this machine or elsewhere.

    Args:
        name: on this machine its id, a unique beginning of it, or `latest`; elsewhere the name that `run` or
            `submit_job` gave it.
        runs: directory of the runs on this machine.
        target: local, vertex, kubeflow, compute_engine, or that of another package.
        options: those of the target, such as `project` and `region`.

    Returns:
        The run. Elsewhere, `document` has its steps and its cost; `follow` waits for its end, and `cancel` ends it.

    Raises:
        UserError: there is no such run, there are several, or the service cannot be reached.
    """
    from gpu_pipelines.targets.runs.recorded import run_named

    opened = target_with(target, "runs show", options)
    if target == _HERE:
        return Run.of_record(run_named(Path(runs), name))
    account = account_of(opened, name)
    took = (account.ended - account.began).total_seconds() if account.began and account.ended else 0.0
    began = account.began.isoformat() if account.began else ""
    return Run(name, target, account.state, started=began, seconds=took, document=account.to_json(), _opened=opened)


def account_of(target: Target, run: str) -> RunAccount:
    """The state and the cost of a run elsewhere, which are also logged to its tracker.

    Args:
        target: where it is.
        run: its name, as the target has it.

    Raises:
        UserError: the target reports nothing about runs, there is no such run, or the service cannot be reached.
    """
    from gpu_pipelines.targets.runs.account import tell_tracker

    teller: Any = target
    if not hasattr(teller, "account"):
        raise UserError(f"The target {target.name} reports nothing about runs.", "Look at it where it runs.")
    account: RunAccount = teller.account(run)
    tell_tracker(account, lambda text: print(f"warning: {text}", file=sys.stderr))
    return account


def compare_runs(first: str | Run, second: str | Run, runs: str | PathLike[str] = RUNS) -> dict[str, Any]:
    """What differs between two runs on this machine, as `gpu-pipelines runs compare`.

    Args:
        first: a run, or its name as `open_run` takes it; `a` in what is returned.
        second: another one, `b`.
        runs: directory of the runs that are given by name.

    Returns:
        By name, and by `a` and `b` as far as each has a value: the `parameters` that differ, all `metrics`, and for
        each of the `steps` its duration in seconds, or its status if it was reused or did not succeed. The accelerators
        are among the parameters as `--accelerator`, as a pipeline may have a parameter `accelerator`.

    Raises:
        UserError: there is no such run on this machine, or there are several.
    """
    from gpu_pipelines.targets.runs.record import RunRecord
    from gpu_pipelines.targets.runs.recorded import run_named

    def record_of(run: str | Run) -> RunRecord:
        return RunRecord.load(_directory_of(run)) if isinstance(run, Run) else run_named(Path(runs), run)

    return differences(record_of(first), record_of(second))


def _directory_of(run: Run) -> Path:
    """The directory of a run; raises UserError if it is not on this machine."""
    if run.directory is None:
        raise InvalidRequestError(f"The run {run.id} is on {run.target}.", "Give runs on this machine.")
    return run.directory


def differences(first: RunRecord, second: RunRecord) -> dict[str, Any]:
    """What `compare_runs` returns."""

    def beside(of: Any) -> dict[str, dict[str, Any]]:
        found = {"a": of(first), "b": of(second)}
        names = list(dict.fromkeys([*found["a"], *found["b"]]))
        return {name: {each: found[each][name] for each in found if name in found[each]} for name in names}

    def durations(record: RunRecord) -> dict[str, float | str]:
        return {step.name: step.seconds if step.status == "succeeded" else step.status for step in record.steps}

    parameters = beside(lambda record: {**record.parameters, "--accelerator": record.accelerator})
    return {
        "runs": {"a": first.run_id, "b": second.run_id},
        "parameters": {name: values for name, values in parameters.items() if not _are_equal(values)},
        "metrics": beside(lambda record: record.metrics),
        "steps": beside(durations),
    }


def _are_equal(values: dict[str, Any]) -> bool:
    return len(values) == 2 and values["a"] == values["b"]


def remove_runs(ids: str | Run | Sequence[str | Run], runs: str | PathLike[str] = RUNS) -> list[str]:
    """Removes runs on this machine with their artifacts and checkpoints, as `gpu-pipelines runs rm --yes`.

    Models in a registry stay.

    Args:
        ids: the runs, or their full ids: the id of a removed run may be the beginning of another's.
        runs: directory of the runs.

    Returns:
        The ids of the runs that were removed.

    Raises:
        UserError: there is no such run, one still runs, or another run uses its results; nothing is removed then.
    """
    from gpu_pipelines.targets.runs.recorded import recorded_runs

    given = [ids] if isinstance(ids, str | Run) else ids
    wanted = dict.fromkeys(_id_in(Path(runs), each) if isinstance(each, Run) else str(each) for each in given)
    if not wanted:
        return []
    known = {record.run_id: record for record in recorded_runs(Path(runs))}
    if missing := [name for name in wanted if name not in known]:
        remedy = nearest(missing[0], known) if known else ""
        raise NotFoundError(f"There is no run {missing[0][:80]!r} in {runs}.", remedy)
    removed(Path(runs), [known[name] for name in wanted])
    return list(wanted)


def _id_in(runs: Path, run: Run) -> str:
    """The id of a run; raises UserError if it is in another directory, where the id may be another run's."""
    if (there := _directory_of(run).parent).resolve() != runs.resolve():
        raise NotFoundError(f"The run {run.id} is in {there}, not in {runs}.", f"Give runs={str(there)!r}.")
    return run.id


def removed(runs: Path, records: Sequence[RunRecord]) -> None:
    """Removes runs, and their lines in the page about all; errors as those of `remove_runs`."""
    from gpu_pipelines.reports.runs_page import write_runs_page
    from gpu_pipelines.targets.runs.recorded import recorded_runs
    from gpu_pipelines.targets.runs.recorded import remove_runs as remove

    remove(runs, records)
    write_runs_page(runs, recorded_runs(runs))
