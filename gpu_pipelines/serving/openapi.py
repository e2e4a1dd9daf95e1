"""The OpenAPI 3.1 description of the server's HTTP routes, for the model that it serves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gpu_pipelines import __version__
from gpu_pipelines.serving.settings import Contract

if TYPE_CHECKING:
    from gpu_pipelines.serving.predictor import Predictor

_ERRORS = {
    "400": "Something is wrong with the request.",
    "401": "The request has none of the server's tokens.",
    "404": "There is no such route or model.",
    "405": "The route takes another method.",
    "408": "The body did not arrive in time.",
    "413": "The body is too large.",
    "415": "The encoding of the body is not known.",
    "429": "The server has as much work as it accepts.",
    "500": "The prediction failed.",
    "503": "The server is not ready.",
    "504": "The prediction took too long.",
}
_TEXT = {"type": "string"}


def openapi_document(contract: Contract, predictor: Predictor, name: str, has_tokens: bool) -> dict[str, Any]:
    """The document.

    Args:
        contract: the routes.
        predictor: the model.
        name: the name of the model.
        has_tokens: whether clients need a token.
    """
    predict = _post("Predictions", "PredictRequest", "PredictAnswer")
    paths: dict[str, Any] = {
        contract.health_route: _get("Whether the server predicts", "Status", ("503",), open_to_all=True),
        contract.predict_route: predict,
        f"/v1/models/{name}:predict": predict,
        "/v1/models": _get("Names of models (KServe, v1)", "Any", ("503",)),
        f"/v1/models/{name}": _get("Whether the model is ready (KServe, v1)", "Any", ("503",)),
        "/v2": _get("The server (Open Inference Protocol)", "Any"),
        "/v2/health/live": _get("Whether the server runs", "Any", open_to_all=True),
        "/v2/health/ready": _get("Whether the server predicts", "Any", ("503",), open_to_all=True),
        f"/v2/models/{name}": _get("Inputs and outputs of the model", "Any", ("503",)),
        f"/v2/models/{name}/ready": _get("Whether the model is ready", "Any", ("503",)),
        f"/v2/models/{name}/infer": _post("Predictions as tensors", "InferRequest", "InferAnswer"),
        "/metrics": {"get": {"summary": "Metrics for Prometheus", "responses": {"200": {"description": "Its text"}}}},
        "/openapi.json": _get("This document", "Any", ("503",)),
    }
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": f"{name}: {predictor.task}", "version": __version__},
        "paths": paths,
        "components": {"schemas": _schemas(predictor)},
    }
    if has_tokens:
        document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"token": []}]
    return document


def _schemas(predictor: Predictor) -> dict[str, Any]:
    instance = predictor.instance or _object({name: dict(predictor.value) for name in predictor.fields}, closed=True)
    parameters = {"type": "object", "properties": dict(predictor.parameters)}
    tensor = _object({"name": _TEXT, "datatype": _TEXT, "shape": _array({"type": "integer"}), "data": _array({})})
    return {
        "Any": {"type": "object"},
        "Error": _object({"error": _TEXT}),
        "Status": _object({"status": _TEXT}),
        "PredictRequest": {
            **_object({"instances": {**_array(instance), "minItems": 1}}, {"parameters": parameters}, closed=True),
            "examples": [{"instances": [predictor.example]}],
        },
        "PredictAnswer": _object({"predictions": _array(predictor.answer)}),
        "InferRequest": _object(
            {"inputs": _array(tensor)},
            {"id": _TEXT, "parameters": parameters, "outputs": _array(_object({"name": _TEXT}))},
        ),
        "InferAnswer": _object({"model_name": _TEXT, "outputs": _array(tensor)}, {"id": _TEXT}),
    }


def _object(required: Mapping[str, Any], more: Mapping[str, Any] | None = None, closed: bool = False) -> dict[str, Any]:
    found = {"type": "object", "properties": {**required, **(more or {})}, "required": list(required)}
    return {**found, "additionalProperties": False} if closed else found


def _array(items: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": dict(items)}


def _get(summary: str, schema: str, errors: tuple[str, ...] = (), open_to_all: bool = False) -> dict[str, Any]:
    operation = {"summary": summary, "responses": {**_answered(schema), **_refusals(errors)}}
    return {"get": {**operation, "security": []} if open_to_all else operation}


def _post(summary: str, request: str, answer: str) -> dict[str, Any]:
    body = {"required": True, "content": _content(request)}
    return {"post": {"summary": summary, "requestBody": body, "responses": {**_answered(answer), **_refusals(_ERRORS)}}}


def _answered(schema: str) -> dict[str, Any]:
    return {"200": {"description": "Answered.", "content": _content(schema)}}


def _refusals(statuses: Any) -> dict[str, Any]:
    return {status: {"description": _ERRORS[status], "content": _content("Error")} for status in statuses}


def _content(schema: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}
