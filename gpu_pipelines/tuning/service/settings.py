"""What `finish_study` is told, declared without importing torch."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_pipelines.component_interface.parameter import parameter


@dataclass(frozen=True)
class FinishSettings:
    """The parameters of `finish_study`."""

    study: str = parameter("", "Directory of the study, local or gs://, in which each trial has left a record.")
    job: str = parameter("", "What has run the trials; it is not looked at, and had to end before.")
