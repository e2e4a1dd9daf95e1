"""The common part of targets in Google Cloud: pipelines become files, for machines chosen by the options."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gpu_pipelines.component_interface.image import STEPS_IMAGE
from gpu_pipelines.errors import UserError
from gpu_pipelines.targets.compiled import note_of_file, with_image
from gpu_pipelines.targets.messages import Compiled, Published, is_own, is_python
from gpu_pipelines.targets.options import CloudOptions
from gpu_pipelines.targets.own.pipeline import OwnPipeline, own_pipeline, require_no_task
from gpu_pipelines.targets.own.plans import plans_by
from gpu_pipelines.targets.plan_lines import told_warnings
from gpu_pipelines.targets.target import Target, require_no_flags

if TYPE_CHECKING:
    from gpu_pipelines.accelerators import AcceleratorPlan
    from gpu_pipelines.accelerators.fallback import Fallback

    EvaluatedOn = Callable[[AcceleratorPlan], AcceleratorPlan]


class CloudTarget(Target):
    """A place in Google Cloud that takes pipelines as files."""

    options: CloudOptions
    note: str
    #: What the steps with GPUs fall back to; a pipeline is built with the first plan of each.
    fallbacks: Sequence[Fallback] = ()

    @abstractmethod
    def text_of(
        self, pipeline: str, plan: AcceleratorPlan, evaluation: AcceleratorPlan | None = None, task: str = ""
    ) -> str:
        """The file of a pipeline of this project.

        Args:
            pipeline: its name.
            plan: the plan of its training.
            evaluation: the plan of its evaluation; None for one that suits the plan.
            task: the task that the file is for; empty if that is a parameter.
        """

    @abstractmethod
    def evaluation_on(self, training: AcceleratorPlan) -> AcceleratorPlan:
        """The default plan of the evaluation for a model that was trained on a plan."""

    @abstractmethod
    def placed(self, own: OwnPipeline, plans: Mapping[str, AcceleratorPlan]) -> OwnPipeline:
        """A user's own pipeline with its steps on their plans."""

    def told_of(self, own: OwnPipeline, plans: Mapping[str, AcceleratorPlan], region: str | None) -> list[str]:
        """Warnings for a user's own pipeline there.

        Args:
            own: the pipeline, with its steps placed.
            plans: the plans of the steps that were placed.
            region: where it runs; None if that is open.

        Raises:
            UserError: its other steps ask for machines that do not exist there.
        """
        return told_warnings(plans.values())

    def compile(self, pipeline: str, task: str = "") -> Compiled:
        """The pipeline as a file, for any region; refuses what is not available in --region."""
        if is_own(pipeline):
            require_no_task(task)
            own = own_pipeline(pipeline, lambda text: text.replace(STEPS_IMAGE, self.settings.image or STEPS_IMAGE))
            own, plans = self._placed(own, pipeline, self.options.region)
            self.note = note_of_file(self.settings) if STEPS_IMAGE in own.text else ""
            return Compiled(own.name, own.text, told=self.told_of(own, plans, self.options.region))
        training, evaluation = self.choices(self.options.region)
        text = self.text_of(pipeline, training.plans[0], evaluation, task)
        return Compiled(pipeline, text, told=[*told_left_out(training), *told_warnings(training.plans)])

    def choices(
        self, region: str | None, hours: float | None = None, evaluated_on: EvaluatedOn | None = None
    ) -> tuple[Fallback, AcceleratorPlan | None]:
        """The plans of a training of a pipeline of this project, with what to fall back to; and the evaluation's first.

        Args:
            region: where it runs; None to leave that open.
            hours: the longest that the training may run, if that was not given; None to leave that open.
            evaluated_on: returns the plan that suits a plan of the training; left out, the one that suits the built-in
                models, and no plan is returned for the evaluation.

        Raises:
            UserError: no accelerator was given, or none of the plans is possible.
        """
        found = self.possible(self.options.fallback(region, self.title, self.settings))
        training = found.of_each(lambda plan: replace(plan, hours=plan.hours or hours))
        named = self.options.evaluation(training.plans[0])
        evaluation = replace(
            found.of_each(lambda plan: self.options.evaluation(plan) or (evaluated_on or self.evaluation_on)(plan)),
            # The training's limit includes what the rest of the run has spent.
            left_out=(),
        )
        self.fallbacks = [training, evaluation]
        return training, named or (evaluation.plans[0] if evaluated_on else None)

    def possible(self, asked: Fallback) -> Fallback:
        """The requested choices that can be tried there.

        Raises:
            UserError: none can be tried.
        """
        return asked

    @classmethod
    def published(cls) -> Iterator[Published]:
        """Files for every task and accelerator."""
        from gpu_pipelines.targets.published import published_in_the_cloud

        return published_in_the_cloud(cls.Options)

    def own_in(self, place: str) -> tuple[OwnPipeline, Mapping[str, AcceleratorPlan], OwnPipeline]:
        """A pipeline in a file, placed for the region of the settings.

        Returns:
            The pipeline, the plans of the steps that were placed, and the pipeline as it was written.

        Raises:
            UserError: there is no such pipeline, or it cannot run there.
        """
        own = own_pipeline(place, lambda text: with_image(text, self.settings, place))
        if own.is_of_this_project:
            require_no_flags(place, self.options)
            return own, {}, own
        placed, plans = self._placed(own, place, self.settings.region)
        return placed, plans, own

    def _placed(
        self, own: OwnPipeline, place: str, region: str | None
    ) -> tuple[OwnPipeline, Mapping[str, AcceleratorPlan]]:
        if self.options.notify:
            raise UserError(
                f"--notify is for the pipelines of this project; {place} has to send its own messages.",
                "Put its steps into dsl.ExitHandler(send_message(notify=[…])): docs/notifications.md.",
            )
        if not is_python(place) and not any(step.uses_accelerators and not step.has_accelerators for step in own.steps):
            # Its steps are placed already, so options about machines have no effect.
            require_no_flags(place, self.options)
        self.options.require_one_choice(place)
        plans = plans_by(self.options, own.steps, region, self.title, self.evaluation_on)
        return self.placed(own, plans), plans


def told_left_out(asked: Fallback) -> list[str]:
    """The requested choices that are not tried, line by line."""
    names: dict[str, list[str]] = {}
    for each in asked.left_out:
        name, _, reason = each.partition(": ")
        names.setdefault(reason, []).append(name)
    return [f"left out: {_together(found)}: {reason}" for reason, found in names.items()]


def _together(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
