"""Causal language modelling: texts, prompts with completions, or chats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpu_pipelines.errors import UserError, columns_in_words
from gpu_pipelines.tasks.formats import BESIDE, BESIDE_CHATS, INSTRUCTED, TABLES
from gpu_pipelines.tasks.hyperparameters import FINE_TUNED_DECODER
from gpu_pipelines.tasks.task import Task

if TYPE_CHECKING:
    from gpu_pipelines.data.settings import PrepareSettings

#: Parameters of the evaluation of models that write text.
OF_WRITERS = (
    *("generate", "max_new_tokens", "generate_rows", "generate_with", "json_schema"),
    *("judge", "judge_model", "judge_prompt", "judge_key"),
    *("benchmarks", "benchmark_best", "benchmark_limit", "benchmark_fewshot"),
    *("benchmark_chat_template", "benchmark_batch_size"),
)


class CausalLanguageModelTask(Task):
    """Texts whose every token is predicted from those before it."""

    takes_lists = True
    formats = (*TABLES, "text")
    column_parameters = ("text_column",)
    parameters = (
        *("text_column", "tokenizer", "vocabulary_size", "sequence_length", "packing"),
        *("near_duplicates", "group_by", "label_smoothing"),
        *OF_WRITERS,
    )
    samples = {"documentation": "gpu_pipelines.tasks.causal_lm.sample:write_documentation"}
    defaults = {"source": "sample:documentation", "model": "gpt2-micro"}
    preparation = "gpu_pipelines.tasks.causal_lm.prepare:PackedTexts"
    recipe = "gpu_pipelines.tasks.causal_lm.recipe:CausalLanguageModel"
    models = ("gpt2-micro", "gpt2", "llama-micro", "llama-1b", "mixtral-micro")
    scoring = "gpu_pipelines.tasks.causal_lm.scoring:TokenScoring"
    text_task = "gpu_pipelines.tasks.causal_lm.answering:Answering"
    predictor = "gpu_pipelines.tasks.causal_lm.predictor:LanguageModel"
    architectures = ("ForCausalLM", "LMHeadModel")
    auto_class = "AutoModelForCausalLM"
    row_tokens = 512
    fine_tuned = FINE_TUNED_DECODER
    pipeline_tag = "text-generation"
    published = True
    remedy_for_columns = (
        "Name the column of texts with -p text_column=…, or call the columns of a request and its answer prompt and "
        "completion."
    )

    def problems(self, settings: PrepareSettings) -> list[str]:
        found = []
        if settings.slice_by:
            held = "rows of causal_lm hold several records"
            found.append(f"slice_by is {settings.slice_by!r}, but {held}. Leave it out.")
        return found + self.problems_without_classes(settings)

    def columns(self, settings: PrepareSettings) -> list[tuple[str, ...]]:
        return [(settings.text_column,), ("prompt", "completion"), ("messages",), ("conversations",), INSTRUCTED]

    def columns_of(self, settings: PrepareSettings, has: Sequence[str]) -> tuple[str, ...]:
        for wanted in self.columns(settings):
            if set(wanted) <= set(has):
                beside = BESIDE.get(wanted, BESIDE_CHATS) if wanted != (settings.text_column,) else ()
                return (*wanted, *(name for name in beside if name in has))
        if not has:
            raise UserError(f"The source {settings.source} holds no texts.")
        raise UserError(
            f"The source {settings.source} has no column {settings.text_column!r}, no columns 'prompt' and "
            f"'completion', no column 'messages' or 'conversations', and no columns 'instruction' and 'output'; it "
            f"has {columns_in_words(has)}.",
            self.remedy_for_columns,
        )
