"""Data sets of the hub: `datasets` loads them, from a directory here as it would from the hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from conftest import printed_by, write_photos

from gpu_pipelines.artifacts.remote_files import RemoteFolder
from gpu_pipelines.data.prepare import prepare_data
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.data.source_check import problems_here
from gpu_pipelines.data.sources.fingerprint import source_fingerprint
from gpu_pipelines.data.sources.row_streams import Meter
from gpu_pipelines.data.sources.rows import rows_of
from gpu_pipelines.data.sources.sources import open_source
from gpu_pipelines.errors import UserError

ROWS = [{"text": f"text {number} ünï", "label": "ab"[number % 2]} for number in range(300)]


@pytest.fixture
def data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the layout of a data set on the hub, `owner/texts` below the working directory."""
    import datasets

    folder = tmp_path / "owner/texts"
    (folder / "more").mkdir(parents=True)
    for split, rows in (("train", ROWS), ("test", ROWS[:10])):
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "more/train.jsonl").write_text(json.dumps({"text": "one more", "label": "c"}) + "\n")
    configurations = [
        {"config_name": "plain", "data_files": [{"split": s, "path": f"{s}.jsonl"} for s in ("train", "test")]},
        {"config_name": "more", "data_files": "more/*.jsonl"},
    ]
    configurations[0]["default"] = True
    (folder / "README.md").write_text(f"---\nconfigs: {json.dumps(configurations)}\n---\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    return folder


def read(source: str, **changes: Any) -> list[tuple[str, Any]]:
    settings = PrepareSettings(**{"source": source, "task": "text_classification", **changes})
    assert settings.problems() == problems_here(settings) == []
    found = open_source(settings, Path("unused"))
    return [row for _, row in rows_of(found, [], Meter(found))]


def test_a_split_of_a_configuration_is_read_row_by_row(data_set: Path) -> None:
    rows = read("hf://owner/texts")
    assert [row for _, row in rows] == ROWS
    assert rows[16][0].endswith("-train.arrow:17")
    assert len(read("hf://owner/texts?split=test")) == 10
    assert [row for _, row in read("hf://owner/texts?config=more&split=train")] == [{"text": "one more", "label": "c"}]


def test_a_dataset_from_the_hub_is_that_of_the_file(data_set: Path, tmp_path: Path) -> None:
    settings = {"task": "text_classification", "val_fraction": 0.2, "test_fraction": 0.2}
    there = prepare_data(PrepareSettings(source="hf://owner/texts", **settings), tmp_path / "there")
    here = prepare_data(PrepareSettings(source=str(data_set / "train.jsonl"), **settings), tmp_path / "here")
    assert there.rows_read == here.rows_read == 300
    assert [there.rows(split) for split in there.splits] == [here.rows(split) for split in here.splits]


def test_classes_have_their_names_and_images_their_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data_set: Path
) -> None:
    import datasets

    write_photos(tmp_path / "owner/photos", per_class=15)
    here = prepare_data(PrepareSettings(source=str(tmp_path / "owner/photos")), tmp_path / "here")
    there = prepare_data(PrepareSettings(source="hf://owner/photos"), tmp_path / "there")
    assert there.labels == ["blue", "red"]
    assert there.class_rows == here.class_rows
    # What `datasets` itself wrote to files has the names in its schema too, and −1 for no class.
    names = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])})
    table = datasets.Dataset.from_list([{"text": "x", "label": number} for number in (1, 0, -1)], features=names)
    table.to_parquet(tmp_path / "t.parquet")
    table.save_to_disk(tmp_path / "saved")
    for source in (tmp_path / "t.parquet", tmp_path / "saved"):
        assert [row["label"] for _, row in read(str(source))] == ["yes", "no", None]
    assert pq.read_table(tmp_path / "t.parquet")["label"].to_pylist() == [1, 0, -1]


def test_what_datasets_keeps_of_its_work_beside_a_saved_data_set_is_no_part_of_it(tmp_path: Path, bucket: str) -> None:
    import datasets

    datasets.Dataset.from_list(ROWS).save_to_disk(tmp_path / "saved")
    saved = datasets.load_from_disk(str(tmp_path / "saved"))
    saved.map(lambda row: {"text": row["text"].upper()}, num_proc=2)
    saved.filter(lambda row: row["label"] == "a")
    names = [path.name for path in (tmp_path / "saved").iterdir()]
    assert len([name for name in names if name.startswith("cache-")]) == 3
    RemoteFolder(f"{bucket}/saved").upload(tmp_path / "saved", names)
    for source in (f"{tmp_path}/saved", f"{tmp_path}/saved/*.arrow", f"{bucket}/saved"):
        assert [row for _, row in read(source)] == ROWS


