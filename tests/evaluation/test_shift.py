"""Data that is not what the champion was evaluated on is noticed, and data that is gives no alarm."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from gpu_pipelines.artifacts.dataset import DataFile, Feature, Manifest
from gpu_pipelines.artifacts.evaluation import Evaluation
from gpu_pipelines.evaluation.champion.shift import LEVEL, ShiftCheck, checks, data_of, shift_gate
from gpu_pipelines.evaluation.metrics.classification import ClassificationScores
from gpu_pipelines.evaluation.metrics.loss import LikelihoodScores
from gpu_pipelines.evaluation.scores import Scores, summary
from gpu_pipelines.evaluation.statistics.moved import fallen
from gpu_pipelines.tasks.multi_label_classification.scoring import MultiLabelScores
from gpu_pipelines.tasks.token_classification.scoring import EntityScores

LABELS = ["ant", "bee", "cat"]


def manifest(class_rows: dict[str, list[int]], features: tuple[str, ...] = ("label",)) -> Manifest:
    """Of a dataset whose classes have so many rows in train, val and test."""
    rows = {split: [counts[n] for counts in class_rows.values()] for n, split in enumerate(("train", "val", "test"))}
    return Manifest(
        task="text_classification",
        source="x",
        features={name: Feature("int32") for name in features},
        labels=list(class_rows),
        splits={split: [DataFile("", sum(counts), "", "")] for split, counts in rows.items()},
        rows_read=0,
        rejected={},
        class_rows=rows,
    )


def classifier(labels: np.ndarray, right: np.ndarray, classes: int = 3) -> ClassificationScores:
    """One that is right in these rows, and elsewhere takes the next class."""
    predicted = np.where(right, labels, (labels + 1) % classes)
    return ClassificationScores.of(np.eye(classes, dtype=np.float32)[predicted], labels, classes)


def recorded(scores: Scores, dataset: Manifest, **changes: Any) -> Evaluation:
    content: dict[str, Any] = {
        "model_name": "animals",
        "task": dataset.task,
        "labels": dataset.labels,
        "dataset_fingerprint": "",
        "configuration": {"settings": {}, "devices": {}},
        "select_by": "accuracy",
        "checkpoints": [],
        "best": "step-1",
        "test": summary(scores),
        "champion": None,
        "gates": [],
        "passed": True,
        "mistakes": [],
        "data": data_of(dataset),
    }
    return Evaluation(**{**content, **changes})


def moved(found: list[ShiftCheck]) -> list[str]:
    return [check.what for check in found if check.moved]


def of_accuracy(seed: int, rows: int, accuracy: float, counts: tuple[int, ...] = (300, 300, 300)) -> Any:
    """A manifest and a classifier's scores on its test rows."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 3, rows)
    tests = np.bincount(labels, minlength=3)
    data = manifest({name: [counts[n], 30, int(tests[n])] for n, name in enumerate(LABELS)})
    return data, classifier(labels, generator.random(rows) < accuracy)


def test_a_champion_that_fails_on_the_new_rows_is_an_alarm() -> None:
    data, before = of_accuracy(0, 113, 0.97)
    shuffled, now = of_accuracy(1, 113, 0.27)
    found = checks(recorded(before, data), shuffled, now)
    assert "its accuracy" in moved(found)
    gate = shift_gate(found, 3, accepted=False)
    assert not gate.passed
    assert "the data is not what version 3 was evaluated on: its accuracy was 0.9" in gate.why
    assert "on 113 rows and is 0.2" in gate.why
    assert gate.why.endswith("if that is meant, give accept_shift=true")
    accepted = shift_gate(found, 3, accepted=True)
    assert accepted.passed
    assert accepted.why.endswith("; that is meant (accept_shift)")


@pytest.mark.parametrize(("before", "now", "recall"), [(400, 20, 0.95), (400, 20, 0.98), (300, 60, 0.9)])
def test_a_sample_that_is_small_beside_the_first_alarms_no_more_often_than_the_level(
    before: int, now: int, recall: float
) -> None:
    """By the probabilities of all pairs of counts that are no rarer than one in a million."""
    level = LEVEL / 2
    counts = [stats.binom(rows, recall) for rows in (before, now)]
    likely = [range(int(each.ppf(1e-6)), int(each.ppf(1 - 1e-6)) + 1) for each in counts]
    alarms = sum(
        counts[0].pmf(first) * counts[1].pmf(second)
        for first in likely[0]
        for second in likely[1]
        if fallen("its recall", (first, before), (second, now), level, 0.05).moved
    )
    assert alarms < level


def test_labels_of_one_class_that_were_shuffled_are_an_alarm_though_the_accuracy_hardly_falls() -> None:
    labels = np.repeat([0, 1, 2], [4000, 4000, 80])
    data = manifest({name: [3000, 300, rows] for name, rows in zip(LABELS, (4000, 4000, 80), strict=True)})
    right = np.random.default_rng(0).random(len(labels)) < 0.95
    spoilt = np.where(labels == 2, np.arange(len(labels)) % 3 == 0, right)
    found = checks(recorded(classifier(labels, right), data), data, classifier(labels, spoilt))
    assert moved(found) == ["its recall of cat"]


