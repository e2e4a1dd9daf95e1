"""A batch prediction that was interrupted and is run again: no row twice, none lost, the same bytes."""

from __future__ import annotations

import random
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from threading import Barrier

import pytest
from exported_models import export
from predicting import exported, predicted, start, write_lines, written
from processes import Started

from gpu_pipelines.artifacts.documents import sha256_of_file, sha256_of_tree
from gpu_pipelines.artifacts.remote_files import RemoteFolder, is_remote
from gpu_pipelines.errors import INTERRUPTED, UserError
from gpu_pipelines.prediction.outputs import (
    OutputFile,
    Predictions,
    output_folder,
    require_output,
    write_predictions,
)
from gpu_pipelines.prediction.settings import PredictSettings

ROWS, PIECE = 3000, 40
WORDS = ["the", "bee", "sees", "a", "cat", "and", "an", "ant"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, PredictSettings, dict[str, str]]:
    """A model, what it predicts, and the hashes of what an uninterrupted prediction writes."""
    folder = tmp_path_factory.mktemp("whole")
    model = exported("text_classification", folder / "model")
    generator = random.Random(0)
    rows = [
        {"id": number, "text": " ".join(generator.choices(WORDS, k=generator.randint(1, 20))) * (number % 50 != 7)}
        for number in range(ROWS)
    ]
    for part in range(3):
        write_lines(folder / f"rows/{part}.jsonl", rows[part::3])
    settings = PredictSettings(source=str(folder / "rows"), key_column="id", rows_per_file=500)
    predicted(model, settings.source, folder / "out", PIECE, key_column="id", rows_per_file=500)
    keys = [row["key"] for row in written(folder / "out")]
    assert sorted(keys) == [number for number in range(ROWS) if number % 50 != 7]
    return model, settings, sha256_of_tree(folder / "out")


def pieces_done(base: str) -> int:
    if is_remote(base):
        return sum(name.endswith("/done.json") for name in RemoteFolder(base).names())
    return len(list(Path(base).glob("*/pieces/*/done.json")))


def await_pieces(started: Started, base: str, count: int) -> None:
    deadline = time.monotonic() + 120
    while pieces_done(base) < count:
        assert started.process.poll() is None, started.output
        assert time.monotonic() < deadline, started.output
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM])
def test_a_prediction_that_was_ended_twice_continues(
    sign: signal.Signals, whole: tuple[Path, PredictSettings, dict[str, str]], tmp_path: Path
) -> None:
    model, settings, expected = whole
    out, base = tmp_path / "out", str(tmp_path / "unfinished")
    for more in (3, 10):
        before = pieces_done(base)
        started = start(model, str(out), base, settings, tmp_path, PIECE)
        await_pieces(started, base, before + more)
        started.process.send_signal(sign)
        status = started.wait()
        assert not (out / "predictions.json").exists(), "it was too fast to be interrupted"
        if sign == signal.SIGTERM:
            assert status == INTERRUPTED
            assert "interrupted: stopped by SIGTERM; what is done is kept" in started.output
    # Of one that was killed, pieces may be there that were being kept: these are not done.
    kept = [path.with_name("part.jsonl") for path in Path(base).glob("*/pieces/*/done.json")]
    done = {path: path.stat().st_mtime_ns for path in kept}
    # What is damaged is predicted again, what is not stays.
    first, *others = sorted(done)
    first.write_bytes(first.read_bytes()[:-10])
    last = start(model, str(out), base, settings, tmp_path, PIECE)
    await_pieces(last, base, len(done) + 5)
    assert all(path.stat().st_mtime_ns == done[path] for path in others if path.parent.joinpath("done.json").exists())
    assert last.wait() == 0, last.output
    assert "rows are predicted already" in last.output or "done again because it is damaged" in last.output
    assert last.output.count("done again because it is damaged: pieces/") == 1
    assert sha256_of_tree(out) == expected
    assert not list(tmp_path.glob("unfinished/*/pieces")), "what is finished is not kept"


