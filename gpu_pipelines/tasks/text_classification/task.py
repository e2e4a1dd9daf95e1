"""Text classification: tables with a text and a class in each row."""

from __future__ import annotations

from gpu_pipelines.tasks.classification.task import Classification
from gpu_pipelines.tasks.hyperparameters import ENCODER_WITH_ADAPTERS, FINE_TUNED_ENCODER


class TextClassificationTask(Classification):
    """Texts, or pairs of texts, of one class each."""

    column_parameters = ("text_column", "text_pair_column", "label_column")
    remedy_for_columns = (
        "Name the columns with -p text_column=… and -p label_column=…. Of pairs of texts, -p text_pair_column=… names "
        "the second one."
    )
    parameters = (
        *("label_column", "text_column", "text_pair_column", "missing_labels", "label_conflicts"),
        *("tokenizer", "vocabulary_size", "sequence_length", "stratify", "near_duplicates", "slice_by", "group_by"),
        "label_smoothing",
    )
    samples = {"docstrings": "gpu_pipelines.tasks.text_classification.sample:write_docstrings"}
    defaults = {"source": "sample:docstrings", "model": "bert-micro"}
    preparation = "gpu_pipelines.tasks.text_classification.prepare:LabelledTexts"
    recipe = "gpu_pipelines.tasks.text_classification.recipe:TextClassification"
    models = ("bert-micro", "bert-base")
    predictor = "gpu_pipelines.tasks.text_classification.predictor:TextClassifier"
    architectures = ("ForSequenceClassification",)
    auto_class = "AutoModelForSequenceClassification"
    fine_tuned, with_adapters = FINE_TUNED_ENCODER, ENCODER_WITH_ADAPTERS
    pipeline_tag = "text-classification"
    published = True
