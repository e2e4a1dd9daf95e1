"""Batch prediction: as the server predicts, in order, with keys, from every source, and no row without a trace."""

from __future__ import annotations

import base64
import io
import json
import math
import tarfile
import zipfile
from collections import Counter
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from exported_models import LABELS
from PIL import Image
from predicting import exported, exported_of_small_numbers, predicted, rejected, write_lines, written
from server_process import started

from gpu_pipelines.artifacts.documents import sha256_of_tree
from gpu_pipelines.artifacts.image_features import IMAGE_FORMATS
from gpu_pipelines.errors import UserError
from gpu_pipelines.prediction import predict, worker
from gpu_pipelines.prediction.outputs import Predictions, filled_in
from gpu_pipelines.prediction.settings import PredictSettings
from gpu_pipelines.prediction.written import Form, Prediction
from gpu_pipelines.serving.predictor import Predictor
from gpu_pipelines.serving.predictors import load_predictor
from gpu_pipelines.serving.request_body import WrongRequest
from gpu_pipelines.serving.settings import ServerSettings
from gpu_pipelines.tasks.formats import FORMATS

WORDS = ["the", "bee", "sees", "a", "cat", "and", "an", "ant"]
TASKS = ("image_classification", "text_classification", "regression", "token_classification", "causal_lm")


@cache
def models(folder: Path) -> dict[str, Path]:
    return {task: exported(task, folder / task) for task in TASKS}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("models")
    return lambda task: models(folder)[task]


def texts(rows: int) -> list[str]:
    generator = np.random.default_rng(0)
    return [" ".join(generator.choice(WORDS, generator.integers(1, 20))) for _ in range(rows)]


def png(number: int) -> bytes:
    generator, file = np.random.default_rng(number), io.BytesIO()
    Image.fromarray(generator.integers(0, 256, (16 + number % 9, 20, 3), dtype=np.uint8)).save(file, "PNG")
    return file.getvalue()


def sources(task: str, folder: Path) -> tuple[Path, list[dict[str, Any]]]:
    """A source, and the instances that the server is sent for its rows."""
    if task == "image_classification":
        (folder / "photos/deep").mkdir(parents=True)
        for number in range(70):
            (folder / f"photos/deep/{number:03d}.png").write_bytes(png(number))
        return folder / "photos", [{"b64": base64.b64encode(png(number)).decode()} for number in range(70)]
    if task == "regression":
        rows = [{"size": number / 7, "age": number % 80, "other": "x"} for number in range(70)]
        instances = [{"values": {"size": row["size"], "age": row["age"]}} for row in rows]
        return write_lines(folder / "rows.jsonl", rows), instances
    field = "prompt" if task == "causal_lm" else "text"
    return write_lines(folder / "rows.jsonl", [{"text": text} for text in texts(70)]), [
        {field: text} for text in texts(70)
    ]


def require_close(found: Any, expected: Any, place: str = "") -> None:
    """Numbers to 1e-5, everything else the same."""
    assert type(found) is type(expected), place
    if isinstance(found, dict):
        assert list(found) == list(expected) or sorted(found) == sorted(expected), place
        for name in found:
            require_close(found[name], expected[name], f"{place}.{name}")
    elif isinstance(found, list):
        assert len(found) == len(expected), place
        for number, (one, other) in enumerate(zip(found, expected, strict=True)):
            require_close(one, other, f"{place}[{number}]")
    elif isinstance(found, float):
        assert math.isclose(found, expected, rel_tol=1e-5, abs_tol=1e-5), f"{place}: {found} and {expected}"
    else:
        assert found == expected, place


def test_what_is_read_and_not_predicted_is_left(
    model: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpu_pipelines.data.units.progress.SECONDS_BETWEEN_LINES", 0)
    source, _ = sources("regression", tmp_path)
    predicted(model("regression"), source, tmp_path / "out", 18)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("predicting: ")]
    told = [(line.split()[1], line.split()[5]) for line in lines]
    assert told == [("18", "26%"), ("36", "51%"), ("54", "77%"), ("70", "100%")], lines


