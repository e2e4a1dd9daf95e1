"""`run --resume RUN`: continues a run that failed or was cancelled, in a new run from the step that failed."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_pipelines.dag import PIPELINES, load_request, pipeline_for
from gpu_pipelines.dag.placement import CHECKING_STEPS
from gpu_pipelines.driver.parameters.advanced_fields import ADVANCED, fields_of
from gpu_pipelines.driver.parameters.arguments import checked_values
from gpu_pipelines.driver.parameters.interface import parameters_of_pipeline, parameters_of_spec
from gpu_pipelines.driver.parameters.texts import given_values
from gpu_pipelines.errors import InvalidRequestError, NotFoundError, UserError, some_of
from gpu_pipelines.targets.messages import Compiled, Request, Submission, Values
from gpu_pipelines.targets.options import declared, given
from gpu_pipelines.targets.runs.earlier import EarlierRun
from gpu_pipelines.targets.runs.recorded import LATEST
from gpu_pipelines.targets.target import is_able, target_named, targets
from gpu_pipelines.training.settings import compile_model_of

if TYPE_CHECKING:
    from gpu_pipelines.component_interface.parameter import Parameter
    from gpu_pipelines.targets.runs.continued import GoneOn
    from gpu_pipelines.targets.target import Target

_MOST_BEFORE, _NAMED = 20, 8


def goes_on(target: Target, pipeline: str, resume: str) -> bool:
    """Whether a run continues a named one; only this machine can find the newest run of a pipeline."""
    return bool(resume) and not (target.is_here and resume == LATEST and pipeline)


def resumed_submission(
    target: Target,
    pipeline: str,
    resume: str,
    assignments: Sequence[str],
    file: Path | None,
    cache: bool | None,
) -> Submission:
    """A run that continues another, ready to be sent; prints to stderr which steps it reuses and which it runs.

    Args:
        target: where it will run.
        pipeline: as `submission_of` takes it; empty for that of the earlier run.
        resume: the earlier run: its name on the target, the full name of a job, a run on this machine.
        assignments: parameters for the steps that are left, in place of those of the earlier run.
        file: a YAML file of more.
        cache: as `submission_of` takes it.

    Raises:
        UserError: it cannot continue that run.
    """
    if resume == LATEST and not target.is_here:
        raise InvalidRequestError(
            f"On {target.title}, --resume needs the name of the run.", "Give the name that run printed."
        )
    if getattr(target.options, "emulate", False):
        raise InvalidRequestError(
            "--emulate starts an emulator for one run, so it has no earlier run.",
            "Start one that keeps running (gpu-pipelines emulator start), and run there; see docs/emulator.md.",
        )
    origin = _origin(target, resume)
    if hasattr(origin, "retried") and origin.name == target.name:
        if pipeline or assignments or file:
            raise InvalidRequestError(
                f"On {origin.title} a run continues as it was sent, without another pipeline or other parameters.",
                "Leave them out; or run it again.",
            )
        submission: Submission = origin.retried(resume)
        return submission
    _require_able(origin, target, resume)
    earlier = _with_those_before(origin, origin.earlier(resume))
    earlier.require_resumable()
    given_here = given_values(assignments, file)
    compiled, request = _pipeline_of(target, pipeline, earlier, given_here, cache)
    before = _parameters_before(target, earlier)
    values = checked_values(compiled, target, assignments, file, before)
    if target.is_here:
        # The commands that it prints must be for this run, not for one with defaults.
        request = replace(request, given=_given_in_all(compiled, values))
    if target.is_here and target.name == earlier.target and not earlier.resumes:
        request = replace(request, resume=earlier.name)
        compiled = target.fitted(compiled, request, values)
        _require_of_steps_left(compiled, earlier, before, values, given_here, _done(earlier))
        return target.submission(compiled, request, values)
    compiled = target.fitted(compiled, request, values)
    return _going_on(target, compiled, request, earlier, before, values, given_here)


def _require_able(origin: Any, target: Target, resume: str) -> None:
    """Raises UserError if the place of a run reports no steps, or the target cannot continue a run of another place."""
    if not hasattr(origin, "earlier"):
        there = f"Continue it there (--target {origin.name}), or run it again."
        raise InvalidRequestError(
            f"{resume} is on {origin.title}, which does not report what the steps of a run made.",
            there if hasattr(origin, "retried") else "Run it again.",
        )
    if not hasattr(target, "going_on"):
        raise InvalidRequestError(
            f"{target.title} cannot continue a run of another target.", "Give the --target of that run, or another."
        )


def _done(earlier: EarlierRun) -> tuple[str, ...]:
    """The steps of a run on this machine that are reused, wherever their outputs are."""
    return tuple(name for name in earlier.states if earlier.is_done(name) and name not in CHECKING_STEPS)


def _origin(target: Target, run: str) -> Any:
    """The target of a run, judged by the run's name; this target if the name fits several."""
    known = [made for made in targets().values() if is_able(made, "is_run") and not isinstance(target, made)]
    others = [made(made.Options(), target.settings) for made in known]
    # Names of runs on VMs look like those of Vertex AI, and only Vertex AI reports what steps made.
    others.sort(key=lambda other: not hasattr(other, "earlier"))
    return next((each for each in (target, *others) if each.is_run(run)), target)


