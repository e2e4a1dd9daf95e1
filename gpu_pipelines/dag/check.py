"""The work of `check_request`: all checks of a run before its data is read, made where its steps run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpu_pipelines.component_interface.step import own_process, with_advanced
from gpu_pipelines.dag import load_request
from gpu_pipelines.dag.advanced import by_step, fields_of_advanced, read_advanced
from gpu_pipelines.dag.request import Request
from gpu_pipelines.data.default_tokenizer import PARAMETER as TOKENIZER
from gpu_pipelines.data.default_tokenizer import TRAIN, lacks_tokenizer, tokenizer_for, was_trained_on
from gpu_pipelines.data.sources.fingerprint import source_fingerprint
from gpu_pipelines.errors import UserError
from gpu_pipelines.notifications.channels import problems_of_addresses
from gpu_pipelines.registry import model_name_for, open_registry
from gpu_pipelines.registry.missing import require_champion_not_lost
from gpu_pipelines.registry.registered import RegisteredVersion
from gpu_pipelines.step_environment import STORAGE
from gpu_pipelines.tasks.tasks import IMAGE_PROCESSOR, image_processor_for
from gpu_pipelines.tracking.trackers import problems_of_tracking

#: The outputs of the component that hold parameters, in their order.
_STEPS = ("prepare", "train", "evaluate", "upload", "watch")
#: The target that sends e-mails about the end of a run.
_TOLD = "vertex"
#: The pipeline that checks the recipients of messages itself.
_BY_THE_CLOCK = "scheduled_retraining"


@dataclass(frozen=True)
class Checked:
    """A request without problems.

    Attributes:
        source_fingerprint: fingerprint of the data as it is now.
        parameters: those given in `advanced`, by the step that takes them.
    """

    source_fingerprint: str
    parameters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def run(common: Mapping[str, Any], request: Request, *, advanced: Mapping[str, Any]) -> tuple[Any, ...]:
    """Runs the step.

    Args:
        common: the parameters of the other steps that have inputs of their own in the pipeline's form, by name.
        request: the step's own parameters.
        advanced: the given fields of the pipeline's parameter `advanced`.

    Returns:
        The outputs of the component, in their order.
    """
    with own_process():
        checked = check(common, with_advanced(request, {}), advanced)
    return checked.source_fingerprint, *(dict(checked.parameters.get(step, {})) for step in _STEPS)


def check(common: Mapping[str, Any], request: Request, advanced: Mapping[str, Any]) -> Checked:
    """Checks every parameter, and opens what the steps after the training need, so that they do not fail then.

    Args:
        common: the parameters of the other steps that have inputs of their own in the pipeline's form, by name.
        request: the step's own parameters.
        advanced: the given fields of `advanced`.

    Raises:
        UserError: lists everything that is wrong; or source or registry cannot be read.
    """
    pipeline = load_request(request.pipeline)
    fields = fields_of_advanced(pipeline.SETTINGS.values())
    given, problems = read_advanced(advanced, fields)
    values = {**{name: each.default for name, each in fields.items()}, **common, **given}
    values |= {
        "checkpoint_uri": request.checkpoint_uri,
        "processes": request.processes,
        "data_nodes": request.data_nodes,
    }
    if request.place == _TOLD or request.told_by_step:
        values["notify"] = request.notify
    if request.told_by_step:
        values["notify_nothing_new"] = False
    storage = os.environ.get(STORAGE) or request.storage
    problems += problems_of_addresses(request.notify, None) if request.pipeline != _BY_THE_CLOCK else []
    problems += pipeline.problems(values) + problems_of_tracking(request.tracking, request.place, is_here=True)
    if problems := problems or pipeline.problems_of_access(values, storage):
        raise UserError.of_all(problems)
    # The first upload would create it, and might not be allowed to, after hours of training.
    open_registry(values["registry"], storage).prepare()
    champion = _champion(values, storage)
    fingerprint = source_fingerprint(values["source"], values["billing_project"])
    print(f"the source {values['source']} has the fingerprint {fingerprint[:16]}", flush=True)
    steps = by_step(given, pipeline.SETTINGS)
    if "watch" not in pipeline.SETTINGS:  # which prints itself what it trains on, after its check
        processor = image_processor_for(values["task"], values["model"])
        if processor and not given.get(IMAGE_PROCESSOR):
            steps["prepare"][IMAGE_PROCESSOR] = processor
        tokenizer = _tokenizer(values, champion, storage, fingerprint)
        if tokenizer != values[TOKENIZER]:
            steps["prepare"][TOKENIZER] = tokenizer
            print(f"texts are prepared with the tokenizer of {tokenizer}", flush=True)
        if values[TOKENIZER] == TRAIN and lacks_tokenizer(values["task"], values["model"]):
            print(
                f"warning: {values['model']} has weights and no tokenizer; with another one, what they know of tokens "
                "is lost. Put its own beside it (tokenizer.save_pretrained), or name it: -p tokenizer=…",
                flush=True,
            )
    if values["test_source"]:
        # An input of the step, so that no service reuses its result for another test set.
        steps["prepare"]["test_source_fingerprint"] = source_fingerprint(
            values["test_source"], values["billing_project"]
        )
    if request.checkpoint_uri:
        steps["train"]["checkpoint_uri"] = request.checkpoint_uri
    return Checked(fingerprint, steps)


def _champion(values: Mapping[str, Any], storage: str) -> RegisteredVersion | None:
    """The version that the new model will be compared with; it is verified here."""
    name = values["model_name"] or model_name_for(values["source"])
    registry = open_registry(values["registry"], storage)
    champion = registry.champion(name)
    if champion is None:
        require_champion_not_lost(registry, name)
        print(f"{name} has no champion in {values['registry']}", flush=True)
    else:
        champion.require_undamaged()
        task, theirs = values["task"], champion.info.get("task")
        # The evaluation refuses it, too, but after the training. Models that a function scores may be for any task.
        if theirs and theirs != task and not values["scoring_function"]:
            raise UserError(
                f"The champion of {name!r}, version {champion.number}, is a model for {theirs}, this one for {task}.",
                "Give another model_name.",
            )
        print(f"the champion of {name} is version {champion.number}, in {champion.place}", flush=True)
    return champion


def _tokenizer(
    values: Mapping[str, Any], champion: RegisteredVersion | None, storage: str, source_fingerprint: str
) -> str:
    """The tokenizer with which texts are prepared."""
    given = str(values[TOKENIZER])
    found = tokenizer_for(given, values["task"], values["model"], champion)
    if given == TRAIN and champion is not None and found == champion.place:
        # Steps with the same inputs need not run again, so the inputs stay the same if nothing is new.
        versions = open_registry(values["registry"], storage).versions(champion.name)
        if was_trained_on(versions, champion, source_fingerprint):
            return TRAIN
    return found
