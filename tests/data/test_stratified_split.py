"""Splits that hold the fractions for each class: exact, by content alone, and never with one content on two sides."""

from __future__ import annotations

import cProfile
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from conftest import write_photos
from preparing import prepare_alone

from gpu_pipelines.artifacts.dataset import SPLITS, Dataset, Manifest
from gpu_pipelines.data.prepare import prepare_data
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.data.splits import judgement_plan
from gpu_pipelines.data.splits.ranges import Range, Shares

SIZES = {"common": 700, "rare": 30, "once": 1, "thrice": 3}


def rows() -> list[dict[str, str]]:
    return [{"text": f"{label} {n}", "label": label} for label, size in SIZES.items() for n in range(size)]


def write(path: Path, content: list[dict[str, str]]) -> PrepareSettings:
    path.write_text("".join(json.dumps(row) + "\n" for row in content))
    return PrepareSettings(
        source=str(path), task="text_classification", stratify=True, val_fraction=0.2, vocabulary_size=300
    )


def of_class(manifest: Manifest, label: str) -> tuple[int, int, int]:
    train, val, test = (manifest.class_rows[split][manifest.labels.index(label)] for split in SPLITS)
    return train, val, test


def sides(directory: Path) -> dict[str, set[str]]:
    """The splits in which each content is."""
    found: dict[str, set[str]] = {}
    for name in SPLITS:
        split = Dataset(directory).split(name)
        for tokens in split.take(np.arange(len(split)))["input_ids"]:
            found.setdefault(str(tokens.tolist()), set()).add(name)
    return found


def test_every_class_has_its_shares(tmp_path: Path) -> None:
    manifest = prepare_data(write(tmp_path / "t.jsonl", rows()), tmp_path / "out")
    assert of_class(manifest, "common") == (490, 140, 70)
    assert of_class(manifest, "rare") == (21, 6, 3)
    assert of_class(manifest, "thrice") == (1, 1, 1), "each split has one as soon as there are three"
    assert of_class(manifest, "once") == (1, 0, 0)


def test_the_split_is_by_content_and_not_by_order(tmp_path: Path) -> None:
    manifest = prepare_data(write(tmp_path / "t.jsonl", rows()), tmp_path / "out")
    turned = prepare_data(write(tmp_path / "u.jsonl", rows()[::-1]), tmp_path / "turned")
    assert sides(tmp_path / "out") == sides(tmp_path / "turned")
    assert manifest.class_rows == turned.class_rows


def test_equal_content_is_on_one_side_whatever_its_labels(tmp_path: Path) -> None:
    # The same texts with a second label, and some a second time with their own.
    content = rows()[:300]
    content += [{**row, "label": "other"} for row in content[:200]] + content[:50]
    manifest = prepare_data(write(tmp_path / "t.jsonl", content), tmp_path / "out")
    assert manifest.duplicates == 50
    assert manifest.rows_kept == 500
    found = sides(tmp_path / "out")
    assert len(found) == 300
    assert all(len(splits) == 1 for splits in found.values())


def test_ranges_and_shards_do_not_change_the_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = write(tmp_path / "t.jsonl", rows())
    prepare_data(settings, tmp_path / "out")
    monkeypatch.setattr(judgement_plan, "RECORDS_AT_ONCE", 50)
    (tmp_path / "parts").mkdir()
    for part in range(3):
        write(tmp_path / f"parts/{part}.jsonl", rows()[part::3])
    parts = write(tmp_path / "unused.jsonl", [])
    prepare_alone(
        PrepareSettings(**{**vars(parts), "source": str(tmp_path / "parts")}), tmp_path / "from-parts", 10_000
    )
    assert Counter(map(str, sides(tmp_path / "out").values())) == Counter(
        map(str, sides(tmp_path / "from-parts").values())
    )


def test_images_are_stratified_as_well(tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos", per_class=50, classes=("blue", "green", "red"))
    settings = PrepareSettings(source=str(photos), image_size=8, stratify=True)
    manifest = prepare_data(settings, tmp_path / "out")
    assert manifest.class_rows == {"train": [40] * 3, "val": [5] * 3, "test": [5] * 3}


def test_stratify_without_classes_is_refused() -> None:
    assert "causal_lm has not" in PrepareSettings(task="causal_lm", source="x", stratify=True).problems()[0]


def test_records_are_not_gone_through_for_each_class() -> None:
    numbers = np.arange(1200, dtype=np.uint64)
    some = Range(np.stack([numbers, numbers, numbers % np.uint64(400), numbers, numbers], axis=1), 0, PrepareSettings())
    profile = cProfile.Profile()
    profile.runcall(some.split_by_class, {label: Shares(label % 2, 1, 1) for label in range(400)})
    kinds = [[SPLITS[code] for code in some.codes[label::400]] for label in (0, 1, 399)]
    assert kinds == [["test", "val", "train"], ["val", "train", "train"], ["val", "train", "train"]]
    assert sum(entry.callcount for entry in profile.getstats()) < 400
