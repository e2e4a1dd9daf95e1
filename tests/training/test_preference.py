"""The task preference: what it prepares and rejects, how it is trained, scored and served, and that it continues."""

from __future__ import annotations

import json
import math
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from started_training import run_training, weights_digest
from trainings import entries, train_here, train_on

from gpu_pipelines.artifacts.dataset import Dataset
from gpu_pipelines.artifacts.examples import Examples
from gpu_pipelines.data.prepare import prepare_data
from gpu_pipelines.data.report import learned_of_first_row
from gpu_pipelines.data.report import write_report as write_data_report
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.data.text.sources import SYSTEM_BESIDE_TEXT
from gpu_pipelines.errors import UserError
from gpu_pipelines.evaluation.champion.comparison import Comparison
from gpu_pipelines.evaluation.champion.promotion import better
from gpu_pipelines.evaluation.evaluate import evaluate_checkpoints
from gpu_pipelines.evaluation.gates import parse_gate
from gpu_pipelines.evaluation.report import write_report
from gpu_pipelines.evaluation.settings import EvaluationSettings, Ranking
from gpu_pipelines.registry.upload import UploadSettings, upload_model
from gpu_pipelines.serving.comparison import differences
from gpu_pipelines.serving.predictors import load_predictor
from gpu_pipelines.serving.settings import ServerSettings
from gpu_pipelines.tasks.preference.compared import Compared, compared
from gpu_pipelines.tasks.preference.recipe import Preference
from gpu_pipelines.tasks.preference.scoring import PreferenceScores
from gpu_pipelines.tasks.tasks import TASKS
from gpu_pipelines.training.settings import TrainingSettings

SETTINGS = TrainingSettings(
    model="llama-micro", max_steps=6, checkpoint_every_steps=2, global_batch_size=8, learning_rate=2e-3
)
LAST = "step-00000006"
NAMES = ["Ada", "Bela", "Cem", "Dora", "Emil", "Fei", "Gro", "Hana"]


def pairs(number: int) -> list[dict[str, Any]]:
    """Polite answers are chosen."""
    return [
        {
            "prompt": f"{NAMES[n % 8]} asks for {n} things.",
            "chosen": f" Gladly, here are {n}.",
            "rejected": f" No, not {n} of them, go away!",
            "tone": "odd" if n % 2 else "even",
        }
        for n in range(number)
    ]


def judged(number: int) -> list[dict[str, Any]]:
    return [
        {
            "prompt": row["prompt"],
            "completion": row["chosen" if place % 2 else "rejected"],
            "label": bool(place % 2),
        }
        for place, row in enumerate(pairs(number))
    ]


def prepared(folder: Path, rows: list[dict[str, Any]], **changes: Any) -> Dataset:
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "rows.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    given = {"vocabulary_size": 400, "sequence_length": 64, "val_fraction": 0.2, "test_fraction": 0.2, **changes}
    prepare_data(PrepareSettings(task="preference", source=str(source), **given), folder / "data")
    return Dataset(folder / "data")


