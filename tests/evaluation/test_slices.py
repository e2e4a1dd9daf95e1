"""A column of the source goes with the rows, unseen by the model, and the evaluation scores each of its values."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pytest
from evaluations import settings_in, train_checkpoint
from PIL import Image

from gpu_pipelines.artifacts.dataset import Dataset
from gpu_pipelines.data.prepare import prepare_data
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.errors import UserError
from gpu_pipelines.evaluation.evaluate import OTHERS, evaluate_checkpoints, slice_figures, slices_of
from gpu_pipelines.evaluation.metrics.classification import ClassificationScores
from gpu_pipelines.evaluation.report import write_report

LANGUAGES = ("de", "en", "")


def write_texts(path: Path, rows: int = 240) -> Path:
    """Texts of which each names its number, so that its slice can be told from it."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["text", "label", "language"])
    for number in range(rows):
        writer.writerow([f"text number {number}", ("good", "bad")[number % 2], LANGUAGES[number % 3]])
    path.write_text(text.getvalue())
    return path


def prepared(source: Path, directory: Path, slice_by: str = "language") -> Dataset:
    shares = {"val_fraction": 0.25, "test_fraction": 0.25}
    settings = PrepareSettings(source=str(source), task="text_classification", slice_by=slice_by, **shares)  # type: ignore[arg-type]
    prepare_data(settings, directory)
    return Dataset(directory)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("texts")
    return prepared(write_texts(folder / "texts.csv"), folder / "data")


def test_each_row_keeps_its_own_value_and_the_fingerprint_knows_nothing_of_it(texts: Dataset, tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(texts.directory / "tokenizer/tokenizer.json"))
    for name in ("train", "val", "test"):
        split = texts.split(name)
        rows = split.take(np.arange(len(split)))
        decoded = tokenizer.decode_batch(rows["input_ids"].tolist())
        numbers = [int(text.split("<")[0].split()[-1]) for text in decoded]
        assert texts.slice_values(name, "language") == [LANGUAGES[number % 3] for number in numbers]
    without = prepared(texts.directory.parent / "texts.csv", tmp_path / "without", slice_by="")
    assert without.manifest.fingerprint == texts.manifest.fingerprint
    assert "language" not in texts.manifest.features
    with pytest.raises(UserError, match="was prepared without the column 'language' for slices; it keeps none"):
        without.slice_values("test", "language")


