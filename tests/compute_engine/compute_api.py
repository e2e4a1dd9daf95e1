"""A local server in place of Compute Engine, as far as `gcloud compute instances` and `follow` talk to it.

The body of a request is parsed with google-cloud-compute's own types: a field or a value that the API does not have is
a 400, as it would be there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from google.cloud import compute_v1
from google.protobuf import json_format

from gpu_pipelines.emulator.json_server import JsonHandler, answering, server_of

_ZONE = r"/compute/(?P<version>v1|beta|alpha)/projects/(?P<project>[^/]+)/zones/(?P<zone>[^/]+)"


class ComputeApi:
    """What the server was sent.

    Attributes:
        address: where it listens.
        instances: the instances that were made, in order, as the API's own type.
        exhausted: zones that have no machine left.
        without: zones that have no machine of any type with GPUs.
        refusal: a message to answer every creation with, status 403; empty for none.
        refused_starts: how many of the next starts of an instance are answered with status 403.
        outages: how many of the next looks at an instance are answered with status 503.
        status: what Compute Engine says of an instance, by its name; `RUNNING` where nothing stands.
        serial: what an instance has said on its serial port, by its name.
        started: the names of instances that were started again.
        operations: what was done to instances, and happened to them, with its times.
    """

    def __init__(self) -> None:
        self.address = ""
        self.instances: list[compute_v1.Instance] = []
        self.exhausted: set[str] = set()
        self.without: set[str] = set()
        self.refusal = ""
        self.refused_starts = 0
        self.outages = 0
        self.status: dict[str, str] = {}
        self.serial: dict[str, str] = {}
        self.started: list[str] = []
        self.operations: list[dict[str, Any]] = []

    def stop(self, name: str) -> None:
        """Stops an instance, as Compute Engine does to one of Spot; its serial port is gone with it."""
        self.status[name] = "TERMINATED"
        self.serial.pop(name, None)
        zone = next(each.zone for each in self.instances if each.name == name)
        self.note("my-project", zone, name, "compute.instances.preempted")

    def note(self, project: str, zone: str, instance: str, kind: str, when: str = "") -> None:
        """Notes an operation on an instance, which has ended at a time; left out, now."""
        now = when or datetime.now(timezone.utc).isoformat()
        operation = {**self._operation(project, zone, f"{kind}-{instance}"), "operationType": kind}
        place = f"{self.address}/compute/v1/projects/{project}/zones/{zone}/instances/{instance}"
        self.operations.append({**operation, "targetLink": place, "insertTime": now, "startTime": now, "endTime": now})

    def answer(self, method: str, path: str, body: dict[str, Any], query: dict[str, str]) -> tuple[int, dict[str, Any]]:
        """Status and body."""
        if match := re.fullmatch(rf"{_ZONE}/instances", path):
            return self._insert(match["project"], match["zone"], body)
        if match := re.fullmatch(rf"{_ZONE}/operations", path):
            return 200, self._listed(match["zone"], query)
        if match := re.fullmatch(rf"{_ZONE}/operations/(?P<name>[^/]+)(/wait)?", path):
            return 200, self._operation(match["project"], match["zone"], match["name"])
        if match := re.fullmatch(rf"{_ZONE}/instances/(?P<name>[^/]+)(/(?P<what>serialPort|start))?", path):
            project, zone, name, what = (match[part] for part in ("project", "zone", "name", "what"))
            if method == "GET" and self.outages:
                self.outages -= 1
                return 503, _error(503, "The service is currently unavailable.")
            if not any((each.name, each.zone) == (name, zone) for each in self.instances):
                return 404, _error(
                    404, f"The resource 'projects/{project}/zones/{zone}/instances/{name}' was not found"
                )
            if what == "start" and self.refused_starts:
                self.refused_starts -= 1
                return 403, _error(403, "Rate Limit Exceeded")
            return 200, self._of_instance(method, what or "", project, zone, name, int(query.get("start") or 0))
        if match := re.fullmatch(_ZONE, path):
            return 200, {"kind": "compute#zone", "name": match["zone"], "status": "UP"}
        return 404, _error(404, f"There is no {method} {path}.")

    def _listed(self, zone: str, query: dict[str, str]) -> dict[str, Any]:
        """The operations of a zone that a filter lets through, two on a page: `FIELD eq "EXPRESSION"`."""
        wanted = re.fullmatch(r'(\w+) eq "(.+)"', query.get("filter", ""))
        assert wanted, query
        here = [each for each in self.operations if each["zone"].endswith(f"/{zone}")]
        found = [each for each in here if re.fullmatch(wanted[2], each[wanted[1]])]
        start = int(query.get("pageToken") or 0)
        page = {"kind": "compute#operationList", "items": found[start : start + 2]}
        return page | ({"nextPageToken": str(start + 2)} if found[start + 2 :] else {})

    def _insert(self, project: str, zone: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if self.refusal:
            return 403, _error(403, self.refusal)
        instance = compute_v1.Instance()
        try:
            json_format.ParseDict(body, compute_v1.Instance.pb(instance))
        except json_format.ParseError as error:
            return 400, _error(400, str(error))
        if zone in self.without:
            machine = instance.machine_type
            told = f"Machine type with name '{machine.rpartition('/')[2]}' does not exist in zone '{zone}'."
            return 400, _error(400, f"Invalid value for field 'resource.machineType': '{machine}'. {told}")
        if zone not in self.exhausted:
            instance.zone = zone
            self.status.pop(instance.name, None)
            self.instances.append(instance)
        self.note(project, zone, instance.name, "insert")
        return 200, self._operation(project, zone, f"insert-{instance.name}")

    def _of_instance(self, method: str, what: str, project: str, zone: str, name: str, start: int) -> dict[str, Any]:
        if what == "serialPort":
            said = self.serial.get(name, "").encode()
            return {
                "kind": "compute#serialPortOutput",
                "contents": said[start:].decode(),
                "start": start,
                "next": len(said),
            }
        if method == "DELETE":
            self.instances = [each for each in self.instances if each.name != name]
            self.note(project, zone, name, "delete")
            return self._operation(project, zone, f"delete-{name}")
        if what == "start" and zone in self.exhausted:
            return self._operation(project, zone, f"start-{name}")
        if what == "start":
            self.started.append(name)
            self.status[name] = "RUNNING"
            self.note(project, zone, name, "start")
            return self._operation(project, zone, f"start-{name}")
        return self._instance(project, zone, name)

    def _operation(self, project: str, zone: str, name: str) -> dict[str, Any]:
        place = f"{self.address}/compute/v1/projects/{project}/zones/{zone}"
        operation = {
            "kind": "compute#operation",
            "name": name,
            "operationType": name.partition("-")[0],
            "status": "DONE",
            "progress": 100,
            "zone": place,
            "selfLink": f"{place}/operations/{name}",
            "targetLink": f"{place}/instances/{name.partition('-')[2]}",
        }
        if zone in self.exhausted and not name.startswith("delete-"):
            message = f"The zone 'projects/{project}/zones/{zone}' does not have enough resources available."
            operation["error"] = {"errors": [{"code": "ZONE_RESOURCE_POOL_EXHAUSTED", "message": message}]}
        return operation

    def _instance(self, project: str, zone: str, name: str) -> dict[str, Any]:
        instance = next(each for each in reversed(self.instances) if each.name == name)
        document: dict[str, Any] = json_format.MessageToDict(compute_v1.Instance.pb(instance))
        place = f"{self.address}/compute/v1/projects/{project}/zones/{zone}"
        return {
            **document,
            "status": self.status.get(name, "RUNNING"),
            "zone": place,
            "selfLink": f"{place}/instances/{name}",
        }


def _error(code: int, message: str) -> dict[str, Any]:
    return {"error": {"code": code, "message": message, "errors": [{"message": message, "reason": "forbidden"}]}}


@contextmanager
def serving() -> Iterator[ComputeApi]:
    """Serves one on a free port."""
    api = ComputeApi()

    class Handler(JsonHandler):
        def _answer(self) -> None:
            body = json.loads(self.body() or b"{}")
            where = urlsplit(self.path)
            status, document = api.answer(self.command, where.path, body, dict(parse_qsl(where.query)))
            self.send(status, document)

        do_GET = do_POST = do_DELETE = _answer

    with answering(server_of(Handler)) as api.address:
        yield api
