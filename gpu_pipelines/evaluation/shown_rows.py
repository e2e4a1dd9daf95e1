"""The rows that a model does worst on, each with its image or the beginning of its text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from gpu_pipelines.artifacts.dataset import Dataset
from gpu_pipelines.reports.page import image_data

TEXT_SHOWN = 240


def shown_rows(worst: list[dict[str, Any]], dataset_directory: Path) -> list[dict[str, Any]]:
    """Rows of `test` as a report shows them: with `image`, or with `text` and the `prompt` before it.

    Args:
        worst: as `evaluation.json` names them.
        dataset_directory: where they are.
    """
    if not worst:
        return []
    dataset = Dataset(dataset_directory)
    rows = dataset.split("test").take(np.array([entry["row"] for entry in worst]))
    more: list[dict[str, str]]
    if "text" in worst[0]:
        return worst
    if "image" in rows:
        more = [{"image": image_data(image)} for image in rows["image"]]
    elif "input_ids" in rows and dataset.manifest.tokenizer:
        more = _texts(worst, rows, dataset_directory / dataset.manifest.tokenizer)
    else:
        more = [{} for _ in worst]
    return [{**entry, **shown} for entry, shown in zip(worst, more, strict=True)]


def _texts(worst: list[dict[str, Any]], rows: dict[str, np.ndarray], directory: Path) -> list[dict[str, str]]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    width = rows["input_ids"].shape[1]
    shown = []
    for number, entry in enumerate(worst):
        length = int(rows["length"][number]) if "length" in rows else width
        place = slice(entry["start"], entry["stop"]) if "start" in entry else slice(0, length)
        tokens = rows["input_ids"][number, place]
        # Of a document that is scored apart, what stands before its first scored token is the prompt.
        first = int(np.argmax(rows["loss_mask"][number, place] != 0)) if "start" in entry else 0
        # A token is at least one character, so that the tokens of a long text need not all be read.
        parts = tokens[max(0, first - TEXT_SHOWN - 8) : first], tokens[first : first + TEXT_SHOWN + 8]
        prompt, text = (tokenizer.decode(part.tolist()) for part in parts)
        shown.append({"prompt": _end_of(prompt), "text": _beginning_of(text)})
    return shown


def _beginning_of(text: str) -> str:
    return text if len(text) <= TEXT_SHOWN else f"{text[:TEXT_SHOWN]}…"


def _end_of(text: str) -> str:
    return text if len(text) <= TEXT_SHOWN else f"…{text[-TEXT_SHOWN:]}"