def test_images_of_a_table_keep_the_column_too(tmp_path: Path) -> None:
    lines = ["image,label,camera"]
    for number in range(60):
        pixels = np.random.default_rng(number).integers(0, 256, (8, 8), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
        lines.append(f"{number}.png,{'ab'[number % 2]},{'front' if number < 30 else 'rear'}")
    (tmp_path / "images.csv").write_text("\n".join(lines))
    settings = PrepareSettings(
        source=str(tmp_path / "images.csv"), slice_by="camera", val_fraction=0.25, test_fraction=0.25
    )
    prepare_data(settings, tmp_path / "data")
    dataset = Dataset(tmp_path / "data")
    split = dataset.split("train")
    for source, value in zip(split.sources(range(len(split))), dataset.slice_values("train", "camera"), strict=True):
        number = int(source.rpartition(" ")[2].removesuffix(".png"))
        assert value == ("front" if number < 30 else "rear")


def test_the_evaluation_scores_each_value_and_gates_on_the_worst(texts: Dataset, tmp_path: Path) -> None:
    train_checkpoint(tmp_path / "checkpoints", texts, "text_classification", "bert-micro")
    gates = ["slices.accuracy.min>=0.99", "per_class.recall.min>=0.0", "latency_p95_ms<=60000"]
    evaluation = evaluate_checkpoints(
        settings_in(tmp_path, slice_by="language", gates=gates),
        texts.directory,
        tmp_path / "checkpoints",
        tmp_path / "best",
    )
    slices = evaluation.test["slices"]
    assert {part["value"] for part in slices} == set(LANGUAGES)
    assert sum(part["rows"] for part in slices) == evaluation.test["rows"]
    right = sum(part["rows"] * part["metrics"]["accuracy"]["value"] for part in slices)
    assert right / evaluation.test["rows"] == pytest.approx(evaluation.test["metrics"]["accuracy"]["value"])
    worst = min(part["metrics"]["accuracy"]["value"] for part in slices)
    assert [(gate["passed"], gate["value"]) for gate in evaluation.gates[:1]] == [(False, pytest.approx(worst))]
    assert evaluation.gates[1]["passed"]
    assert evaluation.latency is not None
    assert 0 < evaluation.latency["p50_ms"] <= evaluation.latency["p95_ms"] == evaluation.gates[2]["value"]
    write_report(evaluation, texts.directory, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    for words in ("<h2>Slices</h2>", "(empty)", "Latency of one row at a time on the CPU", "<h2>Calibration</h2>"):
        assert words in page
    assert "<script" not in page
    assert "http" not in page.replace("http://www.w3.org/", ""), "it is shown without a network"


def test_rare_values_share_a_slice_and_the_champion_is_beside_them() -> None:
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 2, 400)
    scores, champion = (
        ClassificationScores.of(generator.dirichlet((1, 1), 400).astype(np.float32), labels, 2) for _ in range(2)
    )
    values = [f"v{number}" if number < 60 else f"v{number % 60 % 7}" for number in range(400)]
    slices = slices_of(values, scores, champion)
    assert len(slices) == 51
    assert slices[-1]["value"] == OTHERS
    assert sum(part["rows"] for part in slices) == 400
    assert [part["rows"] for part in slices[:-1]] == sorted((part["rows"] for part in slices[:-1]), reverse=True)
    rows = np.flatnonzero(np.array(values) == slices[0]["value"])
    assert slices[0]["champion"]["accuracy"] == pytest.approx(champion.right[rows].mean())
    figures = slice_figures(slices)
    assert figures["slices.accuracy.min"] == min(part["metrics"]["accuracy"]["value"] for part in slices)


def test_a_slice_whose_metric_is_no_number_passes_no_gate() -> None:
    labels = np.array([0] * 5 + [0, 1] * 10)
    scores = ClassificationScores.of(np.eye(2, dtype=np.float32)[labels], labels, 2)
    figures = slice_figures(slices_of(["one class"] * 5 + ["both"] * 20, scores, None))
    assert figures["slices.accuracy.min"] == 1.0
    assert np.isnan(figures["slices.roc_auc.min"])


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"task": "causal_lm", "source": "x.txt"}, "rows of causal_lm hold several records"),
        ({"source": "sample:digits"}, "samples have no more columns"),
    ],
)
def test_what_has_no_such_column_is_refused_before_it_is_read(given: dict[str, str], says: str) -> None:
    problems = PrepareSettings(slice_by="language", **given).problems()  # type: ignore[arg-type]
    assert any(says in problem for problem in problems)


def test_json_lines_of_which_the_first_rows_or_another_file_lack_the_column_are_refused(tmp_path: Path) -> None:
    with_it, without = '{"text": "x", "label": "a", "language": "de"}\n', '{"text": "x", "label": "a"}\n'
    (tmp_path / "late.jsonl").write_text(1100 * without + with_it)
    with pytest.raises(UserError, match="has no column 'language'") as caught:
        prepared(tmp_path / "late.jsonl", tmp_path / "data")
    assert "Of JSON lines the first 1,000 rows tell which columns there are" in caught.value.remedy
    (tmp_path / "days").mkdir()
    (tmp_path / "days/1.jsonl").write_text(5 * with_it)
    (tmp_path / "days/2.jsonl").write_text(5 * without.replace('"a"', '"b"'))
    with pytest.raises(UserError, match=r"2\.jsonl has no column 'language'") as caught:
        prepared(tmp_path / "days", tmp_path / "data")
    assert caught.value.remedy == "All files of a source need the same columns."
