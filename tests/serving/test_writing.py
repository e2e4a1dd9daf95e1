"""Texts that are continued together, and that they are those that each would be alone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from exported_models import export

from gpu_pipelines.serving.batching import Batcher
from gpu_pipelines.serving.predictors import load_predictor
from gpu_pipelines.serving.settings import ServerSettings
from gpu_pipelines.tasks.causal_lm.writing import GenerateWriter, JoinedWriter, Text, writer_of

WORDS = ("the", "bee", "sees", "cat", "a", "ant", "and", "an")


@pytest.fixture(scope="module")
def predictor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    model: Path = export("causal_lm", tmp_path_factory.mktemp("exported") / "model")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # of so small a model more only wait for each other
    yield load_predictor(model, ServerSettings())
    torch.set_num_threads(threads)


def texts(count: int, most: int) -> list[Text]:
    generator = random.Random(0)
    return [Text([generator.randrange(3, 40) for _ in range(generator.randint(1, 11))], most) for _ in range(count)]


@pytest.mark.filterwarnings("error::FutureWarning")
def test_texts_that_join_at_any_time_are_those_that_each_would_be_alone(predictor: Any) -> None:
    model, padding = predictor._model, 0
    alone, joined = texts(24, 15), texts(24, 15)
    writer = writer_of(model, padding)
    assert isinstance(writer, JoinedWriter)
    with torch.inference_mode():
        for text in alone:
            GenerateWriter(model, padding).write([text], lambda: False)
        waiting, going, most = list(joined), [], 0
        while waiting or going:
            going += [waiting.pop() for _ in range(min(len(waiting), 3))]
            most = max(most, len(going))
            writer.write(going, lambda: bool(waiting))
            going = [text for text in going if not text.is_done]
    assert most > 8
    assert [text.tokens for text in joined] == [text.tokens for text in alone]
    assert {len(text.tokens) - text.begun for text in joined} <= set(range(1, 16))


def test_a_text_ends_with_the_token_that_ends_texts(predictor: Any) -> None:
    (text,) = texts(1, 8)
    with torch.inference_mode():
        JoinedWriter(predictor._model, set()).write([text], lambda: False)
        (ended,) = texts(1, 8)
        JoinedWriter(predictor._model, {text.tokens[text.begun]}).write([ended], lambda: False)
    assert ended.is_done
    assert ended.tokens == text.tokens[: text.begun + 1]


def test_rules_of_a_generation_config_are_kept(predictor: Any) -> None:
    model = predictor._model
    before = model.generation_config.repetition_penalty
    try:
        model.generation_config.repetition_penalty = 1.5
        writer = writer_of(model, 0)
    finally:
        model.generation_config.repetition_penalty = before
    assert isinstance(writer, GenerateWriter)


def test_one_word_does_not_wait_for_a_large_request(predictor: Any) -> None:
    """128 rows are being continued when a request comes that wants a loss, and one that wants a token."""
    batcher = Batcher(predictor.predict, 32, 5, 1024, predictor.advance, predictor.writes_at_once)
    generator = random.Random(1)
    prompts = [" ".join(generator.choices(WORDS, k=generator.randint(1, 4))) for _ in range(128)]

    def rows(prompts: list[str], tokens: int) -> list[Any]:
        return [
            predictor.read({"prompt": each}, predictor.checked({"max_new_tokens": tokens})).row() for each in prompts
        ]

    order: list[str] = []
    large = batcher.submit(rows(prompts, 20))
    large.add_done_callback(lambda _: order.append("large"))
    while not batcher.writing:
        pass
    one_word, one_token = batcher.submit(rows(["bee"], 0)), batcher.submit(rows(["bee"], 1))
    for name, future in (("loss", one_word), ("token", one_token)):
        future.add_done_callback(lambda _, name=name: order.append(name))
    found, (loss,), (token,) = large.result(60), one_word.result(60), one_token.result(60)
    assert order == ["loss", "token", "large"]
    assert loss["loss"] == pytest.approx(token["loss"])
    assert "text" not in loss
    assert all(isinstance(each["text"], str) for each in (token, *found))
    batcher.close()