def _with_those_before(origin: Any, earlier: EarlierRun) -> EarlierRun:
    """A run with the outputs of the runs that it continued, which are read only as far as they are needed."""

    found, before = earlier, earlier.resumes
    for _ in range(_MOST_BEFORE):
        if not before:
            return found
        at: Target = _origin(origin, before)
        try:
            other = at.earlier(before)  # type: ignore[attr-defined]
        except NotFoundError:
            raise NotFoundError(
                f"{earlier.name} reuses steps of {before}, which no longer exists.", "Run it again."
            ) from None
        found, before = found.after(other), other.resumes
    return found


def _pipeline_of(
    target: Target, pipeline: str, earlier: EarlierRun, given_here: Mapping[str, Any], cache: bool | None
) -> tuple[Compiled, Request]:
    """The pipeline to continue: the named one, or that of the earlier run."""
    if target.is_here and target.name == earlier.target and not target.options.accelerator:
        # It is part of the key by which results are found again.
        target.options = replace(target.options, accelerator=earlier.accelerator)
    in_file = [name for name, each in declared(type(target.options)).items() if each.in_file]
    compiles = bool(pipeline) or target.name != earlier.target or any(name in in_file for name in given(target.options))
    if not compiles and "root" in earlier.spec:
        sent: Any = target
        return sent.parsed(json.dumps(earlier.spec), earlier.name), Request(earlier.pipeline, given_here, cache)
    name = pipeline or _known(earlier)
    request = Request(pipeline_for(name, given_here), given_here, cache)
    compiled = target.load(request)
    if _plain(compiled.name) != _plain(earlier.pipeline):
        raise InvalidRequestError(
            f"{earlier.name} is a run of {earlier.pipeline}, not of {compiled.name}.", "Leave the pipeline out."
        )
    return compiled, request


def _known(earlier: EarlierRun) -> str:
    name = _plain(earlier.pipeline)
    if name not in PIPELINES:
        raise InvalidRequestError(
            f"{earlier.name} is a run of {earlier.pipeline}, a pipeline from a file.",
            "Give its file as the pipeline.",
        )
    return name


def _plain(name: str) -> str:
    return name.replace("-", "_")


def _parameters_before(target: Target, earlier: EarlierRun) -> dict[str, Any]:
    """The values of the earlier run; defaults of its target become those of this target."""
    known: Mapping[str, Parameter] = {}
    if "root" in earlier.spec:
        known = parameters_of_spec(earlier.spec)
    elif target.name != earlier.target and _plain(earlier.pipeline) in PIPELINES:
        known = parameters_of_pipeline(target_named(earlier.target)().load(Request(_plain(earlier.pipeline))).built)
    defaults = {name: each.default for name, each in known.items()}
    of_place = target.name != earlier.target
    of_target = {name: value for name, value in target.defaults().items() if value}
    kept = {
        name: value
        for name, value in earlier.parameters.items()
        if not (of_place and (name in of_target or value == defaults.get(name)))
    }
    if "compile_model" in kept:
        kept["compile_model"] = compile_model_of(kept["compile_model"])
    return {**of_target, **kept}


def _given_in_all(compiled: Compiled, values: Values) -> dict[str, Any]:
    """The parameters of a run that are not the pipeline's defaults, whether from the earlier run or given again."""
    known = parameters_of_pipeline(compiled.built) if compiled.built else parameters_of_spec(compiled.spec)
    own = {name: value for name, value in values.taken.items() if name in known and value != known[name].default}
    # The fields of `advanced` are given by their own names.
    fields = own.pop(ADVANCED, {}) if _plain(compiled.name) in PIPELINES else {}
    return {**own, **fields}


def _going_on(
    target: Target,
    compiled: Compiled,
    request: Request,
    earlier: EarlierRun,
    before: Mapping[str, Any],
    values: Values,
    given_here: Mapping[str, Any],
) -> Submission:
    """The run, from the pipeline without the steps that are done."""
    from gpu_pipelines.targets.compiled import compiled as text_of
    from gpu_pipelines.targets.compiled import documents_of
    from gpu_pipelines.targets.runs.continued import gone_on

    text = compiled.text if compiled.text else "" if compiled.spec else text_of(compiled.built)
    documents = documents_of(text) if text else [compiled.spec]
    is_changed = bool(given_here) or target.name != earlier.target
    again, here = CHECKING_STEPS if is_changed else (), target.is_here
    found = gone_on(documents, earlier, again, here=here, can_read=target.can_read)
    _require_same(documents[0], earlier, found.taken_over, across=target.name != earlier.target)
    _require_of_steps_left(compiled, earlier, before, values, given_here, found.taken_over, documents[0])
    _require_reachable(target, found)
    for line in _told(earlier, found):
        print(line, file=sys.stderr)
    for line in compiled.told:
        print(line, file=sys.stderr)
    going: Any = target
    return target.submission(going.going_on(compiled, found, earlier), request, values)


