"""Our recipes unchanged; importing them, as each training process does, starts the stopwatch."""

from __future__ import annotations

import stopwatch

from gpu_pipelines.tasks.causal_lm.recipe import CausalLanguageModel
from gpu_pipelines.tasks.image_classification.recipe import ImageClassification

stopwatch.install()


class TimedImages(ImageClassification):
    """Image classification."""


class TimedText(CausalLanguageModel):
    """Causal language modelling."""
