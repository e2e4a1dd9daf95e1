"""A gate means what was written: its metric, its comparison, its number; anything else is refused with the remedy."""

from __future__ import annotations

import json
import math
import operator
from dataclasses import asdict
from pathlib import Path

import pytest
from conftest import printed_by
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gpu_pipelines.evaluation.gates import ChampionGate, Gate, parse_gate
from gpu_pipelines.evaluation.settings import EvaluationSettings
from gpu_pipelines.tasks.metric import Metric
from gpu_pipelines.tasks.tasks import TASKS

TASK = "image_classification"
KNOWN = TASKS[TASK].metrics
ANY = Metric(smallest=-math.inf)
COMPARE = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}
METRICS = ("accuracy", "macro_f1", "macro_recall", "min_recall", "log_loss")
FEW = settings(max_examples=60, deadline=None, derandomize=True, database=None)


@pytest.mark.parametrize(
    ("text", "gate"),
    [
        ("accuracy>=0.95", Gate("accuracy", ">=", 0.95)),
        ("  log_loss  <=  2e-1 ", Gate("log_loss", "<=", 0.2)),
        ("macro_f1>.5", Gate("macro_f1", ">", 0.5)),
        ("min_recall<1", Gate("min_recall", "<", 1.0)),
        ("accuracy\t>= 0.95\n", Gate("accuracy", ">=", 0.95)),
        ("f1-score>=0.8", Gate("f1-score", ">=", 0.8)),
        ("loss-1 >-2", Gate("loss-1", ">", -2.0)),
    ],
)
def test_a_gate_is_read_with_or_without_spaces(text: str, gate: Gate) -> None:
    assert parse_gate(text, {**KNOWN, "f1-score": ANY, "loss-1": ANY}) == gate


@pytest.mark.parametrize(
    ("text", "gate"),
    [
        ("better_than_champion", ChampionGate()),
        ("better_than_champion by 0.005", ChampionGate(margin=0.005)),
        ("better_than_champion at 95%", ChampionGate(confidence=0.95)),
        ("better_than_champion by 0.005 at 95%", ChampionGate(margin=0.005, confidence=0.95)),
        ("  better_than_champion  at 98.5% in macro_f1 by 1e-3", ChampionGate("macro_f1", 0.001, 0.985)),
        ("macro_f1 better_than_champion by 0.01 at 95%", ChampionGate("macro_f1", 0.01, 0.95)),
        ("better_than_champion in f1-score", ChampionGate("f1-score")),
    ],
)
def test_a_comparison_with_the_champion_is_read_in_any_order_and_named_in_one(text: str, gate: ChampionGate) -> None:
    known = {**KNOWN, "f1-score": ANY}
    assert parse_gate(text, known) == gate
    assert parse_gate(str(gate), known) == gate


