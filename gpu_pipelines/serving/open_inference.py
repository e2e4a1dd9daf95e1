"""The Open Inference Protocol ("v2"), as KServe and Triton speak it, over JSON.

Source: https://github.com/kserve/open-inference-protocol, specification/protocol/inference_rest.md. Tensors are in the
body as JSON; the extension that puts them behind it in binary form is refused.
"""

from __future__ import annotations

from typing import Any

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

_FORM = 'Send {{"inputs": [{{"name": "{field}", "datatype": "BYTES", "shape": [1], "data": ["…"]}}]}}.'
_OF_THE_REQUEST = ("id", "parameters", "inputs", "outputs")
_OF_A_TENSOR = ("name", "shape", "datatype", "parameters", "data")
SERVER = {"name": "gpu-pipelines", "version": __version__, "extensions": []}


def parsed(body: bytes, field: str, max_instances: int) -> tuple[list[dict[str, Any]], dict[str, Any], str]:
    """The instances, parameters and id of a request.

    Args:
        body: JSON.
        field: the one input of the model, a tensor of texts.
        max_instances: elements that it has at most.

    Raises:
        WrongRequest: it is not of that form.
    """
    form = _FORM.format(field=field)
    document = document_of(body, form)
    require_keys(document, _OF_THE_REQUEST, "The body")
    inputs, number = document.get("inputs"), document.get("id", "")
    if not isinstance(number, str):
        raise WrongRequest(f"id is {kind_of(number)}, not a text.")
    if not isinstance(inputs, list) or len(inputs) != 1 or not isinstance(inputs[0], dict):
        raise WrongRequest(f"inputs is not a list of one tensor. {form}")
    tensor = inputs[0]
    require_keys(tensor, _OF_A_TENSOR, "inputs[0]")
    if tensor.get("name") != field:
        raise WrongRequest(f"inputs[0] has the name {str(tensor.get('name'))[:60]!r}; the input is {field}. {form}")
    if tensor.get("datatype") != "BYTES":
        raise WrongRequest(f"inputs[0] is of the type {str(tensor.get('datatype'))[:20]!r}; it takes BYTES. {form}")
    data = tensor.get("data")
    if not isinstance(data, list):
        raise WrongRequest(f"inputs[0] has no data, or in binary form, which is not taken. {form}")
    if len(data) == 1 and isinstance(data[0], list):
        data = data[0]
    shape = tensor.get("shape")
    if shape not in ([len(data)], [1, len(data)], [len(data), 1]):
        raise WrongRequest(f"inputs[0] has {len(data)} elements, which is not its shape {str(shape)[:40]}. {form}")
    require_count("inputs[0].data", len(data), max_instances)
    elements = [each[0] if isinstance(each, list) and len(each) == 1 else each for each in data]
    return [{field: each} for each in elements], parameters_of(document.get("parameters"), form), number


def metadata(name: str, predictor: Predictor) -> dict[str, Any]:
    """What the protocol says of a model: its inputs and outputs, -1 for sizes that vary."""
    outputs = [tensor(*output) for output in predictor.outputs]
    inputs = [tensor(predictor.field, "BYTES", [-1])]
    return {"name": name, "versions": [], "platform": "gpu-pipelines", "inputs": inputs, "outputs": outputs}


def answer(name: str, number: str, tensors: list[dict[str, Any]]) -> dict[str, Any]:
    """Predictions, as the tensors that they are."""
    found: dict[str, Any] = {"model_name": name, "outputs": tensors}
    return {**found, "id": number} if number else found
