"""The limits of the prediction server, and Vertex AI's settings of where it listens."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from gpu_pipelines.artifacts.remote_files import problems_of_place
from gpu_pipelines.errors import UserError, nearest
from gpu_pipelines.numbers import number_of

#: Prefix of a limit, in capitals, in the environment of a container.
PREFIX = "GPU_PIPELINES_SERVING_"
#: Variables that Kubernetes sets in all pods beside a service whose name begins like the prefix.
_OF_KUBERNETES = re.compile(
    r"(\w+_)?(SERVICE_(HOST|PORT(_\w+)?)=.*|PORT=\w+://.*|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?=.*)"
)
_MAY_BE_ZERO = ("max_wait_ms", "drain_seconds", "max_new_tokens")
#: The characters of a model's name in a route.
_MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
#: Characters of a bearer token, RFC 6750, section 2.1; a short token can be guessed.
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]{16,}=*")


@dataclass(frozen=True)
class ServerSettings:
    """The server's limits, and how it batches.

    Attributes:
        max_batch: most instances that the model gets at once.
        max_wait_ms: how long a batch that is not full waits for requests that are being prepared, milliseconds.
        max_waiting: most instances that are accepted but not yet answered.
        max_requests: most requests that are accepted but not yet answered.
        max_megabytes_held: most MiB of the bodies of such requests together.
        max_request_megabytes: most MiB of one body, and of the content of a compressed one.
        max_instances: most instances in one request.
        max_pixels: most pixels of one image, before it is resized.
        max_pixels_at_once: most pixels of the images that are decoded at the same time.
        max_pixels_waiting: most pixels of all requests' images that are not decoded yet.
        max_characters: most characters of one text, or of a chat with its tools as JSON.
        max_new_tokens: most tokens that a language model writes for one prompt.
        max_connections: most open connections.
        header_seconds: how long a client may take to send the head of a request.
        read_seconds: how long a client may take to send a body.
        write_seconds: how long a client may take to receive an answer.
        deadline_seconds: how long a request may take once its body has arrived.
        drain_seconds: how long new requests are still answered after a SIGTERM, while health says that the server ends.
        model_name: the name in the routes of KServe's protocols; empty for the name of the evaluation.
        log_requests: folder, or `gs://…`, for a sample of the requests; empty for none.
        log_share: share of the requests in the sample.
        log_megabytes, log_minutes: size and age at which a file of requests is closed and a new one begun.
        tokens: bearer tokens, one of which a client has to send; empty for none.
    """

    max_batch: int = 32
    max_wait_ms: float = 5.0
    max_waiting: int = 1024
    max_requests: int = 256
    max_megabytes_held: int = 256
    max_request_megabytes: int = 10
    max_instances: int = 128
    max_pixels: int = 25_000_000
    max_pixels_at_once: int = 50_000_000
    max_pixels_waiting: int = 1_000_000_000
    max_characters: int = 100_000
    max_new_tokens: int = 256
    max_connections: int = 1024
    header_seconds: float = 10.0
    read_seconds: float = 30.0
    write_seconds: float = 30.0
    deadline_seconds: float = 60.0
    drain_seconds: float = 5.0
    model_name: str = ""
    log_requests: str = ""
    log_share: float = 0.1
    log_megabytes: int = 64
    log_minutes: float = 10.0
    tokens: tuple[str, ...] = field(default=(), repr=False)

    @property
    def max_request_bytes(self) -> int:
        return self.max_request_megabytes << 20

    def problems(self) -> list[str]:
        """Everything that is wrong with the values."""
        values = [(name, getattr(self, name)) for name in _NUMBERS]
        found = [
            f"{name} is {value:g}; give {'0 or more' if name in _MAY_BE_ZERO else 'more than 0'}."
            for name, value in values
            if value < 0 or (value == 0 and name not in _MAY_BE_ZERO)
        ]
        if self.model_name and not _MODEL_NAME.fullmatch(self.model_name):
            found.append(f"model_name is {self.model_name[:40]!r}; give letters, digits, dots, dashes or underscores.")
        if self.log_share > 1:
            found.append(f"log_share is {self.log_share:g}; give a share of at most 1, such as 0.1.")
        found += problems_of_place("log_requests", self.log_requests)
        if not all(_TOKEN.fullmatch(token) for token in self.tokens):
            # Its name and value stay out of logs.
            found.append("A token is not in the form of a bearer token; give 16 or more of A-Z a-z 0-9 . _ ~ + / -.")
        return found

    @classmethod
    def of_environment(cls, environment: Mapping[str, str] = os.environ) -> ServerSettings:
        """The defaults, changed by the environment: `GPU_PIPELINES_SERVING_MAX_BATCH=64` and so on.

        Tokens are the value of `…_TOKEN`, or the lines of the file in `…_TOKEN_FILE`.

        Raises:
            UserError: a name is not a setting, a value is not a number or not a possible one, or the file of tokens
                cannot be read.
        """
        given: dict[str, Any] = {
            name: environment.get(PREFIX + name.upper(), "") for name in ("model_name", "log_requests")
        }
        problems = _unknown(environment)
        for name, default in _NUMBERS.items():
            variable = PREFIX + name.upper()
            if not (text := environment.get(variable, "")):
                continue
            whole = isinstance(default, int)
            try:
                given[name] = int(text) if whole else number_of(text)
            except ValueError:
                problems.append(f"{variable} is {text[:40]!r}; it takes a {'whole ' if whole else ''}number.")
        if token := environment.get(f"{PREFIX}TOKEN", ""):
            given["tokens"] = (token,)
        if file := environment.get(f"{PREFIX}TOKEN_FILE", ""):
            given["tokens"] = (*given.get("tokens", ()), *tokens_of(Path(file)))
        settings = cls(**given)
        if problems := [*problems, *settings.problems()]:
            raise UserError.of_all(problems)
        return settings


_NUMBERS = {each.name: each.default for each in fields(ServerSettings) if isinstance(each.default, (int, float))}
_VARIABLES = [*(each.name.upper() for each in fields(ServerSettings) if each.name != "tokens"), "TOKEN", "TOKEN_FILE"]


def _unknown(environment: Mapping[str, str]) -> list[str]:
    """Problems with variables that are named like settings but are none."""
    named = {name.removeprefix(PREFIX): value for name, value in environment.items() if name.startswith(PREFIX)}
    return [
        f"{PREFIX}{name} is not a setting of the server. {nearest(name, _VARIABLES)}"
        for name, value in named.items()
        if name not in _VARIABLES and not _OF_KUBERNETES.fullmatch(f"{name}={value}")
    ]


def tokens_of(file: Path) -> tuple[str, ...]:
    """The tokens in a file, one on each line, so that an old and a new one can be valid at the same time.

    Raises:
        UserError: the file cannot be read, or is empty.
    """
    try:
        found = tuple(line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip())
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise UserError(f"The file of tokens {file} cannot be read: {why}.") from None
    if not found:
        raise UserError(f"The file of tokens {file} is empty.", "Write one token on each line, or leave the file out.")
    return found


@dataclass(frozen=True)
class Contract:
    """Where the server listens, and its routes.

    Source: https://cloud.google.com/vertex-ai/docs/predictions/custom-container-requirements.

    Attributes:
        port: the HTTP port.
        health_route: answers with 200 once the model can predict.
        predict_route: takes `{"instances": [...], "parameters": {...}}`.
        storage_uri: where the model's files are; empty if it is not given.
    """

    port: int = 8080
    health_route: str = "/health"
    predict_route: str = "/predict"
    storage_uri: str = ""

    @classmethod
    def of_environment(cls, environment: Mapping[str, str] = os.environ) -> Contract:
        """As set by Vertex AI in the environment of a serving container.

        Raises:
            UserError: a variable does not have its form.
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