@pytest.mark.slow_but_for("image_classification")
@pytest.mark.parametrize("task", TASKS)
def test_every_task_predicts_as_the_server_does_in_the_order_of_the_source(
    task: str, model: Any, tmp_path: Path
) -> None:
    source, instances = sources(task, tmp_path)
    parameters = {"max_new_tokens": 4} if task == "causal_lm" else {}
    done = predicted(model(task), source, tmp_path / "out", 32, **parameters)
    assert (done.rows_read, done.rows_predicted, done.rejected) == (70, 70, {})
    with started(model(task)) as server:
        answers = [server.predict(instances[:35], **parameters), server.predict(instances[35:], **parameters)]
    assert [answer.status_code for answer in answers] == [200, 200]
    served = [prediction for answer in answers for prediction in answer.json()["predictions"]]
    found = written(tmp_path / "out")
    require_close([row["prediction"] for row in found], served)
    if task == "image_classification":
        assert [row["key"] for row in found] == [f"deep/{number:03d}.png" for number in range(70)]
        assert found[3]["instance"] == {"image": "deep/003.png"}
    else:
        assert [row["key"] for row in found] == [f"rows.jsonl:{number}" for number in range(1, 71)]
        assert [row["instance"] for row in found] == instances


@pytest.mark.slow
def test_what_an_image_is_found_in_makes_no_difference(model: Any, tmp_path: Path) -> None:
    """A folder without classes, one in an archive, paths in a table, bytes in Parquet, base64, and tar shards."""
    images = {f"{number:02d}.png": png(number) for number in range(20)}
    folder = tmp_path / "photos"
    folder.mkdir()
    for name, content in images.items():
        (folder / name).write_bytes(content)
    (folder / "notes.md").write_text("no image")
    write_lines(tmp_path / "paths.jsonl", [{"image": f"photos/{name}", "id": n} for n, name in enumerate(images)])
    pq.write_table(pa.table({"image": list(images.values()), "id": range(20)}), tmp_path / "bytes.parquet")
    write_lines(tmp_path / "b64.jsonl", [{"b64": base64.b64encode(each).decode()} for each in images.values()])
    with tarfile.open(tmp_path / "shard.tar", "w") as shard:
        for name, content in images.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            shard.addfile(member, io.BytesIO(content))
    with zipfile.ZipFile(tmp_path / "photos.zip", "w") as archive:
        for name, content in images.items():
            archive.writestr(f"photos/{name}", content)
    found = {}
    for source in (
        "photos",
        "photos.zip",
        "paths.jsonl",
        "bytes.parquet",
        "b64.jsonl",
        "shard.tar",
        "photos/1*.png",
        "photos/03.png",
    ):
        predicted(model("image_classification"), tmp_path / source, tmp_path / "out")
        found[source] = written(tmp_path / "out")
    first = [row["prediction"] for row in found["photos"]]
    assert len(first) == 20
    assert [(row["key"], row["instance"]) for row in found["photos.zip"]] == [
        (row["key"], row["instance"]) for row in found["photos"]
    ]
    for source in ("photos.zip", "paths.jsonl", "bytes.parquet", "b64.jsonl", "shard.tar"):
        require_close([row["prediction"] for row in found[source]], first, source)
    require_close([row["prediction"] for row in found["photos/1*.png"]], first[10:])
    require_close([row["prediction"] for row in found["photos/03.png"]], first[3:4])
    assert [row["key"] for row in found["shard.tar"]][:2] == ["shard.tar:00", "shard.tar:01"]
    assert found["paths.jsonl"][1]["instance"] == {"image": "photos/01.png"}
    assert "instance" not in found["bytes.parquet"][0]
    predicted(model("image_classification"), tmp_path / "bytes.parquet", tmp_path / "out", key_column="id")
    assert [row["key"] for row in written(tmp_path / "out")] == list(range(20))


