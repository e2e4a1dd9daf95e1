"""What steps on this machine read besides their inputs: part of the key under which their results are reused."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpu_pipelines.component_interface.step import fields_from
from gpu_pipelines.dag.placement import EVALUATES, PREPARES, TRAINS
from gpu_pipelines.evaluation.settings import EvaluationSettings
from gpu_pipelines.program import digest_of_program
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


def digest_of_files(path: Path) -> str:
    """Hex SHA-256 of names, sizes and times of change of a file, or of all files below a directory."""
    digest = hashlib.sha256()
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file():
            status = file.stat()
            digest.update(os.fsencode(file) + f"\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
    return digest.hexdigest()
