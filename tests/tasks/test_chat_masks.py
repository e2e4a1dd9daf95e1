"""What is learned of a chat is what TRL learns of it, whether a template marks the answers or not."""

from __future__ import annotations

import json
import re
from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpu_pipelines.tasks.text_encoding import CannotEncodeError, Chat, TextEncoder

#: What a template writes that is one token of its models.
SPECIAL = re.compile(r"<\|\w+\|>|<\w+_of_turn>|</?think>")
ANSWERS = ["yes, 3", "no", "I think so: 7.", "ok"]
CALL = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Berne"}}}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells it.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


@pytest.fixture(scope="module")
def words() -> Any:
    texts = ["user assistant system model", "hi there", "and then?", *ANSWERS, "weather Berne sunny"] * 30
    return TextEncoder.train(texts, 600, ends=False)


def template_of_trl(name: str) -> str:
    """A template as TRL has it, read without importing TRL."""
    spec = find_spec("trl")
    assert spec is not None
    assert spec.submodule_search_locations
    return (Path(spec.submodule_search_locations[0]) / "chat_templates" / f"{name}.jinja").read_text(encoding="utf-8")


@pytest.fixture
def encoder_of(words: TextEncoder) -> Any:
    def made(name: str) -> tuple[TextEncoder, Any]:
        tokenizer = deepcopy(words._tokenizer)
        tokenizer.chat_template = template_of_trl(name)
        tokenizer.add_tokens(sorted(set(SPECIAL.findall(tokenizer.chat_template))), special_tokens=True)
        return TextEncoder(tokenizer), tokenizer

    return made


def turns(number: int) -> list[dict[str, Any]]:
    found = []
    for turn in range(number):
        found += [{"role": "user", "content": f"hi {turn}?"}, {"role": "assistant", "content": ANSWERS[turn]}]
    return found


def learned(tokenizer: Any, encoded: Any) -> list[str]:
    """The runs of learned tokens, as text."""
    edges = np.flatnonzero(np.diff(encoded.targets)) + 1
    runs = zip(np.split(encoded.tokens, edges), np.split(encoded.targets, edges), strict=True)
    return [tokenizer.decode(tokens, skip_special_tokens=False) for tokens, targets in runs if targets[0]]


@pytest.mark.parametrize(
    ("name", "number", "begin"),
    [
        *((name, n, 0) for name in ("llama3", "gemma3", "phi3", "cohere2", "qwen3_instruct_2507") for n in (1, 2, 4)),
        # The others refuse a conversation that begins with an answer.
        *((name, 4, 1) for name in ("llama3", "phi3", "qwen3_instruct_2507")),
    ],
)
def test_of_a_template_without_marks_is_learned_what_trl_learns_of_its_marked_one(
    name: str, number: int, begin: int, encoder_of: Any
) -> None:
    encoder, tokenizer = encoder_of(name)
    encoded = encoder.chat(Chat(turns(number)[begin:]))
    marked = tokenizer.apply_chat_template(
        turns(number)[begin:],
        chat_template=template_of_trl(f"{name}_training"),
        tokenize=True,
        return_dict=True,
        return_assistant_tokens_mask=True,
    )
    assert encoded.tokens.tolist() == marked["input_ids"]
    assert encoded.targets.tolist() == marked["assistant_masks"]
    assert sum(encoded.targets) > number


def test_a_template_that_drops_earlier_thoughts_shows_its_answers_all_the_same(encoder_of: Any) -> None:
    encoder, tokenizer = encoder_of("qwen3")
    answers = ["<think>\nhm\n</think>\n\nyes, 3", "<think>\nso\n</think>\n\nno"]
    chat = turns(2)
    chat[1]["content"], chat[3]["content"] = answers
    found = learned(tokenizer, encoder.chat(Chat(chat)))
    assert found == ["yes, 3<|im_end|>\n", "<think>\nso\n</think>\n\nno<|im_end|>\n"]


def test_calls_of_tools_are_learned_and_what_they_answer_is_not(encoder_of: Any) -> None:
    encoder, tokenizer = encoder_of("qwen2_5")
    chat = [
        {"role": "user", "content": "weather?"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "sunny"},
        {"role": "assistant", "content": "sunny there"},
    ]
    encoded = encoder.chat(Chat(chat, [TOOL]))
    call, answer = learned(tokenizer, encoded)
    assert '"name": "weather", "arguments": {"city": "Berne"}' in call
    assert "tool_response" not in call
    assert answer == "sunny there<|im_end|>\n"
    assert "Tells it." in tokenizer.decode(encoded.tokens)


@pytest.mark.parametrize("name", ["llama3", "llama3_training"])
def test_of_a_prompt_nothing_is_learned_not_even_its_answers(name: str, encoder_of: Any) -> None:
    encoder, tokenizer = encoder_of(name)
    assert learned(tokenizer, encoder.chat(Chat(turns(2), given=3))) == ["no<|eot_id|>"]


