"""Constants that have outputs and parameters of a pipeline in them, as `f"{task.output}-a"` and `[task.output]`."""

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
    """A constant in which placeholders are what they stand for, however deep they are in it.

    What is nothing but a placeholder has the type of what it stands for; in a longer text it is text.

    Args:
        value: the constant.
        inputs: the parameters of the task that has it. A placeholder of another one stays.
        others: what else placeholders stand for.
        is_text: whether the constant is for a text, which an output alone becomes as well.
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
    # Those of artifacts, and the whole input, are the container's to be filled in.
    value = _PARAMETER.sub(lambda match: _text(inputs[match[1]]) if match[1] in inputs else match[0], value)
    for placeholder, text in (others or {}).items():
        value = value.replace(placeholder, text)
    return value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(as_protobuf_writes(value))
