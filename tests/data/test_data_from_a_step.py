"""`prepare_data` reads what a step before has written, wherever that run has put it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from conftest import set_variables, write_photos
from kfp import dsl

from gpu_pipelines.artifacts.dataset import Dataset, Manifest
from gpu_pipelines.artifacts.remote_files import RemoteFolder
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.data.sources.fingerprint import artifact_fingerprint
from gpu_pipelines.data.step import run
from gpu_pipelines.registry import model_name_for

if TYPE_CHECKING:
    from gpu_pipelines.emulator.vertex_api import VertexApi


def prepared(folder: Path, uri: str, metadata: dict[str, Any] | None = None, **settings: Any) -> Manifest:
    """Runs the step with an artifact; the dataset goes below the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    outputs = {"dataset": dsl.Dataset, "report": dsl.HTML, "statistics": dsl.Metrics}
    run(
        PrepareSettings(**settings),
        **{name: kind(name=name, uri=str(folder / name)) for name, kind in outputs.items()},
        data=dsl.Artifact(name="a-resource-name-of-the-service", uri=uri, metadata=metadata),
        source_fingerprint="that of the source which is not read",
        advanced={},
    )
    return Dataset(folder / "dataset").manifest


def write_reviews(path: Path, first: str = "good") -> None:
    path.parent.mkdir(parents=True)
    rows = [{"text": f"{first if n % 2 else 'bad'} film number {n}", "label": n % 2} for n in range(60)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_file_without_a_suffix_is_read_and_the_model_is_named_after_it_and_not_after_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in (1, 2):
        write_reviews(tmp_path / f"run-{number}" / "export" / "reviews")
    first, second = (
        prepared(tmp_path / f"out-{n}", str(tmp_path / f"run-{n}" / "export" / "reviews"), task="text_classification")
        for n in (1, 2)
    )
    assert first.rows_kept == 60
    assert (first.source, model_name_for(first.source)) == ("artifact:reviews", "reviews")
    assert first.fingerprint == second.fingerprint
    assert first.source_fingerprint == second.source_fingerprint != "", "the place and the time are another"
    write_reviews(tmp_path / "run-3" / "export" / "reviews", first="fine")
    changed = prepared(tmp_path / "out-3", str(tmp_path / "run-3" / "export" / "reviews"), task="text_classification")
    assert changed.source_fingerprint != first.source_fingerprint
    assert "has changed" not in capsys.readouterr().out, "there was no check of a request that could be compared with"


def test_a_folder_of_images_is_read_and_a_test_source_with_it(tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "run" / "photos", per_class=12)
    tests = write_photos(tmp_path / "tests", per_class=4, seed=1)
    manifest = prepared(tmp_path / "out", str(photos), image_size=8, test_source=str(tests))
    assert (manifest.source, manifest.labels, manifest.rows("test")) == ("artifact:photos", ["blue", "red"], 8)
    moved = shutil.copytree(photos, tmp_path / "again" / "photos")
    assert artifact_fingerprint(str(moved)) == manifest.source_fingerprint


def test_a_source_beside_it_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        prepared(tmp_path / "out", str(tmp_path / "photos"), source="data/photos")
    assert "the artifact data, and source=data/photos" in capsys.readouterr().err


def test_an_artifact_that_is_not_there_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        prepared(tmp_path / "out", str(tmp_path / "photos"))
    assert str(tmp_path / "photos") in capsys.readouterr().err


def test_a_folder_and_a_file_in_a_bucket_are_read_there(
    vertex_api: VertexApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_variables(monkeypatch, vertex_api.environment())
    photos = write_photos(tmp_path / "photos", per_class=10)
    names = [path.relative_to(photos).as_posix() for path in sorted(photos.glob("*/*"))]
    for run_ in ("run-1", "run-2"):
        RemoteFolder(f"gs://example-bucket/{run_}/photos").upload(photos, names)
    first = prepared(tmp_path / "out", "gs://example-bucket/run-1/photos", image_size=8)
    assert (first.source, first.rows_kept) == ("artifact:photos", 20)
    assert artifact_fingerprint("gs://example-bucket/run-2/photos") == first.source_fingerprint
    write_reviews(tmp_path / "export" / "reviews")
    RemoteFolder("gs://example-bucket/run-1").upload(tmp_path / "export", ["reviews"])
    texts = prepared(tmp_path / "texts", "gs://example-bucket/run-1/reviews", task="text_classification")
    assert (texts.source, texts.rows_kept) == ("artifact:reviews", 60)
