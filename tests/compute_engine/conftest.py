"""A server in place of Compute Engine, and no settings of this machine's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from compute_api import ComputeApi


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("CLOUDSDK_CORE_PROJECT", "GOOGLE_CLOUD_PROJECT", "CLOUDSDK_AI_REGION", "CLOUDSDK_COMPUTE_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "no-gcloud"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def compute_api(monkeypatch: pytest.MonkeyPatch) -> Iterator[ComputeApi]:
    """A server of the test's own, which gcloud talks to meanwhile."""
    from compute_api import serving

    with serving() as api:
        monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE", f"{api.address}/compute/v1/")
        monkeypatch.setenv("CLOUDSDK_AUTH_DISABLE_CREDENTIALS", "true")
        yield api
