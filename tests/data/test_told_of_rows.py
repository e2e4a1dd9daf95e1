"""What the step warns of once it has all rows: classes that cannot be learned, and prompts that train has too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kfp import dsl

from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.data.step import run


@pytest.fixture
def warnings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Prepares rows by the step, and gives the lines in which it warns."""

    def warned(rows: list[dict[str, Any]], **settings: Any) -> list[str]:
        source = tmp_path / "rows.jsonl"
        source.write_text("".join(json.dumps(row) + "\n" for row in rows))
        outputs = {"dataset": dsl.Dataset, "report": dsl.HTML, "statistics": dsl.Metrics}
        run(
            PrepareSettings(source=str(source), sequence_length=32, vocabulary_size=300, **settings),
            **{name: kind(name=name, uri=str(tmp_path / name)) for name, kind in outputs.items()},
            advanced={},
        )
        return [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning: ")]

    return warned


def test_a_class_without_training_rows_where_rows_have_several(warnings: Any) -> None:
    rows = [{"text": f"text {number}", "label": ["a", "b"][: number % 3]} for number in range(90)]
    # A row of the class alone, which another seed puts into another split.
    rows += [{"text": "rare", "label": ["rare"]}]
    assert warnings(rows, task="multi_label_classification") == []
    told = warnings(rows, task="multi_label_classification", split_seed=2)
    assert told == ["warning: the class 'rare' has no training rows; it cannot be learned"]


def test_prompts_of_val_and_test_that_train_has_too(warnings: Any) -> None:
    rows = [
        {"prompt": f"Why {number % 20}?", "chosen": f"since {number}", "rejected": f"no {number}"}
        for number in range(120)
    ]
    (told,) = warnings(rows, task="preference")
    assert "rows of val and test have a prompt that a row of train has too" in told
    assert "group_by" in told
    assert warnings(rows, task="preference", group_by="prompt") == []
    for row in rows[20:]:
        row["prompt"] = row["chosen"]
    assert warnings(rows, task="preference") == []
