"""The metrics of a script: the lines that it wrote, and what its framework has logged beside its checkpoints."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gpu_pipelines.training.script.event_files import NAMES, scalars_in

#: The file in which transformers' Trainer keeps its log, in each checkpoint, and that of Lightning's CSVLogger.
_OF_TRAINER, _OF_LIGHTNING = "trainer_state.json", "metrics.csv"
#: What they log that is no curve: the time of the whole, the epoch of the step, and a -1 of Lightning's.
_NO_CURVES = ("epoch", "total_flos", "_runtime", "_per_second", "hp_metric")


def read_metrics(path: Path) -> list[dict[str, float]]:
    """The entries of a metrics file, by step; if a step has a metric twice, after a continuation, the last counts.

    A line that is not an entry is left out with a warning: the training is done, and should not fail for it.
    """
    if not path.is_file():
        return []
    entries: dict[float, dict[str, float]] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        entry = _entry(line)
        if entry is None:
            print(f"{path.name}, line {number}, is not a JSON object with a number step: left out", flush=True)
        else:
            # Losses of train and val of one step often come in two lines.
            entries.setdefault(entry["step"], {}).update(entry)
    found = [entries[step] for step in sorted(entries)]
    diverged = {name: entry["step"] for entry in reversed(found) for name in entry if not math.isfinite(entry[name])}
    for name, step in diverged.items():
        print(f"warning: {name} is not finite at step {step:g}, and maybe later: these values are left out", flush=True)
    return found


def _entry(line: str) -> dict[str, float] | None:
    try:
        content = json.loads(line)
    except ValueError:
        return None
    if not isinstance(content, dict):
        return None
    numbers = {
        name: number
        for name, value in content.items()
        if not isinstance(value, (str, bool)) and (number := _number(value)) is not None
    }
    return numbers if math.isfinite(numbers.get("step", math.nan)) else None


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
    except OverflowError:  # JSON's integers have no bound
        return math.inf


def add_logged(folder: Path, metrics: Path) -> None:
    """Appends to the metrics of a script what its framework has logged beyond their last step, if it has.

    Args:
        folder: in which the script has left its checkpoints.
        metrics: its metrics file.
    """
    lines = metrics.read_text(encoding="utf-8", errors="replace").splitlines() if metrics.is_file() else []
    last = max((entry["step"] for line in lines if (entry := _entry(line))), default=-1.0)
    logged = [entry for entry in _logged(folder) if entry["step"] > last]
    if logged:
        with metrics.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(entry) + "\n" for entry in logged)


def _logged(folder: Path) -> Iterable[dict[str, float]]:
    """The entries of the logs in a folder, oldest first; TensorBoard's if there are no others: they say the same."""
    events = (entry for path in _oldest_first(folder.rglob(NAMES)) for entry in scalars_in(path))
    return [*_of_trainer(folder), *_of_lightning(folder)] or _curves(events)


def _of_trainer(folder: Path) -> Iterator[dict[str, float]]:
    # Each state of the Trainer has the log from the beginning.
    states = _oldest_first([*folder.glob(_OF_TRAINER), *folder.glob(f"*/{_OF_TRAINER}")])
    for path in states[-1:]:
        try:
            history = json.loads(path.read_text(encoding="utf-8"))["log_history"]
            yield from _curves(entry for entry in history if isinstance(entry, dict))
        except (ValueError, KeyError, TypeError):  # a killed program has left a part of it
            continue


def _of_lightning(folder: Path) -> Iterator[dict[str, float]]:
    for path in _oldest_first(folder.rglob(_OF_LIGHTNING)):
        with path.open(encoding="utf-8", errors="replace", newline="") as file:
            yield from _curves(csv.DictReader(file))


def _oldest_first(paths: Iterable[Path]) -> list[Path]:
    return sorted(paths, key=lambda path: path.stat().st_mtime)


def _curves(entries: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, float]]:
    """The numbers of each entry that are points of curves."""
    for entry in entries:
        found = {}
        for name, value in entry.items():
            number = _number(value)
            if number is not None and not name.endswith(_NO_CURVES):
                found[name] = number
        if len(found) > 1 and math.isfinite(found.get("step", math.nan)):
            yield {**found, "step": int(found["step"])}
