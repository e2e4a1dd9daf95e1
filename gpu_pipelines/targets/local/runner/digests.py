"""Digests of what steps on this machine read besides their inputs: part of the key of their cached results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpu_pipelines.artifacts.digests import digest_of_files, digest_of_program
from gpu_pipelines.component_interface.step import fields_from
from gpu_pipelines.dag.placement import (
    EVALUATES,
    LOOKING_STEPS,
    PREDICTS,
    PREPARES,
    RUNS_SCRIPT,
    TRAINS,
    TUNES,
    UPLOADS,
)
from gpu_pipelines.dag.train_script_evaluate_upload import of_script
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.data.sources.fingerprint import source_fingerprint
from gpu_pipelines.evaluation.settings import EvaluationSettings
from gpu_pipelines.registry import model_name_for, open_registry
from gpu_pipelines.targets.own.steps import Step
from gpu_pipelines.training.script.files import files_of_script
from gpu_pipelines.training.script.settings import ScriptSettings


def state_of_steps(arguments: Mapping[str, Any]) -> dict[str, str]:
    """For each step that reads more than its inputs, a digest of the rest.

    Args:
        arguments: all parameters of the pipeline.
    """
    if "model_version" in arguments:  # a prediction, whose results are never reused
        return {}
    program = digest_of_program()
    champion = open_registry(arguments["registry"]).champion(
        arguments["model_name"] or model_name_for(arguments["source"])
    )
    seen = f"{champion.place} {champion.digest}" if champion else ""
    evaluation = fields_from(EvaluationSettings, arguments)
    if scoring := evaluation.scoring_file:
        seen += digest_of_files(scoring.resolve())
    seen += digest_of_files(*(file.resolve() for file in evaluation.texts.files))
    found = {PREPARES: program, TRAINS: program, TUNES: program, EVALUATES: program + seen}
    if script := digest_of_script(fields_from(ScriptSettings, of_script(arguments))):
        found[RUNS_SCRIPT] = program + script
    return found


def digest_of_script(settings: ScriptSettings) -> str:
    """A digest of a script: of its code folder, or of the script and the user's files that it imports.

    Empty if it is not on this machine, or is a module, whose files are not known.

    Args:
        settings: settings of the script.
    """
    code, script = Path(settings.code).expanduser(), Path(settings.script.strip()).expanduser()
    if settings.code:
        return digest_of_files(code.resolve()) if code.exists() else ""
    if settings.module or not script.is_file():
        return ""
    return digest_of_files(*files_of_script(script))


def state_of_own(steps: Sequence[Step], arguments: Mapping[str, Any]) -> dict[str, str]:
    """The same for the steps of this project in a user's own pipeline; by the names of their tasks.

    A step that reads something not known before the run is left out: its results are not reused.

    Args:
        steps: steps of the pipeline.
        arguments: all parameters of the pipeline.
    """
    program, found = digest_of_program(), {}
    for step in steps:
        values, unknown = step.known(arguments)
        if not step.is_ours or step.component in (EVALUATES, UPLOADS, PREDICTS, *LOOKING_STEPS):
            continue
        if step.component == PREPARES and "source_fingerprint" not in values:
            if "source" in unknown:
                continue
            settings = fields_from(PrepareSettings, values)
            seen = [source_fingerprint(each, settings.billing_project) for each in settings.sources.values()]
            found[step.name] = program + "".join(seen)
        elif step.component == RUNS_SCRIPT:
            known = not unknown & {"script", "code"}
            if known and (script := digest_of_script(fields_from(ScriptSettings, values))):
                found[step.name] = program + script
        else:
            found[step.name] = program
    return found
