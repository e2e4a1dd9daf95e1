"""Preference tuning: prompts with a chosen and a rejected completion, or completions that are good or bad."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpu_pipelines.errors import UserError, columns_in_words
from gpu_pipelines.tasks.causal_lm.task import OF_WRITERS, CausalLanguageModelTask
from gpu_pipelines.tasks.formats import BESIDE_CHATS
from gpu_pipelines.tasks.hyperparameters import PREFERENCE_TUNED, PREFERENCE_WITH_ADAPTERS
from gpu_pipelines.tasks.metric import Metric
from gpu_pipelines.tasks.task import Task

if TYPE_CHECKING:
    from gpu_pipelines.data.settings import PrepareSettings

PAIRS = ("prompt", "chosen", "rejected")
#: Pairs whose prompt is what both completions begin with.
WITH_IMPLICIT_PROMPT = ("chosen", "rejected")
JUDGED = ("prompt", "completion", "label")


class PreferenceTask(Task):
    """Completions that were compared in pairs, or judged good or bad one by one."""

    takes_lists = True
    column_parameters = ()
    parameters = (
        *("tokenizer", "vocabulary_size", "sequence_length", "near_duplicates", "slice_by", "group_by"),
        *("label_smoothing", "preference_loss", "beta", *OF_WRITERS),
    )
    samples = {"explanations": "gpu_pipelines.tasks.preference.sample:write_explanations"}
    defaults = {"source": "sample:explanations", "model": "llama-micro"}
    preparation = "gpu_pipelines.tasks.preference.prepare:ComparedTexts"
    recipe = "gpu_pipelines.tasks.preference.recipe:Preference"
    models = CausalLanguageModelTask.models
    metrics = {
        "accuracy": Metric(),
        "margin": Metric(largest=math.inf, smallest=-math.inf),
        "loss": Metric(more_is_better=False, largest=math.inf, smallest=-math.inf),
    }
    scoring = "gpu_pipelines.tasks.preference.scoring:PreferenceScoring"
    text_task = "gpu_pipelines.tasks.preference.answering:AnsweringPrompts"
    row_text = "gpu_pipelines.tasks.preference.shown:parts_of"
    worst = "The rows of test of the lowest margin: where the model is surest of what people did not choose."
    predictor = CausalLanguageModelTask.predictor
    architectures, auto_class = CausalLanguageModelTask.architectures, CausalLanguageModelTask.auto_class
    row_tokens = CausalLanguageModelTask.row_tokens
    fine_tuned, with_adapters = PREFERENCE_TUNED, PREFERENCE_WITH_ADAPTERS
    pipeline_tag = "text-generation"
    remedy_for_columns = (
        "Name them prompt, chosen and rejected; chosen and rejected, where both begin with the prompt; or prompt, "
        "completion and label."
    )

    def problems(self, settings: PrepareSettings) -> list[str]:
        return self.problems_without_classes(settings)

    def columns(self, settings: PrepareSettings) -> list[tuple[str, ...]]:
        return [PAIRS, WITH_IMPLICIT_PROMPT, JUDGED]

    def columns_of(self, settings: PrepareSettings, has: Sequence[str]) -> tuple[str, ...]:
        for wanted in self.columns(settings):
            if set(wanted) <= set(has):
                return (*wanted, *(name for name in BESIDE_CHATS if name in has and name not in wanted))
        raise UserError(
            f"The source {settings.source} has neither the columns {', '.join(PAIRS)} nor {', '.join(JUDGED)}; it has "
            f"{columns_in_words(has)}.",
            self.remedy_for_columns,
        )
