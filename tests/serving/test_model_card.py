"""What the hub reads of a model card."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from exported_models import export

from gpu_pipelines.artifacts.evaluation import Evaluation
from gpu_pipelines.artifacts.exported_model import MODEL_CARD, write_model_card


@pytest.mark.parametrize("base", ["", "owner/bert"])
def test_the_front_matter_names_the_model_that_was_fine_tuned(tmp_path: Path, base: str) -> None:
    directory = export("text_classification", tmp_path / "model")
    write_model_card(directory, Evaluation.load(directory), "sample:none", "text-classification", base)
    front_matter = yaml.safe_load((directory / MODEL_CARD).read_text().split("---")[1])
    assert front_matter == {
        "library_name": "transformers",
        "pipeline_tag": "text-classification",
        "tags": ["gpu-pipelines"],
        **({"base_model": base} if base else {}),
    }
