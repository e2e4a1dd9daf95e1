"""A check for drift on this machine, without a pipeline."""

from __future__ import annotations

from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_pipelines.errors import UserError

if TYPE_CHECKING:
    from gpu_pipelines.drift.check import DriftCheck

REPORT = "drift.html"


def watch(
    model: str | PathLike[str],
    source: str | PathLike[str],
    *,
    output: str | PathLike[str] = "",
    dataset: str | PathLike[str] = "",
    **parameters: Any,
) -> DriftCheck:
    """Compares current rows with what a model was trained on, as `gpu-pipelines models watch`.

    Args:
        model: `NAME@ALIAS` or `NAME@VERSION` of the registry; NAME alone is its champion; or the directory of an
            exported model.
        source: current rows, or logged requests.
        output: a folder that gets `drift.html` and `drift.json`; empty for none.
        dataset: directory or `gs://…` of the dataset that a model without a profile was trained on; empty for the one
            that it was evaluated on, if a run of this directory has it.
        parameters: further parameters of `check_for_drift`, such as `registry` and `least_effect`.

    Returns:
        The findings.

    Raises:
        UserError: there is no such parameter, or something is wrong with a value, the model, the source or the folder.
    """
    from gpu_pipelines.component_interface.default_registry import registry_of_project
    from gpu_pipelines.component_interface.parameter import settings_given
    from gpu_pipelines.drift.check import DOCUMENT, check_for_drift
    from gpu_pipelines.drift.report import write_report
    from gpu_pipelines.drift.settings import DriftSettings
    from gpu_pipelines.driver.exporting import dataset_of, named_model, require_no_other_model

    output = fspath(output)
    settings = settings_given(DriftSettings, {**parameters, "source": source}, registry=registry_of_project())
    require_no_other_model(settings)
    if problems := settings.problems():
        raise UserError.of_all(problems)
    folder = Path(output).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{output} is not a folder: {error.strerror or error}.", "Give another --output.") from None
    named = named_model(fspath(model), settings.registry)
    found = check_for_drift(settings, named, lambda: dataset_of(fspath(dataset), named))
    if output:
        write_report(found, folder / REPORT)
        found.save(folder / DOCUMENT)
    return found
