"""What `prepare_data` does with its KFP inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpu_pipelines.artifacts.dataset import MANIFEST
from gpu_pipelines.components.data_prep.prepare import prepare_data
from gpu_pipelines.components.data_prep.report import write_report
from gpu_pipelines.components.data_prep.settings import PrepareSettings
from gpu_pipelines.errors import user_errors_end_the_step
from gpu_pipelines.step_interface import fields_from, log_metrics, output_files


def run(arguments: Mapping[str, Any]) -> None:
    """Runs the step.

    Args:
        arguments: the inputs and output artifacts of the component, by name.
    """
    with user_errors_end_the_step():
        with output_files(arguments["dataset"], MANIFEST) as directory:
            manifest = prepare_data(fields_from(PrepareSettings, arguments), directory)
            write_report(directory, Path(arguments["report"].path))
        arguments["dataset"].metadata.update(task=manifest.task, fingerprint=manifest.fingerprint)
        figures = {
            "rows_read": manifest.rows_read,
            "rows_kept": manifest.records_kept,
            "rows_duplicate": manifest.duplicates,
            "rows_rejected": manifest.rows_rejected,
            "classes": len(manifest.labels),
            **{f"rows_{split}": manifest.rows(split) for split in manifest.splits},
        }
        log_metrics(arguments["statistics"], figures)
        print(
            f"kept {manifest.records_kept:,} of {manifest.rows_read:,} rows, left out {manifest.duplicates:,} "
            f"duplicates, rejected {manifest.rows_rejected:,}: "
            + ", ".join(f"{split} {manifest.rows(split):,}" for split in manifest.splits),
            flush=True,
        )