@pytest.fixture(scope="module")
def of_pairs(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return prepared(tmp_path_factory.mktemp("pairs"), pairs(120), slice_by="tone")


@pytest.fixture(scope="module")
def of_judged(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return prepared(tmp_path_factory.mktemp("judged"), judged(120))


@pytest.fixture(scope="module")
def trained(of_pairs: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("trained")
    assert train_here(SETTINGS, of_pairs.directory, str(directory))
    return directory


def test_a_row_is_a_prompt_and_its_completions_and_the_first_one_is_shown(of_pairs: Dataset, tmp_path: Path) -> None:
    assert set(of_pairs.manifest.features) == {"prompt", "chosen", "rejected"}
    text = learned_of_first_row(of_pairs)
    first = of_pairs.split("train").sources([0])[0]
    row = pairs(120)[int(first.rpartition(":")[2]) - 1]
    assert text == f"<bos>{row['prompt']}«{row['chosen']}<eos>»\nin place of: «{row['rejected']}<eos>»"
    write_data_report(of_pairs.directory, tmp_path / "data.html")
    assert f"<mark>{row['chosen']}" in (tmp_path / "data.html").read_text(encoding="utf-8")


def test_a_judged_row_has_the_completion_of_another_one_beside_it(of_judged: Dataset) -> None:
    assert of_judged.manifest.rejected == {}
    train = of_judged.split("train")
    rows = train.take(np.arange(len(train)))
    np.testing.assert_array_equal(rows["other"], np.roll(rows["completion"], 1, axis=0))
    np.testing.assert_array_equal(rows["other_length"], np.roll(rows["completion_length"], 1))
    numbers = [int(source.rpartition(":")[2]) - 1 for source in train.sources(range(len(train)))]
    assert rows["label"].tolist() == [number % 2 for number in numbers]
    assert "judged" in learned_of_first_row(of_judged)


def test_a_model_that_takes_fewer_tokens_than_a_row_has_is_refused_and_not_given_less(of_judged: Dataset) -> None:
    recipe = Preference.for_dataset(of_judged)
    rows = of_judged.split("test").take(np.arange(4))
    longest = int((rows["prompt_length"] + rows["completion_length"]).max())
    recipe.sequence_length = longest
    assert recipe.batch(rows, torch.device("cpu"))["other.input_ids"].shape[1] <= longest
    recipe.sequence_length = longest - 1
    with pytest.raises(UserError, match=f"takes at most {longest - 1} tokens; a row has {longest}"):
        recipe.batch(rows, torch.device("cpu"))


def test_rows_that_say_nothing_are_rejected_and_counted(tmp_path: Path) -> None:
    user = [{"role": "user", "content": "hi"}]
    answers = [[{"role": "assistant", "content": text}] for text in ("yes", "no")]
    odd = [
        {"prompt": "a", "chosen": "same", "rejected": "same"},
        {"prompt": "a", "chosen": " ", "rejected": "no"},
        {"prompt": "a", "chosen": ["x"], "rejected": ["y"]},
        {"prompt": user, "chosen": answers[0], "rejected": "no"},
        {"prompt": user, "chosen": user, "rejected": answers[0]},
        {"prompt": "a", "chosen": "long " * 99, "rejected": "no"},
        {"prompt": "a", "chosen": None, "rejected": "no"},
        {"prompt": None, "chosen": "yes", "rejected": "no"},
        # Whole conversations beside a text; UltraFeedback has its rows so.
        {"prompt": "hi", "chosen": user + answers[0], "rejected": user + answers[1]},
    ]
    dataset = prepared(tmp_path, [*pairs(60), *odd], max_rejected="unlimited")
    assert dataset.manifest.rejected == {
        "longer than sequence_length": 1,
        "malformed messages": 1,
        "no answer": 2,
        "no prompt": 1,
        "no text": 1,
        "nothing to choose": 1,
        "texts beside messages": 1,
    }
    assert dataset.manifest.records_kept == 61
    with pytest.raises(UserError, match="neither the columns prompt, chosen, rejected nor prompt, completion, label"):
        prepared(tmp_path / "other", [{"prompt": "a", "answer": "b"}] * 20)


def test_pairs_whose_prompt_is_in_a_column_of_another_name_are_not_learned_without_it(tmp_path: Path) -> None:
    rows = [{"question": f"Is it {n}?", "chosen": f"yes {n}", "rejected": f"no {n}"} for n in range(60)]
    with pytest.raises(UserError, match="no text in 'prompt', and 'chosen' and 'rejected' begin differently"):
        prepared(tmp_path, rows)


def test_what_the_system_says_in_a_column_stands_before_messages_and_not_before_texts() -> None:
    user, answers = [{"role": "user", "content": "hi"}], ["yes", "no"]
    row = {"system": "be kind", "chosen": [{"role": "assistant", "content": "yes"}]}
    row["rejected"] = [{"role": "assistant", "content": "no"}]
    found = compared({**row, "prompt": user}, ("chosen", "rejected"))
    assert isinstance(found, Compared)
    assert found.prompt == [{"role": "system", "content": "be kind"}, *user]
    texts = {"system": "be kind", "prompt": "hi", **dict(zip(("chosen", "rejected"), answers, strict=True))}
    assert compared(texts, ("chosen", "rejected")) == SYSTEM_BESIDE_TEXT
    assert isinstance(compared({**texts, "system": " "}, ("chosen", "rejected")), Compared)


def test_one_file_may_have_a_column_beside_chats_and_another_none(tmp_path: Path) -> None:
    (tmp_path / "pairs").mkdir()
    for part, beside in enumerate([{"system": "be kind"}, {}, {"system": "be kind"}]):
        rows = [
            {"prompt": f"Is it {n}?", "chosen": f"yes {n}", "rejected": f"no {n}", **beside}
            for n in range(20 * part, 20 * part + 20)
        ]
        (tmp_path / f"pairs/{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = PrepareSettings(source=str(tmp_path / "pairs"), task="preference", max_rejected="unlimited")
    assert prepare_data(settings, tmp_path / "data").rejected == {SYSTEM_BESIDE_TEXT.reason: 40}


def test_judgements_are_truth_values_numbers_or_words(tmp_path: Path) -> None:
    rows = judged(60)
    for place, row in enumerate(rows):
        row["label"] = [row["label"], int(row["label"]), "good" if row["label"] else "Bad"][place % 3]
    contradiction = {**rows[1], "label": False}
    unclear = {**rows[0], "prompt": "perhaps", "label": "maybe"}
    dataset = prepared(tmp_path, [*rows, contradiction, unclear], max_rejected="unlimited")
    assert dataset.manifest.rejected == {"no judgement": 1}
    # Two people may judge the same answer differently.
    assert dataset.manifest.records_kept == 61


def test_a_loss_that_the_rows_are_not_for_is_refused(of_pairs: Dataset, of_judged: Dataset, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="are pairs"):
        train_here(replace(SETTINGS, preference_loss="kto"), of_pairs.directory, str(tmp_path / "kto"))
    with pytest.raises(UserError, match="one completion each"):
        train_here(SETTINGS, of_judged.directory, str(tmp_path / "pairs"))
    smoothed = replace(SETTINGS, preference_loss="orpo", label_smoothing=0.1).problems("preference")
    assert "which orpo has no form of" in smoothed[0]
    assert "less than 0.5" in replace(SETTINGS, label_smoothing=0.5).problems("preference")[0]
    assert "beta is 0" in replace(SETTINGS, beta=0.0).problems("preference")[0]
    assert "learn preferences" in replace(SETTINGS, preference_loss="ipo").problems("causal_lm")[0]
    assert TrainingSettings().resolved("image_classification").configuration_hash() == (
        TrainingSettings(beta=0.1).resolved("image_classification").configuration_hash()
    )


def test_a_training_goes_on_with_the_loss_that_chose_its_best_checkpoint() -> None:
    differing = {"preference_loss": ("sigmoid", "ipo"), "beta": (0.1, 0.5), "learning_rate": (1e-5, 1e-6)}
    assert SETTINGS.fixed_in(differing) == ["preference_loss", "beta"]


@pytest.mark.parametrize("loss", ["sigmoid", "kto", "orpo"])
def test_a_training_in_two_parts_ends_with_the_same_bits(
    loss: str, of_pairs: Dataset, of_judged: Dataset, tmp_path: Path
) -> None:
    dataset = (of_judged if loss == "kto" else of_pairs).directory
    settings = replace(SETTINGS, preference_loss=loss, max_steps=4)
    assert train_here(settings, dataset, str(tmp_path / "whole"))
    assert train_here(settings, dataset, str(tmp_path / "parts"), until=2)
    kept = list((tmp_path / "parts").glob("reference-*.safetensors"))
    assert len(kept) == (loss != "orpo")
    written = [path.stat().st_mtime_ns for path in kept]
    assert train_here(settings, dataset, str(tmp_path / "parts"))
    assert [path.stat().st_mtime_ns for path in kept] == written, "it is computed once"
    last = "step-00000004"
    assert weights_digest(tmp_path / "parts" / last) == weights_digest(tmp_path / "whole" / last)
    assert entries(tmp_path / "parts", "val_loss") == entries(tmp_path / "whole", "val_loss")


def test_the_reference_is_what_the_model_said_before_its_first_step(of_pairs: Dataset, trained: Path) -> None:
    (kept,) = trained.glob("reference-*.safetensors")
    reference = load_file(kept)
    assert {name: len(values) for name, values in reference.items()} == {
        name: of_pairs.manifest.rows(name) for name in ("train", "val")
    }
    # At first no completion has become more probable, so that nothing is known of any pair.
    assert entries(trained, "loss")[0] == pytest.approx(np.log(2), abs=1e-6)


def test_a_reference_that_was_interrupted_continues_at_its_row(
    of_pairs: Dataset,
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    calls = []
    compute = Preference.reference

    def interrupted(*given: Any) -> torch.Tensor:
        calls.append(given)
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return compute(*given)

    monkeypatch.setattr(Preference, "reference", interrupted)
    assert not train_here(SETTINGS, of_pairs.directory, str(tmp_path))
    (kept,) = tmp_path.glob("reference-*.safetensors")
    rows = len(load_file(kept)["train"])
    assert 0 < rows < of_pairs.manifest.rows("train")
    assert train_here(SETTINGS, of_pairs.directory, str(tmp_path), until=2)
    assert f"once; {rows} are there" in capsys.readouterr().out
    of_batches = [of_pairs.manifest.rows(split) / SETTINGS.global_batch_size for split in ("train", "val")]
    assert len(calls) == sum(map(math.ceil, of_batches)), "no row is computed twice"
    (whole,) = trained.glob("reference-*.safetensors")
    assert kept.read_bytes() == whole.read_bytes()


def begins_with(text: str) -> Callable[[str], bool]:
    return lambda line: line.startswith(text)


@pytest.mark.slow
def test_a_training_that_is_killed_ends_as_one_left_alone(of_pairs: Dataset, tmp_path: Path) -> None:
    assert run_training(SETTINGS, of_pairs.directory, str(tmp_path / "left alone")).status == 0
    for beginning in ("computing the reference", "step 2/6", "step 4/6"):
        due = begins_with(beginning)
        killed = run_training(SETTINGS, of_pairs.directory, str(tmp_path / "killed"), stop_when=due)
        assert killed.status == -signal.SIGKILL
    assert run_training(SETTINGS, of_pairs.directory, str(tmp_path / "killed")).status == 0
    assert weights_digest(tmp_path / "killed" / LAST) == weights_digest(tmp_path / "left alone" / LAST)
    assert entries(tmp_path / "killed", "val_loss") == entries(tmp_path / "left alone", "val_loss")


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["sigmoid", "kto"])
@pytest.mark.parametrize("parallelism", ["ddp", "fsdp"])
def test_two_processes_and_micro_batches_train_as_one_does(
    loss: str, parallelism: str, of_pairs: Dataset, of_judged: Dataset, tmp_path: Path
) -> None:
    dataset = (of_judged if loss == "kto" else of_pairs).directory
    settings = replace(SETTINGS, preference_loss=loss, beta=1.0)
    assert train_here(settings, dataset, str(tmp_path / "one"))
    shared = replace(settings, micro_batch_size=2, parallelism=parallelism)
    train_on((1, 2), shared, dataset, str(tmp_path / "two"))
    for what in ("loss", "val_loss"):
        np.testing.assert_allclose(entries(tmp_path / "two", what), entries(tmp_path / "one", what), rtol=2e-5)


def test_checkpoints_are_scored_shown_exported_and_served_as_evaluated(
    of_pairs: Dataset, trained: Path, tmp_path: Path
) -> None:
    registry = str(tmp_path / "registry")
    settings = EvaluationSettings(
        gates=["accuracy>=0.6", "margin>0", "loss<0.69"], registry=registry, model_name="polite", slice_by="tone"
    )
    evaluation = evaluate_checkpoints(settings, of_pairs.directory, trained, tmp_path / "model")
    assert evaluation.passed, evaluation.gates
    assert (evaluation.select_by, evaluation.more_is_better) == ("accuracy", True)
    found = evaluation.test["metrics"]
    assert all(each["low"] <= each["value"] <= each["high"] for each in found.values())
    chosen, rejected = evaluation.test["parts"]
    assert chosen["mean reward"] - rejected["mean reward"] == pytest.approx(found["margin"]["value"])
    assert {part["value"] for part in evaluation.test["slices"]} == {"odd", "even"}
    on_val = {scored["step"]: scored["val"]["loss"] for scored in evaluation.checkpoints}
    assert on_val[6] == pytest.approx(entries(trained, "val_loss")[-1], rel=1e-5)
    margins = [row["margin"] for row in evaluation.mistakes]
    assert margins == sorted(margins)
    assert evaluation.mistakes[0]["rejected"].startswith(" No, not")
    write_report(evaluation, of_pairs.directory, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "surest of what people did not choose" in page
    assert evaluation.mistakes[0]["text"] in page
    predictor = load_predictor(tmp_path / "model", ServerSettings())
    examples = Examples.load(tmp_path / "model")
    rows = [predictor.read(each, predictor.checked({})).row() for each in examples.instances]
    assert differences(examples, predictor.predict(rows)) == []

    upload_model(UploadSettings(registry, "polite", smoke_test=False), tmp_path / "model", passed=True)
    again = evaluate_checkpoints(
        replace(settings, gates=["better_than_champion in margin at 95%"]),
        of_pairs.directory,
        trained,
        tmp_path / "again",
    )
    assert not again.passed, "a model is not better than itself"
    assert again.champion is not None
    assert again.champion["differences"]["margin"]["value"] == pytest.approx(0, abs=1e-5)


@pytest.mark.slow
def test_judged_rows_are_scored_by_the_sign_of_the_reward(of_judged: Dataset, tmp_path: Path) -> None:
    settings = replace(SETTINGS, preference_loss="kto")
    assert train_here(settings, of_judged.directory, str(tmp_path / "run"))
    asked = EvaluationSettings(registry=str(tmp_path / "registry"))
    evaluation = evaluate_checkpoints(asked, of_judged.directory, tmp_path / "run", tmp_path / "model")
    on_val = {scored["step"]: scored["val"]["loss"] for scored in evaluation.checkpoints}
    assert on_val[6] == pytest.approx(entries(tmp_path / "run", "val_loss")[-1], rel=1e-5)
    good, bad = evaluation.test["parts"]
    assert (good["name"], bad["name"]) == ("good", "bad")
    assert good["mean reward"] > bad["mean reward"]
    assert {row["judged"] for row in evaluation.mistakes} <= {"good", "bad"}


def test_adapters_learn_against_the_model_without_them(of_pairs: Dataset, tmp_path: Path) -> None:
    settings = replace(SETTINGS, lora_rank=4, learning_rate=2e-2)
    assert train_here(settings, of_pairs.directory, str(tmp_path / "run"))
    assert entries(tmp_path / "run", "loss")[0] == pytest.approx(np.log(2), abs=1e-6)
    asked = EvaluationSettings(registry=str(tmp_path / "registry"))
    evaluation = evaluate_checkpoints(asked, of_pairs.directory, tmp_path / "run", tmp_path / "model")
    assert evaluation.test["metrics"]["margin"]["value"] > 0
    assert "model.embed_tokens.weight" in load_file(tmp_path / "model" / "model.safetensors")


def scores_of(right: np.ndarray, margins: np.ndarray) -> PreferenceScores:
    nothing = np.zeros(len(right))
    return PreferenceScores(np.column_stack([right, margins, -margins, nothing + 1, margins, nothing]))


@pytest.mark.parametrize(("gain", "least", "most"), [(0.0, 0, 2), (0.04, 16, 20)])
def test_equal_models_are_seldom_promoted_and_better_ones_mostly(gain: float, least: int, most: int) -> None:
    generator = np.random.default_rng(5)
    gate = parse_gate("better_than_champion in accuracy at 95%", TASKS["preference"].metrics)
    promoted = 0
    for _ in range(20):
        common = generator.random(2000)
        ours, theirs = (common + 0.05 * generator.standard_normal(2000) < 0.7 + more for more in (gain, 0.0))
        comparison = Comparison(*(scores_of(each.astype(float), each - 0.5) for each in (ours, theirs)), 1)
        promoted += better(gate, comparison.ours, comparison, Ranking("accuracy", True)).passed  # type: ignore[arg-type]
    assert least <= promoted <= most


def test_a_tie_is_half_right_so_that_the_first_model_is_no_better_than_chance() -> None:
    scores = scores_of(np.array([0.5, 0.5]), np.zeros(2))
    assert scores.metrics()["accuracy"] == 0.5
    assert torch.isfinite(torch.tensor(list(scores.metrics().values()))).all()


def test_a_reward_that_is_not_a_number_has_no_mean() -> None:
    parts = scores_of(np.ones(2), np.array([1.0, np.nan])).details()["parts"]
    assert [each["mean reward"] for each in parts] == [None, 0.0]
