"""A preparation that was interrupted and is run again: it continues, and leaves what an uninterrupted one does."""

from __future__ import annotations

import json
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import write_photos
from preparing import await_units, prepare_alone, start, units_done, write_texts

from gpu_pipelines.artifacts.documents import sha256_of_tree
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.data.units.unfinished_work import unfinished_work
from gpu_pipelines.errors import INTERRUPTED

UNIT = 20_000


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> tuple[PrepareSettings, dict[str, str]]:
    """Settings, and the hashes of the dataset that they give."""
    folder = tmp_path_factory.mktemp("texts")
    # One file is larger than a unit: its units are cut within.
    source = write_texts(folder / "source", files=5, rows=120)
    write_texts(folder / "more", files=1, rows=2500, seed=1)
    (folder / "more/0.jsonl").rename(source / "z.jsonl")
    settings = PrepareSettings(
        source=str(source), task="causal_lm", sequence_length=64, vocabulary_size=400, val_fraction=0.2
    )
    return settings, prepare_alone(settings, folder / "whole", UNIT)


def damage(base: Path) -> None:
    """A shard of one unit with a changed byte, one of another cut off, and the list of what was rejected gone."""
    units = [(base / name).parent for name in units_done(str(base))]
    shards = [next(unit.glob("train/*.arrow")) for unit in units[:2]]
    content = bytearray(shards[0].read_bytes())
    content[len(content) // 2] ^= 1
    shards[0].write_bytes(content)
    shards[1].write_bytes(shards[1].read_bytes()[:-100])
    (units[2] / "rejected.jsonl").unlink()


@pytest.mark.parametrize("ended_by", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_preparation_that_was_ended_continues_and_damaged_work_is_done_again(
    ended_by: signal.Signals, texts: tuple[PrepareSettings, dict[str, str]], tmp_path: Path
) -> None:
    settings, whole = texts
    base = tmp_path / "work"
    first = start(settings, tmp_path / "out", str(base), UNIT)
    await_units(first, str(base), 4)
    first.process.send_signal(ended_by)
    status = first.wait()
    assert not (tmp_path / "out/dataset.json").exists(), "it was too fast to be interrupted"
    if ended_by == signal.SIGTERM:
        assert status == INTERRUPTED
        assert "interrupted: stopped by SIGTERM" in first.output
    done = units_done(str(base))
    damage(base)
    kept = {name: (base / name).stat().st_mtime_ns for name in done[3:]}
    again = start(settings, tmp_path / "out", str(base), UNIT)
    assert again.wait() == 0, again.output
    assert again.output.count("done again because it is damaged: units/") == 3
    assert f"{len(done) - 3:,} units of work were done before" in again.output
    assert {name: (base / name).stat().st_mtime_ns for name in kept} == kept
    assert "training a tokenizer" not in again.output
    assert sha256_of_tree(tmp_path / "out") == whole


@pytest.mark.slow
def test_unfinished_work_in_a_bucket_is_continued(
    texts: tuple[PrepareSettings, dict[str, str]], tmp_path: Path, bucket: str
) -> None:
    settings, whole = texts
    base = f"{bucket}/unfinished"
    first = start(settings, tmp_path / "out", base, UNIT)
    await_units(first, base, 2)
    first.process.kill()
    first.wait()
    # Another machine, with nothing of the first one's disk.
    second = start(settings, tmp_path / "elsewhere", base, UNIT)
    assert second.wait() == 0, second.output
    assert "units of work were done before" in second.output
    assert sha256_of_tree(tmp_path / "elsewhere") == whole
    with unfinished_work(settings, base) as work:
        work.remove()
    assert units_done(base) == []


@pytest.mark.slow
def test_images_are_continued(tmp_path: Path) -> None:
    settings = PrepareSettings(source=str(write_photos(tmp_path / "photos", per_class=150)), image_size=32)
    unit = 30 * 3 * 32 * 32
    whole = prepare_alone(settings, tmp_path / "whole", unit)
    first = start(settings, tmp_path / "out", str(tmp_path / "work"), unit)
    await_units(first, str(tmp_path / "work"), 3)
    first.process.kill()
    first.wait()
    assert not (tmp_path / "out/dataset.json").exists(), "it was too fast to be interrupted"
    again = start(settings, tmp_path / "out", str(tmp_path / "work"), unit)
    assert again.wait() == 0, again.output
    assert "units of work were done before" in again.output
    assert sha256_of_tree(tmp_path / "out") == whole


def test_work_is_continued_for_the_same_rows_and_settings_alone(tmp_path: Path) -> None:
    source = tmp_path / "a.jsonl"
    source.write_text(json.dumps({"text": "a", "label": "b"}))

    def place(**changes: Any) -> str:
        settings = PrepareSettings(**{"source": str(source), "task": "text_classification", **changes})
        with unfinished_work(settings, str(tmp_path / "work")) as work:
            return work.uri

    first = place()
    assert place(max_rejected="5%") == first, "what is looked at only at the end"
    assert place(sequence_length=64) != first
    time.sleep(0.01)
    source.write_text(json.dumps({"text": "c", "label": "b"}))
    assert place() != first


def test_what_a_killed_run_has_left_is_removed_once_its_source_has_changed(tmp_path: Path) -> None:
    source, base = tmp_path / "a.jsonl", tmp_path / "work"
    settings = PrepareSettings(source=str(source), task="text_classification")

    def left(place: PrepareSettings, text: str) -> Path:
        """What is there of a run that does not finish its work."""
        source.write_text(json.dumps({"text": text, "label": "b"}))
        with unfinished_work(place, str(base)) as work:
            work.begin("unit")
            work.commit("unit", {})
        return Path(work.uri)

    longer = left(replace(settings, sequence_length=64), "a")
    first = left(settings, "a")
    second = left(settings, "other")
    assert sorted(base.iterdir()) == sorted(
        lock for kept in (longer, second) for lock in (kept, kept.with_suffix(".lock"))
    )
    with unfinished_work(settings, str(base)):
        goes_on = left(settings, "and another")
        assert second.exists(), "its process goes on"
        assert goes_on != second != first
    second.with_suffix(".lock").write_text("elsewhere")
    left(settings, "a fourth")
    assert second.exists(), "nobody knows what another machine does"


def test_two_runs_of_one_machine_do_not_share_their_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = PrepareSettings()
    base = tmp_path / "work"
    with unfinished_work(settings, str(base)) as first, unfinished_work(settings, str(base)) as second:
        assert first.uri != second.uri
        assert "another run prepares the same data" in capsys.readouterr().out
        first.remove()
    assert not base.exists()
