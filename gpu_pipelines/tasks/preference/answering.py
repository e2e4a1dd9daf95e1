"""The prompts of preferences, and the answers that a model writes after them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gpu_pipelines.tasks.causal_lm.answering import Answering


class AnsweringPrompts(Answering):
    """A chosen completion, or one judged good, is the reference; one judged bad is not."""

    def _has_references(self) -> bool:
        return True

    def _documents(self, columns: dict[str, np.ndarray]) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        name = "chosen" if "chosen" in columns else "completion"
        for row, (prompt, answer) in enumerate(zip(columns["prompt"], columns[name], strict=True)):
            if "label" not in columns or columns["label"][row]:
                yield row, prompt[: columns["prompt_length"][row]], answer[: columns[f"{name}_length"][row]]
