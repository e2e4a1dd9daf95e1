"""A registered model in the format of another program, and the dataset that it is compared on."""

from __future__ import annotations

from os import PathLike, fspath
from typing import TYPE_CHECKING

from gpu_pipelines.component_interface.default_registry import registry_of_project
from gpu_pipelines.errors import InvalidRequestError, UserError
from gpu_pipelines.exporting.settings import DEFAULT_MARGIN, DEFAULT_OPSET, ExportSettings
from gpu_pipelines.targets.runs.trial_record import RUNS

if TYPE_CHECKING:
    from gpu_pipelines.artifacts.dataset import Dataset
    from gpu_pipelines.drift.settings import DriftSettings
    from gpu_pipelines.exporting.export import Exported
    from gpu_pipelines.prediction.model import Model
    from gpu_pipelines.prediction.settings import PredictSettings

#: Where the runs of this machine have their datasets.
_DATASETS = "*/artifacts/*/*/dataset/dataset.json"


def export(
    model: str | PathLike[str],
    format: str,
    to: str | PathLike[str],
    *,
    registry: str | PathLike[str] = "",
    dataset: str | PathLike[str] = "",
    dtype: str = "",
    margin: float = DEFAULT_MARGIN,
    opset: int = DEFAULT_OPSET,
) -> Exported:
    """Exports a model, as `gpu-pipelines models export`.

    Args:
        model: `NAME@ALIAS` or `NAME@VERSION` of the registry; NAME alone is its champion; or the directory of an
            exported model.
        format: `onnx` or `gguf`.
        to: the folder to write to; a directory or `gs://…` with nothing in it.
        registry: where the model is; empty for the registry of `gpu-pipelines.yaml`, else `./registry`.
        dataset: directory or `gs://…` of the dataset whose test rows are scored; empty for the one that the model was
            evaluated on, if a run of this directory has it.
        dtype: type of the numbers: of ONNX `f32` or `f16`, of GGUF `f16`, `f32`, `bf16` or `q8_0`; empty for the first.
        margin: the share of the metric that may be lost.
        opset: version of the operators of ONNX.

    Returns:
        The place, and the content of its `export.json`.

    Raises:
        UserError: something is wrong with a value, the model cannot be written so, or it would lose too much.
    """
    to = fspath(to)
    settings = ExportSettings(format, to, dtype, margin, opset)
    if problems := settings.problems():
        raise UserError.of_all(problems)
    from gpu_pipelines.exporting.export import export_model, require_free

    require_free(to)
    found = named_model(fspath(model), fspath(registry) or registry_of_project())
    return export_model(found.directory, found.title, dataset_of(fspath(dataset), found), settings)


def require_no_other_model(settings: PredictSettings | DriftSettings) -> None:
    """Refuses the parameters of a step that the name of the model says here; it would win over them.

    Raises:
        InvalidRequestError: one is not at its default.
    """
    names = ("model_name", "model_version")
    if given := [name for name in names if getattr(settings, name) != getattr(type(settings), name)]:
        raise InvalidRequestError(
            f"{' and '.join(given)} cannot be given here, where the model is named at once.",
            "Give NAME@VERSION or NAME@ALIAS as the model, such as digits@2.",
        )


def named_model(model: str, registry: str) -> Model:
    """The model that `NAME@REFERENCE`, or a directory, is; errors as those of `registered_model`."""
    from gpu_pipelines.prediction.model import model_in, registered_model
    from gpu_pipelines.registry.named import directory_named

    if directory := directory_named(model, registry):
        return model_in(directory, str(directory))
    name, _, reference = model.partition("@")
    return registered_model(registry, name, reference or "champion")


def dataset_of(place: str, model: Model) -> Dataset:
    """The given dataset, else the one that a model was evaluated on.

    Raises:
        UserError: it is not there.
    """
    from gpu_pipelines.artifacts.dataset import Dataset
    from gpu_pipelines.artifacts.evaluation import EVALUATION, Evaluation
    from gpu_pipelines.artifacts.large_dataset import dataset_to_evaluate

    if place:
        return Dataset(dataset_to_evaluate(place))
    if not (model.directory / EVALUATION).is_file():
        raise UserError(
            f"{model.title} was registered without an evaluation, so its test rows are not known.", "Give --dataset."
        )
    wanted = Evaluation.load(model.directory).dataset_fingerprint
    for path in sorted(RUNS.glob(_DATASETS), reverse=True):
        found = Dataset(path.parent)
        if found.manifest.fingerprint == wanted:
            return found
    raise UserError(
        f"No run in {RUNS}/ has the dataset that {model.title} was evaluated on (fingerprint {wanted[:12]}…).",
        "Give --dataset with the directory or the gs://… that prepare_data wrote.",
    )
