"""The check for drift as a whole: profiles of each kind of task, sources, what an alarm names, and what is refused."""

from __future__ import annotations

import csv
import json
import shutil
import sys
from collections import Counter
from dataclasses import asdict, replace
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest

import gpu_pipelines
from gpu_pipelines.artifacts.dataset import Dataset
from gpu_pipelines.artifacts.exported_model import PROFILE
from gpu_pipelines.artifacts.integrity import model_files
from gpu_pipelines.cli.models import _print_findings
from gpu_pipelines.data.prepare import prepare_data
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.data.watch import WatchSettings
from gpu_pipelines.drift import live_rows, retraining_step
from gpu_pipelines.drift.check import DriftCheck, check_for_drift
from gpu_pipelines.drift.live_rows import Live, LiveRows, _take_sample
from gpu_pipelines.drift.report import write_report
from gpu_pipelines.drift.settings import DriftSettings
from gpu_pipelines.errors import UserError
from gpu_pipelines.prediction.model import model_in
from gpu_pipelines.profiles.making import keep_profile, profile_of
from gpu_pipelines.profiles.profile import Profile
from gpu_pipelines.profiles.values import Categories, Numbers, Values
from gpu_pipelines.profiles.watched import Watched
from gpu_pipelines.registry import DirectoryRegistry
from gpu_pipelines.registry.registered import Promotion
from gpu_pipelines.tasks.regression.task import RegressionTask, without_number

if TYPE_CHECKING:
    from bigquery_api.server import BigQueryApi

sys.path[:0] = [str(Path(__file__).parents[2] / "benchmarks"), str(Path(__file__).parents[1] / "serving")]
from drift import POPULATIONS, Champion  # noqa: E402 (it lies in a folder of programs)
from drift import main as benchmark  # noqa: E402
from predicting import exported  # noqa: E402 (it lies beside the tests of the server)


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Champion:
    return Champion(POPULATIONS["numbers"], tmp_path_factory.mktemp("numbers") / "champion", 3000)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Champion:
    return Champion(POPULATIONS["texts"], tmp_path_factory.mktemp("texts") / "champion", 600)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Champion:
    return Champion(POPULATIONS["images"], tmp_path_factory.mktemp("images") / "champion", 240)


def named(found: DriftCheck) -> set[str]:
    return {each.name for each in found.drifted}


def rows(champion: Champion, folder: Path, count: int = 300, shift: float = 0.0, kind: str = "numbers") -> Path:
    folder.mkdir(exist_ok=True)
    return POPULATIONS[kind].write(folder, np.random.default_rng(77), count, shift)


def check(champion: Champion, source: Path | str, **given: Any) -> DriftCheck:
    model = model_in(champion.model, str(champion.model))
    return check_for_drift(DriftSettings(source=str(source), **given), model)


def test_the_benchmark_ends_with_its_result(capsys: pytest.CaptureFixture[str]) -> None:
    few = ("--weeks", "1", "--shifts", "1", "--rows", "120", "--reference", "400")
    assert benchmark(["--kinds", "numbers", *few]) in (0, 1)
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(result) == {"benchmark", "machine", "results", "ratios"}
    assert result["results"]["numbers"]["weeks"] == 1


def test_a_program_compares_as_the_command_does(numbers: Champion, tmp_path: Path) -> None:
    source = rows(numbers, tmp_path / "rows", shift=1.0)
    found = gpu_pipelines.watch(numbers.model, source, output=tmp_path / "out", min_rows=200)
    assert found.has_drift
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"drift.html", "drift.json"}
    with pytest.raises(UserError, match="There is no parameter 'min_row'"):
        gpu_pipelines.watch(numbers.model, source, min_row=200)


@pytest.mark.slow
def test_weeks_without_drift_raise_no_alarm_and_a_small_shift_is_found(numbers: Champion) -> None:
    """The faster version of benchmarks/drift.py."""
    assert sum(numbers.check(week, 1000).has_drift for week in range(5)) == 0
    shifted = [numbers.check(1000 + n, 1000, 0.3) for n in range(3)]
    assert all("normal" in named(each) for each in shifted)
    assert not any("related too" in named(each) or "even" in named(each) for each in shifted)


def test_images_are_watched_by_their_pixels_and_by_what_the_model_says(images: Champion) -> None:
    profile = Profile.load(images.model / PROFILE)
    assert profile.inputs.keys() >= {"brightness", "contrast", "sharpness", "saturation", "red against green"}
    assert profile.outputs.keys() == {"predicted class", "score of the predicted class", "embedding of the champion"}
    assert not images.check(1, 200).has_drift
    assert "brightness" in named(images.check(2, 200, 1.0))


