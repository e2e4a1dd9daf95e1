"""Where a tokenizer would be trained, a pretrained model's own or the champion's is taken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import save_file

from gpu_pipelines.data.default_tokenizer import tokenizer_for, was_trained_on
from gpu_pipelines.data.sources.fingerprint import source_fingerprint
from gpu_pipelines.data.watch import WatchSettings, check_for_new_data
from gpu_pipelines.registry import open_registry
from gpu_pipelines.registry.registered import Promotion, RegisteredVersion

TEXTS = "text_classification"


def version(number: int, tokenizer: str | None, source: str = "a") -> RegisteredVersion:
    files = {"config.json": "0", **({"tokenizer.json": tokenizer} if tokenizer else {})}
    return RegisteredVersion("reviews", number, f"place/{number}", (), {"files": files, "source_fingerprint": source})


def model(folder: Path, *files: str) -> str:
    folder.mkdir()
    for name in ("config.json", *files):
        (folder / name).write_text('{"model_type": "bert", "hidden_size": 24}')
        if name.endswith(".safetensors"):
            save_file({}, folder / name)
    return str(folder)


def test_pretrained_weights_keep_their_tokenizer_and_other_models_the_champions(tmp_path: Path) -> None:
    whole = model(tmp_path / "whole", "model.safetensors", "tokenizer.json")
    without = model(tmp_path / "without", "model.safetensors")
    untrained = model(tmp_path / "untrained", "tokenizer.json")
    champion, of_numbers = version(1, "x"), version(1, None)
    assert tokenizer_for("train", TEXTS, whole, champion) == whole
    for number, pieces in enumerate(("spm.model", "sentencepiece.bpe.model")):  # as DeBERTa v3 and XLM-R have them
        of_pieces = model(tmp_path / str(number), "model.safetensors", pieces)
        assert tokenizer_for("train", TEXTS, of_pieces, champion) == of_pieces
    assert tokenizer_for("other", TEXTS, whole, champion) == "other"
    assert tokenizer_for("train", TEXTS, "google/bert-base", champion) == "google/bert-base"
    for name in (without, untrained, "bert-micro"):
        assert tokenizer_for("train", TEXTS, name, champion) == "place/1"
        assert tokenizer_for("train", TEXTS, name, of_numbers) == tokenizer_for("train", TEXTS, name) == "train"
    for task in ("image_classification", "nothing"):
        assert tokenizer_for("train", task, whole, champion) == "train"


def test_a_tokenizer_is_of_the_data_of_the_first_version_that_has_it() -> None:
    versions = [version(1, "x", "a"), version(2, "y", "b"), version(3, "y", "c")]
    assert was_trained_on(versions, versions[2], "b")
    assert not was_trained_on(versions, versions[2], "c")


def registered(registry: Path, source: Path, folder: Path) -> RegisteredVersion:
    model(folder, "model.safetensors", "tokenizer.json", "evaluation.json")
    info: dict[str, Any] = {"source_fingerprint": source_fingerprint(str(source))}
    return open_registry(str(registry)).add("reviews", folder, info, Promotion(True, None))


@pytest.fixture
def reviews(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rows = [{"text": f"row {number}", "label": "ab"[number % 2]} for number in range(20)]
    (tmp_path / "reviews.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "reviews.jsonl"


def test_the_first_step_gives_the_champions_once_the_data_is_other(
    reviews: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from gpu_pipelines.component_interface.catalog import load_component
    from gpu_pipelines.component_interface.step import fields_from
    from gpu_pipelines.dag.advanced import COMMON
    from gpu_pipelines.dag.check import check
    from gpu_pipelines.dag.request import Request

    def prepared(**given: Any) -> dict[str, Any]:
        defaults = {name: spec.default for name, spec in load_component("check_request").component_spec.inputs.items()}
        values = {**defaults, "source": reviews.name, "task": TEXTS, "model": "bert-micro", **given}
        common = {name: values[name] for name in COMMON if name != "checkpoint_uri"}
        return dict(check(common, fields_from(Request, values), {}).parameters["prepare"])

    champion = registered(tmp_path / "registry", reviews, tmp_path / "champion")
    assert prepared() == {}, "training one gives the same, and what was prepared before can be taken"
    with reviews.open("a") as file:
        file.write(json.dumps({"text": "a new row", "label": "a"}) + "\n")
    assert prepared() == {"tokenizer": champion.place}
    assert prepared(tokenizer="google/bert-base") == prepared(model_name="other") == {}
    own = model(tmp_path / "own", "model.safetensors", "tokenizer.json")
    assert prepared(model=own) == {"tokenizer": own}
    assert "warning" not in capsys.readouterr().out
    prepared(model=model(tmp_path / "without", "model.safetensors"))
    assert "warning: " + str(tmp_path / "without") + " has weights and no tokenizer" in capsys.readouterr().out


def test_retraining_takes_that_of_a_pretrained_model(reviews: Path, tmp_path: Path) -> None:
    registered(tmp_path / "registry", reviews, tmp_path / "champion")
    with reviews.open("a") as file:
        file.write(json.dumps({"text": "a new row", "label": "a"}) + "\n")
    own = model(tmp_path / "own", "model.safetensors", "tokenizer.json")
    settings = WatchSettings(source=str(reviews), task=TEXTS, model=own, registry=str(tmp_path / "registry"))
    assert check_for_new_data(settings).tokenizer == own
