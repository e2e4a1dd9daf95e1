"""A judge is a server: what it says is kept, what it does not say is counted, and its key is shown nowhere."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from judges import Answers, judging

from gpu_pipelines.emulator.json_server import JsonHandler, answering, free_port, server_of
from gpu_pipelines.errors import AccessDeniedError, NotFoundError, UnavailableError, UserError
from gpu_pipelines.evaluation.champion.comparison import Comparison
from gpu_pipelines.evaluation.champion.promotion import better
from gpu_pipelines.evaluation.evaluate import slices_of
from gpu_pipelines.evaluation.gates import ChampionGate, Gate
from gpu_pipelines.evaluation.generation.judge import Judge, Judgement, Question
from gpu_pipelines.evaluation.generation.judge_settings import JudgeSettings
from gpu_pipelines.evaluation.generation.scores import Answer, ScoresWithText, TextScores, figures_of
from gpu_pipelines.evaluation.metrics.loss import LikelihoodScores
from gpu_pipelines.evaluation.settings import EvaluationSettings, Ranking

KEY = "sk-of-the-test-1234567890"
ROWS = 120
QUESTIONS = [Question(f"What is {n} and 1?", f"{n + 1}", f"{n + 1}") for n in range(12)]


@pytest.fixture
def judge() -> Iterator[tuple[Judge, Answers]]:
    with judging() as (address, answers):
        yield Judge(JudgeSettings(address, "small"), first_wait=0.01), answers


def asked_about(body: dict[str, Any]) -> int:
    """Which of `QUESTIONS` a request is about."""
    text = body["messages"][0]["content"]
    return next(n for n, question in enumerate(QUESTIONS) if f"\n{question.prompt}\n" in text)


def test_a_score_is_the_last_one_that_the_judge_names(judge: tuple[Judge, Answers]) -> None:
    asked, answers = judge
    said = ["I doubt between score: 3 and more.\nScore: **7.5**", "score: 0", "score: 11", "no idea", "Score = 10/10"]
    answers.of = lambda body: said[asked_about(body)]
    found = asked.judged(QUESTIONS[:5])
    assert [each.score for each in found] == [7.5, 0, None, None, 10]
    assert [each.said for each in found] == said
    assert found[2].failure == "the score 11 is not from 0 to 10"
    assert found[3].failure == "there is no score in the answer"
    body, headers = answers.seen[0]
    assert body["model"] == "small"
    assert body["temperature"] == 0
    assert "Authorization" not in headers
    text = body["messages"][0]["content"]
    assert all(f"\n{part}\n" in text for part in QUESTIONS[asked_about(body)])
    assert "from 0 (useless) to 10" in text


def test_the_same_question_is_asked_once(judge: tuple[Judge, Answers]) -> None:
    asked, answers = judge
    assert len(asked.judged([*QUESTIONS, *QUESTIONS])) == 24
    asked.judged(QUESTIONS[:3])
    assert len(answers.seen) == 12


def test_what_passes_is_asked_again_and_what_does_not_is_counted(judge: tuple[Judge, Answers]) -> None:
    asked, answers = judge
    tries: dict[int, int] = {}

    def answer(body: dict[str, Any]) -> Any:
        number = asked_about(body)
        tries[number] = tries.get(number, 0) + 1
        if number == 2 and tries[number] < 4:
            return 429, {"error": {"message": "slowly"}}, {"Retry-After": "0"}
        if number == 3:
            return 503, {"error": {"message": "asleep"}}
        if number == 4:
            return 400, {"error": {"message": "too long"}}
        return 200, {"choices": []} if number == 5 else {"choices": [{"message": {"content": "score: 5"}}]}

    answers.of = answer
    found = asked.judged(QUESTIONS[:7])
    assert [each.score for each in found] == [5, 5, 5, None, None, None, 5]
    assert [each.failure for each in found[3:6]] == [
        "HTTP status 503: asleep",
        "HTTP status 400: too long",
        "an answer without text",
    ]
    assert tries == {0: 1, 1: 1, 2: 4, 3: 5, 4: 1, 5: 1, 6: 1}


def test_a_server_that_is_gone_is_not_asked_about_every_row(judge: tuple[Judge, Answers]) -> None:
    asked, answers = judge
    questions = [Question(f"{n}?", "a", "b") for n in range(100)]
    answers.of = lambda body: "score: 1" if "\n0?\n" in body["messages"][0]["content"] else (400, {"error": "no"})
    found = asked.judged(questions)
    assert [each.score for each in found].count(None) == 99
    assert sum(each.failure.startswith("not asked") for each in found) > 60
    assert len(answers.seen) < 40


@pytest.mark.parametrize(
    ("status", "kind"),
    [(401, AccessDeniedError), (403, AccessDeniedError), (404, NotFoundError), (503, UnavailableError)],
)
def test_what_no_row_would_mend_ends_it_at_once_and_shows_no_key(
    status: int, kind: type[UserError], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGE_KEY", KEY)
    with judging() as (address, answers):
        answers.of = lambda body: (status, {"error": {"message": f"Incorrect API key provided: {KEY}."}})
        asked = Judge(JudgeSettings(address, "small", judge_key="JUDGE_KEY"), first_wait=0.001)
        with pytest.raises(kind) as caught:
            asked.judged(QUESTIONS)
        assert answers.seen[0][1]["Authorization"] == f"Bearer {KEY}"
    assert len(answers.seen) == (5 if status == 503 else 1)
    assert KEY not in str(caught.value)
    assert str(status) in str(caught.value)


def test_nobody_at_the_address_is_said() -> None:
    asked = Judge(JudgeSettings(f"http://127.0.0.1:{free_port()}/v1", "small"), first_wait=0.001)
    with pytest.raises(UnavailableError, match="did not answer: ConnectionError"):
        asked.judged(QUESTIONS)


def test_a_judge_without_any_score_is_no_judge(judge: tuple[Judge, Answers]) -> None:
    asked, answers = judge
    answers.of = lambda body: "Very good!"
    with pytest.raises(UserError, match=r"no score for any of 12 answers\. The first: there is no score"):
        asked.judged(QUESTIONS)


def test_models_that_choose_their_temperature_are_asked_without(judge: tuple[Judge, Answers]) -> None:
    asked, answers = judge
    answers.of = lambda body: (
        (400, {"error": {"message": "Unsupported value: 'temperature'"}}) if "temperature" in body else "score: 4"
    )
    assert {each.score for each in asked.judged(QUESTIONS)} == {4}
    assert len(answers.seen) == 13


def test_an_own_question_has_its_places_filled_once() -> None:
    settings = JudgeSettings("https://host/v1", "m", "Q {prompt} A {answer} R {reference} {other}")
    text = settings.question("p {answer}", "a {reference}", "r")
    assert text.startswith("Q p {answer} A a {reference} R r {other}\n")
    assert "score: NUMBER" in text
    assert "has no place for the answer" in replace(settings, judge_prompt="How is it?").problems()[0]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"judge": f"https://user:{KEY}@host/v1"}, "judge is not an address"),
        ({"judge": f"https://host/v1?key={KEY}"}, "judge is not an address"),
        ({"judge_key": KEY}, "Do not give the key itself"),
        ({"judge": "http://host/v1", "judge_key": "JUDGE_KEY"}, "would be sent unencrypted"),
    ],
)
def test_a_key_that_is_given_in_the_wrong_place_is_not_repeated(given: dict[str, str], said: str) -> None:
    settings = EvaluationSettings(generate=["judge"], **{"judge": "https://host/v1", "judge_model": "m", **given})  # type: ignore[arg-type]
    (problem,) = settings.problems("causal_lm")
    assert said in problem
    assert KEY not in problem
    for key in ("JUDGE_KEY", "projects/mine/secrets/judge/versions/latest"):
        right = EvaluationSettings(generate=["judge"], judge="https://host/v1", judge_model="m", judge_key=key)
        assert not right.problems("causal_lm")


def test_the_key_may_be_in_secret_manager(monkeypatch: pytest.MonkeyPatch) -> None:
    class Secrets(JsonHandler):
        def do_GET(self) -> None:
            if self.path == "/v1/projects/mine/secrets/judge/versions/latest:access":
                self.send(200, {"payload": {"data": base64.b64encode(f"{KEY}\n".encode()).decode()}})
            else:
                self.send(403, {"error": {"message": "Permission denied"}})

    name = "projects/mine/secrets/judge/versions/latest"
    with answering(server_of(Secrets)) as address, judging() as (judge_address, answers):
        monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_SECRETMANAGER", address)
        Judge(JudgeSettings(judge_address, "small", judge_key=name)).judged(QUESTIONS[:1])
        assert answers.seen[0][1]["Authorization"] == f"Bearer {KEY}"
        with pytest.raises(AccessDeniedError, match="Permission denied"):
            JudgeSettings(judge_address, "small", judge_key=name.replace("judge", "other")).key()


def scores(values: np.ndarray, name: str = "judge") -> ScoresWithText:
    """Scores of rows with one metric of text, NaN where it is not known."""
    rows = len(values)
    answers = [Answer(n, n, "", "", "", "", 1, True, Judgement(None)) for n in range(rows)]
    others = LikelihoodScores.of(np.ones((rows, 3)))
    return ScoresWithText(others, TextScores(values[:, None].astype(np.float64), (name,)), answers)


def test_rows_without_a_judgement_are_left_out_of_both_and_never_zero() -> None:
    values = np.full(100, 8.0)
    values[:4] = np.nan
    ours = scores(values)
    assert ours.metrics()["judge"] == 8
    assert ours.rows_of("judge") == 96
    other = np.full(100, 6.0)
    other[4] = np.nan
    values[5] = 4.0
    pair = Comparison(*scores(values).paired_with(scores(other)), 1)
    assert pair.ours.rows_of("judge") == pair.theirs.rows_of("judge") == 95
    assert pair.difference("judge") == pytest.approx((94 * 8 + 4) / 95 - 6)
    result = better(ChampionGate("judge", 0.5, 0.95), scores(values), pair, Ranking("judge", True))
    assert result.passed
    assert "on the same 95 test rows" in result.why


def test_answers_to_five_of_many_rows_say_as_little_as_five_rows() -> None:
    both = []
    for value in (9.0, 1.0):
        answers = [Answer(n, n, "", "", "", "", 1, True) for n in range(5)]
        loss = LikelihoodScores.of(np.tile([value, 1.0, 0.0], (ROWS, 1)))
        both.append(ScoresWithText(loss, figures_of(answers, {"judge": np.full(5, value)}), answers))
    pair = Comparison(both[0], both[1], 1)
    found = better(ChampionGate("judge", confidence=0.95), pair.ours, pair, Ranking("judge", True))
    assert not found.passed
    assert found.why.endswith("on the same 5 test rows: a 95% interval takes 6 test rows")
    assert pair.ours.intervals()["judge"] == {"value": 9.0, "low": None, "high": None}
    assert pair.summary()["differences"]["judge"]["low"] is None
    assert pair.summary()["differences"]["loss"]["low"] is not None


def test_a_slice_in_which_nothing_was_answered_has_its_other_metrics() -> None:
    answers = [Answer(n, n, "", "", "", "", 1, True) for n in range(8)]
    losses = LikelihoodScores.of(np.ones((20, 3)))
    found = ScoresWithText(losses, figures_of(answers, {"judge": np.full(8, 9.0)}), answers)
    answered, not_answered = slices_of(["a"] * 12 + ["b"] * 8, found, found)
    assert answered["metrics"]["judge"]["value"] == 9
    assert not_answered["metrics"]["judge"] == {"value": None, "low": None, "high": None}
    assert not_answered["metrics"]["loss"]["value"] == 1
    assert not_answered["champion"]["judge"] is None


def test_too_few_judgements_pass_nothing() -> None:
    values = np.full(100, 9.0)
    values[:6] = np.nan
    assert np.isnan(scores(values).metrics()["judge"])
    gate = Gate("judge", ">=", 3).check(scores(values).metrics(), scores(values).why_unknown("judge"))
    assert not gate.passed
    assert gate.why == "only 94 of 100 rows have judge, fewer than 95%, wanted judge >= 3"
    ours, theirs = np.full(100, 9.0), np.full(100, 1.0)
    ours[:3], theirs[3:6] = np.nan, np.nan
    assert scores(ours).metrics()["judge"] == 9
    assert not scores(ours).why_unknown("judge")
    assert not scores(ours).why_unknown("loss")
    pair = Comparison(*scores(ours).paired_with(scores(theirs)), 4)
    result = better(ChampionGate("judge"), scores(ours), pair, Ranking("judge", True))
    assert not result.passed
    assert result.why == "too few rows have judge of both models, this one and version 4, which stays"


@pytest.mark.parametrize(("gain", "least", "most"), [(0.0, 0, 10), (0.2, 170, 200)])
def test_of_200_pairs_of_models_as_good_as_each_other_few_are_promoted(gain: float, least: int, most: int) -> None:
    promoted = 0
    for seed in range(200):
        generator = np.random.default_rng(seed)
        hardness = generator.random(ROWS)
        right = [
            np.where(generator.random(ROWS) < 0.3, generator.random(ROWS), hardness) < 0.6 + more
            for more in (gain, 0.0)
        ]
        pair = Comparison(scores(right[0], "exact_match"), scores(right[1], "exact_match"), 1)
        gate = ChampionGate("exact_match", confidence=0.95)
        result = better(gate, pair.ours, pair, Ranking("exact_match", True))
        promoted += result.passed
    assert least <= promoted <= most


def test_few_rows_that_differ_are_no_proof() -> None:
    right = np.ones(ROWS)
    theirs = right.copy()
    theirs[:4] = 0  # the bootstrap's interval lies above 0, McNemar's p is 0.125
    pair = Comparison(scores(right, "exact_match"), scores(theirs, "exact_match"), 1)
    ends = pair.ends("exact_match", 0.9)
    assert ends is not None
    assert ends[0] > 0
    gate = ChampionGate("exact_match", confidence=0.9)
    result = better(gate, pair.ours, pair, Ranking("exact_match", True))
    assert not result.passed
    assert "differ in too few rows" in result.why
