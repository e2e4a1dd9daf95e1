"""The step `check_prediction`: checks that a model can predict a source, before a machine is started for it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpu_pipelines.artifacts.remote_files import RemoteFolder, fetched_folder, is_remote
from gpu_pipelines.component_interface.step import own_process, with_advanced
from gpu_pipelines.data.sources.sources import source_of
from gpu_pipelines.errors import UserError
from gpu_pipelines.prediction.model import registered_version
from gpu_pipelines.prediction.predict import require_usable
from gpu_pipelines.prediction.settings import PredictSettings
from gpu_pipelines.registry import RegisteredVersion

#: Most bytes of a model's file that is fetched to learn what the model reads: tokenizers, but no weights.
_LARGEST_DOCUMENT = 32 << 20


def run(settings: PredictSettings, *, advanced: Mapping[str, Any]) -> None:
    """Runs the step.

    Args:
        settings: the parameters that the component declares.
        advanced: values of parameters by name, which take precedence.
    """
    with own_process():
        settings = with_advanced(settings, advanced)
        if problems := settings.problems():
            raise UserError.of_all(problems)
        version = require_possible(settings)
        print(f"{settings.source} is predicted by {version.name} version {version.number}, {version.place}", flush=True)


def require_possible(settings: PredictSettings) -> RegisteredVersion:
    """Finds the version to predict with, and checks that it can predict the source.

    Args:
        settings: the parameters, already checked.

    Raises:
        UserError: there is no such version, or see `require_predictable`.
    """
    version = registered_version(settings.registry, settings.model_name, settings.model_version)
    require_predictable(settings, version)
    return version


def require_predictable(settings: PredictSettings, version: RegisteredVersion) -> None:
    """Checks a registered version as `require_usable` checks a model, without reading its weights.

    A source that is not a file is not read: it would be fetched, or made by a query that costs money.
    """
    source = source_of(settings.source)
    is_file = not source.scheme and "source_format" in source.parameters
    if not is_file and not source.is_seen_from_afar(settings.source):
        return
    directory = Path(version.place)
    if is_remote(version.place):
        sizes = RemoteFolder(version.place).sizes()
        directory = fetched_folder(version.place, without=lambda name: sizes[name] > _LARGEST_DOCUMENT)
    require_usable(settings, directory)
