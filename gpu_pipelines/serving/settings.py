"""The limits of the prediction server, and where Vertex AI says how it is to listen."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields

from gpu_pipelines.errors import UserError
from gpu_pipelines.numbers import number_of

#: Before the name of a limit, in capitals, in the environment of a container.
PREFIX = "GPU_PIPELINES_SERVING_"
_MAY_BE_ZERO = ("max_wait_ms", "drain_seconds", "max_new_tokens")


@dataclass(frozen=True)
class ServerSettings:
    """What the server takes at most, and how it batches.

    Attributes:
        max_batch: instances that the model gets at once.
        max_wait_ms: how long a batch that is not full waits for requests that are being prepared, milliseconds.
        max_waiting: instances that were accepted and are not answered.
        max_requests: requests that were accepted and are not answered.
        max_megabytes_held: of the bodies of such requests together.
        max_request_megabytes: of one body.
        max_instances: in one request.
        max_pixels: of one image, before it is resized.
        max_characters: of one text.
        max_new_tokens: that a language model writes for one prompt.
        read_seconds: how long a client may take to send a body.
        drain_seconds: after a SIGTERM, how long new requests are still answered while health says that it ends.
    """

    max_batch: int = 32
    max_wait_ms: float = 5.0
    max_waiting: int = 1024
    max_requests: int = 256
    max_megabytes_held: int = 256
    max_request_megabytes: int = 10
    max_instances: int = 128
    max_pixels: int = 25_000_000
    max_characters: int = 100_000
    max_new_tokens: int = 256
    read_seconds: float = 30.0
    drain_seconds: float = 5.0

    @property
    def max_request_bytes(self) -> int:
        return self.max_request_megabytes << 20

    def problems(self) -> list[str]:
        """Everything that is wrong with the values."""
        values = [(field.name, getattr(self, field.name)) for field in fields(self)]
        return [
            f"{name} is {value:g}; give {'0 or more' if name in _MAY_BE_ZERO else 'more than 0'}."
            for name, value in values
            if value < 0 or (value == 0 and name not in _MAY_BE_ZERO)
        ]

    @classmethod
    def of_environment(cls, environment: Mapping[str, str] = os.environ) -> ServerSettings:
        """The defaults, but for what the environment says: `GPU_PIPELINES_SERVING_MAX_BATCH=64` and so on.

        Raises:
            UserError: a value is no number, or not one that is possible.
        """
        given, problems = {}, []
        for field in fields(cls):
            variable = PREFIX + field.name.upper()
            if not (text := environment.get(variable, "")):
                continue
            whole = isinstance(field.default, int)
            try:
                given[field.name] = int(text) if whole else number_of(text)
            except ValueError:
                problems.append(f"{variable} is {text[:40]!r}; it takes a {'whole ' if whole else ''}number.")
        settings = cls(**given)  # type: ignore[arg-type]
        if problems := [*problems, *settings.problems()]:
            raise UserError.of_all(problems)
        return settings


@dataclass(frozen=True)
class Contract:
    """Where the server listens, and what it answers to.

    Source: https://cloud.google.com/vertex-ai/docs/predictions/custom-container-requirements.

    Attributes:
        port: of HTTP.
        health_route: answered with 200 once the model can predict.
        predict_route: takes `{"instances": [...], "parameters": {...}}`.
        storage_uri: where the model's files are; empty where that is not said.
    """

    port: int = 8080
    health_route: str = "/health"
    predict_route: str = "/predict"
    storage_uri: str = ""

    @classmethod
    def of_environment(cls, environment: Mapping[str, str] = os.environ) -> Contract:
        """As Vertex AI sets it in the environment of a serving container.

        Raises:
            UserError: a variable is not of its form.
        """
        port, health, predict = (
            environment.get(name) or default
            for name, default in (
                ("AIP_HTTP_PORT", str(cls.port)),
                ("AIP_HEALTH_ROUTE", cls.health_route),
                ("AIP_PREDICT_ROUTE", cls.predict_route),
            )
        )
        problems = [
            f"{name} is {value[:80]!r}; it takes a path that begins with /."
            for name, value in (("AIP_HEALTH_ROUTE", health), ("AIP_PREDICT_ROUTE", predict))
            if not value.startswith("/")
        ]
        if not (port.isdecimal() and 0 <= int(port) <= 65535):
            problems.append(f"AIP_HTTP_PORT is {port[:40]!r}; it takes a port, such as 8080.")
        if problems:
            raise UserError.of_all(problems)
        return cls(int(port), health, predict, environment.get("AIP_STORAGE_URI", ""))
