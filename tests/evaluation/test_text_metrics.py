"""The metrics of written text, ROUGE against the implementation that others use."""

from __future__ import annotations

import random

import pytest
from rouge_score.rouge_scorer import RougeScorer

from gpu_pipelines.errors import UserError
from gpu_pipelines.evaluation.generation.text_metrics import (
    contains,
    exact_match,
    json_matches,
    json_valid,
    rouge_1,
    rouge_2,
    rouge_l,
    words_of,
)

OURS = {"rouge1": rouge_1, "rouge2": rouge_2, "rougeL": rouge_l}


def test_rouge_is_that_of_rouge_score_on_english_texts() -> None:
    draw = random.Random(0)
    words = ["The", "cat", "sat", "on", "a", "mat,", "it's", "3.5", "dogs", "don't", "RUN-away", "(ok)"]
    theirs = RougeScorer(list(OURS), use_stemmer=False)
    seen = set()
    for _ in range(300):
        mine, reference = (" ".join(draw.choices(words, k=draw.randrange(0, 30))) for _ in range(2))
        expected = theirs.score(reference, mine)
        for name, metric in OURS.items():
            assert metric(mine, reference) == pytest.approx(expected[name].fmeasure, abs=1e-12), (mine, reference)
            seen.add(round(expected[name].fmeasure, 3))
    assert len(seen) > 100


def test_words_of_other_alphabets_count() -> None:
    assert words_of("Größe: 3 кота, 今日は") == ["größe", "3", "кота", "今", "日", "は"]
    assert rouge_1("кот спит", "кот ест") == pytest.approx(0.5)
    assert RougeScorer(["rouge1"]).score("кот", "кот")["rouge1"].fmeasure == 0  # why it is not taken


def test_the_vowels_of_other_alphabets_are_parts_of_words() -> None:
    # "His" and "her" differ by a vowel sign, which is no letter.
    assert words_of("उसका घर") == ["उसका", "घर"]
    assert rouge_1("उसका", "उसकी") == rouge_l("उसका", "उसकी") == 0
    assert words_of("ที่นี่") == ["ที่นี่"]
    assert words_of("İstanbul") == ["i\u0307stanbul"]
    assert words_of("1\ufe0f\u20e3 one") == ["1", "one"]


def test_white_space_and_the_form_of_letters_do_not_count_but_case_does() -> None:
    assert exact_match("  two\n words ", "two words") == 1
    assert exact_match("cafe\u0301", "caf\u00e9") == 1
    assert exact_match("Two words", "two words") == 0
    assert contains("The answer is  42.", "answer is 42") == 1
    assert contains("The answer is 4 2.", "42") == 0


def test_json_is_the_whole_text_and_has_no_nan() -> None:
    assert [json_valid(text) for text in ('{"a": [1, null]}', " 3 ", "null", '"x"')] == [1, 1, 1, 1]
    none = ("", "{", '{"a": NaN}', "-Infinity", "```json\n{}\n```", "[" * 100_000)
    assert [json_valid(text) for text in none] == [0] * 6


def test_a_schema_says_which_json_is_right() -> None:
    matches = json_matches({"type": "object", "required": ["city"], "properties": {"city": {"type": "string"}}})
    assert [matches(text, "") for text in ('{"city": "Bern"}', '{"city": 3}', "{}", "{")] == [1, 0, 0, 0]
    assert json_matches({"type": "null"})("null", "") == 1
    with pytest.raises(UserError, match="is not a JSON Schema"):
        json_matches({"type": "thing"})
