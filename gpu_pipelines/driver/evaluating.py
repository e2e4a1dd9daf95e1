"""An evaluation on this machine, without a pipeline."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_pipelines.errors import UserError

if TYPE_CHECKING:
    from gpu_pipelines.artifacts.evaluation import Evaluation

Place = str | PathLike[str]
#: In the folder that an evaluation leaves: the best checkpoint in Hugging Face layout, and the page.
MODEL, REPORT = "model", "report.html"


def evaluate(
    dataset: Place,
    checkpoints: Place | Sequence[Place],
    output: Place | None = None,
    *,
    processes: int | None = None,
    **parameters: Any,
) -> Evaluation:
    """Scores checkpoints or models on a dataset, as the step `evaluate_checkpoints`; `val` ranks, `test` decides.

    Args:
        dataset: output of `prepare_data`, such as `run.artifact("dataset")`; a folder or `gs://…`.
        checkpoints: where a training left its checkpoints, or a model in Hugging Face layout; several are ranked
            together.
        output: a folder that gets the best one with its evaluation, `model`, and `report.html`; None for neither.
        processes: GPUs or CPU processes to use; None for all GPUs that are here, else one process.
        parameters: of `evaluate_checkpoints`, such as `gates`, `model_name` and `registry`, whose champion
            is scored on the same rows.

    Returns:
        The metrics with their intervals, the gates, and the comparison with the champion.

    Raises:
        UserError: there is no such parameter, something is wrong with a value, or data and checkpoints do not belong
            together.
    """
    from gpu_pipelines.artifacts.large_dataset import dataset_to_evaluate
    from gpu_pipelines.component_interface.default_registry import registry_of_project
    from gpu_pipelines.component_interface.parameter import settings_given
    from gpu_pipelines.evaluation.evaluate import evaluate_checkpoints
    from gpu_pipelines.evaluation.report import write_report
    from gpu_pipelines.evaluation.settings import EvaluationSettings
    from gpu_pipelines.evaluation.step import local_checkpoints, named_places

    settings = settings_given(EvaluationSettings, parameters, registry=registry_of_project())
    given = [checkpoints] if isinstance(checkpoints, str | PathLike) else list(checkpoints)
    if processes is not None and processes < 1:
        raise UserError(f"processes is {processes}.", "Give at least 1, or leave it out.")
    if not given:
        raise UserError("There are no checkpoints to evaluate.", "Give a folder of checkpoints, or several.")
    places = named_places([fspath(each) for each in given])
    if output is not None:
        _require_free(Path(output))
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpu-pipelines-evaluation-")))
        rows = dataset_to_evaluate(fspath(dataset))
        own = bool(settings.scoring_function)
        directories = local_checkpoints(places, scratch / "checkpoints", has_own_scores=own)
        folder = Path(output) if output is not None else scratch
        found = evaluate_checkpoints(settings, rows, directories, folder / MODEL, processes)
        write_report(found, rows, folder / REPORT)
    return found


def _require_free(folder: Path) -> None:
    """Makes a folder, and checks that an evaluation may be written there."""
    if there := [name for name in (MODEL, REPORT) if (folder / name).exists()]:
        raise UserError(f"The folder {folder} has {' and '.join(there)} already.", "Give another output.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder} is no folder: {error.strerror or error}.", "Give another output.") from None
