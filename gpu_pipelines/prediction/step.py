"""The step `predict_batch` with its KFP inputs and outputs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpu_pipelines.component_interface.step import local_folder, log_metrics, own_process, place_of, with_advanced
from gpu_pipelines.data.units.unfinished_work import place_of_work
from gpu_pipelines.distributed.members import Cluster
from gpu_pipelines.errors import UserError
from gpu_pipelines.prediction.model import Model, model_in, registered_model
from gpu_pipelines.prediction.outputs import Predictions, filled_in, told
from gpu_pipelines.prediction.predict import predict_batch
from gpu_pipelines.prediction.report import write_report
from gpu_pipelines.prediction.settings import BIGQUERY, PredictSettings


def run(
    settings: PredictSettings,
    *,
    model: Any = None,
    predictions: Any,
    report: Any,
    statistics: Any,
    advanced: Mapping[str, Any],
) -> None:
    """Runs the step.

    Args:
        settings: the parameters that the component declares.
        model: a KFP artifact to predict with in place of a registered version; None for the latter.
        predictions: a KFP artifact, as are the next two.
        report: gets the report.
        statistics: gets the figures.
        advanced: values of parameters by name, which take precedence.
    """
    with own_process():
        settings = with_advanced(settings, advanced)
        nodes = Cluster.from_environment(os.environ).nodes
        if nodes > 1:
            raise UserError(
                f"predict_batch runs on {nodes} machines, each of which would predict everything.",
                "Take one machine, with as many GPUs as you like; or name a Ray cluster with -p ray_address=….",
            )
        settings = replace(settings, output=filled_in(settings.output))
        # Parameters of a pipeline are checked when it is sent; those of a step here, before anything is read.
        if problems := settings.problems():
            raise UserError.of_all(problems)
        unfinished = place_of_work(predictions, "unfinished-predictions")
        place = "" if settings.is_table else settings.output
        with _model(settings, model) as found:
            made = predict_batch(settings, found, place or place_of(predictions), unfinished)
        if place:
            place_of(predictions, place)
        _note(made, predictions)
        write_report(made, place or place_of(predictions), Path(report.path))
        log_metrics(statistics, figures_of(made))
        print(told(made, place or place_of(predictions)), flush=True)


@contextmanager
def _model(settings: PredictSettings, artifact: Any) -> Iterator[Model]:
    if artifact is None:
        yield registered_model(settings.registry, settings.model_name, settings.model_version)
        return
    with local_folder(artifact) as files:
        yield model_in(files, place_of(artifact))


def _note(made: Predictions, artifact: Any) -> None:
    """Records on the artifact what others need to know of the predictions."""
    artifact.metadata.update(
        rows_predicted=made.rows_predicted,
        rows_rejected=made.rows_rejected,
        **{f"model_{name}": value for name, value in made.model.items() if isinstance(value, (str, int))},
    )
    if made.table:
        # As in `google.BQTable`, so that prepare_data and Google's components find the table.
        project, dataset, table = made.table.removeprefix(BIGQUERY).rsplit(".", 2)
        artifact.metadata.update(projectId=project, datasetId=dataset, tableId=table)


def figures_of(made: Predictions) -> dict[str, float]:
    """The figures of predictions; lists of runs show the last one."""
    classes = {"classes_predicted": len(made.labels)} if made.labels else {}
    return {
        "rows_read": made.rows_read,
        "rows_rejected": made.rows_rejected,
        **classes,
        "rows_predicted": made.rows_predicted,
    }
