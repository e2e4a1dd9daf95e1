"""Keys of KFP's local runner for cached results: equal steps get separate keys, and external files are checked."""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gpu_pipelines.artifacts.digests import digest_of_files
from gpu_pipelines.artifacts.remote_files import is_remote
from gpu_pipelines.component_interface.step import THIS_TRAINING
from gpu_pipelines.targets.runs.record import RUN

#: Field beside KFP's record of an artifact: a digest of its files.
_FILES = "files"


def key_of_each_step(original: Callable[..., str]) -> Callable[..., str]:
    """Numbers the steps of a run that have the same key; the first keeps the key as it is.

    By default the second turn of a loop over `[1, 1]` takes the first one's new result, even in a run without the
    cache: a random step would draw only once. A later run gives its second turn the result of the second.

    Args:
        original: makes the key of a step from its inputs.
    """
    seen, lock = Counter[str](), threading.Lock()

    def compute_key(*given: Any, **named: Any) -> str:
        key = _with_run(original(*given, **named), named)
        with lock:
            seen[key] += 1
            number = seen[key]
        return key if number == 1 else hashlib.sha256(f"{key} {number}".encode()).hexdigest()

    return compute_key


def _with_run(key: str, told: Mapping[str, Any]) -> str:
    """The key of a step; if its inputs include the run or a folder of it, a key of this run only."""
    from kfp import dsl
    from kfp.local import config

    of_a_run = (
        dsl.WORKSPACE_PATH_PLACEHOLDER,
        dsl.PIPELINE_ROOT_PLACEHOLDER,
        dsl.PIPELINE_JOB_NAME_PLACEHOLDER,
        dsl.PIPELINE_JOB_RESOURCE_NAME_PLACEHOLDER,
        dsl.PIPELINE_JOB_ID_PLACEHOLDER,
        dsl.PIPELINE_JOB_CREATE_TIME_UTC_PLACEHOLDER,
        dsl.PIPELINE_JOB_SCHEDULE_TIME_UTC_PLACEHOLDER,
    )
    # A training is the same wherever its checkpoints are, and compiled files name a place of the run for them.
    seen = repr({**told, "arguments": {**told.get("arguments", {}), "checkpoint_uri": ""}})
    if not any(each in seen for each in of_a_run):
        return key
    return hashlib.sha256(f"{key} {config.LocalExecutionConfig.instance.workspace_root}".encode()).hexdigest()


def place_of_each_training(original: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """Numbers the trainings of a run with the same inputs, in the place of their checkpoints; the first has no number.

    By default a script finds the checkpoints of an equal training in another turn of a loop, and continues from these.

    Args:
        original: makes the inputs of a task; called once for each, also in a run that continues another.
    """
    seen, lock = Counter[str](), threading.Lock()

    def make(*given: Any, **named: Any) -> dict[str, Any]:
        made = original(*given, **named)
        place = made.get("checkpoint_uri")
        if not (isinstance(place, str) and THIS_TRAINING in place):
            return made
        told = repr(sorted((name, getattr(value, "uri", value)) for name, value in made.items()))
        with lock:
            seen[told] += 1
            number = seen[told]
        apart = THIS_TRAINING if number == 1 else f"{THIS_TRAINING}-{number}"
        return {**made, "checkpoint_uri": place.replace(THIS_TRAINING, apart)}

    return make


class FilesElsewhere:
    """Treats an artifact outside of the runs as the same only while its files are unchanged, as others may write there.

    KFP identifies an artifact by its place, which nobody writes to again in a run's folder. An artifact of
    `dsl.importer`, or one for which a step chose the place, may differ in each run.

    Args:
        runs: directory of runs.
    """

    def __init__(self, runs: Path) -> None:
        self._runs = runs.resolve()

    def in_keys(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """The form of an input in a key, with a digest of its files."""

        def serialize(value: Any) -> Any:
            made = original(value)
            return {**made, **self._state(value.uri)} if hasattr(value, "schema_title") else made

        return serialize

    def kept(self, original: Callable[[Any], dict[str, Any]]) -> Callable[[Any], dict[str, Any]]:
        """The record of an output, with a digest of its files."""
        return lambda artifact: {**original(artifact), **self._state(artifact.uri)}

    def taken(
        self, original: Callable[[dict[str, Any]], Any], missing: Callable[[str], Exception]
    ) -> Callable[[dict[str, Any]], Any]:
        """A recorded output, unless its files have changed.

        Args:
            original: returns it as it is.
            missing: the error to raise if it no longer exists.
        """

        def deserialize(kept: dict[str, Any]) -> Any:
            uri = kept.get("uri", "")
            if self._state(uri).get(_FILES) != kept.get(_FILES):
                raise missing(uri)
            return original(kept)

        return deserialize

    def _state(self, uri: str | None) -> Mapping[str, str]:
        if not uri or is_remote(uri):
            return {}
        place = Path(uri).resolve()
        if place.is_relative_to(self._runs) or any(map(_is_of_a_run, place.parents)):
            return {}
        return {_FILES: digest_of_files(place)}


def _is_of_a_run(folder: Path) -> bool:
    """Whether a folder has the artifacts of a run, also of one elsewhere whose results were copied here."""
    return folder.name == "artifacts" and (folder.parent / RUN).is_file()
