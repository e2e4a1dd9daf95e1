"""Rows of one group, such as a patient or a prompt, stay in one split, whatever the task and however it is found."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from PIL import Image

from gpu_pipelines.artifacts.dataset import SPLITS, Dataset
from gpu_pipelines.data.prepare import prepare_data
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.errors import UserError

GROUPS, EACH = 60, 5
NUMBERED = [(group, number) for number in range(EACH) for group in range(GROUPS)]
TEXTS: dict[str, Any] = {"task": "text_classification", "sequence_length": 8, "vocabulary_size": 300}


def write(folder: Path, row_of: Any) -> Path:
    path = folder / "rows.jsonl"
    rows = [{**row_of(group, number), "of": f"g{group}"} for group, number in NUMBERED]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def text_row(group: int, number: int) -> dict[str, Any]:
    return {"text": f"text {number} of {group}", "label": "ab"[(group + number) % 2]}


def splits_of_groups(directory: Path, source: Path, **given: Any) -> dict[int, set[str]]:
    """The splits that the rows of each group are in."""
    prepare_data(PrepareSettings(source=str(source), **{"group_by": "of", **given}), directory)
    dataset, found = Dataset(directory), dict[int, set[str]]()
    for name in SPLITS:
        split = dataset.split(name)
        for place in split.sources(range(len(split))):
            group, _ = NUMBERED[int(place.split()[0].rpartition(":")[2]) - 1]
            found.setdefault(group, set()).add(name)
    return found


def require_groups(found: dict[int, set[str]]) -> None:
    assert len(found) == GROUPS
    assert all(len(splits) == 1 for splits in found.values())
    shares = {name: sum(splits == {name} for splits in found.values()) / GROUPS for name in SPLITS}
    assert shares["train"] > 0.5
    assert min(shares.values()) > 0.03


@pytest.mark.parametrize(
    "judged", [{}, {"label_conflicts": "reject"}, {"near_duplicates": 0.99}], ids=["as they come", "labels", "near"]
)
def test_texts(tmp_path: Path, judged: dict[str, Any]) -> None:
    source = write(tmp_path, text_row)
    found = splits_of_groups(tmp_path / "data", source, **TEXTS, **judged)
    require_groups(found)
    # The same however splits are found, and others with another seed.
    assert found == splits_of_groups(tmp_path / "again", source, **TEXTS)
    assert found != splits_of_groups(tmp_path / "other", source, **TEXTS, split_seed=1)


@pytest.mark.parametrize(
    ("task", "row_of", "given"),
    [
        ("regression", lambda group, number: {"a": group, "b": number, "label": group * number}, {}),
        (
            "token_classification",
            lambda group, number: {"tokens": [f"w{group}", f"w{number}"], "ner_tags": ["O", "B-x"]},
            {"vocabulary_size": 300},
        ),
        (
            "preference",
            lambda group, number: {"prompt": f"why {group}", "chosen": f"for {number}", "rejected": f"no {number}"},
            {"vocabulary_size": 300, "group_by": "prompt"},
        ),
        ("multi_label_classification", lambda *n: {**text_row(*n), "label": ["a", "b"][: n[1] % 3]}, {}),
    ],
)
def test_every_task(tmp_path: Path, task: str, row_of: Any, given: dict[str, Any]) -> None:
    source = write(tmp_path, row_of)
    require_groups(splits_of_groups(tmp_path / "data", source, task=task, **given))
    inputs = Dataset(tmp_path / "data").manifest.preprocessing.get("inputs", ["a", "b"])
    assert inputs == ["a", "b"], "the group is nothing to learn from"


def test_prompts_of_a_language_model(tmp_path: Path) -> None:
    source = write(tmp_path, lambda group, number: {"prompt": f"why {group}?", "completion": f"since {number}"})
    given = {"task": "causal_lm", "sequence_length": 32, "vocabulary_size": 300, "packing": False}
    require_groups(splits_of_groups(tmp_path / "data", source, group_by="prompt", **given))


def test_images(tmp_path: Path) -> None:
    def row_of(group: int, number: int) -> dict[str, Any]:
        name = f"{group}-{number}.png"
        Image.fromarray(np.full((8, 8), group * EACH + number, np.uint16).astype(np.uint8)).save(tmp_path / name)
        return {"image": name, "label": "ab"[number % 2]}

    source = write(tmp_path, row_of)
    found = splits_of_groups(tmp_path / "data", source, task="image_classification", remove_duplicates=False)
    require_groups(found)


def test_rows_without_a_group_are_split_by_their_content(tmp_path: Path) -> None:
    source = write(tmp_path, lambda *n: {**text_row(*n), "none": None})
    found = splits_of_groups(tmp_path / "data", source, **TEXTS, group_by="none")
    assert found == splits_of_groups(tmp_path / "plain", source, **TEXTS, group_by="")
    assert any(len(splits) > 1 for splits in found.values())


def test_the_same_content_in_two_groups_is_there_once(tmp_path: Path) -> None:
    source = write(tmp_path, lambda group, number: {"text": f"text {number}", "label": "ab"[number % 2]})
    with pytest.raises(UserError, match="is empty"):
        splits_of_groups(tmp_path / "data", source, **TEXTS)


def test_what_cannot_be_grouped_is_said(tmp_path: Path) -> None:
    def said(**given: Any) -> str:
        return "\n".join(PrepareSettings(**{"source": "rows.jsonl", "group_by": "of", **given}).problems())

    assert "stratify and group_by both decide on the splits" in said(stratify=True)
    assert "group_by is 'label', which is learned" in said(group_by="label")
    assert "samples have no more columns" in said(source="sample:digits")
    source = write(tmp_path, text_row)
    with pytest.raises(UserError, match="has no column 'patient'") as raised:
        splits_of_groups(tmp_path / "data", source, **TEXTS, group_by="patient")
    assert "-p group_by=…, which is 'patient'" in str(raised.value.remedy)
    (tmp_path / "rows.txt").write_text("one\n\ntwo\n")
    with pytest.raises(UserError, match="a file of text has no columns"):
        splits_of_groups(tmp_path / "text", tmp_path / "rows.txt", task="causal_lm")
    with pytest.raises(UserError, match="patient"):
        splits_of_groups(tmp_path / "lm", source, task="causal_lm", group_by="patient")


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_number_is_one_group_where_a_gap_has_made_another_file_one_of_floats(tmp_path: Path, suffix: str) -> None:
    (tmp_path / "rows").mkdir()
    for number in range(2):
        rows = pandas.DataFrame([{**text_row(group, number), "of": group} for group in range(GROUPS)])
        if number:
            rows.loc[GROUPS] = {"text": "one of none", "label": "a", "of": None}
        write_table = rows.to_parquet if suffix == "parquet" else partial(rows.to_csv, index=False)
        write_table(tmp_path / f"rows/{number}.{suffix}")
    prepare_data(PrepareSettings(source=str(tmp_path / "rows"), group_by="of", **TEXTS), tmp_path / "data")
    dataset, found = Dataset(tmp_path / "data"), dict[int, set[str]]()
    for name in SPLITS:
        split = dataset.split(name)
        for place in split.sources(range(len(split))):
            found.setdefault(int(place.rpartition(":")[2]), set()).add(name)
    assert [splits for line, splits in sorted(found.items()) if len(splits) > 1] == []
