"""The report of a dataset shows its figures, and shows hostile names as text."""

from __future__ import annotations

import cProfile
import io
import json
import os
import shutil
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from conftest import write_photos
from PIL import Image

from gpu_pipelines.artifacts.dataset import Feature
from gpu_pipelines.artifacts.dataset_writer import DatasetWriter
from gpu_pipelines.data.prepare import prepare_data
from gpu_pipelines.data.report import write_report
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.reports.page import sections_of, write_page

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "</title></style><svg onload=alert(1)>",
    "{{ 7 * 7 }}{% raw %}",
    "<!-- /sections -->",
    "&lt;b&gt;&#60;",
]


class Page(HTMLParser):
    """All elements, attributes and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.pieces: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))

    def handle_data(self, data: str) -> None:
        self.pieces.append(data)

    @property
    def text(self) -> str:
        return "\n".join(self.pieces)


def report_of(source: Path, folder: Path) -> str:
    settings = PrepareSettings(source=str(source), val_fraction=0.25, test_fraction=0.25)
    prepare_data(settings, folder / "dataset")
    write_report(folder / "dataset", folder / "report.html")
    return (folder / "report.html").read_text(encoding="utf-8")


def assert_harmless(text: str) -> None:
    page = Page(text)
    tags = {tag for tag, _ in page.elements}
    assert tags.isdisjoint({"script", "iframe", "object", "link", "svg", "b1", "form"})
    for tag, attributes in page.elements:
        assert not any(name.startswith("on") for name in attributes), attributes
        if tag == "img":
            assert str(attributes["src"]).startswith("data:image/png;base64,")


def test_labels_and_file_names_of_a_table_are_shown_as_text(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    rows = []
    for number in range(100):
        file = io.BytesIO()
        Image.fromarray(generator.integers(0, 256, (8, 8)).astype(np.uint8)).save(file, "PNG")
        (tmp_path / f"{number}.png").write_bytes(file.getvalue())
        rows.append({"image": f"{number}.png", "label": HOSTILE[number % len(HOSTILE)]})
    rows += [{"image": name, "label": "x"} for name in HOSTILE]
    table = tmp_path / "<script>alert(2).jsonl"
    table.write_text("\n".join(map(json.dumps, rows)))
    text = report_of(table, tmp_path)
    assert_harmless(text)
    page = Page(text)
    for name in HOSTILE:
        assert page.text.count(name) >= 2, name  # as a class and as a rejected row
    assert any(attributes.get("alt") == f"an example of {HOSTILE[0]}" for _, attributes in page.elements)


def test_hostile_class_folders_and_broken_files_are_shown_as_text(tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "<b1>photos", per_class=30)
    (photos / "blue").rename(photos / "<script>alert(1)")
    (photos / "red/<img src=x onerror=alert(1)>.png").write_bytes(b"broken")
    text = report_of(photos, tmp_path)
    assert_harmless(text)
    assert "<img src=x onerror=alert(1)>.png" in Page(text).text


def test_sections_are_found_whatever_the_labels(tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos", per_class=30)
    (photos / "blue").rename(photos / "<!-- sections -->")
    shutil.copytree(photos / "red", photos / "<!-- -->")
    report_of(photos, tmp_path)
    sections = sections_of(tmp_path / "report.html")
    assert sections.count("<section>") == sections.count("</section>") == 1
    assert "Rows by class and split" in sections
    assert "Examples from train" in sections
    write_page(tmp_path / "other.html", "A title", sections)
    assert sections_of(tmp_path / "other.html").strip() == sections.strip()


def test_the_report_shows_the_figures_of_the_manifest(tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos", per_class=30)
    (photos / "red/broken.png").write_bytes(b"broken")
    page = Page(report_of(photos, tmp_path))
    words = [piece.strip() for piece in page.pieces]
    for word in ("61", "60", "blue", "red", "red/broken.png"):
        assert word in words
    assert "unreadable image" in page.text


def test_the_report_needs_nothing_from_elsewhere(tmp_path: Path) -> None:
    text = report_of(write_photos(tmp_path / "photos", per_class=30), tmp_path)
    assert_harmless(text)
    assert "http://" not in text
    assert "https://" not in text
    assert "url(" not in text


def test_a_report_of_many_classes_names_how_many_it_leaves_out(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    for number in range(60):
        folder = tmp_path / "photos" / f"class-{number:02}"
        folder.mkdir(parents=True)
        for copy in range(4):
            Image.fromarray(generator.integers(0, 256, (8, 8)).astype(np.uint8)).save(folder / f"{copy}.png")
    page = Page(report_of(tmp_path / "photos", tmp_path))
    assert "40 largest of 60 classes" in page.text


@pytest.mark.parametrize("place", ["good file", "broken file", "source"])
def test_names_that_are_not_utf8_are_shown_somehow(tmp_path: Path, place: str) -> None:
    photos = write_photos(tmp_path / "photos", per_class=30)
    if place == "good file":
        os.rename(photos / "red/000.png", os.fsencode(photos / "red") + b"/caf\xe9.png")  # noqa: PTH104
    elif place == "broken file":
        Path(os.fsdecode(os.fsencode(photos / "red") + b"/caf\xe9.png")).write_bytes(b"broken")
    else:
        photos = photos.rename(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    assert "Rows by class" in report_of(photos, tmp_path)


def test_the_report_does_not_go_through_all_rows_for_each_class(tmp_path: Path) -> None:
    classes = [f"class {number}" for number in range(500)]
    with DatasetWriter(
        tmp_path / "dataset",
        task="image_classification",
        source="photos",
        features={"image": Feature("uint8", (1, 2, 2)), "label": Feature("int32")},
        labels=classes,
        preprocessing={},
    ) as writer:
        for row in range(1000):
            image = np.full((1, 2, 2), row % 256, np.uint8)
            writer.add("train", f"photo {row}", {"image": image, "label": row * 7 % 500})
        writer.finish()
    profile = cProfile.Profile()
    profile.runcall(write_report, tmp_path / "dataset", tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert [f">class {number}<" in page for number in (0, 19, 39, 40)] == [True, True, True, False]
    calls = {str(entry.code): entry.callcount for entry in profile.getstats()}
    for name in ("<built-in method builtins.max>", "<method 'nonzero' of 'numpy.ndarray' objects>"):
        assert calls.get(name, 0) < 250, name