def test_texts_are_watched_by_length_and_vocabulary(texts: Champion, tmp_path: Path) -> None:
    assert not texts.check(1, 300).has_drift
    assert "length in tokens" in named(texts.check(2, 300, 1.0))
    source = rows(texts, tmp_path, kind="texts")
    lines = [json.loads(line) for line in source.read_text().splitlines()]
    source.write_text("".join(json.dumps({"text": each["text"].replace("ban", "nepo")}) + "\n" for each in lines))
    assert "vocabulary" in named(check(texts, source))


@pytest.mark.slow
@pytest.mark.parametrize("task", ["token_classification", "causal_lm"])
def test_tasks_with_other_rows_have_a_profile_that_rows_of_now_are_like(task: str, tmp_path: Path) -> None:
    model = exported(task, tmp_path / "model")
    random = np.random.default_rng(0)
    words = ["the", "bee", "cat", "ant", "sees", "and", "a"]
    drawn = [random.choice(words, random.integers(4, 9)).tolist() for _ in range(1500)]
    known = {json.dumps(each): each for each in drawn}
    drawn = list(known.values())
    half = len(drawn) // 2
    label = {"label": ["B-animal", *["O"] * 3]} if task == "token_classification" else {}

    def line(each: list[str]) -> str:
        tags = {"label": ["B-animal", *["O"] * (len(each) - 1)]} if label else {}
        return json.dumps({"text": each if label else " ".join(each), **tags}) + "\n"

    (tmp_path / "before.jsonl").write_text("".join(map(line, drawn[:half])))
    (tmp_path / "now.jsonl").write_text("".join(json.dumps({"text": " ".join(each)}) + "\n" for each in drawn[half:]))
    long = [json.dumps({"text": " ".join(["cat", *each, "cat", "cat"])}) + "\n" for each in drawn[half:]]
    (tmp_path / "long.jsonl").write_text("".join(long))
    tokenizer = str(model.with_name("model-tokenizer"))
    given: Any = {"source": str(tmp_path / "before.jsonl"), "tokenizer": tokenizer, "sequence_length": 32}
    prepare_data(PrepareSettings(task=task, val_fraction=0.3, test_fraction=0.3, **given), tmp_path / "dataset")
    keep_profile(model, Dataset(tmp_path / "dataset"))
    asked = {name: DriftSettings(source=str(tmp_path / f"{name}.jsonl")) for name in ("now", "long")}
    found = {name: check_for_drift(each, model_in(model, str(model))) for name, each in asked.items()}
    assert {each.name for each in found["now"].findings} >= {"length in tokens", "vocabulary"}
    assert not found["now"].has_drift, found["now"].reason
    assert named(found["long"]) >= {"length in tokens", "vocabulary"}


@pytest.mark.slow
def test_documents_that_training_cuts_are_no_drift_and_prompts_that_are_too_long_are(tmp_path: Path) -> None:
    model = exported("causal_lm", tmp_path / "model")
    random = np.random.default_rng(0)
    words = ["the", "bee", "cat", "ant", "sees", "and", "a"]
    # A row has 32 tokens.
    texts = [" ".join(random.choice(words, random.choice([5, 9, 40, 75]))) for _ in range(1200)]
    for name, column, some in (
        ("before", "text", texts[:600]),
        ("now", "text", texts[600:]),
        ("asked", "prompt", texts),
    ):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({column: each}) + "\n" for each in some))
    tokenizer = str(model.with_name("model-tokenizer"))
    given: Any = {"source": str(tmp_path / "before.jsonl"), "tokenizer": tokenizer, "sequence_length": 32}
    prepare_data(PrepareSettings(task="causal_lm", val_fraction=0.3, test_fraction=0.3, **given), tmp_path / "dataset")
    keep_profile(model, Dataset(tmp_path / "dataset"))
    asked = {name: DriftSettings(source=str(tmp_path / f"{name}.jsonl")) for name in ("now", "asked")}
    found = {name: check_for_drift(each, model_in(model, str(model))) for name, each in asked.items()}
    assert not found["now"].has_drift, found["now"].reason
    assert found["now"].unusable == {}
    assert "rows that cannot be used" in named(found["asked"])


