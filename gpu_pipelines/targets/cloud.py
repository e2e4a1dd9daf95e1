"""What targets in Google Cloud have in common: pipelines become files, for machines that are chosen by the options."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from gpu_pipelines.component_interface.image import STEPS_IMAGE
from gpu_pipelines.errors import UserError
from gpu_pipelines.targets.compiled import note_of_file, with_image
from gpu_pipelines.targets.messages import Compiled, Published, is_own, is_python
from gpu_pipelines.targets.options import CloudOptions
from gpu_pipelines.targets.own.pipeline import OwnPipeline, own_pipeline, require_no_task
from gpu_pipelines.targets.own.plans import plans_by, told_warnings
from gpu_pipelines.targets.target import Target, require_no_flags

if TYPE_CHECKING:
    from gpu_pipelines.accelerators import AcceleratorPlan


class CloudTarget(Target):
    """A place in Google Cloud that is given pipelines as files."""

    options: CloudOptions
    note: str

    @abstractmethod
    def text_of(
        self, pipeline: str, plan: AcceleratorPlan, evaluation: AcceleratorPlan | None = None, task: str = ""
    ) -> str:
        """The file of a pipeline of this project.

        Args:
            pipeline: its name.
            plan: what it trains on.
            evaluation: what it evaluates on; None for what suits the plan.
            task: the one that the file is for; empty where that is a parameter.
        """

    @abstractmethod
    def evaluation_on(self, training: AcceleratorPlan) -> AcceleratorPlan:
        """What scores a model that was trained on a plan, where nothing was said."""

    @abstractmethod
    def placed(self, own: OwnPipeline, plans: Mapping[str, AcceleratorPlan]) -> OwnPipeline:
        """A pipeline of one's own with its steps on their plans."""

    def compile(self, pipeline: str, task: str = "") -> Compiled:
        """The pipeline as a file, for any region; what cannot be had in that of --region is refused."""
        if is_own(pipeline):
            require_no_task(task)
            own, plans = self._placed(own_pipeline(pipeline), pipeline, self.options.region)
            self.note = note_of_file(self.settings) if STEPS_IMAGE in own.text else ""
            return Compiled(own.name, own.text, told=told_warnings(plans.values()))
        planned = self.options.planned(self.options.region, self.title)
        text = self.text_of(pipeline, planned, self.options.evaluation(planned), task)
        return Compiled(pipeline, text, told=told_warnings([planned]))

    @classmethod
    def published(cls) -> Iterator[Published]:
        """Files for every task and accelerator."""
        from gpu_pipelines.targets.published import published_in_the_cloud

        return published_in_the_cloud(cls.Options)

    def own_in(self, place: str) -> tuple[OwnPipeline, Mapping[str, AcceleratorPlan], Any]:
        """A pipeline in a file, placed for the region of the settings.

        Returns:
            The pipeline, the plans of the steps that were placed, and its specification as it was written.

        Raises:
            UserError: there is none, or it cannot run there.
        """
        own = own_pipeline(place, lambda text: with_image(text, self.settings, place))
        if own.is_of_this_project:
            require_no_flags(place, self.options)
            return own, {}, own.spec
        placed, plans = self._placed(own, place, self.settings.region)
        return placed, plans, own.spec

    def _placed(
        self, own: OwnPipeline, place: str, region: str | None
    ) -> tuple[OwnPipeline, Mapping[str, AcceleratorPlan]]:
        if self.options.notify:
            raise UserError(
                f"--notify is for the pipelines of this project; {place} says itself who is told.",
                "Put its steps into dsl.ExitHandler(send_message(notify=[…])): docs/notifications.md.",
            )
        if not is_python(place) and not any(step.uses_accelerators and not step.has_accelerators for step in own.steps):
            # Its steps are placed already, so that options about machines are for nothing.
            require_no_flags(place, self.options)
        plans = plans_by(self.options, own.steps, region, self.title, self.evaluation_on)
        return self.placed(own, plans), plans
