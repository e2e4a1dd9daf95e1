"""Artifacts in a bucket that a run on this machine reuses, copied to where its steps and its report can open them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpu_pipelines.artifacts.remote_files import RemoteFolder, is_remote, listed
from gpu_pipelines.reports.run_report import REPORTS
from gpu_pipelines.targets.spec_steps import tasks_in

#: Below the directory of runs: copies of reused artifacts, in a folder for each run that made them.
TAKEN_OVER = ".taken-over"
_EVALUATED, _EVALUATION = "best_checkpoint", "evaluation.json"


def bring_here(spec: Mapping[str, Any], folder: Path) -> None:
    """Copies the artifacts of a pipeline's importers, and makes these name the copies.

    Args:
        spec: the pipeline; changed in place.
        folder: gets the copies; existing copies are used.
    """
    for component in spec["components"].values():
        label = component.get("executorLabel", "")
        importer = spec["deploymentSpec"]["executors"].get(label, {}).get("importer")
        if importer and is_remote(uri := str(importer["artifactUri"].get("constant", ""))):
            copy = str(_copied(uri, folder / label.removeprefix("exec-")))
            importer["artifactUri"] = {"constant": copy}
            for _, task in tasks_in(spec):
                if spec["components"][task["componentRef"]["name"]] is component:
                    task["inputs"]["parameters"]["uri"] = {"runtimeValue": {"constant": copy}}


def brought_for_report(artifacts: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Places of artifacts, in which those for a run's report are replaced by local copies.

    Args:
        artifacts: places by name.
        folder: gets the copies.
    """
    found = dict(artifacts)
    for name in (*REPORTS, _EVALUATED):
        if is_remote(found.get(name, "")):
            only = [_EVALUATION] if name == _EVALUATED else None
            found[name] = str(_copied(found[name], folder / name, only))
    return found


def _copied(uri: str, folder: Path, only: Sequence[str] | None = None) -> Path:
    """A file or a folder of a bucket, copied into a folder.

    Args:
        uri: place of the file or folder.
        folder: gets the copy, under the same name.
        only: files of the folder to copy; None for all.
    """
    above, _, last = uri.rstrip("/").rpartition("/")
    files = [each.removeprefix(f"{above}/") for each in listed(uri)]
    wanted = files if only is None else [each for each in files if each.removeprefix(f"{last}/") in only]
    RemoteFolder(above).download([each for each in wanted if not (folder / each).is_file()], folder)
    return (folder / last).absolute()