def test_prompts_that_were_learned_with_several_answers_are_one_row_as_they_are_when_asked(tmp_path: Path) -> None:
    model = exported("causal_lm", tmp_path / "model")
    random = np.random.default_rng(0)
    words = ["the", "bee", "cat", "ant", "sees", "and", "a"]
    prompts = [" ".join(random.choice(words, 5 + 15 * (number % 2))) for number in range(400)]
    lines = [
        json.dumps({"prompt": prompt, "completion": f"a cat sees {answer}"}) + "\n"
        for prompt in prompts
        for answer in words[: 6 if len(prompt.split()) > 5 else 1]
    ]
    (tmp_path / "rows.jsonl").write_text("".join(lines))
    given: Any = {"source": str(tmp_path / "rows.jsonl"), "tokenizer": str(model.with_name("model-tokenizer"))}
    given |= {"sequence_length": 32, "val_fraction": 0.3, "test_fraction": 0.3}
    prepare_data(PrepareSettings(task="causal_lm", **given), tmp_path / "dataset")
    keep_profile(model, Dataset(tmp_path / "dataset"))
    found = check_for_drift(DriftSettings(source=given["source"]), model_in(model, str(model)))
    assert not found.has_drift, found.reason
    # The shortest prompts are the same now and then.
    assert 380 < found.rows_used < 400
    assert found.rows_used + found.rows_repeated == len(lines)


def test_rows_are_counted_exactly_though_their_hashes_are_sorted_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_rows, "_ADDED_AT_ONCE", 16)
    values = np.random.default_rng(0).integers(0, 300, 1000).tolist()
    counts = Counter(values)
    for most in (5, 200, 1000):
        found = LiveRows()
        _take_sample((Live({"x": value}) for value in values), most, found)
        assert (found.rows, found.repeated) == (len(counts), 1000 - len(counts))
        assert len(found.kept) == min(most, len(counts))
        assert [counts[live.value["x"]] for live in found.kept if isinstance(live, Live)] == found.times


def test_numbers_that_came_with_several_results_are_one_row(tmp_path: Path) -> None:
    model = exported("regression", tmp_path / "model")
    random = np.random.default_rng(0)
    sizes, ages = random.geometric(0.1, 3000), random.geometric(0.1, 3000)
    rows = zip(sizes, ages, random.integers(1, 6, 3000), strict=True)
    (tmp_path / "rows.csv").write_text("size,age,price\n" + "".join(f"{a},{b},{c}\n" for a, b, c in rows))
    given: Any = {"source": str(tmp_path / "rows.csv"), "label_column": "price"}
    prepare_data(PrepareSettings(task="regression", val_fraction=0.3, test_fraction=0.3, **given), tmp_path / "dataset")
    keep_profile(model, Dataset(tmp_path / "dataset"))
    found = check_for_drift(DriftSettings(source=given["source"]), model_in(model, str(model)))
    assert not found.has_drift, found.reason
    assert found.rows_used == len(set(zip(sizes.tolist(), ages.tolist(), strict=True)))


