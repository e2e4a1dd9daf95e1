"""Makes a requested run ready for its target: loads, checks and assembles it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_pipelines.dag import PIPELINES, load_request, pipeline_for
from gpu_pipelines.dag.placement import BEGINS_STUDY
from gpu_pipelines.driver.data_check import require_usable_data
from gpu_pipelines.driver.parameters.arguments import checked_values
from gpu_pipelines.driver.parameters.texts import given_values
from gpu_pipelines.driver.resuming import goes_on, resumed_submission
from gpu_pipelines.notifications.recipients import recipients_of, require_variables
from gpu_pipelines.targets.messages import Request

if TYPE_CHECKING:
    from gpu_pipelines.notifications.recipients import Recipients
    from gpu_pipelines.targets.messages import Compiled, Submission, Values
    from gpu_pipelines.targets.target import Target


def is_here(target: Target) -> bool:
    """Whether a target runs a pipeline to its end, instead of starting it elsewhere."""
    return target.is_here


def submission_of(
    target: Target,
    pipeline: str,
    assignments: Sequence[str],
    file: Path | None,
    cache: bool | None,
    resume: str = "",
    *,
    dry_run: bool = False,
) -> Submission:
    """A run that is ready to be sent; prints the cost of its machines and warnings to stderr.

    For a run on this machine, the recipients of its end also get a message if it is refused: nobody may be there to
    read why a nightly run did not begin. Elsewhere the run's own last step sends the messages.

    Args:
        target: where it will run.
        pipeline: name of a pipeline, a file, or an address that the target knows.
        assignments: parameters as texts of the form `key=value`; they win over the file.
        file: a YAML file of parameters.
        cache: whether steps may take results of earlier runs; None leaves each step its own setting.
        resume: the run to continue; `latest` for the newest on this machine with these parameters; empty for
            none.
        dry_run: whether it is only shown, without messages.

    Raises:
        UserError: such a run is not possible.
    """
    from gpu_pipelines.targets.local.telling import told_of_errors
    from gpu_pipelines.targets.runs.recorded import LATEST

    told = _told_from_here(target) if is_here(target) else None
    named = pipeline or ("the newest run" if resume == LATEST else resume)
    with told_of_errors(named, None if dry_run else told, "refused"):
        return _submission(target, pipeline, assignments, file, cache, resume)


def _submission(
    target: Target,
    pipeline: str,
    assignments: Sequence[str],
    file: Path | None,
    cache: bool | None,
    resume: str,
) -> Submission:
    """As `submission_of`, but without messages about errors."""
    if goes_on(target, pipeline, resume):
        return resumed_submission(target, pipeline, resume, assignments, file, cache)
    given = given_values(assignments, file)
    request = Request(pipeline_for(pipeline, given), given, cache, resume=resume)
    compiled = target.load(request)
    values = checked_values(compiled, target, assignments, file)
    if not is_here(target):
        require_usable_data(compiled, values, target.settings, target.registry)
    compiled = target.fitted(compiled, request, values)
    submission = target.submission(compiled, request, values)
    for line in [*compiled.told, *_told(compiled, values)]:
        print(line, file=sys.stderr)
    return submission


def _told_from_here(target: Target) -> Recipients | None:
    """The recipients of a run's end, checked before the run, because its end is too late for that."""
    told = recipients_of(getattr(target.options, "notify", None), False, target.settings)
    if told is not None:
        require_variables(told)
    return told


def shown_document(submission: Submission) -> Mapping[str, Any]:
    """What a dry run of a run prints for programs."""
    if submission.document:
        return submission.document()
    document: Mapping[str, Any] = json.loads("\n".join(map(str, submission.shown())))
    return document


def _told(compiled: Compiled, values: Values) -> Sequence[str]:
    """Lines that the request of a pipeline prints about a run with these parameters."""
    name = compiled.name.replace("-", "_")
    if name not in PIPELINES:
        return ()
    told: Callable[[Mapping[str, Any], bool], Sequence[str]] | None = getattr(load_request(name), "told", None)
    tasks = compiled.spec.get("root", {}).get("dag", {}).get("tasks", {})
    return told(values.arguments, BEGINS_STUDY in tasks) if told else ()
