"""The server: experiments, pipelines and their versions, runs and recurring runs, all in memory."""

from __future__ import annotations

import email.parser
import email.policy
import json
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

from gpu_pipelines.emulator.json_server import JsonHandler, answering, server_of
from kfp_api.payload import Refused, checked, checked_parameters, checked_spec
from kfp_api.workflow import Workflow

#: robfig/cron with seconds: what the API server reads expressions with. Sunday is 0.
_CRON = re.compile(r"[0-9*,/?-]+( [0-9*,/?-]+){4} [0-6*,/?-]+")


@dataclass
class State:
    """What the service holds.

    Attributes:
        requests: method and path of each request.
        tokens: what came as Authorization.
        fails: name of the step that fails, and what is in the log of its pod.
        waits: name of the step whose pod does not start, and what Argo says of it at each look.
        hides: whether logs and workflows may not be read.
        page: title of a web page that answers everything; empty for the API.
        redirect: where all requests are sent on to; empty for nowhere.
        unavailable: how many requests are still to be answered with 503.
        stalls: seconds that pass before each answer.
    """

    experiments: list[dict[str, Any]] = field(default_factory=list)
    pipelines: list[dict[str, Any]] = field(default_factory=list)
    versions: list[dict[str, Any]] = field(default_factory=list)
    runs: dict[str, dict[str, Any]] = field(default_factory=dict)
    looks: dict[str, int] = field(default_factory=dict)
    workflows: dict[str, Workflow] = field(default_factory=dict)
    recurring: dict[str, dict[str, Any]] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    tokens: set[str] = field(default_factory=set)
    fails: tuple[str, str] | None = None
    waits: tuple[str, list[str]] | None = None
    token: str | None = None
    hides: bool = False
    page: str = ""
    redirect: str = ""
    unavailable: int = 0
    stalls: float = 0.0


@dataclass
class KfpApi:
    """The running server.

    Attributes:
        url: its address.
        state: what it holds.
    """

    url: str
    state: State


@contextmanager
def serving() -> Iterator[KfpApi]:
    """A server on a port of this machine."""
    state = State()
    with answering(server_of(type("Handler", (_Handler,), {"service": _Service(state)}))) as url:
        yield KfpApi(url, state)


class _Handler(JsonHandler):
    service: _Service
    protocol_version = "HTTP/1.1"

    def _answer(self) -> None:
        status, content = self.service.answer(self.command, self.path, dict(self.headers), self.body())
        headers = {"Location": self.service.redirect} if status == 302 else {}
        if isinstance(content, str):
            kind = "text/html; charset=utf-8" if content.startswith("<") else "text/plain"
            self.send(status, content.encode(), kind, **headers)
        else:
            self.send(status, content, **headers)

    do_GET = do_POST = do_DELETE = _answer