def test_logged_requests_are_read_as_the_server_and_as_vertex_write_them(numbers: Champion, tmp_path: Path) -> None:
    source = rows(numbers, tmp_path / "rows", shift=0.8)
    with source.open() as file:
        instances = [
            {"values": {name: float(value) for name, value in each.items() if name != "label"}}
            for each in csv.DictReader(file)
        ]
    old = (datetime.now(timezone.utc) - timedelta(days=9)).isoformat()
    now = datetime.now(timezone.utc).isoformat()
    lines = [
        {"request_payload": [json.dumps(each) for each in instances[:150]], "logging_time": now},
        {"request_payload": [json.dumps({"instances": instances[150:250]})], "logging_time": now},
        {"request_payload": [json.dumps(instances[0])] * 5, "logging_time": now},
        {"request_payload": [json.dumps(each) for each in instances[250:]], "logging_time": old},
        {"request_payload": ["{", "[" * 10_000, json.dumps({"values": {}})], "logging_time": now},
    ]
    (tmp_path / "log").mkdir()
    (tmp_path / "log/requests-1.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    (tmp_path / "log/.requests-2.jsonl").write_text("{")
    found = check(numbers, tmp_path / "log")
    assert (found.is_log, found.rows_used, found.rows_repeated) == (True, 300, 5)
    assert found.unusable == {"request is no JSON": 2, "request cannot be predicted": 1}
    assert "normal" in named(found)
    assert check(numbers, tmp_path / "log", days=2.0).rows_used == 250
    plain = check(numbers, source)
    effects = [{each.name: each.effect for each in check.findings if each.group != "rows"} for check in (found, plain)]
    assert effects[0] == effects[1], "the same rows, wherever they come from"


def test_the_table_of_an_endpoint_is_read_through_googles_clients(
    numbers: Champion, tmp_path: Path, bigquery_server: BigQueryApi
) -> None:
    from gpu_pipelines.emulator.bigquery.tables import StoredTable, Tables

    with rows(numbers, tmp_path / "rows", shift=0.8).open() as file:
        texts = [
            json.dumps({"values": {name: float(value) for name, value in each.items() if name != "label"}})
            for each in csv.DictReader(file)
        ]
    now = datetime.now(timezone.utc)
    logged = {
        "endpoint": ["projects/1/locations/us-central1/endpoints/2"] * 30,
        "deployed_model_id": ["3"] * 30,
        "logging_time": [now - timedelta(days=day / 2) for day in range(30)],
        "request_id": [Decimal(number) for number in range(30)],
        "request_payload": [texts[10 * number : 10 * number + 10] for number in range(30)],
        "response_payload": [["{}"] * 10] * 30,
    }
    types = [pa.string(), pa.string(), pa.timestamp("us", tz="UTC"), pa.decimal128(38, 9), *[pa.list_(pa.string())] * 2]
    columns = {name: pa.array(values, kind) for (name, values), kind in zip(logged.items(), types, strict=True)}
    bigquery_server.hold(Tables({"example-project.logging.requests": StoredTable(pa.table(columns))}))
    bigquery_server.forget_faults()
    given: Any = {"billing_project": "example-project"}
    found = check(numbers, "bq://example-project.logging.requests", **given)
    assert (found.is_log, found.rows_used) == (True, 300)
    assert "normal" in named(found)
    assert check(numbers, "bq://example-project.logging.requests", **given, days=7.2).rows_used == 150


def test_missing_values_are_drift(numbers: Champion, tmp_path: Path) -> None:
    source = rows(numbers, tmp_path / "rows")
    head, *lines = source.read_text().splitlines()
    lines[:60] = ["," + line.partition(",")[2] for line in lines[:60]]
    source.write_text("\n".join([head, *lines]) + "\n")
    found = check(numbers, source)
    assert named(found) == {"normal is missing", "rows that cannot be used"}
    assert sum(found.unusable.values()) == 60
    found.save(tmp_path / "drift.json")
    assert json.loads((tmp_path / "drift.json").read_text()) == {"format_version": 1, **asdict(found)}


@pytest.mark.parametrize("left", [0, 20])
def test_rows_of_which_hardly_any_can_be_used_are_drift(left: int, numbers: Champion, tmp_path: Path) -> None:
    source = rows(numbers, tmp_path)
    table = pyarrow.csv.read_csv(source)
    name = table.column_names[0]
    column = [value if number < left else None for number, value in enumerate(table[name].to_pylist())]
    pyarrow.csv.write_csv(table.set_column(0, name, pa.array(column, pa.float64())), source)
    found = check(numbers, source)
    assert (found.outcome, found.rows_used) == ("drift", left)
    assert "tests on 300 rows); in standard deviations: rows that cannot be used by" in found.reason
    assert named(found) == {"rows that cannot be used", f"{name} is missing"}
    write_report(found, tmp_path / "page.html")
    assert "rows that cannot be used" in (tmp_path / "page.html").read_text()


def test_of_rows_that_cannot_be_used_each_counts_as_in_training_however_often_the_others_are_there(
    numbers: Champion, tmp_path: Path
) -> None:
    source = rows(numbers, tmp_path / "rows", 150)
    head, *lines = source.read_text().splitlines()
    lost = ["," + line.partition(",")[2] for line in lines[:50]]
    model = shutil.copytree(numbers.model, tmp_path / "model")
    profile = Profile.load(model / PROFILE)
    replace(profile, rejected={without_number("normal"): profile.rows_read // 20}).save(model / PROFILE)
    # One in twenty, as in training; among the different ones a third.
    for many, drifted in ((lines[50:] * 10 + lost, set()), (lost[:1] * 300, {"normal is missing"})):
        source.write_text("\n".join([head, *many]) + "\n")
        found = check_for_drift(DriftSettings(source=str(source)), model_in(model, str(model)))
        assert named(found) == drifted | ({"rows that cannot be used"} if drifted else set())
    assert "tests on 300 rows)" in found.reason


def test_rows_that_lacked_another_column_in_training_do_not_count_and_those_that_lacked_this_one_do(
    numbers: Champion, tmp_path: Path
) -> None:
    source = rows(numbers, tmp_path / "rows")
    head, *lines = source.read_text().splitlines()
    lines[:60] = ["," + line.partition(",")[2] for line in lines[:60]]
    source.write_text("\n".join([head, *lines]) + "\n")
    model = shutil.copytree(numbers.model, tmp_path / "model")
    profile = Profile.load(model / PROFILE)
    for lacked, is_missing in (("label", True), ("normal", False)):
        replace(profile, rejected={without_number(lacked): profile.rows_read // 5}).save(model / PROFILE)
        found = check_for_drift(DriftSettings(source=str(source)), model_in(model, str(model)))
        assert named(found) == ({"normal is missing", "rows that cannot be used"} if is_missing else set())


def test_rows_that_lack_several_columns_count_as_in_training_and_those_that_cannot_be_used_among_the_sample(
    numbers: Champion, tmp_path: Path
) -> None:
    source = rows(numbers, tmp_path / "rows", 400)
    head, *lines = source.read_text().splitlines()
    lines[:80] = [",," + line.split(",", 2)[2] for line in lines[:80]]
    source.write_text("\n".join([head, *lines]) + "\n")
    model = shutil.copytree(numbers.model, tmp_path / "model")
    profile = Profile.load(model / PROFILE)
    replace(profile, rejected={without_number(head.split(",")[0]): profile.rows_read // 5}).save(model / PROFILE)
    found = check_for_drift(DriftSettings(source=str(source)), model_in(model, str(model)))
    assert named(found) == set()
    sampled = check(numbers, source, max_rows=200)
    [unusable] = [each for each in sampled.findings if each.name == "rows that cannot be used"]
    assert sum(sampled.unusable.values()) == 200 - sampled.rows_used > 20
    assert unusable.now == f"{(200 - sampled.rows_used) / 200:.2%}"


def test_images_of_one_name_in_several_folders_are_several(images: Champion, tmp_path: Path) -> None:
    rows(images, tmp_path / "all", 60, kind="images")
    for number, image in enumerate((tmp_path / "all").glob("*.png")):
        folder = tmp_path / "rows" / f"{number}"
        folder.mkdir(parents=True)
        shutil.copy(image, folder / "photo.png")
        (folder / "metadata.csv").write_text("image\nphoto.png\n")
    found = check(images, tmp_path / "rows", min_rows=20)
    assert (found.rows_used, found.rows_repeated) == (60, 0)


def test_the_same_profile_gives_the_same_file_and_is_no_part_of_the_model(numbers: Champion, tmp_path: Path) -> None:
    profile_of(numbers.model, numbers.dataset).save(tmp_path / PROFILE)
    assert (tmp_path / PROFILE).read_bytes() == (numbers.model / PROFILE).read_bytes()
    files = {"config.json": "a", "evaluation.json": "b", PROFILE: "c"}
    assert model_files(files) == {"config.json": "a"}
    (tmp_path / PROFILE).write_bytes((numbers.model / PROFILE).read_bytes()[:500])
    with pytest.raises(UserError, match="cannot be read"):
        Profile.load(tmp_path / PROFILE)


def test_a_model_without_a_profile_is_compared_with_its_dataset(numbers: Champion, tmp_path: Path) -> None:
    model = shutil.copytree(numbers.model, tmp_path / "model")
    (model / PROFILE).unlink()
    source = rows(numbers, tmp_path / "rows")
    asked, old = DriftSettings(source=str(source)), model_in(model, str(model))
    with pytest.raises(UserError, match=f"has no {PROFILE}"):
        check_for_drift(asked, old)
    found = check_for_drift(asked, old, lambda: numbers.dataset)
    assert [(each.name, each.effect) for each in found.findings] == [
        (each.name, each.effect) for each in check(numbers, source).findings
    ]
    assert found.profile == str(numbers.dataset.directory)


def test_the_reason_names_what_has_drifted_most(numbers: Champion, tmp_path: Path) -> None:
    table = pa.csv.read_csv(rows(numbers, tmp_path / "as before")).to_pandas()
    for shift, name in ((1, "count"), (2, "even"), (3, "normal"), (4, "rounded")):
        table[name] += shift * table[name].std()
    table.to_csv(tmp_path / "now.csv", index=False)
    found = check(numbers, tmp_path / "now.csv")
    most = [each.name for each in sorted(found.drifted, key=lambda each: -each.effect)]
    assert most[:2] == ["rounded", "normal"]
    told = found.reason.partition("in standard deviations: ")[2]
    assert [each.split(" by ")[0] for each in told.split(", ")] == most[:3]
    assert told.endswith(f" and {len(most) - 3} more")


def test_a_few_rows_say_nothing_and_many_are_sampled(numbers: Champion, tmp_path: Path) -> None:
    few = check(numbers, rows(numbers, tmp_path / "few", 40, 3.0))
    assert (few.outcome, few.has_drift, few.findings) == ("too few rows", False, [])
    assert "has 40 rows that can be used; min_rows is 100" in few.reason
    many = check(numbers, rows(numbers, tmp_path / "many", 500), max_rows=200)
    assert (many.rows, many.rows_used) == (500, 200)


def test_the_page_and_the_document_say_what_has_drifted(
    numbers: Champion, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = check(numbers, rows(numbers, tmp_path / "rows", shift=0.8))
    found.save(tmp_path / "drift.json")
    assert json.loads((tmp_path / "drift.json").read_text()) == {"format_version": 1, **asdict(found)}
    write_report(found, tmp_path / "drift.html")
    page = (tmp_path / "drift.html").read_text()
    assert "The data has drifted" in page
    assert "normal, drifted" in page
    assert page.count("<svg") >= 5
    # All columns of a wide table may have: a screen has the largest of them, and the page, beside its table, figures.
    wide = replace(found, findings=found.drifted * 400)
    write_report(wide, tmp_path / "wide.html")
    assert (tmp_path / "wide.html").read_text().count("<svg") <= 100
    _print_findings(wide)
    assert len(capsys.readouterr().out.splitlines()) == 32
    write_report(check(numbers, rows(numbers, tmp_path / "few", 40)), tmp_path / "few.html")
    assert "Too few rows to tell" in (tmp_path / "few.html").read_text()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"source": ""}, "source is empty"),
        ({"level": 0.0}, "level is 0"),
        ({"least_effect": -1.0}, "least_effect is -1"),
        ({"min_rows": 3}, "min_rows is 3; give 20 or more"),
        ({"max_rows": 50}, "max_rows is 50; give min_rows"),
        ({"least_effect": float("nan")}, "least_effect is nan"),
        ({"days": -1.0}, "days is -1; give 0 to 36,500 days"),
        ({"days": 1e9}, "days is 1e+09"),
        ({"model_version": ""}, "model_version is empty"),
        ({"source_format": "xls"}, "source_format is 'xls'"),
        ({"delimiter": "ab"}, "delimiter is 'ab'; give one character"),
        ({"encoding": "utf-99"}, "encoding is 'utf-99'"),
    ],
)
def test_wrong_values(given: dict[str, Any], told: str) -> None:
    assert told in " ".join(DriftSettings(**{"source": "rows.csv", **given}).problems())


class _Halves(Watched):
    """A user's own: watches one thing more, and leaves what there is as it is."""

    def inputs(self, columns: Any) -> dict[str, Values]:
        high = ["high" if value > 0 else "low" for value in columns["input.normal"]]
        return {**super().inputs(columns), "half": Categories([str(each) for each in high])}


def test_a_task_of_ones_own_says_what_is_watched(numbers: Champion, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RegressionTask, "watched", f"{__name__}:_Halves")
    found = profile_of(numbers.model, numbers.dataset)
    assert isinstance(found.inputs["half"], Categories)
    assert isinstance(found.inputs["normal"], Numbers)


def test_the_report_of_a_retraining_says_that_the_champion_has_no_profile(tmp_path: Path) -> None:
    source, model = tmp_path / "rows.csv", tmp_path / "model"
    source.write_text("a,label\n1,2\n")
    model.mkdir()
    (model / "weights").write_bytes(b"1")
    DirectoryRegistry(tmp_path / "registry").add("rows", model, {}, Promotion(True, None))
    settings = WatchSettings(
        source=str(source), registry=str(tmp_path / "registry"), retrain_on="either", drift_source=str(source)
    )
    report, drift = (SimpleNamespace(path=str(tmp_path / name), metadata={}) for name in ("report.html", "drift"))
    retrain, reason, *_ = retraining_step.run(settings, drift_report=report, drift=drift, advanced={})
    why = f"drift cannot be checked: rows version 1 has no {PROFILE}"
    assert (retrain, why in reason, why in (tmp_path / "report.html").read_text()) == (True, True, True)
