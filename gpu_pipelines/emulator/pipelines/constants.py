"""Constants that contain outputs and parameters of a pipeline, as `f"{task.output}-a"` and `[task.output]`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from gpu_pipelines.numbers import as_protobuf_writes

_PARAMETER = re.compile(r"\{\{\$\.inputs\.parameters\['([^']+)'\]\}\}")


def filled(
    value: Any, inputs: Mapping[str, Any], others: Mapping[str, str] | None = None, *, is_text: bool = False
) -> Any:
    """A constant with its placeholders replaced, at any depth.

    A text that is only a placeholder gets the type of its value; within a longer text the value becomes text.

    Args:
        value: the constant.
        inputs: the parameters of its task. Placeholders of other parameters stay.
        others: the values of other placeholders.
        is_text: whether the constant is for a text, to which a lone output is converted as well.
    """
    if isinstance(value, dict):
        return {key: filled(each, inputs, others) for key, each in value.items()}
    if isinstance(value, list):
        return [filled(each, inputs, others) for each in value]
    if not isinstance(value, str) or "{{$" not in value:
        return value
    whole = _PARAMETER.fullmatch(value)
    if whole and whole[1] in inputs and not is_text:
        return inputs[whole[1]]
    # Placeholders of artifacts, and of the whole input, are filled in for the container.
    value = _PARAMETER.sub(lambda match: _text(inputs[match[1]]) if match[1] in inputs else match[0], value)
    for placeholder, text in (others or {}).items():
        value = value.replace(placeholder, text)
    return value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(as_protobuf_writes(value))