def _told(earlier: EarlierRun, found: GoneOn) -> Iterator[str]:
    """The steps that are reused, and those that run."""
    yield f"goes on from {earlier.name}, which was {earlier.state}"
    yield f"takes over: {', '.join(found.taken_over) or 'nothing'}; runs: {', '.join(found.left)}"
    for name, place in found.trainings.items():
        yield f"{name} continues from the newest checkpoint in {place}"


def _require_same(spec: Mapping[str, Any], earlier: EarlierRun, taken: Sequence[str], *, across: bool) -> None:
    """Checks that the steps that are done are the same in the pipeline to continue.

    Raises:
        UserError: one has changed, or no longer exists.
    """
    from gpu_pipelines.targets.spec_steps import programs_of

    now, then = programs_of(spec), programs_of(earlier.spec)
    lost = [name for name, each in then.items() if earlier.has_done(name) and name not in now and not each.is_last]
    changed = [
        name for name in taken if name in then and name in now and not then[name].is_as(now[name], across=across)
    ]
    if found := [*lost, *changed]:
        raise InvalidRequestError(
            f"{earlier.name} is a run of another version of {earlier.pipeline}: {some_of(found, _NAMED)} of it "
            f"{'is' if len(found) == 1 else 'are'} done, but missing or changed in this one.",
            "Leave the pipeline out to continue that version, or run this one again.",
        )


def _require_of_steps_left(
    compiled: Compiled,
    earlier: EarlierRun,
    before: Mapping[str, Any],
    values: Values,
    given_here: Mapping[str, Any],
    done: Sequence[str],
    spec: Mapping[str, Any] | None = None,
) -> None:
    """Checks that parameters given again belong to steps that are not done.

    Raises:
        UserError: names those that are not, with the steps.
    """
    from gpu_pipelines.targets.compiled import compiled as text_of
    from gpu_pipelines.targets.compiled import documents_of
    from gpu_pipelines.targets.spec_steps import takers_of

    spec = spec or compiled.spec or documents_of(text_of(compiled.built))[0]
    earlier_values = {**before, **(before.get("advanced") or {})}
    known = {**fields_of(compiled.name, parameters_of_spec(spec))}
    problems = []
    for name in [name for name in _names_given(given_here) if name in values.arguments]:
        default = known[name].default if name in known else parameters_of_spec(spec)[name].default
        if values.arguments[name] == earlier_values.get(name, default):
            continue
        takers = takers_of(spec, name) | (takers_of(spec, "", _outputs_with(compiled.name, name)))
        if found := sorted(takers & set(done)):
            problems.append(
                f"{name} is of {', '.join(found)}, which {'is' if len(found) == 1 else 'are'} done in {earlier.name}. "
                "Leave it out, or run it again."
            )
    if problems:
        raise UserError.of_all(problems)


def _names_given(given_here: Mapping[str, Any]) -> Iterator[str]:
    for name, value in given_here.items():
        if name != "advanced":
            yield name
            continue
        yield from json.loads(value) if isinstance(value, str) else value


def _outputs_with(pipeline: str, name: str) -> tuple[str, ...]:
    """The outputs of the first step that hand on a field of `advanced`."""
    from gpu_pipelines.dag.advanced import by_step

    if _plain(pipeline) not in PIPELINES:
        return ()
    settings = load_request(_plain(pipeline)).SETTINGS
    return tuple(step for step, held in by_step({name: None}, settings).items() if held)


def _require_reachable(target: Target, found: GoneOn) -> None:
    """Checks that the reused outputs still exist, and can be read where the run continues.

    Raises:
        UserError: lists those that do not or cannot.
    """
    from gpu_pipelines.artifacts.remote_files import is_remote, listed

    problems = []
    places = {**found.needed, **{place: f"the checkpoints of {name}" for name, place in found.trainings.items()}}
    for uri, what in places.items():
        if not target.can_read(uri):
            remedy = "Continue it where it ran, or run it again."
            problems.append(f"{what} is in {uri}, which {target.readers or target.title} cannot read. {remedy}")
        elif uri in found.needed and not (listed(uri) if is_remote(uri) else Path(uri).exists()):
            problems.append(f"{what} was in {uri}, which no longer exists. Run it again.")
    if problems:
        raise UserError.of_all(problems)
