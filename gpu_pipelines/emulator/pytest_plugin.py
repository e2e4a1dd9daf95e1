"""A pytest fixture for users' own pipelines: Vertex AI on this machine, for one test.

Installed as a plugin. It imports the emulator only for a test that uses it: Google's libraries take seconds.
"""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from gpu_pipelines.emulator.certificates import Certificates
    from gpu_pipelines.emulator.vertex_api import VertexApi


@pytest.fixture(scope="session")
def vertex_certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """The certificates of all emulators in a session: gRPC reads trusted certificates only once in a process."""
    from gpu_pipelines.emulator.extra import needed_by

    with needed_by("The fixture vertex_emulator"):
        from gpu_pipelines.emulator.certificates import make_certificates
        from gpu_pipelines.emulator.services import PROJECT

    return make_certificates(tmp_path_factory.mktemp("certificates"), PROJECT)


@pytest.fixture
def vertex_emulator(
    tmp_path_factory: pytest.TempPathFactory, vertex_certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> Iterator[VertexApi]:
    """An empty emulator, which runs what it gets; all clients in the test's process use it."""
    from gpu_pipelines.emulator.start import EmulatorSettings, running_emulator

    folder = tmp_path_factory.mktemp("vertex")
    with running_emulator(EmulatorSettings(state=folder, certificates=vertex_certificates)) as api:
        for name, value in api.environment().items():
            monkeypatch.setenv(name, value)
        # urllib reads the address of the proxy once in a process, and an earlier test may have opened something.
        urllib.request.install_opener(None)
        yield api
        urllib.request.install_opener(None)
