"""`gpu-pipelines run`, `follow` and `cancel`: a run on any target, and its progress."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpu_pipelines.cli.application import INTERRUPTED, RUN_FAILED, Command, print_json
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
from gpu_pipelines.dag import PUBLISHED
from gpu_pipelines.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from gpu_pipelines.driver.watch import StreamWatch
    from gpu_pipelines.targets.messages import Outcome
    from gpu_pipelines.targets.target import Target
    from gpu_pipelines.terminal import Table

Run = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="The name that run or job submit printed, or the full name of a job on Vertex AI."
    ),
]
#: The beginning of a line with the result of a gate, and its colour.
_SIGNS = {"✓": "green", "✗": "red"}


class RunCommand(Command):
    """A command whose option `--resume` may have no value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Gives `--resume` the newest run if it has no value; the next word may be the pipeline."""
        from gpu_pipelines.dag import PIPELINES
        from gpu_pipelines.targets.messages import is_own

        args = list(args)
        for place, word in enumerate(args):
            following = args[place + 1] if place + 1 < len(args) else "-"
            if word == "--resume" and (following.startswith("-") or following in PIPELINES or is_own(following)):
                args[place] = "--resume=latest"
        left: list[str] = super().parse_args(ctx, args)
        if not ctx.params.get("pipeline") and not ctx.params.get("resume") and not ctx.resilient_parsing:
            ctx.fail("Missing argument 'PIPELINE'.")
        return left


@of_targets("run", default=HERE, with_flags=True)
def run(
    pipeline: Annotated[
        str,
        typer.Argument(
            show_default=False,
            help="A name, FILE.py, FILE.py:function or a compiled file; vertex: also an uploaded version, NAME/TAG, "
            f"NAME/VERSION or its address. Names: {', '.join(PUBLISHED)}. With --resume RUN that of the run.",
        ),
    ] = "",
    target: Any = None,
    param: Param = None,
    params: Params = None,
    dry_run: DryRun = False,
    cache: Cache = None,
    follow: Annotated[bool, typer.Option("--follow", help="Follow a run in the cloud until it ends.")] = False,
    interval: Interval = INTERVAL,
    as_json: AsJson = False,
    resume: Annotated[
        str,
        typer.Option(
            metavar="[RUN]",
            rich_help_panel="What is run",
            help="Continue a run that failed or was cancelled, at the step that failed; without a name, on this "
            "machine, the newest one that was interrupted with these parameters.",
        ),
    ] = "",
) -> None:
    """Run a pipeline: on this machine, or with --target on Vertex AI, in GKE, or on one VM.

    An option that only one target has begins with the target's name.
    """
    from gpu_pipelines.driver.request import is_here, shown_document, submission_of

    here = is_here(target)
    if here and follow:
        raise UserError(
            "--follow is for a run in the cloud.", "Leave it out: a run on this machine is always shown until its end."
        )
    submission = submission_of(target, pipeline, param or [], params, cache, resume, dry_run=dry_run)
    if dry_run and as_json:
        print_json(shown_document(submission))
    elif dry_run:
        show(submission.shown())
    elif here:
        from gpu_pipelines.driver.watch import StreamWatch

        # Bound to the current stream: while the pipeline runs, the target reads stdout.
        watch = StreamWatch(sys.stderr if as_json else sys.stdout)
        _end(target.execute(submission, watch), watch, as_json)
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
    """Follow a run or a job, with its log lines where there are any, until it ends. Ctrl-C leaves it running."""
    follow_run(target, run, interval, as_json)


@of_targets("cancel", can="cancel", default=THERE)
def cancel(run: Run, target: Any) -> None:
    """Cancel a run with the jobs of its steps, or a job."""
    print(target.cancel(run))


def follow_run(target: Any, run: str, every: float, as_json: bool, full_name: str = "") -> None:
    """Waits for the end of a run and shows its progress.

    Args:
        target: the target of the run.
        run: its name on the target.
        every: seconds between two checks.
        as_json: print one JSON document at the end, and nothing else.
        full_name: the name to print for coming back; by default the name.

    Raises:
        UserError: there is no such run, or the service cannot be reached.
        typer.Exit: the run has failed, or Ctrl-C was pressed.
    """
    from gpu_pipelines.driver.watch import StreamWatch

    watch = StreamWatch(sys.stderr if as_json else sys.stdout, steps=not as_json)
    try:
        outcome = target.follow(run, watch, every)
    except KeyboardInterrupt:
        back = ways_back(target, full_name or run)
        told = [f"{run.rpartition('/')[2]} goes on without being followed", *back]
        print("\n".join(told), file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    _end(outcome, watch, as_json)


def ways_back(target: Target, run: str) -> list[str]:
    """The commands that follow and cancel a run, as they can be copied."""
    from gpu_pipelines.targets.options import declared, flag_of

    named = f" --target {target.name}" if target.name != THERE else ""
    # The full name of a job includes its place.
    for name, each in declared(target.Options).items() if "/" not in run else ():
        if "follow" in each.commands and target.settings.origins.get(each.setting, "").startswith("--"):
            named += f" {flag_of(name)} {getattr(target.settings, each.setting)}"
    return [f"{command}: gpu-pipelines {command} {run}{named}" for command in ("follow", "cancel")]


def _end(outcome: Outcome, watch: StreamWatch, as_json: bool) -> None:
    """Prints the end of a run, and ends the command with its exit status."""
    if as_json:
        print_json(outcome.document)
    if outcome.state == "succeeded":
        if not as_json:
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
