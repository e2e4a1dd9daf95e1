"""Cloud Storage: gcp-storage-emulator, behind this server's address so that one address is enough and faults apply."""

from __future__ import annotations

import threading
from typing import Any

import requests
from gcp_storage_emulator.server import create_server

from gpu_pipelines.emulator.json_server import free_port
from gpu_pipelines.emulator.services import BUCKET, NUMBER

_PATHS = ("/storage/v1/", "/upload/", "/download/", "/batch/")
_SECONDS = 60


class Storage:
    """An emulator that is started when it is first asked."""

    def __init__(self) -> None:
        # The emulator itself answers one request at a time, and forgets those that wait too long.
        self._lock = threading.RLock()
        self._server: Any = None
        self._address = ""

    def serves(self, path: str) -> bool:
        """Whether a path is one of Cloud Storage; the emulator does not know permissions."""
        return path.startswith(_PATHS) and not path.endswith("/iam/testPermissions")

    def answer(self, verb: str, target: str, headers: dict[str, str], content: bytes) -> tuple[int, str, bytes]:
        """Status, content type and body of the emulator's answer."""
        passed = {name: value for name, value in headers.items() if name.lower() not in ("host", "accept-encoding")}
        try:
            with self._lock:
                self._start()
                found = requests.request(verb, self._address + target, headers=passed, data=content, timeout=_SECONDS)
        except requests.ConnectionError:
            # So it answers what it cannot parse, such as an upload of gcloud's.
            return 501, "text/plain", f"The emulator does not take {verb} {target}.".encode()
        return found.status_code, found.headers.get("Content-Type", "application/json"), found.content

    def add_bucket(self, name: str, location: str = "US-CENTRAL1") -> None:
        """Makes a bucket; the emulator itself takes no location with it."""
        with self._lock:
            self._start()
            at = f"{self._address}/storage/v1/b"
            requests.post(at, json={"name": name}, timeout=_SECONDS).raise_for_status()
            requests.patch(f"{at}/{name}", json={"location": location}, timeout=_SECONDS).raise_for_status()

    def put(self, name: str, content: bytes) -> None:
        """Writes an object into the bucket that is there."""
        with self._lock:
            self._start()
            at = f"{self._address}/upload/storage/v1/b/{BUCKET}/o"
            wanted = {"uploadType": "media", "name": name}
            requests.post(at, params=wanted, data=content, timeout=_SECONDS).raise_for_status()

    def close(self) -> None:
        """Stops the emulator."""
        if self._server is not None:
            self._server.stop()

    def _start(self) -> None:
        if self._server is not None:
            return
        port = free_port()
        self._address = f"http://127.0.0.1:{port}"
        self._server = create_server("127.0.0.1", port, in_memory=True, project_number=NUMBER)
        self._server.start()
        self.add_bucket(BUCKET)
