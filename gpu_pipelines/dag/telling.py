"""The last step of a run, which sends messages about its end, whatever the other steps did."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

from kfp import dsl

from gpu_pipelines.accelerators import AcceleratorPlan
from gpu_pipelines.accelerators.cost import dollars_per_hour
from gpu_pipelines.accelerators.fallback import fallback_of
from gpu_pipelines.component_interface.parameter import Parameter, parameters_in
from gpu_pipelines.component_interface.step import CHECKPOINTS_OF_RUN
from gpu_pipelines.components.notifications.component import send_message
from gpu_pipelines.dag.placement import Placement
from gpu_pipelines.notifications.settings import MessageSettings

_CHECKPOINTS, _OUTCOMES = "/checkpoints/", "/outcomes/"
#: The component's parameters in the form of a pipeline that sends messages.
_IN_FORM = ("notify", "notify_nothing_new")


def outcome_uri_of(target: Placement, checkpoint_uri: str) -> str:
    """Where the steps of a run leave their results for the message; empty for a pipeline without messages.

    Args:
        target: where the pipeline will run.
        checkpoint_uri: where its checkpoints go; the place is beside it.
    """
    if target.recipients is None or checkpoint_uri == CHECKPOINTS_OF_RUN:
        return ""
    return checkpoint_uri.replace(_CHECKPOINTS, _OUTCOMES, 1)


class Telling:
    """The recipients of a run's end; create it before the pipeline's function runs.

    Args:
        target: where the pipeline will run.
        pipeline: its name.
        plan: accelerators of its training; None for whatever the target has.
        outcome_uri: where the steps leave their results.
        mail: KFP component that sends e-mails to the parameter `notify`, if the target names nobody; None for none.

    Attributes:
        parameters: the pipeline's further parameters for it, by name.
    """

    def __init__(
        self, target: Placement, pipeline: str, plan: AcceleratorPlan | None, outcome_uri: str = "", mail: Any = None
    ) -> None:
        self._mail, self._send = mail, None
        self.parameters: dict[str, Parameter] = {}
        if target.recipients is None:
            return
        recipients = target.recipients
        self._send = target.place(send_message, None)
        declared = parameters_in(MessageSettings)
        values = {"notify": list(recipients.notify), "notify_nothing_new": recipients.about_nothing_new}
        self.parameters = {name: replace(declared[name], default=values[name]) for name in _IN_FORM}
        mail_server = recipients.mail
        self._given = {
            "pipeline": pipeline,
            "mail_server": mail_server.address,
            "mail_sender": mail_server.sender,
            "mail_password": mail_server.password,
            "run_name": target.pipeline_job,
            "run_page": recipients.run_page,
            "began": dsl.PIPELINE_JOB_CREATE_TIME_UTC_PLACEHOLDER,
            "dollars_per_hour": price_of(target, plan) or 0.0,
            "outcome_uri": outcome_uri,
        }

    @property
    def keeps_outputs(self) -> bool:
        """Whether the pipeline can have outputs: KFP takes none from the tasks in an exit handler."""
        return self._send is None

    def around(self, values: Mapping[str, Any], name: str) -> AbstractContextManager[Any]:
        """The context of the pipeline's tasks.

        Args:
            values: of the pipeline's parameters by name.
            name: of the group of the tasks.
        """
        if self._send is not None:
            told = self._send(**self._given, **{each: values[each] for each in _IN_FORM})
        elif self._mail is not None:
            told = self._mail(recipients=values["notify"])
        else:
            return nullcontext()
        handler: AbstractContextManager[Any] = dsl.ExitHandler(told.set_caching_options(False), name=name)
        return handler


def price_of(target: Placement, plan: AcceleratorPlan | None) -> float | None:
    """The price of the training's machines where they will be; None if it is not known, as for a list of machines."""
    # A place of another package need not have lists, or a region.
    asked = fallback_of(getattr(target, "fallbacks", ()), plan)
    if plan is None or (asked and len(asked.plans) > 1):
        return None
    return dollars_per_hour(plan if plan.region else replace(plan, region=getattr(target, "region", None)))
