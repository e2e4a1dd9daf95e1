"""A batch prediction on this machine, or with Ray on many, without a pipeline."""

from __future__ import annotations

from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_pipelines.errors import UserError
from gpu_pipelines.targets.runs.trial_record import RUNS

if TYPE_CHECKING:
    from gpu_pipelines.prediction.outputs import Predictions

#: Below the directory of runs: the state of interrupted predictions, as for runs of the local target.
_UNFINISHED = Path(".unfinished")
#: Folder of the list of rejected rows, for predictions that go to a table.
_DOCUMENTS = Path("predictions")


def predict(
    model: str | PathLike[str], source: str | PathLike[str], output: str | PathLike[str], **parameters: Any
) -> Predictions:
    """Predicts the rows of a source, as `gpu-pipelines models predict`.

    The same call in the same directory continues an interrupted prediction.

    Args:
        model: `NAME@ALIAS` or `NAME@VERSION` of the registry; NAME alone is its champion; or the directory of an
            exported model.
        source: rows to predict.
        output: where the predictions go: a folder, `gs://…`, or a table in BigQuery, `bq://PROJECT.DATASET.TABLE`.
        parameters: further parameters of `predict_batch`, such as `registry`, `key_column` and `output_format`.

    Returns:
        How many rows were predicted and rejected, and the files.

    Raises:
        UserError: there is no such parameter, or something is wrong with a value, the model, the source or the output.
        Interrupted: it was interrupted; the same call continues it.
    """
    from gpu_pipelines.component_interface.default_registry import registry_of_project
    from gpu_pipelines.component_interface.parameter import settings_given
    from gpu_pipelines.driver.exporting import require_no_other_model
    from gpu_pipelines.prediction.model import model_in, registered_model
    from gpu_pipelines.prediction.outputs import filled_in
    from gpu_pipelines.prediction.predict import predict_batch
    from gpu_pipelines.prediction.settings import BIGQUERY, PredictSettings
    from gpu_pipelines.registry.named import directory_named

    model, output = fspath(model), fspath(output)
    if not output:
        raise UserError("output is empty.", "Give a folder, gs://…, or bq://PROJECT.DATASET.TABLE.")
    output = filled_in(output)
    name, _, reference = model.partition("@")
    given = {**parameters, "source": source, "output": output}
    settings = settings_given(PredictSettings, given, registry=registry_of_project())
    require_no_other_model(settings)
    directory = directory_named(model, settings.registry)
    if directory is None:
        settings = replace(settings, model_name=name, model_version=reference or "champion")
    if problems := settings.problems():
        raise UserError.of_all(problems)
    if directory is not None:
        found = model_in(directory, str(directory))
    else:
        found = registered_model(settings.registry, settings.model_name, settings.model_version)
    place = str(_DOCUMENTS / output.removeprefix(BIGQUERY)) if settings.is_table else output
    return predict_batch(settings, found, place, str(RUNS / _UNFINISHED))
