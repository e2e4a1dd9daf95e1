"""The parameters of `finish_study`, declared without importing torch."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_pipelines.component_interface.parameter import parameter


@dataclass(frozen=True)
class FinishSettings:
    """The parameters of `finish_study`."""

    study: str = parameter("", "Directory of the study, local or gs://, in which each trial has left a record.")
    job: str = parameter("", "Job that ran the trials; its value is not used, but it must have ended before.")