@pytest.mark.parametrize(
    ("text", "at", "says"),
    [
        ("", 0, "a metric, such as accuracy>=0.95 is missing here"),
        ("accuracy", 8, "one of >=, <=, > and < is missing here"),
        (">=0.95", 0, "a gate begins with a metric"),
        ("accuracy>= ", 10, "a number, such as 0.95 is missing here"),
        ("accuracy==0.95", 8, "'==' is not one of"),
        ("accuracy = 0.95", 9, "'=' is not one of"),
        ("accuracy!=0.95", 8, "'!=' is not one of"),
        ("accuracy=>0.95", 8, "'=>' is not one of"),
        ("accuracy>=0.95 or more", 15, "nothing more is expected here"),
        ("accuracy>=0.9, macro_f1>=0.9", 10, "'0.9,' is not a number"),
        ("accuracy>=0.9 , macro_f1>=0.9", 14, "Give several gates as a list"),
        ("0.95<=accuracy", 0, "a gate begins with a metric"),
        ("accuracy>=95%", 10, "'95%' is not a number"),
        ("accuracy>=0,95", 10, "'0,95' is not a number"),
        ("95", 0, "In a number write a point: a comma begins another gate."),
        ("accuracy>==0.95", 8, "'>==' is not one of"),
        ("accuracy>=high", 10, "'high' is not a number"),
        ("accuracy>=nan", 10, "'nan' is not a number"),
        ("accuracy<=1e999", 10, "'1e999' is not a number"),
        ("acuracy>=0.95", 0, "Did you mean 'accuracy'"),
        ("Accuracy>=0.95", 0, "Did you mean 'accuracy'"),
        ("bleu>=0.3", 0, "Valid: accuracy, macro_f1"),
        ("val.accuracy>=0.95", 0, "no metric 'val.accuracy'"),
        ("per_class.recal.min>=0.8", 0, "Did you mean 'per_class.recall.min'"),
        ("better_then_champion", 0, "Did you mean 'better_than_champion'"),
        ("better_than_champion>=0.1", 20, "in METRIC, by NUMBER or at NUMBER%"),
        ("better_than_champion by", 23, "how much better, such as 0.005 is missing here"),
        ("better_than_champion by much", 24, "'much' is not a number"),
        ("better_than_champion by -0.1", 24, "at least 0"),
        ("better_than_champion at 95", 24, "such as 95%"),
        ("better_than_champion at 0.95%", 24, "50% to 99%"),
        ("better_than_champion at 99.9%", 24, "1,000 resamples tell no more"),
        ("better_than_champion at 95% at 95%", 28, "each once"),
        ("better_than_champion in acuracy", 24, "Did you mean 'accuracy'"),
        ("acuracy better_than_champion", 0, "Did you mean 'accuracy'"),
        ("accuracy better_than_champion in macro_f1", 30, "each once"),
        ("accuracy better_then_champion", 9, "'better_then_champion' is not one of"),
    ],
)
def test_a_gate_that_is_wrong_is_refused_at_its_character_with_what_would_do(text: str, at: int, says: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_gate(text, KNOWN, TASKS[TASK].figures)
    first, shown, mark = str(caught.value).splitlines()
    assert says in first
    assert f"is wrong at character {at + 1}: " in first
    assert shown[6:] == text
    assert mark.index("^") - 6 == at


def test_the_mark_stands_below_its_character_in_a_long_gate_too() -> None:
    text = f"accuracy >= {' ' * 80}\t0.95 more"
    with pytest.raises(ValueError) as caught:
        parse_gate(text, KNOWN)
    _, shown, mark = str(caught.value).splitlines()
    assert shown[mark.index("^") :] == "more"


@pytest.mark.parametrize("text", ["accuracy>=0_95", "accuracy>=1_0", "accuracy>=٠.٩"])
def test_a_number_that_only_python_reads_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a number"):
        parse_gate(text, KNOWN)


@pytest.mark.parametrize("text", ["accuracy>=95", "macro_f1>1", "min_recall<-0.1", "accuracy>=inf", "log_loss<0"])
def test_a_gate_that_nothing_can_pass_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_gate(text, KNOWN)


@pytest.mark.parametrize(
    ("text", "task", "valid"),
    [
        ("per_class.recall.min>=0.8", "image_classification", True),
        ("per_class.recall.min>=0.8", "causal_lm", False),
        ("per_class.f1.mean>=0.8", "text_classification", True),
        ("latency_p95_ms<=50", "causal_lm", True),
        ("bits_per_byte<=1.2", "causal_lm", True),
        ("slices.accuracy.min>=0.8", "image_classification", False),
    ],
)
def test_which_figures_can_be_gated_on_depends_on_the_task(text: str, task: str, valid: bool) -> None:
    assert (EvaluationSettings(gates=[text]).problems(task) == []) is valid


def test_what_a_gate_asks_for_must_be_known() -> None:
    sliced = EvaluationSettings(gates=["slices.accuracy.min>=0.8"], slice_by="camera")
    assert sliced.problems(TASK) == []
    own = EvaluationSettings(
        gates=["better_than_champion at 95%"], scoring_function="a:b", average_last=1, slice_by="c"
    )
    text = "\n".join(own.problems(TASK))
    for word in ("Leave out at", "average_last is 1", "average_last needs", "slice_by needs"):
        assert word in text
    assert EvaluationSettings(gates=["better_than_champion by 2"], scoring_function="a:b").problems(TASK) == []


@FEW
@given(st.sampled_from(sorted(COMPARE)), st.floats(0, 1), st.floats(0, 1))
def test_a_gate_passes_exactly_when_its_comparison_holds(sign: str, threshold: float, value: float) -> None:
    assume(not math.isclose(value, threshold, rel_tol=1e-9))
    for seen in (value, threshold):
        result = Gate("accuracy", sign, threshold).check({"accuracy": seen, "macro_f1": 1 - seen})
        assert result.passed is COMPARE[sign](seen, threshold)
        assert (result.value, result.threshold) == (seen, threshold)


@pytest.mark.parametrize("sign", sorted(COMPARE))
def test_a_mean_that_is_the_threshold_but_for_its_last_bits_equals_it(sign: str) -> None:
    # As sums of the same numbers come out, but those of Python 3.12 and later.
    for value in (0.9499999999999998, 0.7000000000000001, 0.9499999999999996):
        threshold = round(value, 9)
        assert value != threshold
        assert Gate("macro_recall", sign, threshold).check({"macro_recall": value}).passed is ("=" in sign)


@pytest.mark.parametrize("sign", sorted(COMPARE))
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_metric_that_is_not_a_finite_number_passes_no_gate(sign: str, value: float) -> None:
    result = Gate("accuracy", sign, 0.5).check({"accuracy": value})
    assert (result.passed, result.value) == (False, None)
    assert "not a finite number" in result.why


@FEW
@given(st.sampled_from(METRICS), st.sampled_from(sorted(COMPARE)), st.floats(0.01, 0.99))
def test_the_name_of_a_gate_is_read_back_as_the_same_gate(metric: str, sign: str, threshold: float) -> None:
    gate = parse_gate(f"{metric}{sign}{threshold!r}", KNOWN)
    assert parse_gate(str(gate), KNOWN) == gate


@pytest.mark.parametrize(
    ("value", "threshold"), [(0.94999, 0.95), (0.9499999999, 0.95), (0.9, 0.9000004), (0.99999, 0.999995)]
)
def test_the_reason_of_a_failed_gate_does_not_contradict_it(value: float, threshold: float) -> None:
    result = Gate("accuracy", ">=", threshold).check({"accuracy": value})
    words = result.why.replace(",", "").split()
    assert not result.passed
    assert float(words[words.index("is") + 1]) < float(words[-1])


def test_the_reason_names_the_metric_its_value_and_what_was_wanted() -> None:
    why = Gate("accuracy", ">=", 0.95).check({"accuracy": 0.9312345}).why
    assert "accuracy" in why
    assert "0.931" in why
    assert ">= 0.95" in why


def test_a_result_can_be_written_as_json() -> None:
    result = asdict(Gate("accuracy", ">=", 0.5).check({"accuracy": 0.75}))
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    assert set(result) == {"gate", "value", "threshold", "passed", "why", "low", "high"}


def test_all_wrong_gates_are_listed_at_once_with_the_other_settings() -> None:
    problems = EvaluationSettings(
        gates=["acuracy>=0.9", "accuracy>=0.9", "log_loss<=x"],
        select_by="f1",
        registry="s3://bucket",
        model_name="Not Good",
    ).problems(TASK)
    text = "\n".join(problems)
    assert len(problems) == 5
    for word in ("acuracy", "log_loss<=x", "'f1'", "s3://bucket", "Not Good"):
        assert word in text


def test_good_settings_have_no_problems_and_without_gates_those_of_the_task_hold() -> None:
    assert EvaluationSettings().problems(TASK) == []
    assert EvaluationSettings(gates=["accuracy>=0"]).parsed_gates(TASK) == [Gate("accuracy", ">=", 0.0)]
    assert EvaluationSettings().parsed_gates("causal_lm") == []
    assert EvaluationSettings().parsed_gates(TASK) == [Gate("accuracy", ">=", 0.9)]


def test_a_gate_is_refused_without_importing_torch(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from gpu_pipelines.evaluation.settings import EvaluationSettings\n"
        "assert EvaluationSettings(gates=['x']).problems('image_classification')\n"
        "print(sorted({'torch', 'sklearn', 'transformers', 'kfp'} & set(sys.modules)))"
    )
    assert printed_by(code, tmp_path).strip() == "[]"
