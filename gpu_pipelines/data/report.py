"""The HTML report of `prepare_data`."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from gpu_pipelines.artifacts.dataset import CLASSES, LABEL_CONFLICTS, REJECTED, Dataset, Manifest
from gpu_pipelines.reports.page import image_data, render, write_page
from gpu_pipelines.tasks.batch_encoding import TYPE_IDS
from gpu_pipelines.tasks.tasks import task_named
from gpu_pipelines.tasks.text_tokenizer import load_tokenizer

CLASSES_SHOWN = 40
EXAMPLES_SHOWN = 20
REJECTED_SHOWN = 5
CONFLICTS_SHOWN = 10
BARS = 10
TEXTS_SHOWN = 8
CHARACTERS_SHOWN = 600
ROWS_LOOKED_AT = 20_000
#: Rows in whose text special tokens are looked for.
_FIRST_ROWS = 100


def write_report(directory: Path, path: Path) -> None:
    """Writes the report of a dataset.

    Args:
        directory: the dataset.
        path: the HTML file.
    """
    dataset = Dataset(directory)
    manifest = dataset.manifest
    classes = _classes(dataset)
    names = len(names_of_classes(manifest))
    texts = text_examples(dataset) if _is_text(dataset) else []
    image, tokens = manifest.features.get("image"), manifest.features.get("input_ids")
    sections = render(
        Path(__file__).with_name("report.html"),
        m=manifest,
        shape=image.shape if image else (),
        tokens=tokens.shape[0] if tokens else None,
        lengths=text_lengths(dataset) if tokens else [],
        padding=padding_share(dataset) if tokens else 0,
        texts=texts,
        marks_learned=any(part["learned"] for example in texts for part in example["parts"]),
        classes=classes,
        names=names,
        hidden_classes=names - len(classes),
        rejected_examples=_rejected_examples(directory / REJECTED),
        conflicts=_conflicts(directory / LABEL_CONFLICTS),
        examples=_examples(dataset) if image else [],
    )
    write_page(path, f"Data: {manifest.source}", sections)


def names_of_classes(manifest: Manifest) -> list[str]:
    """The classes, of which a row has one, or any number of."""
    return manifest.labels or list(manifest.preprocessing.get(CLASSES, ()))


def _names_of(row: Mapping[str, Any], manifest: Manifest) -> str:
    """The class or the classes of a row, for people; empty where there are none in the dataset."""
    if manifest.labels:
        return manifest.labels[row["label"]]
    names = names_of_classes(manifest)
    return ", ".join(names[place] for place in np.flatnonzero(row[CLASSES])) or "no class" if names else ""


def class_rows(dataset: Dataset) -> Mapping[str, Sequence[int]]:
    """How many rows of each split are of each class, in the order of `names_of_classes`."""
    manifest = dataset.manifest
    if manifest.labels or not names_of_classes(manifest):
        return manifest.class_rows
    splits = {name: dataset.split(name) for name in manifest.splits}
    return {
        name: np.sum([part[CLASSES].sum(axis=0) for part in split.columns(0, len(split), [CLASSES])], axis=0).tolist()
        for name, split in splits.items()
    }


def _classes(dataset: Dataset) -> list[dict[str, Any]]:
    manifest, found = dataset.manifest, class_rows(dataset)
    rows: list[dict[str, Any]] = [
        {"label": label, "rows": {split: found[split][index] for split in manifest.splits}}
        for index, label in enumerate(names_of_classes(manifest))
    ]
    if not rows:
        return []
    totals = [sum(row["rows"].values()) for row in rows]
    most = max(1, *totals)
    for row, total in zip(rows, totals, strict=True):
        row["share"] = round(100 * total / most, 1)
    if len(rows) > CLASSES_SHOWN:
        rows = sorted(rows, key=lambda row: -row["share"])[:CLASSES_SHOWN]
    return rows


def _rejected_examples(path: Path) -> dict[str, list[dict[str, str]]]:
    examples: dict[str, list[dict[str, str]]] = {}
    with path.open(encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            of_reason = examples.setdefault(row["reason"], [])
            if len(of_reason) < REJECTED_SHOWN:
                of_reason.append(row)
    return examples


def _conflicts(path: Path) -> list[dict[str, Any]]:
    """Pairs of classes with the same content, the most frequent first, and a row of each."""
    if not path.is_file():
        return []
    rows: Counter[tuple[str, str]] = Counter()
    first: dict[tuple[str, str], str] = {}
    with path.open(encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            classes = (row["other_label"], row["label"])
            rows[classes] += 1
            first.setdefault(classes, row["source"])
    return [
        {"classes": classes, "rows": number, "first": first[classes]}
        for classes, number in rows.most_common(CONFLICTS_SHOWN)
    ]


def _examples(dataset: Dataset) -> list[dict[str, str]]:
    """Two rounds of one row of each class, as far as they go; without classes the first rows."""
    train = dataset.split("train")
    if not dataset.manifest.labels:
        taken = train.take(np.arange(min(EXAMPLES_SHOWN, len(train))))
        rows_of = [{name: values[row] for name, values in taken.items()} for row in range(len(taken["image"]))]
        return [{"image": image_data(row["image"]), "label": _names_of(row, dataset.manifest)} for row in rows_of]
    labels = train.column("label")
    by_class = np.argsort(labels, kind="stable")
    _, starts, counts = np.unique(labels[by_class], return_index=True, return_counts=True)
    rows = [int(by_class[start + turn]) for turn in range(2) for start in starts[counts > turn]]
    taken = train.take(np.array(rows[:EXAMPLES_SHOWN]))
    return [
        {"image": image_data(image), "label": dataset.manifest.labels[label]}
        for image, label in zip(taken["image"], taken["label"], strict=True)
    ]


def text_lengths(dataset: Dataset) -> list[dict[str, Any]]:
    """A histogram of the texts of train by their tokens; of packed rows, of the documents or pieces in them."""
    longest = dataset.manifest.features["input_ids"].shape[0]
    lengths = _lengths_in_train(dataset)
    edges = np.unique(np.linspace(0, longest, BARS + 1).round().astype(int))
    counts, _ = np.histogram(lengths, bins=[*edges[:-1] + 1, edges[-1] + 1])
    return [
        {"range": f"{low + 1}–{high}", "texts": int(count), "share": round(100 * count / max(1, counts.max()), 1)}
        for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True)
    ]


def padding_share(dataset: Dataset) -> float:
    """Share of the tokens of train that only fill rows up, between 0 and 1."""
    longest = dataset.manifest.features["input_ids"].shape[0]
    rows = min(len(dataset.split("train")), ROWS_LOOKED_AT)
    return 1 - float(_lengths_in_train(dataset).sum()) / (rows * longest)


def text_examples(dataset: Dataset) -> list[dict[str, Any]]:
    """Rows spread over train, decoded, with their class or, of a language model, where they came from."""
    train = dataset.split("train")
    rows = np.unique(np.linspace(0, len(train) - 1, TEXTS_SHOWN).astype(int))
    examples: list[dict[str, Any]] = [{"name": source} for source in train.sources(rows.tolist())]
    taken = train.take(rows)
    # What stands between the texts of a pair is a special token.
    skips_special = "length" in taken and TYPE_IDS not in taken
    decode, parts_of = _decoder(dataset, skips_special=skips_special), _row_text(dataset) or _parts
    for number, example in enumerate(examples):
        row = {name: column[number] for name, column in taken.items()}
        example["name"] = _names_of(row, dataset.manifest) or example["name"]
        example["parts"] = _shortened(parts_of(row, decode))
    return examples


def learned_of_first_row(dataset: Dataset) -> str:
    """The first row of train as text, with « before and » after what is learned; empty where that is all of it.

    A chat template that marks too much or too little is seen here before anything is trained.
    """
    parts_of = _language_model_text(dataset)
    if not parts_of:
        return ""
    taken = dataset.split("train").take(np.zeros(1, int))
    parts = parts_of({name: column[0] for name, column in taken.items()}, _decoder(dataset, skips_special=False))
    if not any(part["learned"] for part in parts):
        return ""
    return "".join(f"«{part['text']}»" if part["learned"] else part["text"] for part in _shortened(parts))


def special_tokens_in_texts(dataset: Dataset) -> list[str]:
    """Special tokens that are letters in most of the first rows of train of a language model.

    So it is with chats that were rendered before: in a text, nothing is a special token.
    """
    parts_of = _language_model_text(dataset)
    if not parts_of:
        return []
    train = dataset.split("train")
    rows = min(len(train), _FIRST_ROWS)
    taken, decode = train.take(np.arange(rows)), _decoder(dataset, skips_special=True)
    texts = [
        "".join(part["text"] for part in parts_of({name: column[row] for name, column in taken.items()}, decode))
        for row in range(rows)
    ]
    tokenizer = load_tokenizer(dataset.directory / str(dataset.manifest.tokenizer))
    special = (token for token in tokenizer.get_added_tokens_decoder().values() if token.special)
    return sorted(token.content for token in special if sum(token.content in text for text in texts) > rows / 2)


def rows_with_prompts_of_train(dataset: Dataset, splits: Sequence[str]) -> int:
    """How many rows of some splits have a prompt that a row of train has too; 0 where rows have no prompts."""
    if "prompt" not in dataset.manifest.features:
        return 0
    in_train = set(_prompts_of(dataset, "train"))
    return sum(prompt in in_train for split in splits for prompt in _prompts_of(dataset, split))


def _prompts_of(dataset: Dataset, split: str) -> Iterator[bytes]:
    rows = dataset.split(split)
    for part in rows.columns(0, len(rows), ["prompt"]):
        for tokens, length in zip(part["prompt"], part["prompt_length"], strict=True):
            yield hashlib.sha256(tokens[:length]).digest()


def _language_model_text(dataset: Dataset) -> Any:
    """What makes text of a row of a language model; nothing of other tasks."""
    return _row_text(dataset) or ("loss_mask" in dataset.manifest.features and _parts)


def _is_text(dataset: Dataset) -> bool:
    return "input_ids" in dataset.manifest.features or _row_text(dataset) is not None


def _row_text(dataset: Dataset) -> Any:
    """What the task of a dataset shows rows by, where it says."""
    return task_named(dataset.manifest.task).load_row_text()


def _decoder(dataset: Dataset, *, skips_special: bool) -> Callable[[np.ndarray], str]:
    tokenizer = load_tokenizer(dataset.directory / str(dataset.manifest.tokenizer))
    return lambda tokens: str(tokenizer.decode(tokens.tolist(), skip_special_tokens=skips_special))


def _parts(row: dict[str, np.ndarray], decode: Callable[[np.ndarray], str]) -> list[dict[str, Any]]:
    """A row as text, in parts that are learned and parts that are not; where no more is to tell, in one."""
    tokens = row["input_ids"]
    if "loss_mask" not in row:
        return [{"text": decode(tokens[: row["length"]] if "length" in row else tokens), "learned": False}]
    mask, positions = row["loss_mask"].astype(bool), row["position_ids"]
    last = int(np.flatnonzero(positions == 0)[-1])
    used = len(tokens) if mask[last:].any() else last  # the rest is padding
    if mask[:used][positions[:used] > 0].all():  # nothing but what begins a document, which cannot be predicted
        return [{"text": decode(tokens[:used]), "learned": False}]
    edges = [0, *(np.flatnonzero(np.diff(mask[:used])) + 1).tolist(), used]
    return [{"text": decode(tokens[low:high]), "learned": bool(mask[low])} for low, high in pairwise(edges)]


def _shortened(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The parts as far as their text is shown."""
    shown, room = [], CHARACTERS_SHOWN
    for part in parts:
        text = part["text"]
        shown.append({**part, "text": text if len(text) <= room else f"{text[:room]}…"})
        room -= len(text)
        if room < 0:
            break
    return shown


def _lengths_in_train(dataset: Dataset) -> np.ndarray:
    train = dataset.split("train")
    first = train.columns(0, min(len(train), ROWS_LOOKED_AT))
    return np.concatenate([_lengths(columns) for columns in first] or [np.zeros(0, int)])


def _lengths(columns: dict[str, np.ndarray]) -> np.ndarray:
    if "length" in columns:
        return columns["length"]
    positions, mask = columns["position_ids"].ravel(), columns["loss_mask"].ravel()
    starts = np.flatnonzero(positions == 0)
    scored = np.add.reduceat(mask.astype(int), starts)
    return np.diff([*starts, len(positions)])[scored > 0]  # padding is scored nowhere
