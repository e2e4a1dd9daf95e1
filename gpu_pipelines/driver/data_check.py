"""A look at the data of a run before it is sent, as far as this machine may read it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

from gpu_pipelines.driver.parameters.interface import compiled_in
from gpu_pipelines.driver.parameters.own_pipeline_check import steps_of
from gpu_pipelines.errors import UserError

if TYPE_CHECKING:
    from gpu_pipelines.data.remote_check import Look
    from gpu_pipelines.data.settings import PrepareSettings
    from gpu_pipelines.prediction.settings import PredictSettings
    from gpu_pipelines.project_settings import ProjectSettings
    from gpu_pipelines.registry import RegisteredVersion
    from gpu_pipelines.targets.messages import Compiled, Values


def require_usable_data(compiled: Compiled, values: Values, settings: ProjectSettings, registry: str = "") -> None:
    """Refuses data in object storage that the first step of a run would refuse; says what cannot be seen from here.

    For a prediction, the model is checked before the data. A user's pipeline has no first step that checks registries,
    so those that its models are uploaded to are checked.

    Args:
        compiled: the pipeline; of a user's, the sources of its preparations that exist before the run.
        values: its parameters.
        settings: project and region of the run, and so of its registry `vertex://`.
        registry: for steps of a user's pipeline that name none; empty if that is not known.

    Raises:
        UserError: lists what is wrong with the data.
    """
    look = _look(compiled, values, settings, registry)
    if look.problems:
        raise UserError.of_all(look.problems)


def warn_of_data(compiled: Compiled, values: Values, settings: ProjectSettings, registry: str = "") -> None:
    """As `require_usable_data`, but only warns: missing data may exist when a later run starts."""
    look = _look(compiled, values, settings, registry)
    for problem in look.problems:
        print(f"warning: as things are now, each run will fail: {problem}", file=sys.stderr)


def _look(compiled: Compiled, values: Values, settings: ProjectSettings, registry: str) -> Look:
    from gpu_pipelines.data.remote_check import Look, look_at_sources

    look = Look()
    for prediction in _predictions_of(compiled, values, registry):
        look.add(_look_at_prediction(prediction, settings))
    for each in _data_of(compiled, values):
        look.add(look_at_sources(each))
    for named in _registries_of(compiled, values, settings, registry):
        look.add(_look_at_registry(named))
    look.unseen += _of_loopback(values)
    for line in look.unseen:
        print(f"note: {line} The step that needs it checks it.", file=sys.stderr)
    return look


def _data_of(compiled: Compiled, values: Values) -> Iterator[PrepareSettings]:
    """The settings of a run's preparations."""
    from gpu_pipelines.component_interface.step import fields_from
    from gpu_pipelines.dag import PIPELINES, PREDICTION
    from gpu_pipelines.data.settings import PrepareSettings
    from gpu_pipelines.targets.own.values import sources_of

    name = compiled.name.replace("-", "_")
    if name not in PIPELINES:
        yield from sources_of(steps_of(compiled), values.arguments)
    elif name != PREDICTION:
        yield fields_from(PrepareSettings, {**compiled_in(compiled.spec), **values.arguments})


def _predictions_of(compiled: Compiled, values: Values, registry: str) -> Iterator[PredictSettings]:
    """The predictions of a run."""
    from gpu_pipelines.component_interface.step import fields_from
    from gpu_pipelines.dag import PIPELINES, PREDICTION
    from gpu_pipelines.prediction.settings import PredictSettings
    from gpu_pipelines.targets.own.values import predictions_of

    name = compiled.name.replace("-", "_")
    if name not in PIPELINES:
        yield from predictions_of(steps_of(compiled), values.arguments, registry)
    elif name == PREDICTION:
        yield fields_from(PredictSettings, values.arguments)


def _registries_of(compiled: Compiled, values: Values, settings: ProjectSettings, registry: str) -> Iterator[str]:
    """The services that the models of a user's pipeline are uploaded to."""
    from gpu_pipelines.dag import PIPELINES
    from gpu_pipelines.registry import VERTEX, is_local
    from gpu_pipelines.targets.own.values import uploads_to

    if compiled.name.replace("-", "_") in PIPELINES:
        return
    for each in sorted(uploads_to(steps_of(compiled), values.arguments, registry)):
        named = _named(each, settings)
        if named != VERTEX and not is_local(named):
            yield named


def _of_loopback(values: Values) -> Iterator[str]:
    """Addresses of a server on this machine, which mean another machine in the steps."""
    from gpu_pipelines.artifacts.mlflow_server import is_of_loopback

    for name, value in values.arguments.items():
        if isinstance(value, str) and is_of_loopback(value):
            yield f"{name} is {value}, which each step looks for on its own machine (an emulator's: on this one)."


def _look_at_registry(registry: str) -> Look:
    """Whether a registry answers. It is not tested for write access: the user may lack a right that the run has."""
    from gpu_pipelines.artifacts.mlflow_server import MLFLOW
    from gpu_pipelines.data.remote_check import looked_at
    from gpu_pipelines.registry import open_registry

    def require() -> None:
        if registry.startswith(MLFLOW) and find_spec("mlflow") is None:
            raise ModuleNotFoundError(name="mlflow")
        open_registry(registry).names()

    return looked_at(f"the registry {registry}", require)


def _named(registry: str, settings: ProjectSettings) -> str:
    """A registry with project and region in place of `vertex://` alone, if they are known."""
    from gpu_pipelines.registry import VERTEX

    if registry == VERTEX and settings.project and settings.region:
        return f"{VERTEX}{settings.project}/{settings.region}"
    return registry


def _look_at_prediction(settings: PredictSettings, project: ProjectSettings) -> Look:
    """Looks at the version in Vertex AI's registry; once that is found, at the source as the model reads it.

    Other registries may be visible only to the run: a directory on a volume of its cluster, a server of MLflow there.
    """
    from gpu_pipelines.data.remote_check import Look, looked_at
    from gpu_pipelines.data.sources.sources import source_of
    from gpu_pipelines.prediction.check import require_predictable
    from gpu_pipelines.prediction.model import registered_version
    from gpu_pipelines.registry import VERTEX

    settings = replace(settings, registry=_named(settings.registry, project))
    if not settings.registry.startswith(VERTEX) or settings.registry == VERTEX:
        return Look()
    found: list[RegisteredVersion] = []
    wanted = (settings.registry, settings.model_name, settings.model_version)
    look = looked_at(f"the registry {settings.registry}", lambda: found.append(registered_version(*wanted)))
    if found and source_of(settings.source).is_seen_from_afar(settings.source):
        look.add(looked_at(settings.source, lambda: require_predictable(settings, found[0])))
    return look
