"""Reports as they are read: whole on a phone and on a wide screen, whatever the names and the figures are."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from browser import chromium, measured
from report_pages import CLASSES, LONG, evaluation_of, write_pages, write_tuning

from gpu_pipelines.evaluation.report import write_report
from gpu_pipelines.reports.charts import Line, line_chart, tick_label, tick_labels
from gpu_pipelines.reports.dag import draw_dag

REPORTS = ("run", "live", "runs", "training", "tuning", "evaluation", "many_classes", "script", "data")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """All reports."""
    return write_pages(tmp_path_factory.mktemp("pages"))


@pytest.fixture(scope="module")
def tuning(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a study, for which Optuna is imported."""
    page = tmp_path_factory.mktemp("tuning") / "tuning.html"
    write_tuning(page)
    return page


def texts(svg: str) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


# Axes


def test_axes_have_numbers_as_people_write_them() -> None:
    shown = [tick_label(value) for value in (0, 0.1 + 0.2, 7.6, 12_500, -0.004)]
    assert shown == ["0", "0.3", "7.6", "12,500", "−0.004"]
    assert [tick_label(value) for value in (1e-5, 2.5e7, 3e12)] == ["1e−5", "2.5e7", "3e12"]


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        # Too close together for powers of ten: 7.2 to 7.8 had axis labels such as 7.6 × 10⁰.
        ([7.2, 7.4, 7.8], {"7.2", "7.4", "7.6", "7.8"}),
        ([0.5, 2.0, 40.0], {"0.5", "1", "2", "5", "10", "20"}),
        ([1e-3, 1.0, 1e4], {"0.01", "1", "100"}),
    ],
)
def test_a_logarithmic_axis_has_plain_numbers(values: list[float], wanted: set[str]) -> None:
    steps = [0.0, 5_000.0, 10_000.0]
    labels = texts(line_chart("Loss", "step", [Line("loss", steps, values)], logarithmic=True))
    assert wanted <= set(labels)
    assert "10,000" in labels
    assert not [label for label in labels if "×" in label or "^" in label]


def test_the_numbers_of_an_axis_have_the_same_decimals() -> None:
    assert tick_labels([0.8, 0.85, 0.9, 0.95]) == ["0.80", "0.85", "0.90", "0.95"]
    assert tick_labels([-0.5, 0, 0.5, 1]) == ["−0.5", "0", "0.5", "1.0"]
    assert tick_labels([0, 1000, 2000]) == ["0", "1,000", "2,000"]
    labels = texts(line_chart("Score", "step", [Line("score", [0, 1], [0.8, 0.95])]))
    assert {"0.80", "0.90"} <= set(labels)


def test_there_are_no_halves_between_steps() -> None:
    labels = texts(line_chart("Score", "step", [Line("score", [1, 2, 3, 4], [0.8, 0.9, 0.9, 0.9])]))
    assert {"1", "2", "3", "4"} <= set(labels)
    assert "1.5" not in labels
    assert "1.5" in texts(line_chart("Score", "epoch", [Line("score", [0.5, 1.5, 2.5], [0.8, 0.9, 0.9])]))


def test_no_axis_counts_from_an_offset() -> None:
    labels = texts(line_chart("Loss", "step", [Line("loss", [0, 1], [1000.0001, 1000.0002])]))
    assert not [label for label in labels if label.startswith("+") or "1e" in label]


# Structure


def test_the_dag_is_drawn_for_wide_and_for_narrow_pages() -> None:
    steps = {"one": [], "two": ["one"], "three": ["one", "two"], "<four>": ["three"]}
    across, down = re.findall(r"<svg.*?</svg>", draw_dag(steps, {"one": "succeeded"}, {"one": "4.2 s"}))
    for picture in (across, down):
        assert [name for name in texts(picture) if name != "4.2 s" and name] == ["one", "two", "three", "&lt;four&gt;"]
        assert picture.count("marker-end") == 4
    sizes = [tuple(map(int, re.findall(r'viewBox="0 0 (\d+) (\d+)"', svg)[0])) for svg in (across, down)]
    assert sizes[0][0] > sizes[0][1]
    assert sizes[1][0] < sizes[1][1]
    chain = {f"step-{number}": [f"step-{number - 1}"] if number else [] for number in range(300)}
    least = re.findall(r"min-width: (\d+)px", draw_dag(chain, {}, {}))
    assert [int(width) > limit for width, limit in zip(least, (40_000, 100), strict=True)] == [True, True]
    assert draw_dag(chain, {}, {}).startswith('<div class="scroll">')
    ids = re.findall(r'id="([^"]+)"', across + down)
    assert len(ids) == len(set(ids))


def test_each_figure_of_a_wide_table_knows_its_heading(pages: dict[str, Path]) -> None:
    page = pages["evaluation"].read_text()
    row = re.search(r'class="name">step-00002000</td>(.*?)</tr>', page)
    assert row
    assert re.findall(r'data-label="([^"]*)"', row[1])[:3] == ["epoch", "accuracy", "macro_&#8203;f1"]