@pytest.mark.slow
def test_unfinished_predictions_in_a_bucket_are_continued_on_another_machine(
    whole: tuple[Path, PredictSettings, dict[str, str]], tmp_path: Path, bucket: str
) -> None:
    model, settings, expected = whole
    base, out = f"{bucket}/unfinished", f"{bucket}/out"
    first = start(model, out, base, settings, tmp_path, 400)
    await_pieces(first, base, 2)
    first.process.kill()
    first.wait()
    second = start(model, out, base, settings, tmp_path, 400)
    assert second.wait() == 0, second.output
    assert "rows are predicted already" in second.output
    names = RemoteFolder(out).names()
    RemoteFolder(out).download(names, tmp_path / "copy")
    assert sorted(row["key"] for row in written(tmp_path / "copy")) == [n for n in range(ROWS) if n % 50 != 7]
    assert sha256_of_tree(tmp_path / "copy")["rejected.jsonl"] == expected["rejected.jsonl"]
    assert pieces_done(base) == 0


@pytest.mark.slow
def test_another_source_model_or_parameter_begins_anew(
    whole: tuple[Path, PredictSettings, dict[str, str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = whole[0]
    source = write_lines(tmp_path / "rows.jsonl", [{"text": f"cat {n}", "id": n} for n in range(100)])
    given = {"max_rejected": "0"}
    source.write_text(source.read_text() + "{}\n")
    for _ in range(2):
        with pytest.raises(UserError, match="more than max_rejected=0"):
            predicted(model, source, tmp_path / "out", 20, **given)
    assert capsys.readouterr().out.count("the first 101 rows are predicted already") == 1
    with pytest.raises(UserError, match="more than max_rejected=0"):
        predicted(model, source, tmp_path / "out", 20, key_column="id", **given)
    source.write_text(source.read_text() + '{"text": "a", "id": 1}\n')
    with pytest.raises(UserError, match="more than max_rejected=0"):
        predicted(model, source, tmp_path / "out", 20, **given)
    with pytest.raises(UserError, match="more than max_rejected=0"):
        predicted(export("text_classification", tmp_path / "other", seed=1), source, tmp_path / "out", 20, **given)
    assert "predicted already" not in capsys.readouterr().out
    # How many rows may be rejected does not shape them.
    done = predicted(model, source, tmp_path / "out", 20, max_rejected="5")
    assert "the first 102 rows are predicted already" in capsys.readouterr().out
    assert (done.rows_read, done.rows_predicted) == (102, 101)


@pytest.mark.slow
def test_a_signal_ends_a_long_piece_between_two_batches(
    whole: tuple[Path, PredictSettings, dict[str, str]], tmp_path: Path
) -> None:
    model, settings, _ = whole
    one_piece = replace(settings, rows_at_once=1)
    base = str(tmp_path / "unfinished")
    started = start(model, str(tmp_path / "out"), base, one_piece, tmp_path, ROWS)
    started.await_line("predicting ")
    time.sleep(1)
    started.process.send_signal(signal.SIGTERM)
    began = time.monotonic()
    assert started.wait() == INTERRUPTED, started.output
    assert pieces_done(base) == 0
    assert time.monotonic() - began < 20


def test_what_a_killed_one_left_in_the_output_is_removed_and_of_one_that_goes_on_nothing(tmp_path: Path) -> None:
    (tmp_path / f".predictions-{socket.gethostname()}-killed").mkdir()
    (tmp_path / f".predictions-{socket.gethostname()}-killed" / "predictions-00000-of-00001.jsonl").write_text("{}")
    with output_folder(str(tmp_path)) as goes_on:
        require_output(str(tmp_path))
        assert list(tmp_path.iterdir()) == [goes_on]
        (goes_on / "predictions.json").write_text("{}")
    assert [path.name for path in tmp_path.iterdir()] == ["predictions.json"]


def test_predictions_of_a_later_version_are_read_without_what_is_new_in_them() -> None:
    made = Predictions("task", {}, "source", "", 1, 1, {}, {}, {}, [OutputFile("part.csv", 1, "")])
    content = {**asdict(made), "new": "of a later version"}
    content["files"][0]["new"] = "of a later version"
    assert Predictions.from_json(content) == made


def test_of_two_that_end_at_the_same_moment_one_is_there_and_it_is_whole(tmp_path: Path) -> None:
    at_once = Barrier(2, timeout=30)

    def write(which: str) -> None:
        file = "predictions-00000-of-00001.jsonl"
        for _ in range(100):
            with output_folder(str(tmp_path)) as folder:
                (folder / file).write_text(which)
                hashed = [OutputFile(file, 1, sha256_of_file(folder / file))]
                write_predictions(folder, Predictions("task", {}, which, "", 1, 1, {}, {}, {}, hashed))
                at_once.wait()
            at_once.wait()
            assert Predictions.load(tmp_path).source == (tmp_path / file).read_text()
            at_once.wait()

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(write, ("one", "other"), timeout=60))


def test_of_two_that_end_in_a_bucket_at_the_same_moment_one_is_there_and_it_is_whole(
    tmp_path: Path, bucket: str
) -> None:
    at_once = Barrier(2, timeout=60)
    place = f"{bucket}/same-moment"

    def write(which: str, count: int) -> None:
        files = [f"predictions-{number:05d}-of-{count:05d}.jsonl" for number in range(count)] + ["rejected.jsonl"]
        for turn in range(5):
            with output_folder(place) as folder:
                hashed = []
                for file in files:
                    (folder / file).write_text(f"{which} {turn}")
                    hashed.append(OutputFile(file, 1, sha256_of_file(folder / file)))
                write_predictions(folder, Predictions("task", {}, which, "", 1, 1, {}, {}, {}, hashed))
                at_once.wait()
            if at_once.wait() == 0:
                there = tmp_path / f"{which}-{turn}"
                names = RemoteFolder(place).names()
                RemoteFolder(place).download(names, there)
                made = Predictions.load(there)
                assert sorted(names) == sorted([*(each.path for each in made.files), "predictions.json"])
                assert {(there / each.path).read_text() for each in made.files} == {f"{made.source} {turn}"}
            at_once.wait()

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(write, ("one", "two"), (2, 3), timeout=120))


@pytest.mark.slow
def test_twenty_kills_at_random_moments_lose_no_row_and_double_none(
    whole: tuple[Path, PredictSettings, dict[str, str]], tmp_path: Path
) -> None:
    model, settings, expected = whole
    generator = random.Random(time.time_ns())
    out, base = tmp_path / "out", str(tmp_path / "unfinished")
    first = start(model, str(out), base, settings, tmp_path, PIECE)
    first.await_line("predicting ")
    began = time.monotonic()
    assert first.wait() == 0
    seconds = time.monotonic() - began
    kills = finished = 0
    while kills < 20:
        (out / "predictions.json").unlink(missing_ok=True)
        started = start(model, str(out), base, settings, tmp_path, PIECE)
        # Imports take longest, and nothing can be lost before them.
        started.await_line("predicting ")
        time.sleep(generator.uniform(0, 1.05) * seconds)
        if started.process.poll() is None:
            started.process.kill()
            kills += 1
        elif started.process.returncode == 0:
            finished += 1
            assert sha256_of_tree(out) == expected
        started.wait()
        assert not (out / "predictions.json").exists() or sha256_of_tree(out) == expected
    last = start(model, str(out), base, settings, tmp_path, PIECE)
    assert last.wait() == 0, last.output
    keys = [row["key"] for row in written(out)]
    assert len(keys) == len(set(keys)) == ROWS - ROWS // 50
    assert sha256_of_tree(out) == expected, f"{kills} kills, {finished} finished in between"
