"""Experiments of Katib that really run: each trial is a TrainJob, whose values are by chance here.

What the controller does is as in https://github.com/kubeflow/katib (v0.19): it fills the parameters of a trial into its
template, reads the log of the primary pod line by line, and counts the trials. It stops no trial early.
"""

from __future__ import annotations

import json
import random
import re
import threading
import time
from collections.abc import Callable
from typing import Any

from kubeflow_katib_api import models

from kubernetes_api.strict import problems_of_model
from kubernetes_api.train_jobs import Invalid, TrainJob
from kubernetes_api.types import problems_of

#: The filter of the collector StdOut where an Experiment has none (`DefaultFilter`).
_METRIC = re.compile(r"([\w|-]+)\s*=\s*([+-]?\d*(\.\d+)?([Ee][+-]?\d+)?)")
_REFERENCE = re.compile(r"\$\{trialParameters\.([^}]+)\}")


def problems_of_experiment(manifest: dict[str, Any]) -> list[str]:
    """What the API server and the validating webhook say of an Experiment."""
    found = problems_of_model(models.V1beta1Experiment, manifest, "experiment")
    found += problems_of("V1ObjectMeta", manifest["metadata"], "metadata")
    spec, template = manifest["spec"], manifest["spec"]["trialTemplate"]
    names = {each["name"] for each in spec["parameters"]}
    given = {each["name"]: each["reference"] for each in template["trialParameters"]}
    found += [f"{each} is no parameter" for each in given.values() if each not in names | {"${trialSpec.Name}"}]
    used = set(_REFERENCE.findall(json.dumps(template["trialSpec"])))
    if used != set(given):
        found.append(f"parameters of the template are {sorted(used)}, and trialParameters {sorted(given)}")
    if {"name", "namespace"} & set(template["trialSpec"].get("metadata", {})):
        found.append("metadata.name and metadata.namespace cannot be specified in the trial template")
    for parameter in spec["parameters"]:
        wanted = ("list",) if parameter["parameterType"] in ("discrete", "categorical") else ("min", "max")
        if any(each not in parameter["feasibleSpace"] for each in wanted):
            found.append(f"{parameter['name']} has no {' and '.join(wanted)}")
    if spec["parallelTrialCount"] > spec["maxTrialCount"]:
        found.append("parallelTrialCount is more than maxTrialCount")
    return found


class Experiment:
    """An Experiment and its trials.

    Args:
        manifest: as it was created.
        begin: makes a TrainJob of a manifest, and starts it.

    Raises:
        Invalid: the manifest is not of the types of the API.
    """

    plural = "experiments"

    def __init__(self, manifest: dict[str, Any], begin: Callable[[dict[str, Any]], TrainJob]) -> None:
        if problems := problems_of_experiment(manifest):
            raise Invalid("; ".join(problems))
        self.manifest, self.name = manifest, manifest["metadata"]["name"]
        self.deleted = False
        self.trials: list[TrainJob] = []
        self.losses: dict[str, list[float]] = {}
        #: What the pod that chooses values waits for, as Kubernetes has it; meanwhile there are no trials.
        self.held_up: dict[str, str] = {}
        self._begin, self._chance = begin, random.Random(3)
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def spec(self) -> dict[str, Any]:
        """What it is to be."""
        spec: dict[str, Any] = self.manifest["spec"]
        return spec

    def start(self) -> None:
        """Begins with the trials."""
        self._thread.start()

    def suggestion(self) -> list[dict[str, Any]]:
        """The pod that chooses values (`katib.kubeflow.org/suggestion`)."""
        state = {"waiting": self.held_up} if self.held_up else {"running": {"startedAt": "2026-11-21T10:00:40Z"}}
        container = {"name": "suggestion", "image": "i", "imageID": "", "restartCount": 0, "state": state}
        status: dict[str, Any] = {"phase": "Pending" if self.held_up else "Running"}
        status["containerStatuses"] = [{**container, "ready": not self.held_up}]
        metadata = {"name": f"{self.name}-tpe-7d4b", "labels": self.manifest["metadata"].get("labels", {})}
        return [{"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": status}]

    def _run(self) -> None:
        while not self.deleted and (self.runs or len(self.trials) < self.spec["maxTrialCount"]):
            running = sum(trial.runs or trial.is_pending for trial in self.trials)
            if running < self.spec["parallelTrialCount"] and len(self.trials) < self.spec["maxTrialCount"]:
                self.trials.append(self._begin(self._trial(len(self.trials))))
            time.sleep(0.1)

    def _trial(self, number: int) -> dict[str, Any]:
        template, name = self.spec["trialTemplate"], f"{self.name}-{number:08x}"
        drawn = {each["name"]: self._drawn(each) for each in self.spec["parameters"]}
        values = {each["name"]: drawn.get(each["reference"], name) for each in template["trialParameters"]}
        text = _REFERENCE.sub(lambda match: values[match[1]], json.dumps(template["trialSpec"]))
        trial: dict[str, Any] = json.loads(text)
        trial["metadata"] = {**trial.get("metadata", {}), "name": name}
        return trial

    def _drawn(self, parameter: dict[str, Any]) -> str:
        space = parameter["feasibleSpace"]
        if "list" in space:
            return str(self._chance.choice(space["list"]))
        low, high = float(space["min"]), float(space["max"])
        if space.get("distribution") == "logUniform":
            return str(low * (high / low) ** self._chance.random())
        value = low + (high - low) * self._chance.random()
        return str(round(value)) if parameter["parameterType"] == "int" else str(value)

    def losses_of(self, trial: TrainJob) -> list[float]:
        """What the collector finds in the log of a trial."""
        metric = self.spec["objective"]["objectiveMetricName"]
        lines = [line for line in trial.log(0).read_text().splitlines() if f"{metric}=" in line]
        found = [_METRIC.search(line) for line in lines]
        return [float(match[2]) for match in found if match and match[1] == metric]

    @property
    def runs(self) -> bool:
        """Whether a trial still runs."""
        return any(trial.runs for trial in self.trials)

    def stop(self) -> None:
        """Tells the trials that run to stop."""
        self.deleted = True
        for trial in self.trials:
            trial.stop()

    def to_json(self) -> dict[str, Any]:
        """The Experiment with its status."""
        ended = [trial for trial in self.trials if not (trial.runs or trial.is_pending)]
        complete = [trial for trial in ended if trial.has_succeeded]
        status: dict[str, Any] = {
            "trials": len(self.trials),
            "trialsRunning": len(self.trials) - len(ended),
            "runningTrialList": [trial.name for trial in self.trials if trial not in ended],
            "trialsSucceeded": sum(bool(self.losses_of(trial)) for trial in complete),
            "trialsFailed": len(ended) - len(complete),
            "trialMetricsUnavailable": sum(not self.losses_of(trial) for trial in complete),
        }
        is_over = not self.held_up and len(ended) == self.spec["maxTrialCount"]
        said = {"status": "True", "reason": "ExperimentMaxTrialsReached", "message": "it has reached the max trials"}
        conditions = [{"type": "Running", "status": "False" if is_over else "True"}]
        status["conditions"] = [*conditions, *([{"type": "Succeeded", **said}] if is_over else [])]
        ending = {"deletionTimestamp": "2026-11-21T10:30:00Z"} if self.deleted else {}
        return {**self.manifest, "metadata": {**self.manifest["metadata"], **ending}, "status": status}

    def pods(self) -> list[dict[str, Any]]:
        """Those of its trials are theirs."""
        return []
