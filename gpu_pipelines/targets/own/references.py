"""What a compiled pipeline says of inputs that are not there: KFP compiles it, and no platform can run it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gpu_pipelines.errors import UserError

_ITEM, _FIELD = "loop-item", "-subvar-"


def require_inputs(spec: Mapping[str, Any], place: str) -> None:
    """Checks that what tasks get from the pipeline around them is an input of that.

    Args:
        spec: the pipeline.
        place: where it is from, for the message.

    Raises:
        UserError: it is none. KFP loses the fields of a loop's item where they are in a text, a list or a dictionary.
    """
    for task, name in _missing(spec):
        item, _, field = name.rpartition(_FIELD)
        if item and _ITEM in item:
            raise UserError(
                f"{place}: KFP loses {field!r} of a loop's item for {task}: it is in a text, a list or a dictionary.",
                f"Give the step the whole item, or item.{field} alone, as an input, and put them together in the step.",
            )
        raise UserError(
            f"{place}: {task} gets {name!r} of a pipeline that has no such input.", "Compile it anew with kfp 2.17."
        )


def _missing(spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Each task that gets what is not there, and what that is called."""
    for part in (spec["root"], *spec.get("components", {}).values()):
        known = part.get("inputDefinitions", {})
        for task, placed in part.get("dag", {}).get("tasks", {}).items():
            given = placed.get("inputs", {})
            for kind, word in (("parameters", "componentInputParameter"), ("artifacts", "componentInputArtifact")):
                for source in given.get(kind, {}).values():
                    if word in source and source[word] not in known.get(kind, {}):
                        yield task, source[word]
