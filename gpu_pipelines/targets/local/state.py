"""What steps on this machine read besides their inputs: part of the key under which their results are reused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpu_pipelines.artifacts.digests import digest_of_files, digest_of_program
from gpu_pipelines.component_interface.step import fields_from
from gpu_pipelines.dag.placement import EVALUATES, LOOKING_STEPS, PREPARES, TRAINS, UPLOADS
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.data.sources.fingerprint import source_fingerprint
from gpu_pipelines.evaluation.settings import EvaluationSettings
from gpu_pipelines.registry import model_name_for, open_registry
from gpu_pipelines.targets.own.placed import Step


def state_of_steps(arguments: Mapping[str, Any]) -> dict[str, str]:
    """For each step that reads more than its inputs, a digest of that.

    Args:
        arguments: all parameters of the pipeline.
    """
    program = digest_of_program()
    champion = open_registry(arguments["registry"]).champion(
        arguments["model_name"] or model_name_for(arguments["source"])
    )
    seen = f"{champion.place} {champion.digest}" if champion else ""
    if scoring := fields_from(EvaluationSettings, arguments).scoring_file:
        seen += digest_of_files(scoring.resolve())
    return {PREPARES: program, TRAINS: program, EVALUATES: program + seen}


def state_of_own(steps: Sequence[Step], arguments: Mapping[str, Any]) -> dict[str, str]:
    """The same for the steps of this project in a pipeline of one's own; by the names of their tasks.

    A step that reads what is not known before the run is left out: its results are not reused.

    Args:
        steps: those of the pipeline.
        arguments: all parameters of the pipeline.
    """
    program, found = digest_of_program(), {}
    for step in steps:
        values, unknown = step.known(arguments)
        if not step.is_ours or step.component in (EVALUATES, UPLOADS, *LOOKING_STEPS):
            continue
        if step.component == PREPARES and "source_fingerprint" not in values:
            if "source" in unknown:
                continue
            settings = fields_from(PrepareSettings, values)
            seen = [source_fingerprint(each, settings.billing_project) for each in settings.sources.values()]
            found[step.name] = program + "".join(seen)
        else:
            found[step.name] = program
    return found