def test_numbers_that_earlier_versions_wrote_with_more_zeros_are_the_same_classes() -> None:
    labels, rows = np.repeat([0, 1, 2], 100), [300, 30, 100]
    before = recorded(classifier(labels, labels >= 0), manifest({"0E-9": rows, "2.0": rows, "2.50": rows}))
    now = manifest({"0": rows, "2": rows, "2.5": rows})
    same, other = (classifier(labels, labels != wrong) for wrong in (3, 1))
    assert moved(checks(before, now, same)) == []
    assert moved(checks(before, now, other)) == ["its accuracy", "its recall of 2"]
    assert moved(checks(before, manifest({"0": [10, 1, 100], "2": rows, "2.5": rows}), None)) == ["shares of classes"]
    assert moved(checks(before, manifest({"0": rows, "0E-9": rows, "2": rows}), None)) == ["classes"]


def test_classes_and_columns_that_are_gone_are_an_alarm_and_new_ones_are_not() -> None:
    data, before = of_accuracy(0, 200, 0.9)
    fewer = manifest({"ant": [300, 30, 30], "bee": [300, 30, 30]}, features=("image", "label"))
    then = recorded(before, data, data={**data_of(data), "features": ["depth", "label"]})
    found = checks(then, fewer, None)
    assert moved(found) == ["columns", "classes"]
    assert "columns that it knew are gone: depth; classes that it knew are gone: cat" in shift_gate(found, 1, False).why

    # Rows of a class that is new are wrong for the champion, and say nothing about the data that it knew.
    labels = np.repeat([0, 1, 2, 3], 100)
    more = manifest({**{name: [300, 30, 100] for name in LABELS}, "dog": [900, 90, 100]})
    now = classifier(labels, (labels < 3) & (np.arange(400) % 10 > 0), classes=4)
    assert moved(checks(recorded(before, data), more, now)) == []


@pytest.mark.parametrize("metric", ["f1", "exact_match", "log_loss"])
def test_of_several_classes_in_a_row_new_ones_are_no_alarm_either(metric: str) -> None:
    generator = np.random.default_rng(0)
    true = (generator.random((400, 4)) < 0.4).astype(np.uint8)
    probabilities = np.clip(0.6 * true + generator.normal(0.2, 0.2, true.shape), 0.01, 0.99).astype(np.float32)
    probabilities[:, 3] = 0  # the champion does not know this class
    data = manifest({}, features=("classes",))
    before = recorded(
        MultiLabelScores.of(probabilities[:, :3], true[:, :3], "abc"),
        data,
        select_by=metric,
        more_is_better=metric != "log_loss",
    )

    def moved(probabilities: np.ndarray, classes: str) -> list[str]:
        now = MultiLabelScores.of(probabilities[:, : len(classes)], true[:, : len(classes)], classes)
        return [check.why for check in checks(before, data, now) if check.moved]

    assert moved(probabilities, "abcd") == []
    assert moved(probabilities, "ab") == ["classes that it knew are gone: c"]
    (worse,) = moved(1 - probabilities, "abcd")
    assert worse.startswith(f"its {metric} was ")


def test_of_entities_new_types_are_no_alarm_either() -> None:
    generator = np.random.default_rng(0)
    true = [[f"B-{kind}" for kind in generator.choice(["x", "y", "z"], 4)] for _ in range(300)]
    found = [[tag if tag != "B-z" else "O" for tag in row] for row in true]
    data = manifest({}, features=("tags",))
    known = EntityScores.of(found, found, ["x", "y"])
    before = recorded(known, data, select_by="f1")

    def moved(found: list[list[str]], kinds: list[str]) -> list[str]:
        return [check.why for check in checks(before, data, EntityScores.of(found, true, kinds)) if check.moved]

    assert moved(found, ["x", "y", "z"]) == []
    assert moved([["O"] * 4] * 300, ["x", "y", "z"])[0].startswith("its f1 was 1.0000")
    before.test["parts"].append({"name": "w"})
    assert moved(found, ["x", "y", "z"]) == ["types of entities that it knew are gone: w"]


@pytest.mark.parametrize(
    ("counts", "alarm"),
    [
        ((330, 290, 280), False),  # chance
        ((500, 250, 150), True),
        ((3_330_000, 3_300_000, 3_370_000), False),  # ten million rows, and nothing that counts
        ((3_900_000, 3_300_000, 2_800_000), True),
    ],
)
def test_shares_that_move_beyond_chance_and_by_what_counts_are_an_alarm(counts: tuple[int, ...], alarm: bool) -> None:
    data, before = of_accuracy(0, 200, 0.9, (300, 300, 300) if sum(counts) < 10**6 else (3_330_000,) * 3)
    later, now = of_accuracy(1, 200, 0.9, counts)
    found = checks(recorded(before, data), later, now)
    assert moved(found) == (["shares of classes"] if alarm else [])
    if alarm:
        assert "cat from 33.3% to" in shift_gate(found, 1, False).why


