"""The server as a fixture of pytest; it is imported only for a test that asks: Google's libraries take seconds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from vertex_api.certificates import Certificates
    from vertex_api.server import VertexApi


@pytest.fixture(scope="session")
def vertex_certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """The certificates of all servers: gRPC reads once in a process whom it trusts."""
    from vertex_api.certificates import make_certificates
    from vertex_api.services import PROJECT

    return make_certificates(tmp_path_factory.mktemp("certificates"), PROJECT)


@pytest.fixture
def vertex_api(tmp_path_factory: pytest.TempPathFactory, vertex_certificates: Certificates) -> Iterator[VertexApi]:
    """A server of the test's own, with nothing in it."""
    from vertex_api.server import serving

    with serving(tmp_path_factory.mktemp("vertex"), vertex_certificates) as api:
        yield api
