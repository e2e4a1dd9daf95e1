"""The Open Inference Protocol ("v2"), as KServe and Triton speak it, over JSON.

Source: https://github.com/kserve/open-inference-protocol, specification/protocol/inference_rest.md. Tensors are in the
body as JSON. The extension that puts them behind the JSON in binary form is refused; a client that asks for outputs in
that form gets JSON, which it can read as well.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from gpu_pipelines import __version__
from gpu_pipelines.serving.predictor import Predictor, tensor
from gpu_pipelines.serving.request_body import (
    WrongRequest,
    document_of,
    kind_of,
    parameters_of,
    require_count,
    require_keys,
)

_TENSOR = '{{"name": "{field}", "datatype": "BYTES", "shape": [1], "data": ["…"]}}'
#: KServe's own client names the model here as well; the route already names it.
_OF_THE_REQUEST = ("id", "parameters", "inputs", "outputs", "model_name")
_OF_A_TENSOR = ("name", "shape", "datatype", "parameters", "data")
#: The header of a request whose tensors follow its JSON, and the answer to it.
BINARY = "inference-header-content-length"
NOT_BINARY = "The tensors are in binary form, which is not taken. Send them as JSON: binary_data=False in most clients."
#: A parameter with which Triton's clients ask for outputs in binary form if they name none.
_BINARY_OUTPUT = "binary_data_output"
SERVER = {"name": "gpu-pipelines", "version": __version__, "extensions": []}


class Asked(NamedTuple):
    """How to answer a request: with its id, empty for none, and the outputs of these names."""

    id: str
    outputs: Collection[str]


def parsed(
    body: bytes, fields: tuple[str, ...], outputs: Sequence[str], max_instances: int
) -> tuple[list[dict[str, Any]], dict[str, Any], Asked]:
    """The instances and parameters of a request, and how to answer it.

    Args:
        body: JSON.
        fields: the inputs of the model, each a tensor of texts.
        outputs: the names of its outputs.
        max_instances: the most elements of a tensor.

    Raises:
        WrongRequest: the request does not have this form.
    """
    form = f'Send {{"inputs": [{", ".join(_TENSOR.format(field=field) for field in fields)}]}}.'
    document = document_of(body, form)
    require_keys(document, _OF_THE_REQUEST, "The body")
    inputs, number = document.get("inputs"), document.get("id", "")
    asked = Asked(number, _wanted(document.get("outputs"), outputs))
    if not isinstance(number, str):
        raise WrongRequest(f"id is {kind_of(number)}, not a text.")
    if not isinstance(inputs, list) or len(inputs) != len(fields) or not all(isinstance(t, dict) for t in inputs):
        count = "one tensor" if len(fields) == 1 else f"{len(fields)} tensors"
        raise WrongRequest(f"inputs is not a list of {count}. {form}")
    named: dict[str, list[Any]] = {}
    for place, each in enumerate(inputs):
        named |= _elements(each, f"inputs[{place}]", [name for name in fields if name not in named], form)
    columns = [named[field] for field in fields]
    if len({len(column) for column in columns}) > 1:
        counts = " and ".join(f"{len(named[name])} of {name}" for name in fields)
        raise WrongRequest(f"inputs has {counts}; send as many of each. {form}")
    require_count("inputs[0].data", len(columns[0]), max_instances)
    instances = [dict(zip(fields, row, strict=True)) for row in zip(*columns, strict=True)]
    parameters = parameters_of(document.get("parameters"), form)
    return instances, {name: value for name, value in parameters.items() if name != _BINARY_OUTPUT}, asked


def _wanted(given: Any, outputs: Sequence[str]) -> Collection[str]:
    """The names of the outputs that a request wants: all, unless it names some."""
    if not given:
        return outputs
    listed = given if isinstance(given, list) else []
    names = [str(each.get("name")) if isinstance(each, dict) else "" for each in listed]
    if not names or any(name not in outputs for name in names):
        form = f'Send {{"outputs": [{{"name": "{outputs[0]}"}}]}}, or leave it out for all.'
        raise WrongRequest(f"outputs is not a list of outputs of the model, which are {', '.join(outputs)}. {form}")
    return names


def _elements(tensor: dict[str, Any], place: str, fields: list[str], form: str) -> dict[str, list[Any]]:
    """The elements of a tensor, by its name.

    Args:
        tensor: an entry of `inputs`.
        place: its place, for messages.
        fields: the allowed names.
        form: what to send, for messages.
    """
    require_keys(tensor, _OF_A_TENSOR, place)
    name = tensor.get("name")
    if name not in fields:
        wanted = " or ".join(fields)
        raise WrongRequest(f"{place} has the name {str(name)[:60]!r}; the input is {wanted}. {form}")
    if tensor.get("datatype") != "BYTES":
        raise WrongRequest(f"{place} is of the type {str(tensor.get('datatype'))[:20]!r}; it takes BYTES. {form}")
    data = tensor.get("data")
    if not isinstance(data, list):
        raise WrongRequest(f"{place} has no data, or in binary form, which is not taken. {form}")
    if len(data) == 1 and isinstance(data[0], list):
        data = data[0]
    shape = tensor.get("shape")
    if shape not in ([len(data)], [1, len(data)], [len(data), 1]):
        raise WrongRequest(f"{place} has {len(data)} elements, which is not its shape {str(shape)[:40]}. {form}")
    return {str(name): [each[0] if isinstance(each, list) and len(each) == 1 else each for each in data]}


def metadata(name: str, predictor: Predictor) -> dict[str, Any]:
    """The protocol's metadata of a model: its inputs and outputs, -1 for sizes that vary."""
    outputs = [tensor(*output) for output in predictor.outputs]
    inputs = [tensor(field, "BYTES", [-1]) for field in predictor.fields]
    return {"name": name, "versions": [], "platform": "gpu-pipelines", "inputs": inputs, "outputs": outputs}


def answer(name: str, asked: Asked, tensors: list[dict[str, Any]]) -> dict[str, Any]:
    """The answer with the tensors of the predictions."""
    wanted = [each for each in tensors if each["name"] in asked.outputs]
    found: dict[str, Any] = {"model_name": name, "outputs": wanted}
    return {**found, "id": asked.id} if asked.id else found
