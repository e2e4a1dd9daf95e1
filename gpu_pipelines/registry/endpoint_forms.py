"""How the containers that serve a model are asked for predictions, and what of their answers can be compared.

This project's server answers in the form of `examples.json`. Of other containers:

- Hugging Face's inference container takes an instance as its pipeline does, and answers as that does:
  https://github.com/huggingface/huggingface-inference-toolkit at 833b5a2 (2025-08-25), handler.py, VertexAIHandler.
- vLLM as Google builds it takes `{"prompt": …, "max_tokens": …}` and answers with the text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from gpu_pipelines.artifacts.examples import Examples
from gpu_pipelines.registry.serving_container import ServingContainer
from gpu_pipelines.serving.comparison import differences, unlike
from gpu_pipelines.tasks.multi_label_classification.answers import THRESHOLD


class Form(Protocol):
    """The form in which a container is asked."""

    def question(self, instance: Mapping[str, Any], expected: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """An instance and the parameters, as the container takes them, from those of `examples.json`."""

    def prediction(self, answer: Any, expected: Mapping[str, Any]) -> dict[str, Any] | None:
        """An answer in the form of `examples.json`; None where it has nothing that was evaluated."""


class OwnForm:
    """This project's server, and whoever answers like it."""

    def question(self, instance: Mapping[str, Any], expected: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        return dict(instance), {}

    def prediction(self, answer: Any, expected: Mapping[str, Any]) -> dict[str, Any] | None:
        return dict(answer) if isinstance(answer, Mapping) and set(expected) <= set(answer) else None


class HuggingFaceForm:
    """Hugging Face's inference container, by the pipelines of transformers."""

    def question(self, instance: Mapping[str, Any], expected: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        (name, value), scores = next(iter(instance.items())), expected.get("scores")
        if scores is None:
            return value, {"max_new_tokens": 1}
        # If the pipeline is told to, it cuts texts that are too long, as the evaluation did.
        return value, {"top_k": len(scores), **({"truncation": True} if name == "text" else {})}

    def prediction(self, answer: Any, expected: Mapping[str, Any]) -> dict[str, Any] | None:
        while isinstance(answer, Sequence) and len(answer) == 1 and isinstance(answer[0], Sequence):
            answer = answer[0]  # some versions put the scores of one input into a list
        if not isinstance(answer, Sequence) or not all(isinstance(each, Mapping) for each in answer):
            return None
        scores = {str(each["label"]): each["score"] for each in answer if {"label", "score"} <= set(each)}
        if not scores:
            return None
        if "labels" in expected:  # several classes to a row: a sigmoid of each
            return {"labels": sorted(name for name, score in scores.items() if score >= THRESHOLD), "scores": scores}
        return {"label": max(scores, key=lambda label: scores[label]), "scores": scores}


class VllmForm:
    """vLLM of Model Garden; it gives no losses."""

    def question(self, instance: Mapping[str, Any], expected: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        return {**instance, "max_tokens": 1}, {}

    def prediction(self, answer: Any, expected: Mapping[str, Any]) -> dict[str, Any] | None:
        return None


def form_of(container: ServingContainer) -> Form:
    """The form in which a container is asked; of one that is not known, that of this project's server."""
    if container.is_hugging_faces:
        return HuggingFaceForm()
    return VllmForm() if container.is_vllm else OwnForm()


def judged(examples: Examples, answers: Sequence[Any], form: Form, of_the_user: bool) -> tuple[list[str], int]:
    """What is wrong with a container's answers to the examples.

    Args:
        examples: inputs with what was evaluated, or what their user expects.
        answers: one for each, as the container gave it.
        form: of the container.
        of_the_user: the examples are of the user and in the form of his container, whatever that is.

    Returns:
        A sentence for each answer that is wrong, and how many could be compared with what was expected.
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
