"""A model that learned from chats answers chats: of requests, of tables, and as drift is measured on them."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from exported_models import export
from predicting import predicted, written
from server_process import started
from transformers import AutoModelForCausalLM

from gpu_pipelines.errors import UserError
from gpu_pipelines.exporting.gguf_tokenizer import GgufTokenizer
from gpu_pipelines.serving.predictors import load_predictor
from gpu_pipelines.serving.request_body import WrongRequest
from gpu_pipelines.serving.settings import ServerSettings
from gpu_pipelines.tasks.batch_encoding import BatchEncoder
from gpu_pipelines.tasks.causal_lm.chats import ends_of_answers
from gpu_pipelines.tasks.causal_lm.recipe import CausalLanguageModel
from gpu_pipelines.tasks.text_encoding import Chat, TextEncoder

#: With the functions that may be called, and an end of answers behind which a line ends, as ChatML has it. It is short:
#: the model takes 32 tokens.
TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% for message in messages %}"
    "{% if message.role == 'assistant' %}={{ message.content + eos_token }}\n{% else %}{{ message.content }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}={% endif %}"
)
ASKED = [{"role": "user", "content": "the bee"}]
ANSWERED = [*ASKED, {"role": "assistant", "content": "hums"}]
#: JSON that can be read, but not gone through by a function that calls itself.
DEEP: dict[str, Any] = json.loads('{"a": ' * 900 + "{}" + "}" * 900)
AGAIN = [*ANSWERED, {"role": "user", "content": "the cat"}, {"role": "assistant", "content": "sleeps"}]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = export("causal_lm", tmp_path_factory.mktemp("chats") / "model")
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    return directory


@pytest.fixture(scope="module")
def predictor(model: Path) -> Any:
    return load_predictor(model, ServerSettings())


def tokens(predictor: Any, instance: Any) -> list[int]:
    return list(predictor.read(instance, predictor.checked({})).row().tokens.tolist())


def test_what_is_asked_is_the_template_up_to_the_next_answer(model: Path, predictor: Any) -> None:
    encoder = TextEncoder.load(str(model))
    expected = encoder.conversation(Chat(ASKED), asks=True).tolist()
    for instance in ({"messages": ASKED}, {"prompt": ASKED}, {"messages": ANSWERED}):
        assert tokens(predictor, instance) == expected
    assert tokens(predictor, {"messages": AGAIN}) == encoder.conversation(Chat(AGAIN[:3]), asks=True).tolist()
    tools = [{"a": 1}]
    with_tools = encoder.conversation(Chat(ASKED, tools), asks=True).tolist()
    assert tokens(predictor, {"messages": ASKED, "tools": tools}) == with_tools != expected
    assert tokens(predictor, {"prompt": "the bee"}) != expected


def test_an_answer_ends_where_those_of_the_template_end(model: Path, tmp_path: Path) -> None:
    encoder = BatchEncoder(model)
    (end,) = ends_of_answers(encoder)
    assert end in encoder.special_tokens
    plain = export("causal_lm", tmp_path / "plain")
    assert ends_of_answers(BatchEncoder(plain)) == set()


def test_an_export_names_what_the_template_ends_an_answer_with(tmp_path: Path) -> None:
    model = export("causal_lm", tmp_path / "model")
    recipe = CausalLanguageModel.for_exported(model)
    loaded = recipe.load_exported(model)
    for name, template in (("other", "bos_token"), ("own", "eos_token")):
        (model / "chat_template.jinja").write_text(TEMPLATE.replace("eos_token", template))
        (tmp_path / name).mkdir()
        recipe.export(loaded, tmp_path / name)
    begin, end = recipe.tokenizer.begin, recipe.tokenizer.end
    read = AutoModelForCausalLM.from_pretrained(tmp_path / "other")
    assert read.generation_config.eos_token_id == [end, begin]
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "own").generation_config.eos_token_id == end
    # As other programs write: the end of an answer is what comes first.
    head = torch.nn.Linear(read.config.hidden_size, read.config.vocab_size)
    with torch.no_grad():
        head.weight.zero_()
        head.bias.zero_()[begin] = 1
    read.set_output_embeddings(head)
    written = read.generate(torch.tensor([[5, 6]]), do_sample=False, max_new_tokens=4)
    assert written.tolist() == [[5, 6, begin]]


def test_a_template_for_chats_with_functions_stays_with_the_model(tmp_path: Path) -> None:
    model = export("causal_lm", tmp_path / "model")
    # As transformers saves several of one tokenizer.
    (model / "chat_template.jinja").write_text(TEMPLATE)
    (model / "additional_chat_templates").mkdir()
    (model / "additional_chat_templates/tool_use.jinja").write_text("!" + TEMPLATE)
    recipe = CausalLanguageModel.for_exported(model)
    (tmp_path / "trained").mkdir()
    recipe.export(recipe.load_exported(model), tmp_path / "trained")
    asked = Chat(ASKED, [{"a": 1}])
    expected = TextEncoder.load(str(model)).conversation(asked, asks=True).tolist()
    served = load_predictor(tmp_path / "trained", ServerSettings())
    assert tokens(served, {"messages": ASKED, "tools": asked.tools}) == expected
    assert GgufTokenizer.read(tmp_path / "trained", 10_000).chat_templates == {
        "default": TEMPLATE,
        "tool_use": "!" + TEMPLATE,
    }


def test_what_the_system_says_in_a_column_beside_a_conversation_is_asked_with_it(model: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps({"system": "be kind", "messages": ASKED}))
    predicted(model, tmp_path / "rows.jsonl", tmp_path / "out")
    asked = [{"role": "system", "content": "be kind"}, *ASKED]
    assert [each["instance"] for each in written(tmp_path / "out")] == [{"messages": asked}]


@pytest.mark.parametrize("column", ["messages", "conversations"])
def test_of_a_table_with_a_text_beside_messages_the_messages_are_asked(
    model: Path, tmp_path: Path, column: str
) -> None:
    row = {"prompt": "the bee", "prompt_id": "1", column: AGAIN}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    predicted(model, tmp_path / "rows.jsonl", tmp_path / "out")
    assert [each["instance"] for each in written(tmp_path / "out")] == [{"messages": AGAIN}]
    (tmp_path / "trained.jsonl").write_text(json.dumps({**row, "completion": "hums"}))
    predicted(model, tmp_path / "trained.jsonl", tmp_path / "completions")
    assert [each["instance"] for each in written(tmp_path / "completions")] == [{"prompt": "the bee"}]


@pytest.mark.parametrize(
    ("instance", "told"),
    [
        ({"messages": []}, "messages is empty"),
        ({"messages": "hello"}, "messages is a text, not a list"),
        ({"messages": [{"role": "user"}]}, "malformed messages"),
        ({"messages": [{"role": "assistant", "content": "hums"}]}, "nothing but answers"),
        ({"messages": ASKED, "prompt": "x"}, "It has an unknown field 'prompt'"),
        ({"messages": ASKED, "tools": "{"}, "malformed tools"),
        ({"messages": ASKED, "tools": "[" * 10_000}, "malformed tools"),
        ({"messages": ASKED, "tools": [DEEP]}, "malformed tools"),
        ({"messages": [*ANSWERED, {**ANSWERED[1], "tool_calls": [DEEP]}, *ASKED]}, "malformed messages"),
        ({"messages": ASKED, "tools": [{"a": "a " * 60_000}]}, "send at most 100,000"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "surrogate"),
        ({"messages": [{"role": "user", "content": "a " * 60_000}]}, "send at most 100,000"),
        ({"prompt": []}, "prompt is empty"),
    ],
)
def test_what_is_wrong_with_a_chat_is_said(predictor: Any, instance: Any, told: str) -> None:
    with pytest.raises(WrongRequest) as caught:
        tokens(predictor, instance)
    assert told in str(caught.value)


def test_without_a_chat_template_a_chat_is_refused(tmp_path: Path) -> None:
    predictor = load_predictor(export("causal_lm", tmp_path / "plain"), ServerSettings())
    with pytest.raises(WrongRequest, match="messages cannot be rendered: the chat template refuses it"):
        tokens(predictor, {"messages": ASKED})


@pytest.mark.slow
def test_tables_of_chats_are_answered_as_the_server_does(model: Path, tmp_path: Path) -> None:
    chats = [ASKED, ANSWERED, AGAIN]
    rows = [*(json.dumps({"messages": chat}) for chat in chats), json.dumps({"messages": [{"role": "user"}]})]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    with (tmp_path / "rows.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["messages"], *([json.dumps(chat)] for chat in chats), ["hello"]])
    pq.write_table(pa.table({"prompt": pa.array([*chats, None])}), tmp_path / "rows.parquet")
    with started(model) as server:
        answer = server.predict([{"messages": chat} for chat in chats], max_new_tokens=3)
    served = answer.json()["predictions"]
    assert all(set(each) == {"loss", "tokens", "text"} for each in served)
    for name in ("rows.jsonl", "rows.csv", "rows.parquet"):
        output = tmp_path / f"out of {name}"
        done = predicted(model, tmp_path / name, output, 2, max_rejected="50%", max_new_tokens=3)
        assert (done.rows_read, done.rows_predicted) == (4, 3), name
        lines = written(output)
        assert [each["prediction"]["text"] for each in lines] == [each["text"] for each in served]
        assert np.allclose([each["prediction"]["loss"] for each in lines], [each["loss"] for each in served])
        assert lines[1]["instance"] == {"messages": ANSWERED}


def test_drift_is_measured_on_what_stands_before_the_first_answer(predictor: Any, model: Path) -> None:
    encoder = TextEncoder.load(str(model))
    for chat in (ANSWERED, AGAIN):
        encoded = encoder.chat(Chat(chat))
        padding = np.zeros(4, dtype=np.int32)  # no document fills a row alone
        row = {
            "input_ids": np.concatenate([encoded.tokens, padding])[None],
            "loss_mask": np.concatenate([encoded.targets, padding])[None],
            "position_ids": np.concatenate([np.arange(len(encoded.tokens)), np.arange(4)])[None],
        }
        (before,) = predictor.rows_of_dataset(row)
        (now,) = predictor.rows_of_documents([{"messages": chat}], 0)
        assert now.tokens.tolist() == before.tokens.tolist()
    (unanswered,) = predictor.rows_of_documents([{"messages": ASKED}], 0)
    assert isinstance(unanswered, WrongRequest), "the training rejects it as well"


def test_a_table_without_a_request_is_told_what_it_lacks(model: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps({"chosen": "a", "rejected": "b"}))
    with pytest.raises(UserError, match="has no column 'text'; it has chosen, rejected"):
        predicted(model, tmp_path / "rows.jsonl", tmp_path / "out")
