"""Token classification: tables with the words of a text and a tag for each of them in every row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_pipelines.tasks.hyperparameters import ENCODER_WITH_ADAPTERS, FINE_TUNED_ENCODER
from gpu_pipelines.tasks.metric import Metric
from gpu_pipelines.tasks.task import Task

if TYPE_CHECKING:
    from gpu_pipelines.data.settings import PrepareSettings


#: Columns of words and tags where none were named.
_OF_THE_HUB = (("tokens", "ner_tags"), ("tokens", "tags"), ("words", "ner"))


class TokenClassificationTask(Task):
    """Words with tags as in IOB2: `B-TYPE` begins an entity, `I-TYPE` continues it, `O` is outside of entities.

    Tags of IOBES and BILOU are read as well, and the columns that the data sets of the Hugging Face hub have.
    """

    takes_lists = True
    column_parameters = ("text_column", "label_column")
    parameters = (
        *("label_column", "text_column", "tokenizer", "vocabulary_size", "sequence_length"),
        *("near_duplicates", "slice_by", "group_by", "label_smoothing"),
    )
    samples = {"manual": "gpu_pipelines.tasks.token_classification.sample:write_manual"}
    defaults = {"source": "sample:manual", "model": "bert-micro"}
    preparation = "gpu_pipelines.tasks.token_classification.prepare:TaggedTexts"
    recipe = "gpu_pipelines.tasks.token_classification.recipe:TokenClassification"
    models = ("bert-micro", "bert-base")
    metrics = {
        "f1": Metric(),
        "precision": Metric(),
        "recall": Metric(),
        "macro_f1": Metric(),
        "token_accuracy": Metric(),
    }
    scoring = "gpu_pipelines.tasks.token_classification.scoring:EntityScoring"
    worst = "The texts of test with the most entities that were missed, or found where there are none."
    predictor = "gpu_pipelines.tasks.token_classification.predictor:Tagger"
    architectures = ("ForTokenClassification",)
    auto_class = "AutoModelForTokenClassification"
    fine_tuned, with_adapters = FINE_TUNED_ENCODER, ENCODER_WITH_ADAPTERS
    pipeline_tag = "token-classification"

    def columns(self, settings: PrepareSettings) -> list[tuple[str, ...]]:
        named = super().columns(settings)
        if (settings.text_column, settings.label_column) != ("text", "label"):
            return named
        return [*named, *_OF_THE_HUB]

    def problems(self, settings: PrepareSettings) -> list[str]:
        return self.problems_without_classes(settings)
