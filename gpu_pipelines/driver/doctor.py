"""What a project needs for training on Vertex AI, in a Python program and for the command `doctor`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gpu_pipelines.driver.opening import options_given

if TYPE_CHECKING:
    from gpu_pipelines.targets.vertex.doctor.checks import Check
    from gpu_pipelines.targets.vertex.options import VertexOptions


def doctor(accelerator: str | None = None, *, offline: bool = False, **options: Any) -> list[Check]:
    """Checks what training on Vertex AI needs, as `gpu-pipelines doctor`.

    Args:
        accelerator: what to train on, NAME:COUNT, to check its quota; None if that is not chosen yet.
        offline: call no service.
        options: those of the command, by the names of their flags with underscores: `project`, `region`,
            `service_account` and so on. The others are those of the project.

    Returns:
        The checks, each after those that it depends on. `state` is ok, missing or unknown, and `remedy` says what to
        run.

    Raises:
        UserError: there is no such option, or the settings of the project cannot be read.
    """
    from gpu_pipelines.targets.vertex.options import VertexOptions

    return list(checks_of(options_given(VertexOptions, "doctor", options), accelerator, offline=offline))


def checks_of(options: VertexOptions, accelerator: str | None, *, offline: bool) -> Iterator[Check]:
    """The checks of `doctor`, each as soon as it is made."""
    from gpu_pipelines.accelerators.request import PlanRequest
    from gpu_pipelines.targets.vertex.doctor.doctor import examine

    settings = options.project_settings()
    request = None
    if accelerator is not None:
        request = PlanRequest(accelerator, options.nodes, settings.region, options.strategy)
    return examine(settings, request, options.evaluation_accelerator, offline=offline)
