"""Texts to datasets: every record accounted for, every token learned once, answers alone scored."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from tokenizers import Tokenizer

from gpu_pipelines.artifacts.dataset import SPLITS, Dataset, Manifest
from gpu_pipelines.data.prepare import prepare_data
from gpu_pipelines.data.report import learned_of_first_row, padding_share, special_tokens_in_texts, write_report
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.data.sources.row_streams import Meter, Problem
from gpu_pipelines.data.text.packing import Packer, packed_rows
from gpu_pipelines.data.text.sources import SYSTEM_BESIDE_TEXT, chat_in, message_of, messages_in
from gpu_pipelines.errors import UserError
from gpu_pipelines.prediction.settings import RowsToPredict
from gpu_pipelines.prediction.source_rows import RowSource
from gpu_pipelines.serving.predictor import TEXTS, Inputs
from gpu_pipelines.tasks.text_encoding import Chat, TextEncoder
from gpu_pipelines.tasks.text_tokenizer import TextTokenizer

HALVES = {"val_fraction": 0.25, "test_fraction": 0.25}


def write_lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def prepare(source: Path | str, directory: Path, task: str, **changes: Any) -> Manifest:
    return prepare_data(PrepareSettings(source=str(source), task=task, **{**HALVES, **changes}), directory)


def write_table(rows: pandas.DataFrame, path: Path) -> None:
    write = {
        ".jsonl": lambda: rows.to_json(path, orient="records", lines=True),
        ".csv": lambda: rows.to_csv(path, index=False),
        ".parquet": lambda: rows.to_parquet(path),
        ".arrow": lambda: rows.to_feather(path, compression="uncompressed"),
    }
    write[path.suffix]()


def texts_of_rows(directory: Path) -> str:
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer/tokenizer.json"))
    splits = (Dataset(directory).split(name) for name in SPLITS)
    rows = [row for split in splits for row in split.take(np.arange(len(split)))["input_ids"].tolist()]
    return "".join(tokenizer.decode_batch(rows))


def learned(directory: Path) -> list[str]:
    """What is to be learned, row by row and run by run, decoded."""
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer/tokenizer.json"))
    found = []
    for name in SPLITS:
        split = Dataset(directory).split(name)
        columns = split.take(np.arange(len(split)))
        for tokens, mask in zip(columns["input_ids"], columns["loss_mask"], strict=True):
            runs = np.split(tokens, np.flatnonzero(np.diff(mask)) + 1)
            marks = np.split(mask, np.flatnonzero(np.diff(mask)) + 1)
            found += [
                tokenizer.decode(run.tolist(), skip_special_tokens=False)
                for run, mark in zip(runs, marks, strict=True)
                if mark[0]
            ]
    return found


def test_the_packer_keeps_every_token_and_every_boundary() -> None:
    generator = np.random.default_rng(0)
    packer = Packer(16)
    documents = [np.arange(n) + 1000 * k for k, n in enumerate(generator.integers(2, 50, 200), start=1)]
    rows = []
    for document in documents:
        rows += packer.add(document, np.ones(len(document), np.uint8), "x")
    rows += packer.rest()
    assert sum(row.records for row in rows) == 200
    pairs = set()
    for row in rows:
        columns = packed_rows([row], 16, padding=0).columns
        tokens, mask, positions = (columns[key][0] for key in ("input_ids", "loss_mask", "position_ids"))
        assert tokens.shape == (16,)
        for place in np.flatnonzero(mask):
            assert positions[place] == positions[place - 1] + 1
            pair = (int(tokens[place - 1]), int(tokens[place]))
            assert pair not in pairs, "predicted once"
            pairs.add(pair)
    assert pairs == {(int(a), int(b)) for d in documents for a, b in pairwise(d)}
    assert sum(row.used for row in rows) / (16 * len(rows)) > 0.9


def test_classified_texts_keep_labels_and_text_and_bad_rows_have_reasons(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"body": f"text number {n} ünï", "kind": ("a", "b")[n % 2]} for n in range(80)]
    bad = [
        {"body": "", "kind": "a"},
        {"body": None, "kind": "a"},
        {"body": "x", "kind": ""},
        {"body": "\ud800", "kind": "a"},
    ]
    source = write_lines(tmp_path / "t.jsonl", rows + bad)
    with source.open("a") as file:
        file.write("{broken\n")
    columns = {"text_column": "body", "label_column": "kind"}
    manifest = prepare(source, tmp_path / "out", "text_classification", sequence_length=32, **columns)
    assert manifest.rows_read == 85
    assert manifest.rejected == {"malformed row": 1, "no label": 1, "no text": 2, "not Unicode": 1}
    tokenizer = Tokenizer.from_file(str(tmp_path / "out/tokenizer/tokenizer.json"))
    seen = {}
    for name in SPLITS:
        split = Dataset(tmp_path / "out").split(name)
        got = split.take(np.arange(len(split)))
        for tokens, length, label in zip(got["input_ids"], got["length"], got["label"], strict=True):
            seen[tokenizer.decode(tokens[:length].tolist())] = manifest.labels[label]
    assert seen == {row["body"]: row["kind"] for row in rows}
    again = prepare(source, tmp_path / "again", "text_classification", sequence_length=32, **columns)
    assert again == manifest
    other = tmp_path / "out/tokenizer"
    same = prepare(
        source, tmp_path / "same", "text_classification", sequence_length=32, tokenizer=str(other), **columns
    )
    files = {**same.tokenizer_files, "tokenizer.json": "another"}
    changed = Manifest.from_json({**same.to_json(), "tokenizer_files": files})
    assert changed.fingerprint != same.fingerprint, "the tokenizer is part of what a model learns from"
    write_report(tmp_path / "out", tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "Rows by class and split" in page
    assert "text number" in page


def test_documents_of_a_text_file_are_between_blank_lines(tmp_path: Path) -> None:
    documents = [f"document {n}\nsecond line <eos> {'word ' * (n % 7 * 20)}end" for n in range(60)]
    (tmp_path / "t.txt").write_bytes("\n \n\n".join(documents).encode() + b"\n\n\xff\xfe bad")
    manifest = prepare(tmp_path / "t.txt", tmp_path / "out", "causal_lm", sequence_length=64)
    assert manifest.rows_read == 61
    assert manifest.records_kept == 60
    assert manifest.rejected == {"not UTF-8": 1}
    whole = "".join(learned(tmp_path / "out"))
    assert all(whole.count(f"document {n}\n") == 1 for n in range(60))
    write_report(tmp_path / "out", tmp_path / "report.html")
    assert "documents in them" in (tmp_path / "report.html").read_text()
    train = Dataset(tmp_path / "out").split("train")
    tokens = train.take(np.arange(len(train)))["input_ids"]
    padding = TextTokenizer.read(tmp_path / "out/tokenizer").padding
    assert padding_share(Dataset(tmp_path / "out")) == pytest.approx(float((tokens == padding).mean()))
    assert f"{(tokens == padding).mean():.1%}" in (tmp_path / "report.html").read_text()


def test_without_packing_a_row_holds_one_document(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "t.jsonl", [{"text": f"short text {n}"} for n in range(60)])
    manifest = prepare(source, tmp_path / "out", "causal_lm", sequence_length=64, packing=False)
    assert sum(manifest.rows(split) for split in SPLITS) == 60


def test_of_a_completion_the_prompt_is_not_learned(tmp_path: Path) -> None:
    rows = [{"prompt": f"What is {n}?", "completion": f" It is {n}!"} for n in range(60)]
    long = {"prompt": "x", "completion": "y z " * 500}
    source = write_lines(tmp_path / "t.jsonl", [*rows, long])
    manifest = prepare(source, tmp_path / "out", "causal_lm", sequence_length=64)
    assert manifest.rejected == {"longer than sequence_length": 1}
    assert sorted(learned(tmp_path / "out")) == sorted(f" It is {n}!<eos>" for n in range(60))
    with pytest.raises(UserError, match="give more for sequence_length, or raise max_rejected"):
        prepare(source, tmp_path / "none", "causal_lm", sequence_length=64, max_rejected="0")


@pytest.mark.parametrize("template", ["plain", "without marks"])
def test_of_a_chat_the_answers_alone_are_learned(tmp_path: Path, template: str) -> None:
    def chat(n: int) -> list[dict[str, str]]:
        turns = [("user", f"hi {n}"), ("assistant", f"yes {n}"), ("user", "and?"), ("assistant", f"no {n}")]
        return [{"role": role, "content": content} for role, content in turns]

    source = write_lines(tmp_path / "t.jsonl", [{"messages": chat(n)} for n in range(60)] + [{"messages": [{}]}])
    prepare(source, tmp_path / "out", "causal_lm", sequence_length=128)
    if template == "without marks":
        (tmp_path / "out/tokenizer/chat_template.jinja").write_text(
            "{% for m in messages %}<{{ m.role }}>{{ m.content }}"
            "{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
            "{% if add_generation_prompt %}<assistant>{% endif %}"
        )
        own = str((tmp_path / "out/tokenizer").rename(tmp_path / "own"))
        manifest = prepare(source, tmp_path / "out", "causal_lm", sequence_length=128, tokenizer=own)
        assert manifest.rejected == {"malformed messages": 1}
    wanted = [f"{word} {n}<eos>" for n in range(60) for word in ("yes", "no")]
    assert sorted(learned(tmp_path / "out")) == sorted(wanted)


def asked(n: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"hi {n}"}]


def answered(n: int) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": f"yes {n}"}]


@pytest.mark.parametrize(
    "row_of",
    [
        lambda n: {"prompt": [*answered(-n), *asked(n)], "completion": answered(n)},
        lambda n: {"messages": [*asked(n), *answered(n)], "tools": [{"name": "now", "strict": None}]},
        lambda n: {"prompt": asked(n), "completion": answered(n), "tools": '[{"name": "now"}]'},
        lambda n: {
            "conversations": [
                {"from": "system", "value": "be kind"},
                {"from": "human", "value": f"hi {n}"},
                {"from": "gpt", "value": f"yes {n}"},
            ]
        },
        lambda n: {"messages": json.dumps([*asked(n), *answered(n)], indent=1)},
        lambda n: {"prompt": json.dumps(asked(n)), "completion": json.dumps(answered(n))},
        lambda n: {"prompt": f" {asked(n)}", "completion": str(answered(n)), "tools": "[{'name': None}]"},
        lambda n: {"messages": [{**answered(-n)[0], "weight": 0}, *asked(n), {**answered(n)[0], "weight": 1}]},
        lambda n: {
            "conversations": [
                {"from": "gpt", "value": "no", "weight": 0},
                {"from": "human", "value": f"hi {n}", "weight": None},
                {"from": "gpt", "value": f"yes {n}", "weight": None},
            ]
        },
        lambda n: {
            "messages": [
                {"role": role, "content": [{"type": "text", "text": text, "image_url": None}]}
                for role, text in (("user", f"hi {n}"), ("assistant", f"yes {n}"))
            ]
        },
    ],
    ids=[
        *("prompt of messages", "tools", "tools as JSON", "ShareGPT", "messages as JSON", "prompts as JSON"),
        *("prompts of pandas", "weights as OpenAI has them", "weights of ShareGPT", "parts as OpenAI has them"),
    ],
)
def test_conversations_are_read_as_trl_reads_them(row_of: Any, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "t.jsonl", [row_of(n) for n in range(60)])
    manifest = prepare(source, tmp_path / "out", "causal_lm", sequence_length=128)
    assert not manifest.rejected
    assert sorted(learned(tmp_path / "out")) == sorted(f"yes {n}<eos>" for n in range(60))
    text = learned_of_first_row(Dataset(tmp_path / "out"))
    assert re.search(r"user:\nhi (\d+)\nassistant:\n«yes \1<eos>»", text)


def test_messages_and_tools_that_are_none_are_rejected_with_the_reason(tmp_path: Path) -> None:
    call = {"type": "function", "function": {"name": "now", "arguments": {}}}
    bad: list[dict[str, Any]] = [
        {"messages": [{"role": "user"}, *answered(0)]},
        {"messages": [{"role": "assistant", "content": None}]},
        {"messages": [*asked(0), *answered(0)], "tools": "no JSON"},
        {"messages": [*asked(0), *answered(0)], "tools": ["a name"]},
        {"messages": [*asked(0), {"role": "assistant", "content": " "}]},
        {"messages": "a text among chats"},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a"}}]}, *answered(0)]},
        {"messages": [*asked(0), {**answered(0)[0], "weight": 0}]},
        {"messages": [*asked(0), {**answered(0)[0], "weight": 0.5}]},
        {"messages": [*asked(0), {"role": "bot", "content": "yes"}]},
    ]
    good: list[dict[str, Any]] = [{"messages": [*asked(n), *answered(n)], "tools": []} for n in range(99)]
    # The plain template has no calls of functions.
    called = {"messages": [*asked(99), {"role": "assistant", "tool_calls": [call], "content": ""}], "tools": []}
    manifest = prepare(write_lines(tmp_path / "t.jsonl", [*good, called, *bad]), tmp_path / "out", "causal_lm")
    malformed = {"malformed messages": 5, "malformed tools": 2}
    assert manifest.rejected == {**malformed, "no answer": 3, "chat cannot be rendered": 1}
    assert manifest.records_kept == 99
    assert "the roles are user, bot" in (tmp_path / "out" / "rejected.jsonl").read_text()


@pytest.mark.parametrize(
    "row_of",
    [
        lambda n: {"messages": [*asked(n), *answered(n)]},
        lambda n: {"conversations": [{"from": "human", "value": f"hi {n}"}, {"from": "gpt", "value": f"yes {n}"}]},
        lambda n: {"prompt": asked(n), "completion": answered(n), "tools": []},
    ],
    ids=["messages", "ShareGPT", "prompts"],
)
def test_what_the_system_says_may_stand_in_a_column_beside_a_conversation(row_of: Any, tmp_path: Path) -> None:
    rows = [{**row_of(n), "system": "be kind" if n % 2 else ""} for n in range(60)]
    manifest = prepare(write_lines(tmp_path / "t.jsonl", rows), tmp_path / "out", "causal_lm", sequence_length=128)
    assert not manifest.rejected
    assert sorted(learned(tmp_path / "out")) == sorted(f"yes {n}<eos>" for n in range(60))
    assert texts_of_rows(tmp_path / "out").count("system:\nbe kind\nuser:") == 30


@pytest.mark.parametrize("suffix", ["jsonl", "parquet", "arrow", "csv"])
@pytest.mark.parametrize("with_system", [0, 1], ids=["the first", "the second"])
def test_one_file_may_have_a_column_beside_conversations_and_another_none(
    with_system: int, suffix: str, tmp_path: Path
) -> None:
    (tmp_path / "chats").mkdir()
    for part in range(2):
        rows = pandas.DataFrame([{"messages": [*asked(n), *answered(n)]} for n in range(30 * part, 30 * part + 30)])
        if part == with_system:
            rows["system"] = "be kind"
        if suffix == "csv":
            rows["messages"] = rows["messages"].map(json.dumps)
        write_table(rows, tmp_path / f"chats/{part}.{suffix}")
    settings = RowsToPredict(source=str(tmp_path / "chats"), task="causal_lm", label_column="")
    inputs = Inputs(TEXTS, "prompt", chats=("messages",))
    source = RowSource(settings, inputs, "", tmp_path / "scratch")
    given = [row.instance for piece in source.pieces(Meter(source.files)) for row in piece.rows]
    assert [each["messages"][0]["role"] for each in given].count("system") == 30
    manifest = prepare(tmp_path / "chats", tmp_path / "out", "causal_lm", sequence_length=128)
    assert not manifest.rejected
    assert texts_of_rows(tmp_path / "out").count("system:\nbe kind\nuser:") == 30


def test_instructions_with_their_answers_are_conversations_as_in_alpaca(tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    rows: list[dict[str, Any]] = [{"instruction": f"hi {n}", "output": f"yes {n}"} for n in range(30)]
    write_lines(tmp_path / "rows/0.jsonl", rows)
    about = [{"instruction": f"say {n}", "input": f"it {n}" if n % 2 else "", "output": f"no {n}"} for n in range(30)]
    bad = [
        {"instruction": "", "input": None, "output": "yes"},
        {"instruction": "hi", "output": ["yes"]},
        {"instruction": "hi", "input": "", "output": " "},
    ]
    write_lines(tmp_path / "rows/1.jsonl", [{**row, "system": "be kind"} for row in [*about, *bad]])
    manifest = prepare(tmp_path / "rows", tmp_path / "out", "causal_lm", sequence_length=128)
    assert manifest.rejected == {"no text": 2, "no answer": 1}
    expected = [f"{said} {n}<eos>" for said in ("yes", "no") for n in range(30)]
    assert sorted(learned(tmp_path / "out")) == sorted(expected)
    texts = texts_of_rows(tmp_path / "out")
    assert texts.count("system:\nbe kind\nuser:\nsay ") == 30
    assert all(f"user:\nsay {n}\nit {n}\nassistant:\nno {n}" in texts for n in range(1, 30, 2))
    settings = RowsToPredict(source=str(tmp_path / "rows"), task="causal_lm", label_column="")
    source = RowSource(settings, Inputs(TEXTS, "prompt", chats=("messages",)), "", tmp_path / "scratch")
    given = [row for piece in source.pieces(Meter(source.files)) for row in piece.rows]
    assert [row.instance["messages"] for row in given[:2]] == [[*asked(n), *answered(n)] for n in range(2)]
    assert [row.value.reason for row in given[-3:-1]] == ["no text", "no text"]


def test_what_the_system_says_beside_a_text_or_a_message_of_its_own(tmp_path: Path) -> None:
    both = [{"role": "system", "content": "be short"}, *asked(0), *answered(0)]
    chat = chat_in([both], None, "be kind")
    assert isinstance(chat, Chat)
    assert chat.messages == both
    rows = [{"prompt": f"hi {n}", "completion": f"yes {n}", "system": "be kind" if n < 5 else None} for n in range(60)]
    manifest = prepare(write_lines(tmp_path / "t.jsonl", rows), tmp_path / "out", "causal_lm")
    assert manifest.rejected == {"system beside a text": 5}
    settings = RowsToPredict(source=str(tmp_path / "t.jsonl"), task="causal_lm", label_column="")
    source = RowSource(settings, Inputs(TEXTS, "prompt", chats=("messages",)), "", tmp_path / "scratch")
    values = [row.value for piece in source.pieces(Meter(source.files)) for row in piece.rows]
    assert values == [*[SYSTEM_BESIDE_TEXT] * 5, *(f"hi {n}" for n in range(5, 60))]
    unreadable = chat_in([[*asked(0), *answered(0)]], None, "be \udce9")
    assert isinstance(unreadable, Problem)
    assert unreadable.reason == "not UTF-8"


def test_several_parts_of_a_message_are_lines_of_it() -> None:
    parts = [{"type": "text", "text": "Read this."}, {"type": "text", "text": "What is it?"}]
    assert message_of({"role": "user", "content": parts}) == {"role": "user", "content": "Read this.\nWhat is it?"}


def test_a_text_that_is_no_list_of_messages_stays_a_text(tmp_path: Path) -> None:
    texts = ['[{"name": "now"}]', "[{", '["role"]', "[{" * 100_000, "[{'a'}]", "[{}] + x", "[{}], 1"]
    assert [messages_in(text) for text in texts] == texts
    rows = [{"messages": f"a plain text {n}"} for n in range(60)]
    manifest = prepare(
        write_lines(tmp_path / "t.jsonl", rows),
        tmp_path / "out",
        "causal_lm",
        sequence_length=64,
        text_column="messages",
    )
    assert not manifest.rejected
    assert "".join(learned(tmp_path / "out")).count("a plain text") == 60


def test_the_report_marks_what_is_learned(tmp_path: Path) -> None:
    rows = [{"prompt": f"What is {n}?", "completion": f" It is {n}!"} for n in range(60)]
    prepare(write_lines(tmp_path / "t.jsonl", rows), tmp_path / "out", "causal_lm", sequence_length=64)
    write_report(tmp_path / "out", tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert re.search(r"What is (\d+)\?<mark> It is \1!&lt;eos&gt;</mark>", page)
    assert "Marked is what is learned" in page
    texts = [{"text": f"number {n} of many"} for n in range(60)]
    prepare(write_lines(tmp_path / "t.jsonl", texts), tmp_path / "all", "causal_lm", sequence_length=64)
    assert learned_of_first_row(Dataset(tmp_path / "all")) == ""
    write_report(tmp_path / "all", tmp_path / "report.html")
    assert "<mark>" not in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("form", ["text", "completion", "preference", "messages"])
def test_special_tokens_in_texts_are_found_where_most_texts_have_them(form: str, tmp_path: Path) -> None:
    TextEncoder.train(["user: hi. assistant: yes, of course."] * 50, 400, ends=False).save(tmp_path / "made", 64)
    rows_of: dict[str, Any] = {
        "text": lambda n: {"text": f"<bos>user: hi {n}<eos>"},
        "completion": lambda n: {"prompt": f"user: hi {n}", "completion": f"yes {n}<bos><eos>"},
        "preference": lambda n: {"prompt": f"<bos>hi {n}", "chosen": f"yes {n}<eos>", "rejected": f"no {n}<eos>"},
        "messages": lambda n: {"messages": [*asked(n), *answered(n)]},
    }
    source = write_lines(tmp_path / "t.jsonl", [rows_of[form](n) for n in range(60)])
    task = "preference" if form == "preference" else "causal_lm"
    prepare(source, tmp_path / "out", task, sequence_length=64, tokenizer=str(tmp_path / "made"))
    found = special_tokens_in_texts(Dataset(tmp_path / "out"))
    assert found == ([] if form == "messages" else ["<bos>", "<eos>"])


@pytest.mark.parametrize("task", ["text_classification", "causal_lm"])
def test_the_samples_come_from_python_itself(tmp_path: Path, task: str) -> None:
    sample = {"text_classification": "sample:docstrings", "causal_lm": "sample:documentation"}[task]
    manifest = prepare_data(PrepareSettings(source=sample, task=task), tmp_path)
    assert manifest.records_kept + manifest.duplicates == manifest.rows_read > 200
    assert not manifest.rejected
    assert len(manifest.labels) == (8 if task == "text_classification" else 0)


def test_what_cannot_be_prepared_is_said(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "t.jsonl", [{"words": "x"}] * 20)
    (tmp_path / "bert").mkdir()
    (tmp_path / "bert/config.json").write_text('{"model_type": "bert"}')
    for task, changes, message in (
        ("causal_lm", {}, "no columns 'prompt' and 'completion'"),
        ("text_classification", {}, "no column 'text'"),
        ("causal_lm", {"text_column": "words", "tokenizer": str(tmp_path)}, "cannot be loaded"),
        ("causal_lm", {"text_column": "words", "tokenizer": str(tmp_path / "bert")}, "has no tokens: neither"),
        ("causal_lm", {"sequence_length": 4}, "sequence_length is 4"),
    ):
        with pytest.raises(UserError, match=message):
            prepare(source, tmp_path / "out", task, **changes)
    with pytest.raises(UserError, match="sample:docstrings"):
        prepare("sample:digits", tmp_path / "out", "text_classification")
