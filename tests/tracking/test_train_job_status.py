"""The progress of a training in the status of its TrainJob, as Kubeflow Trainer's own types read it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from kubeflow_trainer_api.models import TrainerV1alpha1UpdateTrainJobStatusRequest

from gpu_pipelines.tracking.train_job_status import progress_told, status_of

CONFIGURATION = {"format_version": 1, "total_steps": 80, "settings": {"global_batch_size": 64}}
ENTRIES = [{"step": 20, "loss": 0.5, "samples_per_second": 128.0}, {"step": 20, "val_loss": 0.75}]


@pytest.fixture
def statuses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[Any]]:
    """What a controller has been told by a pod with this token."""
    told = []

    class Controller(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            allowed = self.headers["Authorization"] == "Bearer of the pod"
            if allowed:
                told.append(TrainerV1alpha1UpdateTrainJobStatusRequest.from_dict(body).trainer_status)
            self.send_response(200 if allowed else 401)
            self.send_header("Content-Length", "0")
            self.end_headers()

    server = HTTPServer(("127.0.0.1", 0), Controller)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    (tmp_path / "token").write_text("of the pod")
    monkeypatch.setenv("KUBEFLOW_TRAINER_SERVER_URL", f"http://127.0.0.1:{server.server_port}/status")
    monkeypatch.setenv("KUBEFLOW_TRAINER_SERVER_TOKEN", str(tmp_path / "token"))
    yield told
    server.shutdown()
    server.server_close()


def test_the_controller_is_told_progress_time_and_figures(statuses: list[Any], tmp_path: Path) -> None:
    with progress_told(tmp_path):
        (tmp_path / "training.json").write_text(json.dumps(CONFIGURATION))
        (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in ENTRIES))
        deadline = time.monotonic() + 60
        while not statuses:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    (status,) = statuses
    assert (status.progress_percentage, status.estimated_remaining_seconds) == (25, 30)
    assert {each.name: each.value for each in status.metrics} == {
        "loss": "0.5",
        "val_loss": "0.75",
        "samples_per_second": "128.0",
    }


def test_there_is_nothing_to_tell_before_the_first_entry_and_the_end_is_not_said_too_soon() -> None:
    assert status_of({}, ENTRIES[0]) is None
    assert status_of(CONFIGURATION, {}) is None
    done = status_of(CONFIGURATION, {"step": 80, "loss": 0.1})
    assert done == {"progress_percent": 99, "estimated_remaining_seconds": None, "metrics": {"loss": 0.1}}
