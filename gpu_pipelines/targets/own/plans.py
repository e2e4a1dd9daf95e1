"""The accelerators of each step of a user's own pipeline: from the command line, its author, or by default."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gpu_pipelines.accelerators import AcceleratorPlan, plan
from gpu_pipelines.accelerators.plan import PlanError
from gpu_pipelines.accelerators.request import require_gpu
from gpu_pipelines.component_interface.accelerate import Wish
from gpu_pipelines.errors import UserError, nearest
from gpu_pipelines.targets.own.steps import Step

if TYPE_CHECKING:
    from gpu_pipelines.targets.options import CloudOptions

#: Separators between the steps of `--accelerator`, and between a step and its accelerator.
_NEXT, _IS = ",", "="


def named_accelerators(text: str) -> tuple[dict[str, str], str]:
    """The parts of `--accelerator`: `STEP=SPEC` for single steps, and a `SPEC` for all others.

    Args:
        text: such as `l4:4`, or `train-model=h100:8,evaluate=l4:1`, or both.

    Returns:
        The accelerators by the names of steps, and that of all others, which is empty if there is none.

    Raises:
        UserError: there is more than one accelerator for all others.
    """
    parts = [part.strip() for part in text.split(_NEXT) if part.strip()]
    named = dict(part.split(_IS, 1) for part in parts if _IS in part)
    others = [part for part in parts if _IS not in part]
    if len(others) > 1:
        raise UserError(
            f"--accelerator names {' and '.join(others)} for all steps.", "Give one, and STEP=SPEC for others."
        )
    return {step.strip(): spec.strip() for step, spec in named.items()}, next(iter(others), "")


def wishes(steps: Sequence[Step], accelerator: str, otherwise: Wish) -> dict[str, Wish]:
    """The requested accelerators of each step that uses them.

    Args:
        steps: steps of the pipeline.
        accelerator: value of the option; see `named_accelerators`.
        otherwise: machines and the way to buy them, if neither the option nor the author gives them.

    Returns:
        Wishes by the names of steps; a step without any has an empty `spec`.

    Raises:
        UserError: the option names a step that does not exist, or has accelerators already.
    """
    named, others = named_accelerators(accelerator)
    by_step = {_step_named(name, steps).name: spec for name, spec in named.items()}
    found = {}
    for step in steps:
        of_author = step.wish or Wish()
        if step.name in by_step:
            if step.has_accelerators:
                raise UserError(f"{step.name} has accelerators already.", "Leave it out of --accelerator.")
            found[step.name] = replace(otherwise, spec=by_step[step.name])
        elif step.has_accelerators or not step.uses_accelerators:
            continue
        elif of_author.spec:
            found[step.name] = replace(
                of_author,
                strategy=of_author.strategy or otherwise.strategy,
                reservation=of_author.reservation or otherwise.reservation,
                hours=of_author.hours or otherwise.hours,
            )
        else:
            found[step.name] = Wish() if step.scores else replace(otherwise, spec=others)
    return found


def _step_named(name: str, steps: Sequence[Step]) -> Step:
    """A step by its name, or by a unique beginning of it."""
    for fits in (lambda step: step.name == name, lambda step: step.name.startswith(name)):
        found = [step for step in steps if fits(step)]
        if len(found) == 1:
            return found[0]
    raise UserError(
        f"--accelerator names {name[:60]!r}, which is not a step.", nearest(name, [step.name for step in steps])
    )


def planned(
    steps: Sequence[Step],
    wanted: Mapping[str, Wish],
    plan: Callable[[Wish], AcceleratorPlan],
    evaluation: Callable[[AcceleratorPlan], AcceleratorPlan],
) -> dict[str, AcceleratorPlan]:
    """The plans of the steps that use accelerators.

    Args:
        steps: steps of the pipeline.
        wanted: their wishes; see `wishes`.
        plan: makes a plan.
        evaluation: returns the default plan of the evaluation for a model that was trained on a plan.

    Raises:
        UserError: lists the steps without a wish, with the line to add, and what is not available.
    """
    found, problems = {}, []
    for name, wish in wanted.items():
        if not wish.spec:
            continue
        try:
            found[name] = plan(wish)
        except (PlanError, UserError) as error:
            problems.append(f"{name}: {error}")
    left = [step for step in steps if step.name in wanted and not wanted[step.name].spec]
    scoring = [step for step in left if step.scores]
    training = next(iter(found.values()), None)
    if training is not None:
        found.update({step.name: evaluation(training) for step in scoring})
    # An evaluation needs no accelerator of its own if a training has one.
    others = [step for step in left if step not in scoring]
    problems += [_unplaced(step) for step in others or ([] if training else scoring)]
    if problems:
        raise UserError.of_all(problems)
    return found


def _unplaced(step: Step) -> str:
    call = f"{step.component.replace('-', '_')}(…)"
    return (
        f'{step.name} has no accelerator. In the pipeline write for example accelerate({call}, "l4:1") (from '
        f"gpu_pipelines.components import accelerate), or give --accelerator {step.name}=l4:1."
    )


def plans_by(
    options: CloudOptions,
    steps: Sequence[Step],
    region: str | None,
    title: str,
    evaluation: Callable[[AcceleratorPlan], AcceleratorPlan],
) -> dict[str, AcceleratorPlan]:
    """The plans of the steps of a user's own pipeline, by the options of a target in Google Cloud.

    Args:
        options: the given options.
        steps: steps of the pipeline.
        region: where it will run; None to leave that open.
        title: name of the target in messages.
        evaluation: returns the default plan of the evaluation for a model that was trained on a plan.

    Raises:
        UserError: lists the steps without an accelerator, and what is not available; or no step takes the accelerator.
    """

    def plan(wish: Wish) -> AcceleratorPlan:
        require_gpu(wish.spec, title)
        return wish.plan(region)

    wanted = wishes(steps, options.accelerator, Wish(**options.bought))
    named, others = named_accelerators(options.accelerator)
    of_command = {_step_named(name, steps).name for name in named}
    # The evaluation follows the training, and an author wins over the accelerator for all.
    left = [step for step in steps if step.name in wanted.keys() - of_command and not step.scores]
    if others and not any(step.wish is None or step.wish.spec in ("", others) for step in left):
        raise UserError(
            f"--accelerator {others} is for no step of this pipeline: none trains or is in accelerate(task), or all "
            "have accelerators that their author, KFP or --accelerator STEP=… names.",
            "Name a step, --accelerator STEP=…, put accelerate(task) around one, or leave it out.",
        )
    return planned(steps, wanted, plan, lambda training: options.evaluation(training) or evaluation(training))


def plans_here(steps: Sequence[Step], accelerator: str) -> dict[str, AcceleratorPlan]:
    """The plans of the steps of a user's own pipeline on this machine; none for a step that uses what there is.

    An author's request for GPUs is for another place; here the option applies to all steps.

    Args:
        steps: steps of the pipeline.
        accelerator: value of the option.

    Raises:
        UserError: this machine does not have it.
    """
    here = {}
    _, others = named_accelerators(accelerator)
    for_all = plan(others) if others else None
    if for_all is not None:
        require_here(for_all)
    for name, wish in wishes(steps, accelerator, Wish()).items():
        of_author = next(step.wish for step in steps if step.name == name)
        planned_here = wish.plan() if wish.spec else None
        if planned_here and not planned_here.is_local and of_author and wish.spec == of_author.spec:
            planned_here = for_all
        if planned_here is not None:
            require_here(planned_here)
            here[name] = planned_here
    return here


def require_here(planned: AcceleratorPlan) -> None:
    """Checks that a plan is for this machine.

    Raises:
        UserError: it is not.
    """
    if not planned.is_local:
        raise UserError(
            f"The target local has no {planned.spec}.",
            "Give --target vertex; or cpu:N; or, to run on all GPUs that are here, leave it out.",
        )
