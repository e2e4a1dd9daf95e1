"""Prepares labelled texts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gpu_pipelines.artifacts.dataset import Feature
from gpu_pipelines.data.class_names import ClassNumbers
from gpu_pipelines.data.sources.row_streams import Meter
from gpu_pipelines.data.sources.source import SourceFiles
from gpu_pipelines.data.text.prepare import TextPreparation
from gpu_pipelines.data.text.sources import TextRecord, labelled_texts


class LabelledTexts(TextPreparation):
    """Texts, or pairs of texts, of one class each, one to a row."""

    def records(self, source: SourceFiles, meter: Meter) -> Iterator[TextRecord]:
        return labelled_texts(source, self.settings, meter)

    def features(self, length: int) -> dict[str, Feature]:
        return {**self.token_features(length), "label": Feature("int32")}

    def target_of(self, plan: Mapping[str, Any]) -> Callable[[TextRecord], int]:
        index = ClassNumbers(plan["labels"])
        return lambda record: index[record.label]
