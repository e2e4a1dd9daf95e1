"""This machine as a target: a pipeline runs at once, and the command waits for its end."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_pipelines.component_interface.parameter import shown_value
from gpu_pipelines.component_interface.step import CHECKPOINTS_OF_RUN
from gpu_pipelines.errors import UserError
from gpu_pipelines.notifications.recipients import recipients_of
from gpu_pipelines.project_settings import ProjectSettings
from gpu_pipelines.targets.local.cluster_parts import missed_without_cluster
from gpu_pipelines.targets.local.outputs.next_commands import next_commands
from gpu_pipelines.targets.local.outputs.result_lines import shown_result
from gpu_pipelines.targets.local.own import component_of, for_this_machine, own_here, packages_by_address
from gpu_pipelines.targets.local.runs import GoesOn, LocalRequest, run_and_record
from gpu_pipelines.targets.local.target import LocalTarget, compiled_for_here, plan_here, require_step_packages
from gpu_pipelines.targets.local.telling import told_of_errors
from gpu_pipelines.targets.messages import Compiled, Outcome, Published, Request, Submission, Values, is_own
from gpu_pipelines.targets.options import CONTAINER, HERE, AcceleratorOptions, option, setting
from gpu_pipelines.targets.own.pipeline import CHECKPOINT_URI, OwnPipeline, own_pipeline, require_no_task
from gpu_pipelines.targets.own.plans import plans_here
from gpu_pipelines.targets.runs.record import RUN
from gpu_pipelines.targets.runs.trial_record import RUNS
from gpu_pipelines.targets.target import Target
from gpu_pipelines.terminal import Column, Table

if TYPE_CHECKING:
    from gpu_pipelines.targets.messages import Watch
    from gpu_pipelines.targets.runs.continued import GoneOn
    from gpu_pipelines.targets.runs.earlier import EarlierRun

#: The accelerator of a compiled file if none is named.
_DEFAULT = "cpu:2"
#: Below the directory of runs: the state of interrupted preparations.
_UNFINISHED = Path(".unfinished")


@dataclass(frozen=True, kw_only=True)
class LocalOptions(AcceleratorOptions):
    """The options of a run on this machine."""

    trial: bool = option(
        False, "Train a few dozen steps, and project time and cost on each accelerator.", {"run"}, group=HERE
    )
    runs: Path = option(RUNS, "Directory that gets a folder for each run.", {"run"}, group=HERE, metavar="DIR")
    image: str | None = setting("Image of the steps; see docs/images.md.", {"compile"}, "image", group=CONTAINER)
    reuse: bool = option(False, "The former name of --cache.", {"run"}, hidden=True)
    containers: bool = option(
        True, "Run container components in containers; else as processes of this machine.", {"run"}, group=HERE
    )


class Local(LocalTarget, Target):
    """This machine."""

    name = "local"
    title = "this machine"
    Options = LocalOptions
    options: LocalOptions

    def __init__(self, options: LocalOptions | None = None, settings: ProjectSettings | None = None) -> None:
        Target.__init__(self, options, settings)
        LocalTarget.__init__(self)
        # A pipeline for this machine has no step that sends messages: the command does.
        self._told = recipients_of(self.options.notify, self.options.notify_nothing_new, self.settings)

    def can_read(self, uri: str) -> bool:
        """Always: missing places are among the problems of a run."""
        return True

    def can_write(self, path: str) -> bool:
        """Every directory."""
        return True

    @property
    def written(self) -> dict[str, str]:
        """The folder of the runs."""
        return {"--runs …": str(self.options.runs)}

    def problems(self, compiled: Compiled, arguments: Mapping[str, Any]) -> list[str]:
        """The places that the steps could not open."""
        from gpu_pipelines.dag import load_request

        if isinstance(compiled.origin, OwnPipeline):
            return []
        return list(load_request(compiled.name).problems_of_access(arguments))

    def compile(self, pipeline: str, task: str = "") -> Compiled:
        """The pipeline as a file."""
        from gpu_pipelines.accelerators import plan
        from gpu_pipelines.targets.compiled import with_image

        if is_own(pipeline):
            require_no_task(task)
            own = own_pipeline(pipeline)
            own = own.placed(self, plans_here(own.steps, self.options.accelerator), CHECKPOINT_URI)
            return Compiled(own.name, own.text)
        text = compiled_for_here(pipeline, plan(self.options.accelerator or _DEFAULT), task)
        # Nothing here runs in a container: the image is for using the file elsewhere.
        return Compiled(pipeline, with_image(text, self.settings, pipeline) if self.settings.image else text)

    @classmethod
    def published(cls) -> Iterator[Published]:
        """One file of each pipeline."""
        from gpu_pipelines.dag import PUBLISHED

        return (Published(name, "", f"{_DEFAULT.replace(':', '-')}.yaml", LocalOptions()) for name in PUBLISHED)

    def load(self, request: Request) -> Compiled:
        """The pipeline with a name, as KFP's local runner takes it."""
        from gpu_pipelines.dag import load_pipeline

        if is_own(request.pipeline):
            return self._own(request.pipeline)
        if self.options.trial and request.pipeline == "train_script_evaluate_upload":
            raise UserError("--trial trains with train_model, not with a script.", "Leave out --trial, or the script.")
        if self.options.trial and request.pipeline == "tune_train_evaluate_upload":
            raise UserError("--trial tries one training, not a search.", "Leave out --trial, or the search.")
        plan = plan_here(self.options.accelerator)
        module = load_pipeline(request.pipeline)
        require_step_packages()
        built = module.build(self, plan)
        return Compiled(request.pipeline, built=built, known={"processes": plan.processes if plan else 0})

    def fitted(self, compiled: Compiled, request: Request, values: Values) -> Compiled:
        """The pipeline with digests of what its steps read, so that changes count, and with an earlier run's state."""
        from gpu_pipelines.dag import load_pipeline
        from gpu_pipelines.targets.local.runner.digests import state_of_steps
        from gpu_pipelines.targets.runs.recorded import LATEST, checkpoints_of, run_named, run_to_resume

        runs, resumed = self.options.runs, None
        if request.resume == LATEST:
            resumed = run_to_resume(runs.resolve(), compiled.name, values.arguments)
        elif request.resume:
            resumed = run_named(runs.resolve(), request.resume)
        known = {
            "resumed": checkpoints_of(resumed) if resumed else "",
            "resumed_run": resumed.run_id if resumed else "",
        }
        if isinstance(compiled.origin, OwnPipeline):
            own, plans, containers = compiled.origin, compiled.known["plans"], self.options.containers
            target = LocalTarget(None, CHECKPOINTS_OF_RUN, runs / _UNFINISHED)
            spec, built = own_here(own, target, plans, values.arguments, containers=containers)
            return replace(compiled, spec=spec, built=built, known={**compiled.known, **known})
        # The place of the checkpoints is not part of the key of cached results: a continued training ends with the same
        # bits.
        target = LocalTarget(state_of_steps(values.arguments), CHECKPOINTS_OF_RUN, runs / _UNFINISHED)
        built = load_pipeline(compiled.name).build(target, plan_here(self.options.accelerator))
        return Compiled(compiled.name, built=built, known=known)

    def _own(self, place: str) -> Compiled:
        """A user's own pipeline as it will run, except for changes by its parameters."""
        own = own_pipeline(place)
        if self.options.trial:
            raise UserError("--trial is for train_evaluate_upload.", "Leave it out, or give max_steps to the training.")
        if any(step.is_ours for step in own.steps):
            require_step_packages()
        plans = plans_here(own.steps, self.options.accelerator)
        # Steps that cannot run here are reported before anything else is required.
        for_this_machine(own.documents, containers=self.options.containers)
        for told in (*packages_by_address(own.steps), *missed_without_cluster(own.steps, own.documents)):
            print(f"note: {told}", file=sys.stderr)
        return Compiled(own.name, spec=own.spec, origin=own, known={"plans": plans}, item_types=own.item_types)

    def submission(self, compiled: Compiled, request: Request, values: Values) -> Submission:
        """The run, with a table of its parameters for a dry run."""
        checked = LocalRequest(
            compiled.name,
            compiled.built,
            values,
            self.options.accelerator,
            compiled.spec,
            compiled.known["resumed"],
            compiled.known["resumed_run"],
            compiled.known.get("goes_on"),
            isinstance(compiled.origin, OwnPipeline) and len(compiled.origin.documents) > 1,
        )
        reuse = bool(request.cache or self.options.reuse or request.resume)

        def shown() -> list[str | Table]:
            table = Table("parameter", Column.text("value"))
            for name, value in values.arguments.items():
                table.add_row(name, shown_value(value))
            return [f"{compiled.name} on this machine: {' → '.join(checked.dependencies)}", table, "Nothing was run."]

        def document() -> dict[str, Any]:
            said = {"target": self.name, "pipeline": checked.name, "steps": checked.dependencies}
            return {**said, "parameters": dict(values.arguments)}

        return Submission((checked, reuse, request), shown, document)

    def is_run(self, run: str) -> bool:
        """Whether there is a run with that name."""
        return (self.options.runs / run / RUN).is_file()

    def earlier(self, run: str) -> EarlierRun:
        """A run in the form in which another one can continue it."""
        from gpu_pipelines.targets.local.outputs.earlier import earlier_run
        from gpu_pipelines.targets.runs.recorded import run_named

        return earlier_run(run_named(self.options.runs, run))

    def going_on(self, compiled: Compiled, found: GoneOn, earlier: EarlierRun) -> Compiled:
        """The pipeline without the finished steps of an earlier run."""
        from gpu_pipelines.targets.compiled import compiled as text_of
        from gpu_pipelines.targets.compiled import documents_of
        from gpu_pipelines.targets.local.outputs.brought import TAKEN_OVER, bring_here

        spec = found.documents[0]
        if isinstance(compiled.origin, OwnPipeline):
            # Steps of others open files, and no bucket is mounted here.
            bring_here(spec, self.options.runs / TAKEN_OVER / earlier.name.rpartition("/")[2])
        goes_on = GoesOn(earlier.name, compiled.spec or documents_of(text_of(compiled.built))[0], found)
        return replace(compiled, spec=spec, built=component_of(spec), known={**compiled.known, "goes_on": goes_on})

    def execute(self, submission: Submission, watch: Watch) -> Outcome:
        """Runs the pipeline, or tries its training, and waits for the end."""
        checked, reuse, request = submission.content
        if not self.options.trial:
            with told_of_errors(checked.name, self._told) as tell_of:
                with watch.steps() as observer:
                    record = run_and_record(checked, self.options.runs, observer, reuse=reuse)
                tell_of(record)
            lines = [*shown_result(record), *next_commands(record, request, self.options, checked.of_kubernetes)]
            return Outcome(record.status, lines, record.document)
        from gpu_pipelines.targets.local.trial import shown_trial, try_training
        from gpu_pipelines.targets.runs.trial_record import save_trial

        advice, lines = shown_trial(try_training(checked.values.arguments, checked.accelerator))
        return Outcome("succeeded", lines, save_trial(self.options.runs, checked.values.arguments, advice))
