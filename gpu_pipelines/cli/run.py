"""`gpu-pipelines run`, `follow` and `cancel`: a run on any target, and how it goes."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpu_pipelines.cli.application import print_json
from gpu_pipelines.cli.target_options import (
    HERE,
    INTERVAL,
    THERE,
    AsJson,
    Cache,
    DryRun,
    Interval,
    Param,
    Params,
    of_targets,
)
from gpu_pipelines.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from gpu_pipelines.targets.local.log import Observer, StepRecord
    from gpu_pipelines.targets.messages import Outcome
    from gpu_pipelines.targets.target import Target
    from gpu_pipelines.terminal import Table

RUN_FAILED, INTERRUPTED = 1, 130
Run = Annotated[
    str, typer.Argument(metavar="RUN", help="What run or job submit printed, or the full name of a job on Vertex AI.")
]
#: What a line begins with that says whether a gate was passed, and its colour.
_SIGNS = {"✓": "green", "✗": "red"}


@of_targets("run", default=HERE)
def run(
    pipeline: Annotated[
        str,
        typer.Argument(
            help="A name, FILE.py, FILE.py:function or a compiled file; vertex: also an address. "
            "Names: train_evaluate_upload, scheduled_retraining."
        ),
    ],
    target: Any,
    param: Param = None,
    params: Params = None,
    dry_run: DryRun = False,
    cache: Cache = None,
    follow: Annotated[bool, typer.Option("--follow", help="Show a run in the cloud until its end.")] = False,
    interval: Interval = INTERVAL,
    as_json: AsJson = False,
) -> None:
    """Run a pipeline: on this machine, or with --target on Vertex AI, in GKE, or on one VM.

    An option that a single target has begins with its name.
    """
    from gpu_pipelines.cli.arguments import checked_values, given_values
    from gpu_pipelines.cli.data_check import require_usable_data
    from gpu_pipelines.targets.messages import Request

    here = not hasattr(target, "submit")
    if here and (as_json or follow):
        flags = [flag for flag, is_given in (("--follow", follow), ("--json", as_json)) if is_given]
        raise UserError(f"The target {target.name} has no {', '.join(flags)}.", "Its runs are shown until their end.")
    request = Request(pipeline, given_values(param or [], params), cache)
    compiled = target.load(request)
    values = checked_values(compiled, target, param or [], params)
    if not here:
        require_usable_data(compiled, values)
    compiled = target.fitted(compiled, request, values)
    submission = target.submission(compiled, request, values)
    for line in compiled.told:
        print(line, file=sys.stderr)
    if dry_run:
        show(submission.shown())
    elif here:
        # Bound to stdout as it is now: while the pipeline runs, stdout is read by the target.
        watch = Watch(as_json=False)
        _end(target.execute(submission, watch), watch)
    else:
        done = target.submit(submission)
        if as_json and not follow:
            print_json(done.document)
        elif not as_json:
            show([*done.lines, *ways_back(target, done.name)])
        if follow:
            follow_run(target, done.name, interval, as_json)


@of_targets("follow", can="follow", default=THERE)
def follow(run: Run, target: Any, interval: Interval = INTERVAL, as_json: AsJson = False) -> None:
    """Show how a run or a job goes, with its log lines where there are any, until its end. Ctrl-C leaves it running."""
    follow_run(target, run, interval, as_json)


@of_targets("cancel", can="cancel", default=THERE)
def cancel(run: Run, target: Any) -> None:
    """Cancel a run with the jobs of its steps, or a job."""
    print(target.cancel(run))


def follow_run(target: Any, run: str, every: float, as_json: bool, full_name: str = "") -> None:
    """Waits for the end of a run and shows how it goes.

    Args:
        target: where it is.
        run: its name, as the target has it.
        every: seconds between two looks.
        as_json: print one JSON document at the end, and nothing else.
        full_name: by which it is told how to come back; left out, the name.

    Raises:
        UserError: there is no such run, or the service cannot be reached.
        typer.Exit: the run has failed, or Ctrl-C was pressed.
    """
    watch = Watch(as_json)
    try:
        outcome = target.follow(run, watch, every)
    except KeyboardInterrupt:
        back = ways_back(target, full_name or run)
        told = [f"{run.rpartition('/')[2]} goes on without being followed", *back]
        print("\n".join(told), file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    _end(outcome, watch)


def ways_back(target: Target, run: str) -> list[str]:
    """The commands that follow and cancel a run, as they can be copied."""
    from gpu_pipelines.targets.options import declared, flag_of

    named = f" --target {target.name}" if target.name != THERE else ""
    # The full name of a job says where it is.
    for name, each in declared(target.Options).items() if "/" not in run else ():
        if "follow" in each.commands and target.settings.origins.get(each.setting, "").startswith("--"):
            named += f" {flag_of(name)} {getattr(target.settings, each.setting)}"
    return [f"{command}: gpu-pipelines {command} {run}{named}" for command in ("follow", "cancel")]


def _end(outcome: Outcome, watch: Watch) -> None:
    """Tells the end of a run, and ends the command with its exit status."""
    if watch.as_json:
        print_json(outcome.document)
    if outcome.state == "succeeded":
        if not watch.as_json:
            show(outcome.lines, watch.console)
        return
    print("\n".join(map(str, outcome.lines)), file=sys.stderr)
    raise typer.Exit(INTERRUPTED if outcome.state == "interrupted" else RUN_FAILED)


def show(lines: Sequence[str | Table], console: Console | None = None) -> None:
    """Prints lines and tables."""
    from gpu_pipelines.terminal import console_on

    console = console or console_on()
    for line in lines:
        if not isinstance(line, str):
            line.print(console)
            continue
        sign = line[:1] if line[:1] in _SIGNS else ""
        if sign:
            console.print(sign, style=_SIGNS[sign], end="")
        # Not wrapped at the console's width, so that a path can be copied.
        console.print(line[len(sign) :], highlight=False, markup=False, soft_wrap=True)
    sys.stdout.flush()


class Watch:
    """Shows how something goes while it is waited for; see `gpu_pipelines.targets.messages.Watch`.

    Args:
        as_json: whether stdout is for one JSON document alone.
    """

    def __init__(self, as_json: bool) -> None:
        from gpu_pipelines.terminal import console_on

        self.as_json, self.console = as_json, console_on(sys.stdout)

    def steps(self) -> AbstractContextManager[Observer]:
        """Shows steps live on a terminal, and in plain lines elsewhere."""
        from gpu_pipelines.cli.progress import progress_on

        return nullcontext(_Silent()) if self.as_json else progress_on(self.console)

    def tell(self, text: str) -> None:
        """Says what has happened; beside a document on stderr."""
        print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr if self.as_json else sys.stdout, flush=True)

    def say(self, line: str) -> None:
        """Says a line of a log."""
        if not self.as_json:
            print(f"  {line}", flush=True)

    def warn(self, text: str) -> None:
        """Warns on stderr."""
        print(f"warning: {text}", file=sys.stderr)


class _Silent:
    """An observer for whoever wants the end alone."""

    def step_began(self, step: str) -> None:
        return None

    def step_said(self, step: str, line: str) -> None:
        return None

    def step_ended(self, step: StepRecord) -> None:
        return None
