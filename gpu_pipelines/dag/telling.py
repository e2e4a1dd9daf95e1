"""The last step of a run, which tells people how it has ended, whatever has become of the others."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

from kfp import dsl

from gpu_pipelines.accelerators import AcceleratorPlan
from gpu_pipelines.accelerators.cost import dollars_per_hour
from gpu_pipelines.component_interface.parameter import Parameter, parameters_in
from gpu_pipelines.component_interface.step import CHECKPOINTS_OF_RUN
from gpu_pipelines.components.notifications.component import send_message
from gpu_pipelines.dag.placement import Placement
from gpu_pipelines.notifications.settings import MessageSettings

_CHECKPOINTS, _OUTCOMES = "/checkpoints/", "/outcomes/"
#: Those of the component's parameters that stand in the form of a pipeline that tells somebody.
_IN_FORM = ("notify", "notify_nothing_new")


def outcome_uri_of(target: Placement, checkpoint_uri: str) -> str:
    """Where the steps of a run leave what came of them for the message; empty for a pipeline that tells nobody.

    Args:
        target: where the pipeline will run.
        checkpoint_uri: where its checkpoints go, beside which that is.
    """
    if target.recipients is None or checkpoint_uri == CHECKPOINTS_OF_RUN:
        return ""
    return checkpoint_uri.replace(_CHECKPOINTS, _OUTCOMES, 1)


class Telling:
    """Who is told of the end of a run; to be made before the pipeline's function runs.

    Args:
        target: where the pipeline will run.
        pipeline: its name.
        plan: accelerators of its training; None for those that the target has.
        outcome_uri: where the steps leave what came of them.
        mail: KFP component that tells the parameter `notify` by e-mail, where the target names nobody; None for none.

    Attributes:
        parameters: those that the pipeline gets for it, by name.
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
            "dollars_per_hour": (dollars_per_hour(plan) if plan else None) or 0.0,
            "outcome_uri": outcome_uri,
        }

    @property
    def keeps_outputs(self) -> bool:
        """Whether the pipeline can have outputs: KFP takes none from the tasks in an exit handler."""
        return self._send is None

    def around(self, values: Mapping[str, Any], name: str) -> AbstractContextManager[Any]:
        """What the tasks of the pipeline stand in.

        Args:
            values: of the pipeline's parameters by name.
            name: of the group that the tasks are.
        """
        if self._send is not None:
            told = self._send(**self._given, **{each: values[each] for each in _IN_FORM})
        elif self._mail is not None:
            told = self._mail(recipients=values["notify"])
        else:
            return nullcontext()
        handler: AbstractContextManager[Any] = dsl.ExitHandler(told.set_caching_options(False), name=name)
        return handler
