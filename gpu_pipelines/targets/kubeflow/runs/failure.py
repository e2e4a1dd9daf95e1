"""Why a step of a run failed: from the log of its pod, and from the status of Argo's workflow.

The API's own answer about a run has no errors of its tasks and no names of their pods (`toApiPipelineTaskDetail` of KFP
2.17), but it serves the workflow with its status (v1beta1) and the logs of pods (v1alpha1), to those who may read them.
"""

from __future__ import annotations

import json
import re
from datetime import datetime, timezone
from typing import Any
from urllib.parse import quote

from yaml import YAMLError

from gpu_pipelines.errors import ERROR_PREFIX, UserError
from gpu_pipelines.targets.compiled import documents_of
from gpu_pipelines.targets.kubeflow.connection import ForeignAnswerError
from gpu_pipelines.targets.kubeflow.pod_starts import is_usual

#: Suffix of Argo for the name of a node that it may start again.
_ATTEMPT = re.compile(r"\([0-9]+\)$")
_FAILED = ("Failed", "Error")
#: The message for a waiting pod about which Argo reports nothing, and the seconds for which a pod is new.
_NOTHING_SAID, _NEW = "Argo does not say why; a queue of Kueue may hold it", 60.0
_DRIVER, _EXECUTOR = "-driver", "executor"


def base_name(display_name: str) -> str:
    """The name of a task, without the number of an attempt."""
    return _ATTEMPT.sub("", display_name)


def reason_of(client: Any, run_id: str, step: str) -> str:
    """The last message of a failed step, else Argo's message about its pod; empty if neither may be read.

    Args:
        client: a client of `connect`.
        run_id: id of the run.
        step: name of the task in the pipeline.
    """
    workflow = _workflow_of(client, run_id)
    nodes = list(workflow.get("status", {}).get("nodes", {}).values())
    failed = [node for node in nodes if _step_of(node) == step and node.get("phase") in _FAILED]
    if not failed:
        return ""
    last = max(failed, key=lambda node: str(node.get("finishedAt") or ""))
    said = _error_in(_log_of(client, run_id, _pod_name(workflow, last)))
    return said or str(last.get("message") or "")


def waits_of(client: Any, run_id: str) -> dict[str, str]:
    """Why pods of steps have not started, by step, in the words of Argo (`getPendingReason`).

    Empty if the workflow may not be read.
    """
    nodes = _workflow_of(client, run_id).get("status", {}).get("nodes", {}).values()
    said = {_step_of(node): _wait_of(node) for node in nodes if node.get("phase") == "Pending"}
    return {step: text for step, text in said.items() if step and text and not is_usual(text.partition(":")[0])}


def _wait_of(node: dict[str, Any]) -> str:
    """What a pod waits for; Argo reports nothing about a pod that Kueue holds by a gate, or about a new one."""
    if said := str(node.get("message") or ""):
        return said
    began = datetime.fromisoformat(str(node.get("startedAt") or _now().isoformat()).replace("Z", "+00:00"))
    return _NOTHING_SAID if (_now() - began).total_seconds() > _NEW else ""


def _now() -> datetime:
    return datetime.now(timezone.utc)


def pods_of_steps(client: Any, run_id: str) -> dict[str, list[dict[str, Any]]]:
    """The nodes of the workflow that are pods of steps, by step, in the order in which they began.

    Empty if the workflow may not be read.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    nodes = _workflow_of(client, run_id).get("status", {}).get("nodes", {}).values()
    for node in sorted(nodes, key=lambda node: str(node.get("startedAt") or "")):
        *above, own = [base_name(part) for part in str(node.get("name", "")).split(".")]
        if node.get("type") == "Pod" and own == _EXECUTOR and above:
            found.setdefault(above[-1], []).append(node)
    return found


def kept_pipeline(client: Any, run_id: str) -> dict[str, Any]:
    """The pipeline of a run as the service keeps it, with settings for Kubernetes; empty if it may not be read."""
    try:
        documents = documents_of(_run_of(client, run_id)["run"]["pipeline_spec"]["pipeline_manifest"])
    except (UserError, YAMLError, ValueError, KeyError, TypeError):
        return {}
    return dict(zip(("pipeline_spec", "platform_spec"), documents, strict=False))


def _step_of(node: dict[str, Any]) -> str:
    """The step of a workflow's node, which is the step's pod or the driver before it; empty for none."""
    *above, own = [base_name(part) for part in str(node.get("name", "")).split(".")]
    if node.get("type") != "Pod":
        return ""
    return above[-1] if own == _EXECUTOR and above else own.removesuffix(_DRIVER) if own.endswith(_DRIVER) else ""


def _pod_name(workflow: dict[str, Any], node: dict[str, Any]) -> str:
    """Name of the pod of a node (`RetrievePodName` of KFP's backend)."""
    metadata = workflow.get("metadata", {})
    if metadata.get("annotations", {}).get("workflows.argoproj.io/pod-name-format") == "v1":
        return str(node["id"])
    template = "" if ".inline" in node["name"] else f"-{node.get('templateName', '')}"
    return f"{metadata.get('name', '')}{template}-{str(node['id']).rpartition('-')[2]}"


def _error_in(log: str) -> str:
    """The last error that a step printed for its user, and the indented lines below it; empty if there is none."""
    _, found, rest = f"\n{log}".rpartition(f"\n{ERROR_PREFIX}")
    if not found:
        return ""
    first, *others = rest.splitlines()
    more = []
    for line in others:
        if not line.startswith("  "):
            break
        more.append(line)
    return "\n".join([first, *more])


def _log_of(client: Any, run_id: str, pod: str) -> str:
    """The log of a pod; empty if it cannot be read.

    `ReadRunLogV1` answers with status 200 before it knows, and an error as JSON.
    """
    text = _read(client, f"/apis/v1alpha1/runs/{quote(run_id, safe='')}/nodes/{quote(pod, safe='')}/log")
    return "" if text.lstrip().startswith(("{", "<")) else text


def _workflow_of(client: Any, run_id: str) -> dict[str, Any]:
    """The workflow of a run with its status; empty if it cannot be read."""
    try:
        workflow = json.loads(_run_of(client, run_id)["pipeline_runtime"]["workflow_manifest"])
    except (ValueError, KeyError, TypeError):
        return {}
    return workflow if isinstance(workflow, dict) else {}


def _run_of(client: Any, run_id: str) -> Any:
    """The first API version's record of a run, which has more in it.

    Raises:
        ValueError: it cannot be read.
    """
    return json.loads(_read(client, f"/apis/v1beta1/runs/{quote(run_id, safe='')}"))


def _read(client: Any, path: str) -> str:
    """The content at a path of the service; empty if it is not allowed, or does not exist."""
    from kfp_server_api import ApiException
    from urllib3.exceptions import HTTPError

    api = client._run_api.api_client
    headers = dict(api.default_headers)
    api.update_params_for_auth(headers, [], ["Bearer"])
    try:
        answer = api.rest_client.request("GET", api.configuration.host + path, headers=headers, _preload_content=False)
        return str(answer.data.decode("utf-8", "replace"))
    except (ApiException, ForeignAnswerError, HTTPError, OSError):
        return ""
