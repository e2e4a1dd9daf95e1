"""The predictions of a multi-label classifier that are checked for drift."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpu_pipelines.profiles.values import Categories, Numbers, Values
from gpu_pipelines.profiles.watched import Watched


class WatchedClasses(Watched):
    """Images and texts as those of any task; of predictions, how many classes are found, and which."""

    def predictions(self, predictions: Sequence[Mapping[str, Any]]) -> dict[str, Values]:
        found = super().predictions(predictions)
        found["classes found"] = Numbers.of([len(each["labels"]) for each in predictions])
        found["most probable class"] = Categories([next(iter(each["scores"]), "none") for each in predictions])
        return found