def test_a_data_set_that_was_saved_over_another_is_read_alone(tmp_path: Path, bucket: str) -> None:
    import datasets

    earlier = datasets.Dataset.from_list([{"text": f"earlier {number}", "label": "a"} for number in range(30)])
    earlier.save_to_disk(tmp_path / "anew/train", num_shards=3)
    datasets.Dataset.from_list(ROWS).save_to_disk(tmp_path / "anew/train", num_shards=2)
    names = [f"train/{path.name}" for path in (tmp_path / "anew/train").iterdir()]
    assert len([name for name in names if name.endswith(".arrow")]) == 5
    assert len(datasets.load_from_disk(str(tmp_path / "anew/train"))) == 300
    RemoteFolder(f"{bucket}/anew").upload(tmp_path / "anew", names)
    for source in (f"{tmp_path}/anew", f"{tmp_path}/anew/*/*.arrow", f"{bucket}/anew", f"{bucket}/anew/train"):
        assert [row for _, row in read(source)] == ROWS
    # Without the file that says so, all are rows.
    (tmp_path / "anew/train/state.json").unlink()
    assert len(read(f"{tmp_path}/anew")) == 330


def test_a_split_that_the_last_save_no_longer_has_is_no_part_of_it(tmp_path: Path, bucket: str) -> None:
    import datasets

    rows = datasets.Dataset.from_list(ROWS)
    earlier = datasets.Dataset.from_list(
        [{"text": f"earlier {number}", "label": "ab"[number % 2]} for number in range(30)]
    )
    datasets.DatasetDict(test=earlier, train=earlier).save_to_disk(tmp_path / "fewer/set")
    datasets.DatasetDict(train=rows).save_to_disk(tmp_path / "fewer/set")
    loaded = datasets.load_from_disk(str(tmp_path / "fewer/set"))
    assert {split: len(part) for split, part in loaded.items()} == {"train": 300}
    paths = [path for path in (tmp_path / "fewer").rglob("*") if path.is_file()]
    RemoteFolder(f"{bucket}/fewer").upload(
        tmp_path / "fewer", [str(path.relative_to(tmp_path / "fewer")) for path in paths]
    )
    for place in (f"{tmp_path}/fewer", f"{bucket}/fewer"):
        for source in (place, f"{place}/set", f"{place}/set/*/*.arrow"):
            assert [row for _, row in read(source)] == ROWS
        # Who names the folder of one split means it.
        assert len(read(f"{place}/set/test")) == 30
    # Without the file that names the splits, all are rows.
    (tmp_path / "fewer/set/dataset_dict.json").unlink()
    assert len(read(f"{tmp_path}/fewer")) == 330


def test_what_is_wrong_is_said(data_set: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"datasets cannot load hf://owner/texts\?split=validation: .*validation"):
        read("hf://owner/texts?split=validation")
    for name in ("hf://owner/texts?split=train[:5]", "hf://owner/texts?part=1", "hf://"):
        assert "hf://OWNER/NAME" in PrepareSettings(source=name).problems()[0], name
    assert "leave it at auto" in PrepareSettings(source="hf://owner/texts", source_format="csv").problems()[0]
    # A file of a data set is a file.
    assert PrepareSettings(source="hf://datasets/owner/texts/train.jsonl", task="causal_lm").problems() == []


def test_without_datasets_the_error_says_so(data_set: Path) -> None:
    code = (
        "import sys; sys.modules['datasets'] = None\n"
        "from gpu_pipelines.data.settings import PrepareSettings\n"
        "from gpu_pipelines.data.source_check import problems_here\n"
        "print(problems_here(PrepareSettings(source='hf://owner/texts', task='causal_lm')))"
    )
    assert "needs the package datasets. Install it: pip install datasets" in printed_by(code)


def test_the_state_is_that_of_the_files(data_set: Path) -> None:
    before = source_fingerprint("hf://owner/texts")
    assert before == source_fingerprint("hf://owner/texts")
    (data_set / "train.jsonl").write_text(json.dumps(ROWS[0]) + "\n")
    assert source_fingerprint("hf://owner/texts") != before
