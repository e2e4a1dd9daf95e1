"""From the words of a command line to a checked request for a run on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_pipelines.cli.arguments import as_taken, fields_of, parameters_of_pipeline, pipeline_arguments
from gpu_pipelines.errors import UserError

#: Below the directory of runs: what is left of preparations that were interrupted.
UNFINISHED = Path(".unfinished")


@dataclass(frozen=True)
class LocalRequest:
    """A checked request.

    Attributes:
        name: name of the pipeline, as on the command line.
        pipeline: the KFP pipeline, built for this machine.
        arguments: all its parameters, by their own names.
        accelerator: `cpu:N`, or empty for all GPUs that are here, else two CPU processes.
    """

    name: str
    pipeline: Any
    arguments: dict[str, Any]
    accelerator: str

    @property
    def taken(self) -> dict[str, Any]:
        """The arguments as the pipeline takes them."""
        known = parameters_of_pipeline(self.pipeline)
        return as_taken(self.arguments, known, fields_of(self.name, known))

    @property
    def dependencies(self) -> dict[str, list[str]]:
        """For each task the tasks it needs, in an order in which they can run; see `without_early_checks`."""
        from gpu_pipelines.targets.compiled import compiled, documents_of, steps_of

        return without_early_checks(steps_of(documents_of(compiled(self.pipeline))[0]))


def without_early_checks(steps: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Steps with those that each needs, of those that check something only the ones right before it.

    Every step needs the check of the request; that each says so is no news to who looks at the picture.
    """
    from gpu_pipelines.targets.target import LOOKING_STEPS

    def is_news(need: str, others: Sequence[str]) -> bool:
        return need not in LOOKING_STEPS or not any(need in steps[other] for other in others)

    return {step: [need for need in needs if is_news(need, needs)] for step, needs in steps.items()}


def check_request(
    name: str, assignments: Sequence[str], file: Path | None, accelerator: str, runs: Path, *, resume: bool = False
) -> LocalRequest:
    """Checks everything that can be checked before anything runs.

    Args:
        name: name of the pipeline.
        assignments: parameters as texts of the form `key=value`.
        file: a YAML file of parameters.
        accelerator: `cpu:N` or empty.
        runs: directory of runs; what is left of an unfinished preparation is in it.
        resume: continue the newest run that was interrupted.

    Raises:
        UserError: lists everything that is wrong.
    """
    from gpu_pipelines.dag import load_pipeline
    from gpu_pipelines.targets.local.target import LocalTarget, plan_here, require_step_packages
    from gpu_pipelines.targets.run_record import checkpoints_to_resume

    plan = plan_here(accelerator)
    module = load_pipeline(name)
    require_step_packages()
    arguments = pipeline_arguments(module.build(LocalTarget(), plan), assignments, file)
    checked = {**arguments, "processes": plan.processes if plan else 0}
    if problems := module.problems(checked) or module.problems_here(arguments):
        raise UserError.of_all(problems)
    resumed = None
    if resume:
        resumed = checkpoints_to_resume(runs.resolve(), name, arguments)
    # Not resolved: it is a part of what results are found again by.
    target = LocalTarget(module.state_here(arguments), resumed, runs / UNFINISHED)
    pipeline = module.build(target, plan)
    return LocalRequest(name, pipeline, arguments, accelerator)
