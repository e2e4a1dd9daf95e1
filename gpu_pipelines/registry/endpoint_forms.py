"""The request formats of the containers that serve models, and the parts of their answers that can be compared.

This project's server answers in the form of `examples.json`. For other containers:

- Hugging Face's inference container takes an instance like its pipeline, and answers like it:
  https://github.com/huggingface/huggingface-inference-toolkit at 833b5a2 (2025-08-25), handler.py, VertexAIHandler.
- vLLM in Google's build takes `{"prompt": …, "max_tokens": …}` and answers with the text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from gpu_pipelines.artifacts.examples import Examples
from gpu_pipelines.registry.serving_container import ServingContainer
from gpu_pipelines.serving.comparison import differences, unlike
from gpu_pipelines.tasks.multi_label_classification.answers import THRESHOLD


class Form(Protocol):
    """The request format of a container."""

    def question(self, instance: Mapping[str, Any], expected: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """An instance and the parameters in the container's form, from those of `examples.json`."""

    def prediction(self, answer: Any, expected: Mapping[str, Any]) -> dict[str, Any] | None:
        """An answer in the form of `examples.json`; None if it has nothing that was evaluated."""


class OwnForm:
    """This project's server, and containers that answer like it."""

    def question(self, instance: Mapping[str, Any], expected: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        return dict(instance), {}

    def prediction(self, answer: Any, expected: Mapping[str, Any]) -> dict[str, Any] | None:
        return dict(answer) if isinstance(answer, Mapping) and set(expected) <= set(answer) else None


class HuggingFaceForm:
    """Hugging Face's inference container, with the pipelines of transformers."""

    def question(self, instance: Mapping[str, Any], expected: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        (name, value), scores = next(iter(instance.items())), expected.get("scores")
        if scores is None:
            return value, {"max_new_tokens": 1}
        # On request, the pipeline truncates long texts, as the evaluation did.
        return value, {"top_k": len(scores), **({"truncation": True} if name == "text" else {})}

    def prediction(self, answer: Any, expected: Mapping[str, Any]) -> dict[str, Any] | None:
        while isinstance(answer, Sequence) and len(answer) == 1 and isinstance(answer[0], Sequence):
            answer = answer[0]  # some versions put the scores of one input into a list
        if not isinstance(answer, Sequence) or not all(isinstance(each, Mapping) for each in answer):
            return None
        scores = {str(each["label"]): each["score"] for each in answer if {"label", "score"} <= set(each)}
        if not scores:
            return None
        if "labels" in expected:  # several classes for a row: a sigmoid for each
            return {"labels": sorted(name for name, score in scores.items() if score >= THRESHOLD), "scores": scores}
        return {"label": max(scores, key=lambda label: scores[label]), "scores": scores}


class VllmForm:
    """vLLM from Model Garden; it returns no losses."""

    def question(self, instance: Mapping[str, Any], expected: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        return {**instance, "max_tokens": 1}, {}

    def prediction(self, answer: Any, expected: Mapping[str, Any]) -> dict[str, Any] | None:
        return None


def form_of(container: ServingContainer) -> Form:
    """The request format of a container; for an unknown one, that of this project's server."""
    if container.is_hugging_faces:
        return HuggingFaceForm()
    return VllmForm() if container.is_vllm else OwnForm()


def judged(examples: Examples, answers: Sequence[Any], form: Form, of_the_user: bool) -> tuple[list[str], int]:
    """The errors in a container's answers to the examples.

    Args:
        examples: inputs with the evaluated predictions, or with those that the user expects.
        answers: the container's answer to each.
        form: the container's form.
        of_the_user: whether the examples are the user's, in the form of the user's container.

    Returns:
        A sentence for each wrong answer, and how many answers could be compared with the expected ones.
    """
    if of_the_user:
        wrong = [
            f"example {number} of {len(answers)}: got {str(answer)[:200]}, not {str(expected)[:200]}"
            for number, (expected, answer) in enumerate(zip(examples.predictions, answers, strict=True))
            if unlike(expected, answer)
        ]
        return wrong, len(answers)
    found = [form.prediction(*each) for each in zip(answers, examples.predictions, strict=True)]
    if not any(prediction is not None for prediction in found):
        empty = [number for number, answer in enumerate(answers) if answer in (None, "", [], {})]
        return [f"example {number} of {len(answers)}: the answer is empty" for number in empty], 0
    return differences(examples, found), len(found)
