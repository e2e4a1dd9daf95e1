"""The tokenizer that texts are prepared with, which may stand in place of one that would be trained."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_pipelines.registry.registered import RegisteredVersion
from gpu_pipelines.tasks.model_places import has_tokenizer, is_pretrained
from gpu_pipelines.tasks.tasks import task_named, task_problems

#: What the parameter is where a tokenizer is made from the data.
TRAIN = "train"
PARAMETER = "tokenizer"
_FILE = "tokenizer.json"


def tokenizer_for(given: str, task: str, model: str, champion: RegisteredVersion | None = None) -> str:
    """The tokenizer of a preparation.

    Pretrained weights know the tokens of their own tokenizer alone, and two models of texts can be compared on the same
    tokens only.

    Args:
        given: the parameter `tokenizer`.
        task: the task's name.
        model: what is trained.
        champion: what the new model will be compared with, if there is one.

    Returns:
        What was given; where that is `train`, the tokenizer of the pretrained model, else the champion's, else `train`.
    """
    if given != TRAIN:
        return given
    if not _has_tokens(task):
        return TRAIN
    if is_pretrained(model) and has_tokenizer(model):
        return model
    return champion.place if champion is not None and _hash(champion) is not None else TRAIN


def lacks_tokenizer(task: str, model: str) -> bool:
    """Whether a model has weights for tokens that nothing tells of.

    Args:
        task: the task's name.
        model: what is trained.
    """
    of_texts_alone = _has_tokens(task) and task_named(task).auto_class
    return bool(of_texts_alone) and is_pretrained(model) and not has_tokenizer(model)


def _has_tokens(task: str) -> bool:
    """Whether rows of a task may be tokens."""
    return not task_problems(task) and PARAMETER in task_named(task).parameters


def was_trained_on(versions: Sequence[RegisteredVersion], champion: RegisteredVersion, source_fingerprint: str) -> bool:
    """Whether the data of a source gave the champion's tokenizer, so that training one would give it again.

    Args:
        versions: all of the model, oldest first.
        champion: one of them.
        source_fingerprint: of the source as it is now.
    """
    first = next(version for version in versions if _hash(version) == _hash(champion))
    return bool(first.info.get("source_fingerprint") == source_fingerprint)


def _hash(version: RegisteredVersion) -> str | None:
    found: str | None = (version.info.get("files") or {}).get(_FILE)
    return found
