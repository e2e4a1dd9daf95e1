"""Several trainings whose checkpoints are ranked together: what they are called, and how they differ."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

#: What a turn of a loop is called in the place of its checkpoints; `of_this_training`.
_DIGEST = re.compile(r"[0-9a-f]{16}")
_LONGEST_NAME = 60
#: What Vertex AI appends to the name of a task in the place of its artifacts.
_NUMBER_OF_A_TASK = re.compile(r"_-?[0-9]+$")


def names_of(places: Sequence[str]) -> list[str]:
    """Names of trainings, after what differs in where their checkpoints are: as a rule the step, or the loop's turn.

    Args:
        places: directories or `gs://…`, each another.
    """
    paths = [place.rstrip("/").split("/") for place in places]
    shortest = min(map(len, paths))
    start = next((n for n in range(shortest) if len({path[n] for path in paths}) > 1), shortest)
    paths = [path[start:] for path in paths]
    shortest = min(map(len, paths))
    end = next((n for n in range(shortest) if len({path[-1 - n] for path in paths}) > 1), shortest)
    paths = [path[: len(path) - end] for path in paths]
    first = [_NUMBER_OF_A_TASK.sub("", next(iter(path), "")) for path in paths]
    for tried in (first, [next(iter(path), "") for path in paths], ["-".join(path) for path in paths]):
        found = [re.sub(r"[^\w.-]+", "-", name).strip("-.") for name in tried]
        if all(found) and len(set(found)) == len(found):
            return found
    return [f"training-{number}" for number in range(1, len(places) + 1)]


def named_by_settings(settings: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """New names of trainings that are called by digests, the turns of a loop: what each was told alone, `seed=2`.

    Args:
        settings: what trainings were told, by their names. All have names that are no digests, or what they were told
            does not tell them apart: they keep their names.
    """
    turns = {name: told for name, told in settings.items() if _DIGEST.fullmatch(name)}
    if len(turns) < 2:
        return {}
    told = {
        name: ",".join(f"{key}={value}" for key, value in alone.items()) for name, alone in differing(turns).items()
    }
    found = {name: re.sub(r"[^\w.=,-]+", "-", text).strip("-.") for name, text in told.items()}
    others = settings.keys() - turns.keys()
    are_names = all(text and len(text) <= _LONGEST_NAME for text in found.values())
    return found if are_names and len({*found.values(), *others}) == len(settings) else {}


def differing(settings: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The settings of trainings, by name, that are not the same in all."""
    names = dict.fromkeys(name for each in settings.values() for name in each)
    told = {name: {repr(each.get(name)) for each in settings.values()} for name in names}
    return {
        training: {name: each[name] for name in names if len(told[name]) > 1 and name in each}
        for training, each in settings.items()
    }
