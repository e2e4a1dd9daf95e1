"""The runs on this machine: finding them by name, and removing them."""

from __future__ import annotations

import json
import platform
import shutil
import sys
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

from gpu_pipelines.errors import InvalidRequestError, NotFoundError, UserError, nearest
from gpu_pipelines.targets.runs.record import RUN, WHOLE_ID, RunRecord
from gpu_pipelines.targets.steps import StepRecord

#: The name for the newest run.
LATEST = "latest"
#: Folder of results that runs share, below the directory of runs.
CACHE = ".cache"
_MOST_NAMED = 8
#: Folder of a run's trainings, in the folder of the run.
_CHECKPOINTS = Path("artifacts", "checkpoints")


def recorded_runs(runs: Path) -> list[RunRecord]:
    """All runs, the newest first, without those whose record is damaged.

    Args:
        runs: directory of runs.
    """
    return runs_and_problems(runs)[0]


def runs_and_problems(runs: Path) -> tuple[list[RunRecord], list[str]]:
    """The runs of `recorded_runs`, and what is wrong with the records of the others; each record is read once.

    Args:
        runs: directory of runs.
    """
    found, problems = [], []
    for file in sorted(runs.glob(f"*/{RUN}")):
        try:
            found.append(RunRecord.load(file.parent))
        except UserError as error:
            problems.append(error.in_one_line)
    # Ids of the same second sort by length, so that the tenth comes after the ninth.
    found.sort(key=lambda record: (record.started, len(record.run_id), record.run_id), reverse=True)
    return found, problems


def run_named(runs: Path, name: str) -> RunRecord:
    """The run with a name.

    Args:
        runs: directory of runs.
        name: the id, a unique beginning of it, or `latest`.

    Raises:
        UserError: there is no such run, or there are several.
    """
    if name and (runs / name / RUN).is_file() and Path(name).name == name:
        return RunRecord.load(runs / name)
    known = recorded_runs(runs)
    if not known:
        raise NotFoundError(f"There are no runs in {runs}.", "Run a pipeline, or give the directory with --runs.")
    begins = [each for each in known if name and each.run_id.startswith(name) and not WHOLE_ID.fullmatch(name)]
    found = known[:1] if name == LATEST else begins
    if not found:
        remedy = nearest(name, [each.run_id for each in known], [LATEST], "gpu-pipelines runs list shows them all.")
        raise NotFoundError(f"There is no run {name[:80]!r} in {runs}.", remedy)
    if len(found) > 1:
        named = ", ".join(each.run_id for each in found[:_MOST_NAMED])
        more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
        raise InvalidRequestError(f"{len(found)} runs begin with {name[:80]!r}: {named}{more}.", "Give more of the id.")
    return found[0]


def run_to_resume(runs: Path, pipeline: str, parameters: Mapping[str, Any]) -> RunRecord:
    """The newest run that did not finish, among those that began to train if there are any.

    A run that another run continued and finished does not count. Runs with a damaged record are ignored, with a warning
    on stderr.

    Args:
        runs: directory of all runs.
        pipeline: name of the pipeline.
        parameters: those of the request; the run must have had the same, except for the training's parameters that
            choose the step from which it continues.

    Raises:
        UserError: there is no such run, or it is still running.
    """
    from gpu_pipelines.training.settings import TrainingSettings

    records, problems = runs_and_problems(runs)
    for problem in problems:
        print(f"warning: --resume ignores a run: {problem}", file=sys.stderr)
    freed = [each.name for each in fields(TrainingSettings)] if parameters.get("resume_from_step") else []

    def compared(of_a_run: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in of_a_run.items() if name not in freed}

    found, finished, ended_by = [], dict[str, str](), ""
    for record in records:
        by = finished.get(record.run_id) or (record.run_id if record.status == "succeeded" else "")
        if by and record.resumes:
            finished[record.resumes] = by
        if record.status == "succeeded" or record.pipeline != pipeline:
            continue
        if compared(record.parameters) != compared(parameters):
            continue
        if by:
            ended_by = ended_by or by
            continue
        # A restarted container counts as another machine than the killed one.
        if record.machine == platform.node():
            record.require_over()
        if checkpoints_of(record):
            return record
        found.append(record)
    if not found:
        raise UserError(
            f"{runs} has no run of {pipeline} with these parameters that was interrupted or failed.",
            "Run it without --resume." + f" {ended_by} continued it to the end." * bool(ended_by),
        )
    return found[0]


