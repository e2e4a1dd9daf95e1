"""An earlier run that another run continues: the outputs of its steps, and the checkpoints of its trainings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpu_pipelines.errors import InvalidRequestError

SUCCEEDED, NOT_TRIGGERED = "succeeded", "not triggered"
#: States of steps whose outputs are there.
_DONE = (SUCCEEDED, "reused")
#: States in which a run can be continued.
RESUMABLE = ("failed", "cancelled", "interrupted", "died")
#: Beginning of the part of a run's description that names the run it resumes.
RESUMES = "Resumes "


@dataclass(frozen=True)
class Made:
    """The outputs of a step.

    Attributes:
        parameters: its outputs that are not artifacts, by name.
        artifacts: the others: `uri` and `metadata` of each, a list of them by name.
    """

    parameters: Mapping[str, Any] = field(default_factory=dict)
    artifacts: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)


@dataclass(frozen=True)
class EarlierRun:
    """The state of an earlier run.

    Attributes:
        name: its unique name: for a job its full name.
        target: where it ran.
        state: succeeded, failed, cancelled, interrupted, died, or another state of its target.
        spec: the pipeline that it ran, as KFP compiles it.
        parameters: the values of its pipeline's parameters, as the pipeline took them.
        states: states of its tasks, by their names: succeeded, reused, failed, not triggered and others.
        made: outputs of the finished steps, by the names of the steps.
        trainings: places of the checkpoints of trainings that began, by the names of the steps.
        resumes: name of the run that it continued; empty for none.
        accelerator: for a run on this machine, its requested accelerator.
    """

    name: str
    target: str
    state: str
    spec: Mapping[str, Any]
    parameters: Mapping[str, Any]
    states: Mapping[str, str]
    made: Mapping[str, Made]
    trainings: Mapping[str, str] = field(default_factory=dict)
    resumes: str = ""
    accelerator: str = ""

    @property
    def pipeline(self) -> str:
        """KFP's name of its pipeline."""
        return str(self.spec["pipelineInfo"]["name"])

    def is_done(self, task: str) -> bool:
        """Whether a task is done."""
        return self.states.get(task) in _DONE

    def has_done(self, task: str) -> bool:
        """Whether a task is done and its outputs are known."""
        return self.is_done(task) and task in self.made

    def has_begun(self, task: str) -> bool:
        """Whether a task has begun to run."""
        return self.states.get(task, "waiting") not in ("waiting", NOT_TRIGGERED)

    def require_resumable(self) -> None:
        """Checks that it has ended, and did not succeed.

        Raises:
            UserError: it runs, or has succeeded.
        """
        require_resumable(self.name, self.state, self.state in RESUMABLE)

    def after(self, before: EarlierRun) -> EarlierRun:
        """This run joined with the earlier run that it continued.

        Args:
            before: the earlier run.
        """
        return EarlierRun(
            self.name,
            self.target,
            self.state,
            self.spec,
            self.parameters,
            {**{name: state for name, state in before.states.items() if state in _DONE}, **self.states},
            {**before.made, **self.made},
            {**before.trainings, **self.trainings},
            before.name,
        )


def require_resumable(name: str, state: str, has_ended: bool) -> None:
    """Checks that a run has ended, and did not succeed.

    Raises:
        InvalidRequestError: it runs, or has succeeded.
    """
    if state == SUCCEEDED:
        raise InvalidRequestError(f"{name} has succeeded, so there is nothing to resume.", "Run it again.")
    if not has_ended:
        raise InvalidRequestError(f"{name} has not ended: it is {state}.", "Wait for its end, or cancel it first.")


def resumed_by(spec: Mapping[str, Any]) -> str:
    """The name of the run that a run of this pipeline continues, from its description; empty for none."""
    text = str(spec.get("pipelineInfo", {}).get("description", ""))
    _, found, rest = text.rpartition(RESUMES)
    return rest.partition(":")[0] if found and ": takes over " in rest else ""
