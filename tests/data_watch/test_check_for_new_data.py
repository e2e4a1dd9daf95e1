"""Whether there is anything new to train on: every state of data and registry, without training anything."""

from __future__ import annotations

import os
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from gpu_pipelines.data.sources.fingerprint import source_fingerprint
from gpu_pipelines.data.watch import Decision, WatchSettings, check_for_new_data
from gpu_pipelines.errors import UserError
from gpu_pipelines.registry import DirectoryRegistry
from gpu_pipelines.registry.registered import Promotion

DAYS_OLD = 3


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "reviews"
    folder.mkdir()
    (folder / "a.jsonl").write_text('{"text": "good", "label": "yes"}\n')
    return folder


def check(tmp_path: Path, source: Path | str, **changes: Any) -> Decision:
    return check_for_new_data(WatchSettings(source=str(source), registry=str(tmp_path / "registry"), **changes))


def register(
    tmp_path: Path, fingerprint: str, promote: bool = True, seen: int | None = None, days_old: int = DAYS_OLD
) -> None:
    model = tmp_path / "model"
    model.mkdir(exist_ok=True)
    (model / "weights").write_bytes(os.urandom(8))
    (model / "tokenizer.json").write_text("{}")
    created = datetime.now(timezone.utc) - timedelta(days=days_old)
    info = {"source_fingerprint": fingerprint, "created": created.isoformat(timespec="seconds")}
    DirectoryRegistry(tmp_path / "registry").add("reviews", model, info, Promotion(promote, seen))


def test_without_a_champion_there_is_something_to_train(tmp_path: Path, source: Path) -> None:
    decision = check(tmp_path, source, start_from_champion=True, task="text_classification", model="bert-micro")
    assert decision == Decision(True, "training: there was no champion of reviews", "bert-micro", "train")


def test_files_that_are_as_they_were_are_nothing_new(tmp_path: Path, source: Path) -> None:
    register(tmp_path, source_fingerprint(str(source)))
    decision = check(tmp_path, source)
    assert not decision.retrain
    assert decision.reason == f"nothing new: the source {source} is as it was for version 1 of reviews, the champion"


@pytest.mark.parametrize("change", ["added", "edited", "removed", "renamed"])
def test_each_change_of_the_files_is_something_new(tmp_path: Path, source: Path, change: str) -> None:
    (source / "b.jsonl").write_text("{}\n")
    register(tmp_path, source_fingerprint(str(source)))
    if change == "added":
        (source / "c.jsonl").write_text("{}\n")
    elif change == "edited":
        (source / "b.jsonl").write_text('{"text": "x"}\n')
    elif change == "removed":
        (source / "b.jsonl").unlink()
    else:
        (source / "b.jsonl").rename(source / "c.jsonl")
    decision = check(tmp_path, source)
    assert decision.retrain
    assert decision.reason.endswith("has changed since version 1 of reviews was trained")


def test_data_that_a_version_was_trained_on_without_being_promoted_is_nothing_new(tmp_path: Path, source: Path) -> None:
    register(tmp_path, "of other data")
    register(tmp_path, source_fingerprint(str(source)), promote=False, seen=1)
    decision = check(tmp_path, source)
    assert not decision.retrain
    assert decision.reason == f"nothing new: the source {source} is as it was for version 2 of reviews"


def test_files_that_have_given_the_same_model_again_are_nothing_new(tmp_path: Path, source: Path) -> None:
    register(tmp_path, source_fingerprint(str(source)))
    os.utime(source / "a.jsonl", (0, 0))
    assert check(tmp_path, source).retrain
    DirectoryRegistry(tmp_path / "registry").version("reviews", 1).note_source(source_fingerprint(str(source)))
    assert check(tmp_path, source).reason.startswith("nothing new: ")


@pytest.mark.parametrize(("days", "retrain"), [(DAYS_OLD - 1, True), (DAYS_OLD + 1, False)])
def test_a_young_champion_stays(tmp_path: Path, source: Path, days: float, retrain: bool) -> None:
    register(tmp_path, "of other data")
    decision = check(tmp_path, source, min_champion_age_days=days)
    assert decision.retrain is retrain
    if not retrain:
        assert decision.reason.startswith("too soon: ")
        assert "version 1 of reviews, the champion, is 3.0 days old; min_champion_age_days is 4" in decision.reason


def test_a_champion_of_a_clock_that_is_ahead_is_as_young_as_can_be(tmp_path: Path, source: Path) -> None:
    register(tmp_path, "of other data", days_old=-2)
    assert check(tmp_path, source).retrain, "no age was asked for"
    assert ", is 0.0 days old; min_champion_age_days is 1" in check(tmp_path, source, min_champion_age_days=1).reason


def test_a_champion_of_unknown_data_is_challenged(tmp_path: Path, source: Path) -> None:
    register(tmp_path, "")
    decision = check(tmp_path, source)
    assert decision.retrain
    assert "does not say what it was trained on" in decision.reason