def checkpoints_of(record: RunRecord) -> str:
    """The checkpoints of a run's training, possibly in the run that this one continued; empty for none."""
    place = _where_it_is_now(Path(record.checkpoints or record.directory / _CHECKPOINTS), record.directory.parent)
    if place.name == "checkpoints":
        # Its own: the folder has a folder for each of its trainings.
        return next((str(each) for each in sorted(place.glob("*")) if each.is_dir()), "")
    return str(place)


def _where_it_is_now(place: Path, runs: Path) -> Path:
    """The place of checkpoints below the directory of runs, which may have been moved or copied since it was recorded.

    Args:
        place: as recorded.
        runs: directory of runs.
    """
    for length in (3, 4):  # RUN/artifacts/checkpoints, and the folder in it
        tail = place.parts[-length:]
        if Path(*tail[1:3]) == _CHECKPOINTS and (here := runs.absolute().joinpath(*tail)).is_dir():
            return here
    return place


def remove_runs(runs: Path, records: Sequence[RunRecord]) -> None:
    """Removes runs with all their files, and their results in the cache.

    Registries have copies of what was uploaded, which stay.

    Args:
        runs: directory of runs.
        records: the runs.

    Raises:
        UserError: one is still running, or another run uses results of one; nothing is removed then.
    """
    for record in records:
        record.require_over()
    removed = dict.fromkeys(record.run_id for record in records)
    left = [each for each in recorded_runs(runs) if each.run_id not in removed]
    places = {_name_in_documents(record): record.run_id for record in records}
    takers: dict[str, list[str]] = {}
    # The files that a run names are read once for all runs to remove.
    for each in left:
        named = set[str]().union(*(_runs_named_in(file) for file in _documents_of(each, runs / CACHE)))
        for name in named & places.keys():
            takers.setdefault(places[name], []).append(each.run_id)
    if used := next((run_id for run_id in removed if run_id in takers), None):
        raise InvalidRequestError(
            f"{', '.join(takers[used])} use results of {used}, which exist only there.",
            "Keep it, or name those runs as well.",
        )
    # A cached result that names files of a removed run would point to nothing.
    for entry in (runs / CACHE).glob("*.json"):
        if _runs_named_in(entry) & places.keys():
            entry.unlink(missing_ok=True)
    for record in records:
        # Another command may remove it as well, and rmtree fails if a file is gone.
        while record.directory.exists():
            with suppress(FileNotFoundError):
                shutil.rmtree(record.directory)


def _documents_of(record: RunRecord, cache: Path) -> Iterator[Path]:
    """The documents of a run that name its files: its own, and those of results that it reused."""
    yield record.directory / RUN
    yield from record.directory.glob("artifacts/**/executor_output.json")
    for entry, _ in entries_taken(record.steps, cache):
        yield entry


def entries_taken(steps: Iterable[StepRecord], cache: Path) -> Iterator[tuple[Path, StepRecord]]:
    """The cached results that steps reused: the file, and the step.

    Args:
        steps: steps of a run.
        cache: folder of cached results.
    """
    takers = [step for step in steps if step.taken]
    # The folder has the results of all runs; it is listed once for all steps.
    kept = sorted(entry.name for entry in cache.glob("*.json")) if takers else []
    for step in takers:
        # Keys are hexadecimal, and "~" sorts after these.
        for name in kept[bisect_left(kept, step.taken) : bisect_left(kept, f"{step.taken}~")]:
            yield cache / name, step


def _name_in_documents(record: RunRecord) -> str:
    """The text by which a JSON document names the folder of a run, within the path of a file."""
    return json.dumps(record.directory.resolve().name)[1:-1]


def _runs_named_in(document: Path) -> set[str]:
    """All names in a document that may be folders of runs; empty if its run is being removed.

    The text is searched once, for any number of runs.
    """
    with suppress(FileNotFoundError):
        before = document.read_text(encoding="utf-8").split("/artifacts/")[:-1]
        folders = {text.rpartition("/")[2] for text in before}
        # A given path, such as `checkpoint_uri`, may be relative, and begin with the folder.
        return folders | {folder.rpartition('"')[2] for folder in folders}
    return set()
