"""What the steps of a run on this machine have left, read from where KFP's executor wrote it.

The local runner hands over a pipeline's own outputs, and one with a branch that may not be taken has none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: What the executor of each step writes last.
_WRITTEN = "executor_output.json"
#: The outputs of a run by the name that pipelines give them, each with the step and the step's own name of it.
_ARTIFACTS = {
    "data_report": ("prepare-data", "report"),
    "training_report": ("train-model", "training_report"),
    "evaluation_report": ("evaluate-checkpoints", "report"),
    "best_checkpoint": ("evaluate-checkpoints", "best_checkpoint"),
    "model": ("upload-model", "model"),
}
_REASON = ("check-for-new-data", "reason")


@dataclass(frozen=True)
class LocalOutputs:
    """What a run has left.

    Attributes:
        artifacts: place of each output that there is, by name.
        model: metadata of the registered version; empty if none was.
        reason: why there was, or was not, anything to train; empty if nobody asked.
    """

    artifacts: dict[str, str] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    reason: str = ""


def outputs_of_run(directory: Path, outputs: Mapping[str, Any]) -> LocalOutputs:
    """Reads the outputs of the steps that have ended well.

    Args:
        directory: the run's.
        outputs: the pipeline's own, by name; they win, because a step whose results are reused wrote them elsewhere.
    """
    written = {step: _read(directory, step) for step, _ in (*_ARTIFACTS.values(), _REASON)}
    found = {
        name: artifacts[output]["artifacts"][0]
        for name, (step, output) in _ARTIFACTS.items()
        if output in (artifacts := written[step].get("artifacts", {}))
    }
    step, output = _REASON
    for name, artifact in outputs.items():
        found[name] = {"uri": artifact.uri, "metadata": dict(artifact.metadata)}
    return LocalOutputs(
        artifacts={name: str(artifact["uri"]) for name, artifact in found.items()},
        model=found["model"]["metadata"] if "model" in found else {},
        reason=str(written[step].get("parameterValues", {}).get(output, "")),
    )


def _read(directory: Path, step: str) -> dict[str, Any]:
    for file in directory.glob(f"artifacts/*/{step}/{_WRITTEN}"):
        content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return content
    return {}