def test_a_champion_of_before_is_compared_by_the_classes_of_its_test_rows() -> None:
    data, before = of_accuracy(0, 900, 0.9)
    labels = np.repeat([0, 1, 2], [600, 200, 100])
    later = manifest({name: [300, 30, rows] for name, rows in zip(LABELS, (600, 200, 100), strict=True)})
    now = classifier(labels, np.arange(900) % 10 > 0)
    assert moved(checks(recorded(before, data, data=None), later, now)) == ["shares of classes"]


def language_model(seed: int, rows: int, loss: float) -> LikelihoodScores:
    generator = np.random.default_rng(seed)
    loss_tokens = generator.integers(20, 200, rows)
    losses = generator.gamma(20.0, loss / 20, rows)
    return LikelihoodScores.of(np.stack([loss_tokens * losses, loss_tokens, loss_tokens * 0.4], axis=1))


def no_classes(features: tuple[str, ...] = ("input_ids",)) -> Manifest:
    return manifest({}, features)


@pytest.mark.parametrize(("loss", "alarm"), [(3.0, False), (3.5, True)])
def test_a_language_model_is_guarded_by_its_loss(loss: float, alarm: bool) -> None:
    then = recorded(language_model(0, 300, 3.0), no_classes())
    found = checks(then, no_classes(), language_model(1, 300, loss))
    assert moved(found) == (["its loss"] if alarm else [])
    assert shift_gate(found, 1, False).passed is not alarm


def test_a_loss_that_is_no_number_any_more_is_an_alarm_and_a_small_rise_over_many_rows_is_none() -> None:
    then = recorded(language_model(0, 20_000, 3.0), no_classes())
    assert moved(checks(then, no_classes(), language_model(1, 20_000, 3.04))) == []
    broken = LikelihoodScores.of(np.full((300, 3), np.nan))
    assert moved(checks(then, no_classes(), broken)) == ["its loss"]


def test_a_loss_of_a_few_rows_says_nothing_of_the_data() -> None:
    for before, now in ((500, 5), (5, 500)):
        then = recorded(language_model(0, before, 2.0), no_classes())
        assert moved(checks(then, no_classes(), language_model(1, now, 4.0))) == []


def test_where_nothing_is_known_nothing_has_moved() -> None:
    then = recorded(language_model(0, 30, 3.0), no_classes(), data=None, test={"rows": 3, "metrics": {}})
    found = checks(then, no_classes(), language_model(1, 30, 9.0))
    assert found == []
    assert shift_gate(found, 1, False).why == "nothing is known of the data of version 1"


@pytest.mark.slow
@pytest.mark.parametrize("grows", [True, False])
@pytest.mark.parametrize("kind", ["classifier", "language model"])
def test_retraining_on_data_of_the_same_kind_hardly_ever_gives_an_alarm(kind: str, grows: bool) -> None:
    """A thousand weeks: either the rows of a week are added to those before, or they take their place.

    The champion is the one that was luckiest on its own test rows, which makes its recorded score too good: what the
    tests do not know.
    """
    generator = np.random.default_rng(0)
    alarms, weeks, per_week = 0, 1000, 150
    champion: Evaluation | None = None
    best, labels, sums = -np.inf, np.empty(0, dtype=np.int64), np.empty((0, 3))
    counts = np.zeros(3, dtype=np.int64)
    for week in range(weeks):
        if not grows or week % 20 == 0:
            labels, sums, counts = labels[:0], sums[:0], counts * 0
        if week % 20 == 0:
            champion, best = None, -np.inf
        counts = counts + generator.multinomial(8 * per_week, [0.6, 0.3, 0.1])
        labels = np.concatenate([labels, generator.choice(3, per_week, p=[0.6, 0.3, 0.1])])
        loss_tokens = generator.integers(20, 200, per_week)
        sums = np.concatenate(
            [
                sums,
                np.stack([loss_tokens * generator.gamma(20, 0.15, per_week), loss_tokens, loss_tokens * 0.4], axis=1),
            ]
        )
        if kind == "classifier":
            right = np.random.default_rng(week if not grows else week // 20).random(len(labels)) < 0.92
            scores: Scores = classifier(labels, right)
            tests = np.bincount(labels, minlength=3)
            data = manifest({name: [int(counts[n]), 0, int(tests[n])] for n, name in enumerate(LABELS)})
            value = scores.metrics()["accuracy"]
        else:
            scores, data = LikelihoodScores.of(sums), no_classes()
            value = -scores.metrics()["loss"]
        if champion is not None:
            alarms += bool(moved(checks(champion, data, scores)))
        if value > best:
            champion, best = recorded(scores, data), value
    assert alarms <= 0.01 * weeks, "documented: fewer than one run in a hundred"
    assert LEVEL == 0.001