def test_every_image_that_is_read_in_training_is_found_in_a_folder_and_what_is_passed_over_is_said(
    model: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Image.init()
    suffixes = {suffix for suffix, name in Image.registered_extensions().items() if name in IMAGE_FORMATS}
    assert set(FORMATS["images"].suffixes) == suffixes
    folder = tmp_path / "photos"
    folder.mkdir()
    for name in ("a.jfif", "b.JP2", "c.avif", "d.tga", "5f1e0c"):
        (folder / name).write_bytes(png(3))
    (folder / "e.heic").write_bytes(b"no format that is read")
    predicted(model("image_classification"), folder, tmp_path / "out")
    assert [row["key"] for row in written(tmp_path / "out")] == ["5f1e0c", "a.jfif", "b.JP2", "c.avif", "d.tga"]
    assert "warning: passed over 1 × neither its name nor its content tells a format" in capsys.readouterr().out


@pytest.mark.slow
def test_words_in_a_list_are_those_that_a_tagger_was_trained_with(model: Any, tmp_path: Path) -> None:
    """Nothing is cut at marks, from whatever table or request."""
    words = [["the", "U.S.", "cat", "didn't", "see", f"{number},{number}"] for number in range(40)]
    write_lines(tmp_path / "lists.jsonl", [{"tokens": each, "ner_tags": ["O"] * 6} for each in words])
    write_lines(tmp_path / "blanks.jsonl", [{"words": " ".join(each)} for each in words])
    pq.write_table(pa.table({"text": words}), tmp_path / "lists.parquet")
    found = {}
    for source in ("lists.jsonl", "blanks.jsonl", "lists.parquet"):
        predicted(model("token_classification"), tmp_path / source, tmp_path / "out")
        found[source] = [row["prediction"] for row in written(tmp_path / "out")]
        assert [row["instance"] for row in written(tmp_path / "out")] == [{"text": each} for each in words]
    first = found["lists.jsonl"]
    assert found == dict.fromkeys(found, first)
    assert sum(len(each["entities"]) for each in first) > 40
    for row, prediction in zip(words, first, strict=True):
        assert all(set(entity["word"].split(" ")) <= set(row) for entity in prediction["entities"])
    with started(model("token_classification")) as server:
        require_close(server.predict([{"text": each} for each in words]).json()["predictions"], first)
        refused = server.predict([{"text": ["a", "cat "]}])
    assert refused.status_code == 400
    assert "text has 'cat ', and is a list. Send a text, or a list of words" in refused.json()["error"]


def test_rows_that_cannot_be_predicted_are_listed_with_their_reasons_and_counted(model: Any, tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(12):
        (folder / f"{number:02d}.png").write_bytes(png(number))
    (folder / "03.png").write_bytes(png(3)[:40])
    (folder / "05.png").write_bytes(b"")
    rows = [{"image": f"photos/{number:02d}.png", "id": f"a{number}"} for number in range(12)]
    rows[7] = {"image": "photos/gone.png", "id": "a7"}
    rows[8] = {"id": "a8"}
    rows[9] = {"image": "photos/09.png"}
    rows[10] = {"image": "/etc/hostname", "id": "a10"}
    rows += [{"image": f"photos/{name}.png", "id": "none"} for name in ("\0", "\ud800")]  # no names of files
    source = write_lines(tmp_path / "rows.jsonl", rows)
    source.write_text(source.read_text() + "{not json\n")
    done = predicted(model("image_classification"), source, tmp_path / "out", 5, key_column="id", max_rejected="60%")
    assert (done.rows_read, done.rows_predicted, done.rows_rejected) == (15, 6, 9)
    assert [row["key"] for row in written(tmp_path / "out")] == ["a0", "a1", "a2", "a4", "a6", "a11"]
    listed = [(row.get("key"), row["source"].partition(" ")[0], row["reason"]) for row in rejected(tmp_path / "out")]
    assert listed == [
        ("a3", "rows.jsonl:4", "unreadable image"),
        ("a5", "rows.jsonl:6", "unreadable image"),
        ("a7", "rows.jsonl:8", "file cannot be read"),
        ("a8", "rows.jsonl:9", "no image"),
        (None, "rows.jsonl:10", "no key"),
        ("a10", "rows.jsonl:11", "file cannot be read"),
        ("none", "rows.jsonl:13", "file cannot be read"),
        ("none", "rows.jsonl:14", "file cannot be read"),
        (None, "rows.jsonl:15", "malformed row"),
    ]
    assert all(row["detail"] for row in rejected(tmp_path / "out"))
    with pytest.raises(UserError, match=r"9 of 15 rows of .* were rejected, more than max_rejected=10%: 4 × file"):
        predicted(model("image_classification"), source, tmp_path / "out", 5, key_column="id")


def test_numbers_that_are_missing_are_rejected_and_texts_of_csv_are_read(model: Any, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("size;age;id\n1.5;30;a\n;40;b\n2.5;x;c\n3;50;d\n4;60;\n")
    done = predicted(model("regression"), tmp_path / "rows.csv", tmp_path / "out", key_column="id", max_rejected="3")
    assert [row["key"] for row in written(tmp_path / "out")] == ["a", "d"]
    assert [(row.get("key"), row["reason"]) for row in rejected(tmp_path / "out")] == [
        ("b", "no numbers"),
        ("c", "no numbers"),
        (None, "no key"),
    ]
    assert done.rejected == {"no numbers": 2, "no key": 1}
    as_instances = [{"values": {"size": 1.5, "age": 30}}, {"values": {"size": 3, "age": 50}}]
    predicted(model("regression"), write_lines(tmp_path / "instances.jsonl", as_instances), tmp_path / "same")
    require_close(
        [row["prediction"] for row in written(tmp_path / "same")],
        [row["prediction"] for row in written(tmp_path / "out")],
    )


def test_values_that_are_no_object_are_rejected(model: Any, tmp_path: Path) -> None:
    right = {"values": {"size": 1.5, "age": 30}}
    wrong = [{"values": each} for each in ([1.5, 30], "[1.5, 30]", None, 3, {}, "[" * 10_000)]
    source = write_lines(tmp_path / "rows.jsonl", [*wrong, right])
    done = predicted(model("regression"), source, tmp_path / "out", max_rejected="6")
    assert (done.rows_predicted, done.rejected) == (1, {"no numbers": 6})
    assert "no object of numbers by column" in rejected(tmp_path / "out")[0]["detail"]


def test_too_many_rejected_rows_are_told_whatever_is_in_them(model: Any, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "rows.jsonl", [{"size": "a", "age": 30, "id": "a\u2028b"}])
    with pytest.raises(UserError, match="1 of 1 rows of"):
        predicted(model("regression"), source, tmp_path / "out", key_column="id")


def test_half_a_surrogate_pair_in_a_row_ends_no_prediction(model: Any, tmp_path: Path) -> None:
    kept, left_out = {"\udfff": "a"}, {"\udfff": "b"}
    source = write_lines(tmp_path / "rows.jsonl", [{"text": "a cat", "id": kept}, {"text": "", "id": left_out}])
    given = {"key_column": "id", "max_rejected": "1"}
    predicted(model("text_classification"), source, tmp_path / "out", **given)
    assert [written(tmp_path / "out")[0]["key"], rejected(tmp_path / "out")[0]["key"]] == [kept, left_out]
    done = predicted(model("text_classification"), source, tmp_path / "tables", output_format="parquet", **given)
    assert pq.read_table(tmp_path / "tables" / done.files[0].path)["key"].to_pylist() == [json.dumps(kept)]


def test_a_row_whose_prediction_is_no_finite_number_is_rejected(tmp_path: Path) -> None:
    model = exported_of_small_numbers(tmp_path / "model")
    (tmp_path / "rows.csv").write_text("size,age,id\n1.5,30,a\n3e38,-3e38,b\n3,50,c\n")
    done = predicted(model, tmp_path / "rows.csv", tmp_path / "out", key_column="id", max_rejected="1")
    assert [row["key"] for row in written(tmp_path / "out")] == ["a", "c"]
    (row,) = rejected(tmp_path / "out")
    assert (row["key"], row["reason"]) == ("b", "prediction failed")
    assert row["detail"].startswith("the prediction of price is no finite number")
    assert done.rejected == {"prediction failed": 1}


def test_decimal_numbers_of_sql_are_numbers_in_keys_and_instances(model: Any, tmp_path: Path) -> None:
    # What BigQuery has for NUMERIC.
    numbers = pa.array(map(Decimal, ("0", "20", "2.5")), pa.decimal128(38, 9))
    pq.write_table(pa.table({"size": numbers, "age": numbers, "id": numbers}), tmp_path / "rows.parquet")
    predicted(model("regression"), tmp_path / "rows.parquet", tmp_path / "out", key_column="id")
    assert [row["key"] for row in written(tmp_path / "out")] == [0, 20, "2.5"]
    predicted(model("regression"), tmp_path / "rows.parquet", tmp_path / "out")
    assert written(tmp_path / "out")[2]["instance"] == {"values": {"size": 2.5, "age": 2.5}}


def test_keys_that_are_lists_or_objects_are_json(model: Any, tmp_path: Path) -> None:
    keys = [["shop", 1], {"user": "é", "day": None, "shop": ""}, {"ids": [float("inf")]}]
    rows = [{"size": 1.5, "age": 30, "id": key} for key in keys]
    write_lines(tmp_path / "rows.jsonl", rows)
    predicted(model("regression"), tmp_path / "rows.jsonl", tmp_path / "out", key_column="id")
    expected = [*keys[:2], {"ids": ["inf"]}]
    assert [row["key"] for row in written(tmp_path / "out")] == expected
    predicted(
        model("regression"), tmp_path / "rows.jsonl", tmp_path / "parquet", key_column="id", output_format="parquet"
    )
    (file,) = (tmp_path / "parquet").glob("*.parquet")
    assert [json.loads(key) for key in pq.read_table(file).column("key").to_pylist()] == expected


def test_keys_of_bytes_are_base64_as_bigquery_has_it(model: Any, tmp_path: Path) -> None:
    numbers = pa.array([1.0, 2.0])
    keys = pa.array([b"ab", b"\xff\x00"], pa.binary(2))
    pq.write_table(pa.table({"size": numbers, "age": numbers, "id": keys}), tmp_path / "rows.parquet")
    predicted(model("regression"), tmp_path / "rows.parquet", tmp_path / "out", key_column="id")
    assert [base64.b64decode(row["key"]) for row in written(tmp_path / "out")] == keys.to_pylist()


def test_a_column_that_a_model_of_numbers_does_not_know_is_refused_in_sentences(model: Any) -> None:
    predictor = load_predictor(model("regression"), ServerSettings())
    for instance in ({"values": {"size": 1, "age": 2, "rooms": 3}}, {"size": 1, "age": 2}):
        with pytest.raises(WrongRequest, match=r"Valid: [a-z, ]+\. Send "):
            predictor.read(instance, predictor.checked({}))


def test_a_sample_of_another_task_is_refused(model: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no 'sample:digits' for regression\. Samples: sample:diabetes\."):
        predicted(model("regression"), Path("sample:digits"), tmp_path / "out")


@pytest.mark.parametrize("task", TASKS)
def test_parquet_has_the_same_predictions_and_says_which_model(task: str, model: Any, tmp_path: Path) -> None:
    source, _ = sources(task, tmp_path)
    parameters = {"max_new_tokens": 3} if task == "causal_lm" else {}
    predicted(model(task), source, tmp_path / "lines", 16, **parameters)
    done = predicted(model(task), source, tmp_path / "out", 16, output_format="parquet", rows_per_file=40, **parameters)
    assert [file.rows for file in done.files] == [48, 22]
    assert [file.path for file in done.files] == [f"predictions-0000{n}-of-00002.parquet" for n in (0, 1)]
    table = pa.concat_tables([pq.read_table(tmp_path / "out" / file.path) for file in done.files])
    said = json.loads(table.schema.metadata[b"gpu_pipelines.model"])
    assert said == done.model
    assert len(said["digest"]) == 64
    lines = written(tmp_path / "lines")
    assert table["key"].to_pylist() == [row["key"] for row in lines]
    assert [json.loads(each) for each in table["instance"].to_pylist()] == [row["instance"] for row in lines]
    for row, line in zip(table["prediction"].to_pylist(), lines, strict=True):
        for name, value in line["prediction"].items():
            found = row[name]
            if isinstance(value, dict):
                found = {each["name"]: each["value"] for each in found}
            require_close(json.loads(found) if isinstance(value, list) else found, value, name)


def test_predictions_without_a_schema_are_json_in_parquet() -> None:
    form = Form("parquet", Predictor.answer, {}, has_instances=False)
    table = pq.read_table(io.BytesIO(form.content([Prediction("a", None, {"points": [[1, 2]]})])))
    assert table.to_pylist() == [{"key": "a", "prediction": '{"points": [[1, 2]]}'}]


def test_what_was_there_before_is_replaced_and_other_files_stay(model: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    source = write_lines(tmp_path / "rows.jsonl", [{"text": text} for text in texts(90)])
    predicted(model("text_classification"), source, out, 10, rows_per_file=20)
    (out / "notes.md").write_text("mine")
    assert len(list(out.glob("predictions-*.jsonl"))) == 5
    write_lines(source, [{"text": text} for text in texts(30)])
    done = predicted(model("text_classification"), source, out, 10)
    assert sorted(path.name for path in out.iterdir()) == [
        *("notes.md", "predictions-00000-of-00001.jsonl", "predictions.json", "rejected.jsonl")
    ]
    assert Predictions.load(out) == done
    before = sha256_of_tree(out)
    source.write_text(source.read_text() + '{"text": ""}\n' * 9)
    with pytest.raises(UserError, match=r"9 of 39 rows of .* were rejected"):
        predicted(model("text_classification"), source, out, 10)
    after = sha256_of_tree(out)
    assert len((out / "rejected-by-a-failed-prediction.jsonl").read_text().splitlines()) == 9
    assert {**after, **before} == after, "what was there stays"
    assert len(after) == len(before) + 1
    predicted(model("text_classification"), source, out, 10, max_rejected="unlimited")
    assert not (out / "rejected-by-a-failed-prediction.jsonl").exists()
    (out / "predictions.json").write_text('{"format_version": 1}')
    with pytest.raises(UserError, match="predictions"):
        predicted(model("text_classification"), source, out)


@pytest.mark.parametrize("max_rejected", ["10%", "0", "unlimited"])
def test_no_rows_are_no_predictions_and_no_error(
    max_rejected: str, model: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rows.jsonl").write_text("")
    for output_format in ("jsonl", "parquet"):
        given = {"output_format": output_format, "max_rejected": max_rejected}
        done = predicted(model("text_classification"), tmp_path / "rows.jsonl", tmp_path / "out", **given)
        assert (done.rows_read, [file.rows for file in done.files]) == (0, [0])
        assert "rows.jsonl has no rows, so nothing is predicted" in capsys.readouterr().out
    assert pq.read_table(tmp_path / "out" / done.files[0].path).schema.names == ["key", "instance", "prediction"]


def test_a_row_that_the_model_fails_on_does_not_fail_the_others(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = worker.load_predictor

    def with_a_bad_row(*given: Any) -> Predictor:
        predictor = load(*given)
        predict = predictor.predict

        def fail(rows: Any) -> Any:
            if any(len(row.encoded.tokens) == 5 for row in rows):
                raise RuntimeError("CUDA out of memory")
            kept = [row for row in rows if len(row.encoded.tokens) != 7]
            return predict(kept) if kept else []

        monkeypatch.setattr(predictor, "predict", fail)
        return predictor

    monkeypatch.setattr(worker, "load_predictor", with_a_bad_row)
    source = write_lines(tmp_path / "rows.jsonl", [{"text": " ".join(["cat"] * (1 + n % 20))} for n in range(60)])
    done = predicted(model("text_classification"), source, tmp_path / "out")
    assert done.rejected == {"prediction failed": 6}
    assert Counter(row["detail"] for row in rejected(tmp_path / "out")) == {
        "RuntimeError: CUDA out of memory": 3,
        "ValueError: The model returned 0 predictions for 1 rows.": 3,
    }
    assert len(written(tmp_path / "out")) == 54
    write_lines(source, [{"text": "cat cat cat"}] * 10)
    with pytest.raises(UserError, match=r"The model fails on each of 10 rows: RuntimeError: CUDA out of memory\."):
        predicted(model("text_classification"), source, tmp_path / "all")


def test_scores_are_as_many_as_asked_for_and_other_tasks_refuse_that(model: Any, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "rows.jsonl", [{"text": "a cat"}])
    predicted(model("text_classification"), source, tmp_path / "out", top_k=1)
    assert len(written(tmp_path / "out")[0]["prediction"]["scores"]) == 1 < len(LABELS)
    with pytest.raises(UserError, match="top_k is given, but a model for causal_lm takes none"):
        predicted(model("causal_lm"), source, tmp_path / "out", top_k=1)


def test_a_piece_has_fewer_rows_where_each_has_many_scores(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_lines(tmp_path / "rows.jsonl", [{"text": text} for text in texts(70)])
    monkeypatch.setattr(predict, "_MOST_SCORES", 40 * len(LABELS))
    for top_k, rows in ((0, [40, 30]), (1, [70])):
        # A file ends with a piece.
        found = predicted(model("text_classification"), source, tmp_path / "out", top_k=top_k, rows_per_file=1)
        assert [file.rows for file in found.files] == rows


def test_a_missing_column_is_said_before_anything_is_predicted(model: Any, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "rows.jsonl", [{"body": "a cat"}])
    with pytest.raises(UserError, match=r"has no column 'text'; it has body\.") as error:
        predicted(model("text_classification"), source, tmp_path / "out")
    assert "text_column" in error.value.remedy
    predicted(model("text_classification"), source, tmp_path / "out", text_column="body")
    with pytest.raises(UserError, match="has no column 'id'"):
        predicted(model("text_classification"), source, tmp_path / "out", text_column="body", key_column="id")
    # One that was named is not passed over for another that is there.
    write_lines(source, [{"body": "a cat", "text": "a dog"}])
    with pytest.raises(UserError, match=r"has no column 'bodi'; it has body, text\."):
        predicted(model("text_classification"), source, tmp_path / "out", text_column="bodi")


def test_a_place_that_cannot_be_written_to_is_said_before_anything_is_predicted(
    model: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_lines(tmp_path / "rows.jsonl", [{"text": "a cat"}])
    (tmp_path / "file").write_text("mine")
    (tmp_path / "other").mkdir()
    (tmp_path / "other/predictions.json").write_text('{"by": "another program"}')
    for place, message in (("file", "file cannot be written to: File exists"), ("other", "predictions.json")):
        with pytest.raises(UserError, match=message):
            predicted(model("text_classification"), source, tmp_path / place)
    assert "predicting" not in capsys.readouterr().out
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"output": "bq://project.table"}, "a table is bq://PROJECT.DATASET.TABLE"),
        ({"output": "out/{day}"}, "{date} and {time} alone may stand in braces"),
        ({"output_format": "csv"}, "output_format is 'csv'; give jsonl or parquet"),
        ({"source": ""}, "source is empty"),
        ({"source": "bq://here"}, "a table is bq://PROJECT.DATASET.TABLE"),
        ({"source": "sample:digit"}, "Samples: "),
        ({"registry": "hub://x"}, "of a kind that is not supported"),
        ({"registry": "mlflow://x"}, "Give mlflow:https://HOST"),
        ({"model_version": ""}, "model_version is empty"),
        ({"top_k": -1}, "top_k is -1; give 0 or more"),
        ({"rows_per_file": 0}, "rows_per_file is 0; give 1 or more"),
        ({"max_rejected": "few"}, "max_rejected is 'few'"),
        ({"delimiter": ";;"}, "delimiter is ';;'"),
        ({"encoding": "latin-99"}, "encoding is 'latin-99'"),
        ({"source_format": "xls"}, "source_format is 'xls'"),
    ],
)
def test_wrong_values_are_named(given: dict[str, Any], message: str) -> None:
    (problem,) = PredictSettings(**given).problems()
    assert message in problem


def test_date_and_time_of_the_beginning_stand_in_the_output() -> None:
    from datetime import datetime, timezone

    now = datetime(2026, 11, 22, 17, 42, 5, tzinfo=timezone.utc)
    assert filled_in("gs://bucket/{date}/{time}", now) == "gs://bucket/20261122/174205"
    assert filled_in("bq://project.data.scores_{date}", now) == "bq://project.data.scores_20261122"