def test_weights_and_tokenizer_of_the_champion_are_named(tmp_path: Path, source: Path) -> None:
    register(tmp_path, "of other data")
    place = str((tmp_path / "registry/reviews/versions/1").resolve())
    text = check(tmp_path, source, task="causal_lm", model="gpt2-micro", start_from_champion=True)
    assert (text.model, text.tokenizer) == (place, place)
    own = check(tmp_path, source, task="causal_lm", model="gpt2-micro", tokenizer="my/tokenizer")
    assert (own.model, own.tokenizer) == ("gpt2-micro", "my/tokenizer")
    assert check(tmp_path, source, task="image_classification").tokenizer == "train"


def test_a_damaged_champion_is_not_trained_on(tmp_path: Path, source: Path) -> None:
    register(tmp_path, "of other data")
    place = tmp_path / "registry/reviews/versions/1"
    file = next(path for path in sorted(place.iterdir()) if path.name != "version.json")
    file.write_text("something else")
    with pytest.raises(UserError, match=rf"Version 1 of 'reviews' .*{file.name} is not as it was uploaded"):
        check(tmp_path, source, task="causal_lm", model="gpt2-micro", start_from_champion=True)
    assert check(tmp_path, source).retrain, "another model is trained all the same"


def test_a_champion_whose_record_is_damaged_is_named(tmp_path: Path, source: Path) -> None:
    register(tmp_path, "of other data")
    (tmp_path / "registry/reviews/versions/1/version.json").write_text("{")
    with pytest.raises(UserError, match=r"Version 1 of 'reviews' in .* is damaged: version.json cannot be read"):
        check(tmp_path, source)


def test_a_sample_never_changes(tmp_path: Path) -> None:
    assert source_fingerprint("sample:digits") == source_fingerprint("sample:digits")
    assert source_fingerprint("sample:digits") != source_fingerprint("sample:docstrings")


def test_a_folder_that_moves_with_its_files_has_not_changed(tmp_path: Path, source: Path) -> None:
    before = source_fingerprint(str(source))
    source.rename(tmp_path / "moved")
    assert source_fingerprint(str(tmp_path / "moved")) == before


def test_wrong_values_are_listed_together(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"(?s)model_name is 'No'.*min_champion_age_days is -1"):
        check(tmp_path, "sample:digits", model_name="No", min_champion_age_days=-1)


def looked(tmp_path: Path, source: Path, found: bool | None, **changes: Any) -> Decision:
    given: Any = {"source": str(source), "registry": str(tmp_path / "registry"), "drift_source": "logs", **changes}
    why = {True: "drift: by 0.4", False: "no drift: none", None: "drift cannot be told"}[found]
    return check_for_new_data(WatchSettings(**given), lambda champion: (found, why))


@pytest.mark.parametrize(
    ("retrain_on", "found", "days", "retrain", "begins"),
    [
        ("drift", True, 0, True, "training: the source"),
        ("drift", False, 0, False, "no drift: the source"),
        ("drift", None, 0, True, "training: the source"),
        ("drift", True, DAYS_OLD + 1, True, "training: the source"),
        ("drift", False, DAYS_OLD + 1, False, "too soon: "),
        ("either", True, DAYS_OLD + 1, True, "training: the source"),
        ("either", False, DAYS_OLD + 1, False, "too soon: "),
        ("either", None, DAYS_OLD + 1, False, "too soon: "),
        ("either", False, 0, True, "training: the source"),
    ],
)
def test_drift_and_new_data_together(
    tmp_path: Path, source: Path, retrain_on: str, found: bool | None, days: int, retrain: bool, begins: str
) -> None:
    register(tmp_path, "of other data")
    decision = looked(tmp_path, source, found, retrain_on=retrain_on, min_champion_age_days=days)
    assert decision.retrain is retrain
    assert decision.reason.startswith(begins)
    assert "drift" in decision.reason


@pytest.mark.parametrize("retrain_on", ["drift", "either"])
def test_drift_alone_does_not_train_on_the_same_data_again(tmp_path: Path, source: Path, retrain_on: str) -> None:
    register(tmp_path, source_fingerprint(str(source)))
    decision = looked(tmp_path, source, True, retrain_on=retrain_on)
    assert not decision.retrain
    assert decision.reason.startswith("nothing new: ")
    assert decision.reason.endswith("; drift: by 0.4")


def test_nobody_looks_for_drift_without_a_champion_or_unasked(tmp_path: Path, source: Path) -> None:
    given: Any = {"source": str(source), "registry": str(tmp_path / "registry")}
    assert check_for_new_data(WatchSettings(**given, retrain_on="drift", drift_source="logs"), None).retrain
    register(tmp_path, "of other data")
    assert check_for_new_data(WatchSettings(**given), None).reason.endswith("was trained")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"retrain_on": "always"}, "retrain_on is 'always'; give new_data, drift, either"),
        ({"retrain_on": "drift"}, "drift_source is empty"),
        ({"drift_source": "logs"}, "drift_source is given, and retrain_on is new_data"),
        ({"drift_days": -1.0}, "drift_days is -1"),
    ],
)
def test_wrong_values_of_drift(given: dict[str, Any], told: str) -> None:
    assert told in " ".join(WatchSettings(**given).problems())
