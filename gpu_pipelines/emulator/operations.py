"""Long-running operations, all of which are done at once."""

from __future__ import annotations

import time
from typing import Any

from google.longrunning import operations_pb2
from google.protobuf import any_pb2, empty_pb2

from gpu_pipelines.emulator.api_error import not_found


class Operations:
    """The answered operations, by name."""

    def __init__(self) -> None:
        self._held: dict[str, Any] = {}
        self._last = time.time_ns() // 1000

    def done(self, resource: str, response: Any = None) -> Any:
        """A finished operation on a resource, with its response."""
        self._last += 1
        name = f"{resource}/operations/{self._last}"
        packed = any_pb2.Any()
        plain = empty_pb2.Empty() if response is None else type(response).pb(response)
        packed.Pack(plain)
        self._held[name] = operations_pb2.Operation(name=name, done=True, response=packed)
        return self._held[name]

    def get(self, name: str) -> Any:
        """An operation by its name."""
        if name not in self._held:
            raise not_found(name)
        return self._held[name]
