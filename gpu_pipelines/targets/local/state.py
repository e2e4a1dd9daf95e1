"""What steps on this machine read besides their inputs: part of the key under which their results are reused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpu_pipelines.artifacts.digests import digest_of_files, digest_of_program
from gpu_pipelines.component_interface.step import fields_from
from gpu_pipelines.dag.placement import EVALUATES, PREPARES, TRAINS
from gpu_pipelines.evaluation.settings import EvaluationSettings
from gpu_pipelines.registry import model_name_for, open_registry


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