class _Service:
    def __init__(self, state: State) -> None:
        self._state = state
        self._lock = threading.Lock()
        name = r"([^/:]+)"
        self._routes: list[tuple[str, str, Callable[..., Any]]] = [
            ("GET", f"/apis/v1beta1/runs/{name}", self._get_run_v1),
            ("GET", f"/apis/v1alpha1/runs/{name}/nodes/{name}/log", self._log),
            ("GET", "healthz", lambda query, body: {"multi_user": False}),
            ("GET", "experiments", self._list_experiments),
            ("POST", "experiments", self._create_experiment),
            ("GET", "pipelines", lambda query, body: {"pipelines": self._of_namespace(self._state.pipelines, query)}),
            ("POST", "pipelines", self._create_pipeline),
            ("POST", "pipelines/upload", self._upload),
            ("POST", "pipelines/upload_version", self._upload_version),
            ("GET", f"pipelines/{name}/versions", self._list_versions),
            ("GET", f"pipelines/{name}/versions/{name}", self._get_version),
            ("POST", "runs", self._create_run),
            ("GET", f"runs/{name}", self._get_run),
            ("POST", f"runs/{name}:terminate", self._terminate),
            ("POST", f"runs/{name}:retry", self._retry),
            ("GET", "recurringruns", lambda query, body: {"recurringRuns": [*self._state.recurring.values()]}),
            ("POST", "recurringruns", self._create_recurring),
            ("POST", f"recurringruns/{name}:(disable|enable)", self._set_mode),
            ("DELETE", f"recurringruns/{name}", self._delete_recurring),
        ]

    @property
    def redirect(self) -> str:
        return self._state.redirect

    def answer(self, method: str, target: str, headers: dict[str, str], body: bytes) -> tuple[int, Any]:
        parts = urlsplit(target)
        path = parts.path.removeprefix("/apis/v2beta1/")
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        self._state.requests.append(f"{method} {path}")
        time.sleep(self._state.stalls)
        if self._state.page:
            return 200, f"<!doctype html><html><head><title>{self._state.page}</title></head><body></body></html>"
        if self._state.redirect:
            return 302, ""
        if self._state.unavailable:
            self._state.unavailable -= 1
            return 503, "no healthy upstream"
        token = headers.get("authorization") or headers.get("Authorization") or ""
        self._state.tokens.add(token)
        if self._state.token and token != f"Bearer {self._state.token}":
            return 401, {"error": "Unauthorized", "message": "no token", "code": 16}
        content: Any = body
        if headers.get("Content-Type", "").startswith("application/json"):
            content = json.loads(body or b"{}")
        elif body:
            content = _file_of(headers["Content-Type"], body)
        for verb, pattern, reply in self._routes:
            match = re.fullmatch(pattern, path)
            if verb == method and match:
                try:
                    with self._lock:
                        return 200, reply(query, content, *match.groups())
                except Refused as refused:
                    return refused.status, {"error": refused.message, "message": refused.message, "code": 3}
        return 404, {"error": "Not Found", "message": f"no {method} {path}", "code": 5}

    @staticmethod
    def _of_namespace(entries: list[dict[str, Any]], query: dict[str, str]) -> list[dict[str, Any]]:
        return [each for each in entries if each.get("namespace", "") == query.get("namespace", "")]

    def _list_experiments(self, query: dict[str, str], body: Any) -> Any:
        return {"experiments": self._of_namespace(self._state.experiments, query)}

    def _create_experiment(self, query: dict[str, str], body: Any) -> Any:
        made = {**checked("V2beta1Experiment", body), "experiment_id": _new_id(), "created_at": _now()}
        self._state.experiments.append(made)
        return made

    def _create_pipeline(self, query: dict[str, str], body: Any) -> Any:
        checked("V2beta1Pipeline", body)
        if any(each["display_name"] == body["display_name"] for each in self._state.pipelines):
            raise Refused(409, "The name is taken")
        made = {**body, "pipeline_id": _new_id(), "created_at": _now()}
        self._state.pipelines.append(made)
        return made

    def _upload(self, query: dict[str, str], body: Any) -> Any:
        """A pipeline with its first version, which has its name."""
        body_of_pipeline = {"display_name": query["name"], "namespace": query.get("namespace", "")}
        made = self._create_pipeline(query, body_of_pipeline)
        try:
            self._upload_version({**query, "pipelineid": made["pipeline_id"]}, body)
        except Refused:
            self._state.pipelines.remove(made)
            raise
        return made

    def _upload_version(self, query: dict[str, str], body: Any) -> Any:
        documents = list(yaml.load_all(body, Loader=yaml.CSafeLoader))
        spec = {"pipeline_spec": documents[0], "platform_spec": documents[1]} if len(documents) > 1 else documents[0]
        checked_spec(spec)
        if not any(each["pipeline_id"] == query["pipelineid"] for each in self._state.pipelines):
            raise Refused(404, "no such pipeline")
        same = [v for v in self._state.versions if v["pipeline_id"] == query["pipelineid"]]
        if any(each["display_name"] == query["name"] for each in same):
            raise Refused(409, "The name is taken")
        made = {
            "pipeline_id": query["pipelineid"],
            "pipeline_version_id": _new_id(),
            "display_name": query["name"],
            "created_at": _now(len(self._state.versions)),
            "pipeline_spec": spec,
        }
        self._state.versions.append(made)
        return made

    def _list_versions(self, query: dict[str, str], body: Any, pipeline: str) -> Any:
        found = [each for each in self._state.versions if each["pipeline_id"] == pipeline]
        # Two pages, so that both are asked for.
        first = int(query.get("page_token") or 0)
        answer: dict[str, Any] = {"pipeline_versions": found[first : first + 1]}
        return {**answer, "next_page_token": str(first + 1)} if len(found) > first + 1 else answer

    def _get_version(self, query: dict[str, str], body: Any, pipeline: str, version: str) -> Any:
        wanted = (pipeline, version)
        for each in self._state.versions:
            if (each["pipeline_id"], each["pipeline_version_id"]) == wanted:
                return each
        raise Refused(404, f"PipelineVersion {version} not found.")

    def _create_run(self, query: dict[str, str], body: Any) -> Any:
        checked("V2beta1Run", body)
        checked_spec(body.get("pipeline_spec"))
        checked_parameters(body["pipeline_spec"], body.get("runtime_config", {}).get("parameters", {}))
        if not any(each["experiment_id"] == body["experiment_id"] for each in self._state.experiments):
            raise Refused(404, "no such experiment")
        run_id = _new_id()
        self._state.runs[run_id] = {**body, "run_id": run_id, "state": "PENDING", "created_at": _now()}
        return self._state.runs[run_id]

    def _get_run(self, query: dict[str, str], body: Any, run_id: str) -> Any:
        if run_id not in self._state.runs:
            raise Refused(404, f"Run {run_id} not found.")
        run, look = self._state.runs[run_id], self._state.looks.get(run_id, 0)
        is_held = run["state"] in ("PENDING", "RUNNING") and self._advance(run, look)
        self._state.looks[run_id] = look if is_held else look + 1
        return run

    def _advance(self, run: dict[str, Any], look: int) -> bool:
        """Lets a run get one step further at each look, but where a pod does not start; whether that is so."""
        workflow = Workflow(run, look, self._state.fails)
        is_held = bool(self._state.waits and self._state.waits[1] and workflow.hold(*self._state.waits))
        run["state"] = workflow.state
        run["run_details"] = {"task_details": workflow.task_details()}
        self._state.workflows[run["run_id"]] = workflow
        return is_held

    def _get_run_v1(self, query: dict[str, str], body: Any, run_id: str) -> Any:
        """`toApiRunDetailV1`: the workflow with its status."""
        if self._state.hides or run_id not in self._state.workflows:
            raise Refused(403, "forbidden")
        workflow = self._state.workflows[run_id]
        kept = yaml.safe_dump_all(workflow.spec.values() if "pipeline_spec" in workflow.spec else [workflow.spec])
        run = {"id": run_id, "pipeline_spec": {"pipeline_manifest": kept}}
        return {"run": run, "pipeline_runtime": {"workflow_manifest": json.dumps(workflow.manifest())}}

    def _log(self, query: dict[str, str], body: Any, run_id: str, pod: str) -> Any:
        """`ReadRunLogV1`: status 200 whatever follows."""
        workflow = self._state.workflows[run_id]
        if self._state.hides or pod not in workflow.logs():
            return {"error_message": f"Failed to read logs for run {run_id}", "error_details": ""}
        return workflow.logs()[pod]

    def _terminate(self, query: dict[str, str], body: Any, run_id: str) -> Any:
        if run_id not in self._state.runs:
            raise Refused(404, f"Run {run_id} not found.")
        self._state.runs[run_id]["state"] = "CANCELED"
        return {}

    def _retry(self, query: dict[str, str], body: Any, run_id: str) -> Any:
        """`RetryRun`: what has succeeded stays, what has failed begins again; of a workflow that has failed alone.

        backend/src/apiserver/resource/resource_manager.go and backend/src/common/util/workflow.go
        (`GenerateRetryExecution`: a workflow that was terminated has failed, and its deadline is taken away).
        """
        if run_id not in self._state.runs:
            raise Refused(404, f"Run {run_id} not found.")
        run = self._state.runs[run_id]
        if run["state"] not in ("FAILED", "CANCELED"):
            raise Refused(400, "Workflow must be Failed/Error to retry")
        details = run.get("run_details", {}).get("task_details", [])
        steps = set(run["pipeline_spec"].get("pipeline_spec", run["pipeline_spec"])["root"]["dag"]["tasks"])
        ended = {each["display_name"] for each in details if each["state"] == "SUCCEEDED"} & steps
        self._state.looks[run_id], run["state"] = len(ended), "RUNNING"
        return {}

    def _create_recurring(self, query: dict[str, str], body: Any) -> Any:
        checked("V2beta1RecurringRun", body)
        cron = body["trigger"]["cron_schedule"]["cron"]
        if not _CRON.fullmatch(cron):
            raise Refused(400, f"Schedule cron is not supported: {cron}")
        if "pipeline_spec" in body:
            spec = body["pipeline_spec"]
        else:
            reference = body["pipeline_version_reference"]
            version = [v for v in self._state.versions if v["pipeline_version_id"] == reference["pipeline_version_id"]]
            if not version:
                raise Refused(404, "no such version")
            spec = version[0]["pipeline_spec"]
        checked_parameters(spec, body["runtime_config"].get("parameters", {}))
        made = {
            **body,
            "recurring_run_id": _new_id(),
            "status": "ENABLED",
            "max_concurrency": str(body["max_concurrency"]),
        }
        self._state.recurring[made["recurring_run_id"]] = made
        return made

    def _set_mode(self, query: dict[str, str], body: Any, recurring: str, what: str) -> Any:
        found = self._state.recurring[recurring]
        found["mode"], found["status"] = what.upper(), f"{what.upper()}D"
        return {}

    def _delete_recurring(self, query: dict[str, str], body: Any, recurring: str) -> Any:
        del self._state.recurring[recurring]
        return {}


def _file_of(kind: str, body: bytes) -> bytes:
    """The file in a form that uploads one."""
    parser = email.parser.BytesParser(policy=email.policy.HTTP)
    message = parser.parsebytes(b"Content-Type: " + kind.encode() + b"\r\n\r\n" + body)
    for part in message.iter_parts():
        if part.get_filename():
            content = part.get_payload(decode=True)
            assert isinstance(content, bytes)
            return content
    raise Refused(400, "no file")


def _new_id() -> str:
    return str(uuid.uuid4())


def _now(later: int = 0) -> str:
    return datetime(2026, 11, 21, 10, 0, later, tzinfo=timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
