"""One preparation on several machines: the dataset of one, and a clear end when one of them is gone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from conftest import write_photos
from preparing import await_units, prepare_alone, start_on, units_done, write_texts

from gpu_pipelines.artifacts.documents import sha256_of_tree
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.errors import INTERRUPTED

UNIT = 40_000
LIKE = {"val_fraction": 0.2, "test_fraction": 0.2}


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_texts(tmp_path_factory.mktemp("texts") / "source", files=7, rows=300)


def test_two_machines_leave_the_dataset_of_one(texts: Path, tmp_path: Path) -> None:
    fixed = write_texts(tmp_path / "fixed", files=2, rows=20, seed=1)
    shutil.copy(texts / "0.jsonl", fixed / "0.jsonl")
    settings = PrepareSettings(
        source=str(texts), task="causal_lm", sequence_length=64, vocabulary_size=400, near_duplicates=0.6,
        test_source=str(fixed), **LIKE,
    )  # fmt: skip
    whole = prepare_alone(settings, tmp_path / "alone", UNIT)
    machines = start_on(2, settings, tmp_path, str(tmp_path / "work"), UNIT)
    assert [machine.wait() for machine in machines] == [0, 0], machines[0].output
    assert sha256_of_tree(tmp_path / "machine-0") == whole
    assert not (tmp_path / "machine-1").exists(), "only rank 0 writes"
    manifest = json.loads((tmp_path / "alone/dataset.json").read_text())
    assert manifest["duplicates"] > 100, "there are some, in other files than their first"
    kept = sum(manifest["records"].values())
    assert kept + manifest["duplicates"] + manifest["rows_rejected"] == manifest["rows_read"] == 7 * 300 + 320
    assert manifest["in_test_source"] > 250


@pytest.mark.slow
def test_images_on_two_machines_and_without_looking_for_all_first(tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos", per_class=60)
    # The same image once more with its own class, and once more with another.
    first = sorted((photos / "blue").iterdir())[0]
    shutil.copy(first, photos / "blue/zzz.png")
    shutil.copy(first, photos / "red/zzz.png")
    (photos / "red/broken.png").write_bytes(b"broken")
    settings = PrepareSettings(source=str(photos), image_size=16)
    unit = 20 * 3 * 16 * 16
    # One machine judges records as they come, two know all of them before.
    whole = prepare_alone(settings, tmp_path / "alone", unit)
    machines = start_on(2, settings, tmp_path, str(tmp_path / "work"), unit)
    assert [machine.wait() for machine in machines] == [0, 0], machines[0].output
    assert sha256_of_tree(tmp_path / "machine-0") == whole
    shards = {name.rpartition("/units/")[2][:5] for name in units_done(str(tmp_path / "work"))}
    assert len(shards) > 2, "there is something to share"
    manifest = json.loads((tmp_path / "alone/dataset.json").read_text())
    assert (manifest["duplicates"], manifest["rejected"]) == (1, {"unreadable image": 1})
    assert manifest["label_conflicts"] == 1


def test_a_machine_that_is_gone_ends_the_others_and_a_second_try_continues(texts: Path, tmp_path: Path) -> None:
    settings = PrepareSettings(source=str(texts), task="text_classification", vocabulary_size=400, **LIKE)
    whole = prepare_alone(settings, tmp_path / "alone", UNIT)
    base = str(tmp_path / "work")
    machines = start_on(2, settings, tmp_path, base, UNIT)
    machines[1].await_line("reading")
    machines[1].process.kill()
    assert machines[0].wait() == 1
    assert "error: node 1 (127.0.0.1) has not been heard of for" in machines[0].output
    assert "Traceback" not in machines[0].output
    # On one machine less, it is still the same preparation.
    (again,) = start_on(1, settings, tmp_path, base, UNIT)
    assert again.wait() == 0, again.output
    assert sha256_of_tree(tmp_path / "machine-0") == whole


@pytest.mark.slow
def test_a_machine_that_is_told_to_stop_stops_the_others(texts: Path, tmp_path: Path) -> None:
    settings = PrepareSettings(source=str(texts), task="text_classification", vocabulary_size=400, **LIKE)
    base = str(tmp_path / "work")
    machines = start_on(2, settings, tmp_path, base, 4000)
    await_units(machines[0], base, 1)
    machines[1].process.terminate()
    assert [machine.wait() for machine in machines] == [INTERRUPTED, INTERRUPTED], machines[0].output
    assert "interrupted: node 1 (127.0.0.1) was interrupted; what is done is kept" in machines[0].output
    assert units_done(base)


@pytest.mark.slow
def test_the_first_failure_is_what_all_machines_name(texts: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(texts, source)
    (source / "1.jsonl.gz").write_bytes(b"\x1f\x8b damaged")
    settings = PrepareSettings(source=str(source), task="text_classification", vocabulary_size=400, **LIKE)
    machines = start_on(2, settings, tmp_path, str(tmp_path / "work"), UNIT)
    assert [machine.wait() for machine in machines] == [1, 1]
    told = [machine.output.partition("error: ")[2] for machine in machines]
    assert sorted(text.startswith("The file 1.jsonl.gz is not JSON lines") for text in told) == [False, True]
    assert any(text.startswith("node ") and "failed: The file 1.jsonl.gz is not JSON lines" in text for text in told)


@pytest.mark.slow
def test_a_place_that_not_all_machines_see_is_named(texts: Path, tmp_path: Path) -> None:
    settings = PrepareSettings(source=str(texts), task="text_classification", vocabulary_size=400, **LIKE)
    bases = iter([str(tmp_path / "here"), str(tmp_path / "there")])
    machines = start_on(2, settings, tmp_path, bases, UNIT)
    assert [machine.wait() for machine in machines] == [1, 1]
    assert f"is not in {tmp_path / 'here'}" in machines[0].output
    assert "All machines need a place that all of them see" in machines[0].output