def test_of_thousands_of_classes_those_that_are_mixed_up_are_shown_and_no_class_without_rows(tmp_path: Path) -> None:
    evaluation = evaluation_of([f"class {number}" for number in range(60)])
    evaluation.test["confusion"] = []
    for number, figures in enumerate(evaluation.test["per_class"]):
        figures |= {"rows": 0, "recall": 0.0} if number < 55 else {}
    evaluation.test["per_class"][0] |= {"rows": 9_000}
    write_report(evaluation, tmp_path, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "Confusion matrix" not in page
    assert re.search(r"confused most</h2>(.|\n)*class 0</td>(.|\n)*class 1</td>(.|\n)*9,000</td>", page)
    assert "The 6 classes of lowest recall, of 60." in page
    assert "no test rows" not in page


def test_of_hundreds_of_checkpoints_those_that_are_best_are_shown(tmp_path: Path) -> None:
    evaluation = evaluation_of(["a class", "another"])
    best = next(scored for scored in evaluation.checkpoints if scored["name"] == evaluation.best)
    worse = [{**best, "name": f"worse-{number}", "val": {**best["val"], "accuracy": None}} for number in range(300)]
    for number, scored in enumerate(worse[:100]):
        scored["val"]["accuracy"] = best["val"]["accuracy"] - number / 1000
    evaluation = replace(evaluation, checkpoints=[*worse, best], select_by="accuracy", more_is_better=True)
    assert len(replace(evaluation, checkpoints=worse[:40]).checkpoints_shown) == 40
    write_report(evaluation, tmp_path, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    shown = re.findall(r'class="name">(worse-\d+|step-\d+)<', page)
    assert shown == [evaluation.best, *(f"worse-{number}" for number in range(19))]
    assert "The 20 best on val, of 301;" in page


def test_of_thousands_of_kinds_those_that_are_found_least_are_shown(tmp_path: Path) -> None:
    evaluation = evaluation_of(["a class", "another"])
    evaluation.test["parts"] = [
        {"name": f"kind {number}", "rows": number % 3, "precision": 0.5, "recall": 0.5, "f1": number / 3000}
        for number in range(3000)
    ]
    write_report(evaluation, tmp_path, tmp_path / "page.html")
    shown = re.findall(r">(kind \d+)<", (tmp_path / "page.html").read_text())
    assert shown == [f"kind {number}" for number in range(30) if number % 3]
    assert "The 20 of lowest F1, of 3,000." in (tmp_path / "page.html").read_text()


def test_numbers_have_separators_wherever_they_stand(pages: dict[str, Path]) -> None:
    for name in ("evaluation", "many_classes", "training", "data"):
        without = r"<(style|svg).*?</\1>|<h3>Parameters</h3>.*|<code>.*?</code>|<[^>]*>"
        shown = re.sub(without, " ", pages[name].read_text(), flags=re.DOTALL)
        assert not re.findall(r"(?<![\w.,-])\d{4,}(?![\w-])", shown), name


def test_a_duration_is_written_as_elsewhere(pages: dict[str, Path]) -> None:
    assert "<b>1 min 00 s</b><span>duration</span>" in pages["script"].read_text()


def test_parameters_are_written_as_they_are_given(pages: dict[str, Path]) -> None:
    page = pages["run"].read_text()
    assert re.search(r'<td class="key">packing</td><td class="mono">true</td>', page)
    assert re.search(r'<td class="key">row_filter</td><td class="mono"><span class="soft">empty</span></td>', page)


# In a browser


@pytest.fixture
def needs_browser() -> None:
    """A page's layout is only known to a browser, which a machine of the tests need not have."""
    assert chromium(), "Install chromium: apt-get install chromium"


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.usefixtures("needs_browser")
@pytest.mark.parametrize("width", [400, 800, 1200, 1920])
@pytest.mark.parametrize("name", REPORTS)
def test_nothing_is_cut_at_any_width(pages: dict[str, Path], tuning: Path, name: str, width: int) -> None:
    found = measured({**pages, "tuning": tuning}[name], width)
    assert found["width"] == width
    assert found["wider"] <= 0, "the page is as wide as the window"
    assert found["numbers"] == 0, "every figure is in the window"
    assert found["steps"] in ([], [4]), "one picture of the DAG, with all its steps in the window"
    assert found["broken"] == [], "no name of a parameter and no figure is broken"
    told = [kind for kind in ("table", "picture") if f"The {kind} scrolls sideways." in found["told"]]
    scrolls = {box.rpartition("confusion")[1] or "picture" for box in found["cut"]}
    assert told == [{"confusion": "table"}.get(kind, kind) for kind in scrolls], "what scrolls says so"
    # What does not fit a phone: ten columns of counts above ten thousand, and a picture of 180 classes.
    allowed = (
        {"evaluation": {"confusion"}, "run": {"confusion"}, "many_classes": {"picture"}, "tuning": {"picture"}}
        if width == 400
        else {}
    )
    assert not [box for box in found["cut"] if not any(box.endswith(kind) for kind in allowed.get(name, ()))]


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.usefixtures("needs_browser")
@pytest.mark.parametrize("width", [400, 1200])
def test_ten_classes_are_whole_in_the_confusion_matrix(tmp_path: Path, pages: dict[str, Path], width: int) -> None:
    evaluation = evaluation_of([*CLASSES[:9], LONG])
    evaluation.test["confusion"] = [[min(count, 100) for count in row] for row in evaluation.test["confusion"]]
    write_report(evaluation, pages["data"].parent / "dataset", tmp_path / "page.html")
    found = measured(tmp_path / "page.html", width)
    assert found["cut"] == []
    assert found["told"] == []


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.usefixtures("needs_browser")
def test_a_page_is_dark_where_the_system_is(pages: dict[str, Path]) -> None:
    light, dark = (measured(pages["training"], 800, dark=dark)["background"] for dark in (False, True))
    assert (light, dark) == ("rgb(246, 247, 249)", "rgb(18, 22, 28)")
