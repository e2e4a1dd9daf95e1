"""The server as a fixture of pytest; it is imported only for a test that asks: Google's libraries take seconds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from vertex_api.server import VertexApi


@pytest.fixture
def vertex_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VertexApi]:
    """A server of the test's own, with nothing in it."""
    from vertex_api.server import serving

    with serving(tmp_path_factory.mktemp("vertex")) as api:
        yield api