@pytest.mark.parametrize("name", ["llama3", "llama3_training", "qwen3", "qwen3_training"])
def test_an_answer_of_weight_0_is_not_learned(name: str, encoder_of: Any) -> None:
    encoder, tokenizer = encoder_of(name)
    chat = turns(4)
    for place, weight in ((1, 0), (3, 1), (5, 0.0)):
        chat[place]["weight"] = weight
    encoded, whole = encoder.chat(Chat(chat)), encoder.chat(Chat(turns(4)))
    every = learned(tokenizer, whole)
    assert learned(tokenizer, encoded) == [every[1], every[3]]
    assert encoded.tokens.tolist() == whole.tokens.tolist()


def test_a_template_that_hides_an_answer_is_refused(encoder_of: Any) -> None:
    encoder, tokenizer = encoder_of("llama3")
    shown = "m.content if loop.last or m.role == 'user'"
    tokenizer.chat_template = "{% for m in messages %}{{ m.role }}{{ " + shown + " }};{% endfor %}"
    with pytest.raises(CannotEncodeError, match="does not show message 2"):
        encoder.chat(Chat(turns(2)))


ASKED, CALLED = {"role": "user", "content": "weather?"}, {"role": "assistant", "content": "", "tool_calls": [CALL]}


@pytest.mark.parametrize(
    ("name", "messages", "problem"),
    [
        ("qwen3", [{"role": "developer", "content": "be kind"}, *turns(1)], "message 1, of the role 'developer'"),
        ("qwen3_training", [ASKED, {"role": "function", "content": "sunny"}, *turns(1)], "message 2"),
        # Another message says the same, as an answer does of what a function gave.
        ("phi3", [ASKED, {"role": "tool", "content": ANSWERS[0]}, *turns(1)], "message 2, of the role 'tool'"),
        ("llama3", [ASKED, CALLED, *turns(1)], "the calls of functions in message 2"),
        ("llama3", [ASKED, {**CALLED, "content": "I look"}], "the calls of functions in message 2"),
    ],
)
def test_what_a_template_passes_over_is_refused_where_it_would_be_learned(
    name: str, messages: list[dict[str, Any]], problem: str, encoder_of: Any
) -> None:
    encoder, _ = encoder_of(name)
    for learn in (encoder.chat, encoder.conversation):
        with pytest.raises(CannotEncodeError, match=f"does not show {problem}"):
            learn(Chat(messages))
    assert len(encoder.conversation(Chat(messages), asks=True))


@pytest.mark.parametrize("name", ["qwen2_5", "qwen2_5_training", "qwen3", "llama3_1", "deepseekv3"])
def test_arguments_of_calls_may_be_json_as_in_openais_api(name: str, encoder_of: Any) -> None:
    encoder, tokenizer = encoder_of(name)
    function = {**CALL["function"], "arguments": json.dumps(CALL["function"]["arguments"])}  # type: ignore[dict-item]
    found = [
        encoder.chat(Chat([ASKED, {**CALLED, "tool_calls": [call]}, {"role": "tool", "content": "sunny"}, *turns(1)]))
        for call in (CALL, {**CALL, "function": function})
    ]
    assert found[0].tokens.tolist() == found[1].tokens.tolist()
    call = next(text for text in learned(tokenizer, found[1]) if "weather" in text)
    assert '{"city": "Berne"}' in call


def test_what_is_said_beside_a_call_may_be_left_out(encoder_of: Any) -> None:
    encoder, tokenizer = encoder_of("llama3_1")
    (found,) = learned(tokenizer, encoder.chat(Chat([ASKED, {**CALLED, "content": "I look"}])))
    assert '"weather"' in found


def test_a_token_that_begins_in_the_blank_before_an_answer_is_learned(words: TextEncoder) -> None:
    tokenizer = deepcopy(words._tokenizer)
    # Mistral's: what the system says is shown before the next answer alone, so the text up to an answer is another.
    tokenizer.chat_template = (
        "{% for message in messages %}"
        "{% if message.role == 'user' %}{{ messages[0].content if loop.last else '' }}{{ '[' + message.content + ']' }}"
        "{% elif message.role == 'assistant' %}{{ ' ' + message.content + eos_token }}{% endif %}{% endfor %}"
    )
    said = [
        ("system", "hi there"),
        ("user", "hi"),
        ("assistant", "Berne"),
        ("user", "and then?"),
        ("assistant", "sunny"),
    ]
    messages = [{"role": role, "content": content} for role, content in said]
    encoded = TextEncoder(tokenizer).chat(Chat(messages))
    assert learned(tokenizer, encoded) == [" Berne<eos>", " sunny<eos>"]
