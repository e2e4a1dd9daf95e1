"""The server as a fixture of pytest; it is imported only for a test that asks: Google's libraries take seconds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from gpu_pipelines.emulator.certificates import Certificates
    from gpu_pipelines.emulator.vertex_api import VertexApi


@pytest.fixture(scope="session")
def vertex_certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """The certificates of all servers: gRPC reads once in a process whom it trusts."""
    from gpu_pipelines.emulator.certificates import make_certificates
    from gpu_pipelines.emulator.services import PROJECT

    return make_certificates(tmp_path_factory.mktemp("certificates"), PROJECT)


@pytest.fixture
def vertex_api(tmp_path_factory: pytest.TempPathFactory, vertex_certificates: Certificates) -> Iterator[VertexApi]:
    """A server of the test's own, with nothing in it."""
    from gpu_pipelines.emulator.server import serving

    with serving(tmp_path_factory.mktemp("vertex"), vertex_certificates) as api:
        yield api
