"""MLflow as a registry: a version is one of MLflow's; its files are the artifacts of a run created for them.

The files are uploaded, with all hashes in `version.json`, before MLflow gets the version. So an interrupted upload
leaves a run that no version names, which a later upload deletes.
"""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime, timezone
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from gpu_pipelines.artifacts.documents import write_document_at
from gpu_pipelines.artifacts.evaluation import EVALUATION, Evaluation
from gpu_pipelines.artifacts.integrity import digest_of, model_files
from gpu_pipelines.artifacts.mlflow_files import place_of_files
from gpu_pipelines.artifacts.mlflow_server import (
    MLFLOW_FILE,
    TRACKED_RUN_TAG,
    client_class,
    mlflow_client,
    mlflow_errors,
    mlflow_name,
    mlflow_uri,
    would_lose_files,
)
from gpu_pipelines.artifacts.remote_files import RemoteFolder
from gpu_pipelines.errors import UnavailableError, UserError
from gpu_pipelines.registry.directory import DirectoryRegistry
from gpu_pipelines.registry.missing import missing_version
from gpu_pipelines.registry.registered import (
    CHAMPION,
    TRACKED_RUN,
    VERSION,
    Check,
    Promotion,
    RegisteredVersion,
    Registry,
    hashes_in,
    made_at_once,
    record_in,
)
from gpu_pipelines.registry.summary import summary_of

#: Experiment of the runs that hold the files.
EXPERIMENT = "gpu-pipelines-models"
_FOLDER = "model"
_MANAGED_BY, _OURS = "managed-by", "gpu-pipelines"
_DIGEST, _UPLOAD_OF = "gpu_pipelines.digest", "gpu_pipelines.upload_of"
_PARENT = "mlflow.parentRunId"
#: The fields of a version's description beside its metrics.
_SHOWN = ("task", "checkpoint", "dataset_fingerprint", "source_fingerprint", "passed", "pipeline_job")
#: Seconds after which a person is told what is waited for: the client tries a server that is away for longer.
_PATIENCE_SECONDS = 3.0
#: Seconds after which an unfinished upload counts as killed.
_ABANDONED_SECONDS = 24 * 3600.0
_EXISTS = "RESOURCE_ALREADY_EXISTS"
_NUMBER = re.compile("[1-9][0-9]{0,8}")


class MlflowRegistry(Registry):
    """The models of an MLflow server, or of a SQLite file.

    Args:
        uri: `mlflow:https://HOST`, `mlflow:http://HOST:PORT`, or `mlflow:sqlite:///FILE` on this machine.

    Raises:
        UserError: the address does not have this form.
    """

    def __init__(self, uri: str) -> None:
        self.uri = mlflow_uri(uri)

    def __repr__(self) -> str:
        # The server is not asked for this.
        return f"MlflowRegistry {self.uri}"

    def require_writable(self) -> None:
        """Checks write access to the experiment of the files, and the server's place for them, if it exists.

        Nothing is created, because this is only a check.

        Raises:
            UserError: it cannot be written to, or files would stay on the machine of the step.
        """
        if self._file and not self._is_there:
            client_class(self.uri)
            DirectoryRegistry(self._file.parent).require_writable()
            return
        with self._errors("Opening the registry"):
            found = self._client.get_experiment_by_name(EXPERIMENT)
        if found is not None:
            self._require_fit(found)

    def prepare(self) -> None:
        """Creates the experiment of the files; see `Registry.prepare`."""
        with self._errors("Opening the registry"):
            experiment = self._client.get_experiment(self._experiment)
        self._require_fit(experiment)

    def _require_fit(self, experiment: Any) -> None:
        with self._errors("Opening the registry"):
            # It changes nothing, but needs the same permission as the upload.
            self._client.set_experiment_tag(experiment.experiment_id, _MANAGED_BY, _OURS)
        if would_lose_files(self.uri, experiment.artifact_location):
            raise UserError(
                f"The server of {self.uri} neither takes files nor keeps them in a bucket: they would stay in "
                f"{experiment.artifact_location} on the machine of the step.",
                "Start it with --serve-artifacts and --artifacts-destination, and without --default-artifact-root, and "
                f"rename the experiment {EXPERIMENT}, which keeps the place that it was created with.",
            )

    def where(self, name: str) -> str:
        """The page of a model; for a file, the file."""
        return f"{self.uri.partition(':')[2]}/#/models/{name}" if self.uri.startswith("mlflow:http") else self.uri

    def names(self) -> list[str]:
        """Names of all models that this project's components have uploaded."""
        with self._errors("Listing the models of the registry"):
            return sorted({each.name for each in self._search(f"tags.`{_MANAGED_BY}` = '{_OURS}'")})

    def versions(self, name: str) -> list[RegisteredVersion]:
        """All versions that this project's components have uploaded, oldest first; none if there is no such model."""
        aliases = self.aliases(name)
        return made_at_once(partial(self._version, aliases=aliases), self._of_model(name))

    def version(self, name: str, reference: str | int) -> RegisteredVersion:
        """The version with a number or an alias.

        Raises:
            UserError: there is no such version.
        """
        aliases, reference = self._all_aliases(name), str(reference)
        found = self._numbered(name, str(aliases.get(reference, reference)))
        if found is None or found.tags.get(_MANAGED_BY) != _OURS:
            raise missing_version(self, name, reference, self.uri)
        return self._version(found, aliases)

    def aliases(self, name: str) -> dict[str, int]:
        """Version by alias, among the versions that this project's components have uploaded."""
        ours = {int(each.version) for each in self._of_model(name)}
        return {alias: number for alias, number in self._all_aliases(name).items() if number in ours}

    def add(
        self, name: str, model: Path, info: dict[str, Any], promotion: Promotion, check: Check | None = None
    ) -> RegisteredVersion:
        """Adds a version, unless the same model is already a version, and moves the aliases; see `Registry.add`.

        Of two simultaneous uploads of the same model one adds a version, and both return it.

        Raises:
            UserError: files, version or aliases could not be written, or the check failed.
        """
        self.prepare()
        files = hashes_in(model)
        digest = digest_of(model_files(files))
        there = [each for each in self._of_model(name) if each.tags.get(_DIGEST) == digest]
        known = self.aliases(name)
        same = next((int(each.version) for each in there if not self._version(each, known).is_damaged), None)
        number, added = same, False
        if number is None:
            self._delete_abandoned(name)
            run = self._upload(name, model, {"created": _now(), **info, "files": files}, digest, check)
            damaged = {int(each.version) for each in there}
            number, added = self._registered(name, run, _tags(info, digest), _description(model), damaged)
        champion = self._all_aliases(name).get(CHAMPION)
        for alias in promotion.aliases(champion, number):
            self._point(name, alias, number)
        return replace(self.version(name, number), added=added, led=champion == number)

    @property
    def _file(self) -> Path | None:
        """The local file in place of a server; None if there is a server."""
        return Path(self.uri.removeprefix(MLFLOW_FILE)) if self.uri.startswith(MLFLOW_FILE) else None

    @property
    def _is_there(self) -> bool:
        """Whether there is anything to read: MLflow's client would create a missing file."""
        return self._file is None or self._file.exists()

    @property
    def _client(self) -> Any:
        return mlflow_client(self.uri)

    @contextmanager
    def _errors(self, done: str) -> Iterator[None]:
        told = [f"waiting for an answer from {self.uri}"]
        slow = threading.Timer(_PATIENCE_SECONDS, print, told, {"file": sys.stderr, "flush": True})
        slow.daemon = True
        slow.start()
        try:
            with mlflow_errors(f"{done} in {self.uri}"):
                yield
        except FileNotFoundError as error:
            raise UserError(str(error), "Is it the address of an MLflow server?") from None
        finally:
            slow.cancel()

    @cached_property
    def _experiment(self) -> str:
        """The id of the experiment of the files; for one that a person deleted, the server reports an error."""
        from mlflow.exceptions import MlflowException

        place = (self._file.parent / "mlflow-artifacts").as_uri() if self._file else None
        if (found := self._client.get_experiment_by_name(EXPERIMENT)) is not None:
            return str(found.experiment_id)
        try:
            # With its tag: the server fails to add one for two uploads at the same moment.
            return str(self._client.create_experiment(EXPERIMENT, place, {_MANAGED_BY: _OURS}))
        except MlflowException as error:
            # Another upload has created it in the meantime.
            if error.error_code != _EXISTS:
                raise
        return str(self._client.get_experiment_by_name(EXPERIMENT).experiment_id)

    def _search(self, wanted: str) -> Iterator[Any]:
        """Versions that match a filter of MLflow's, from all pages."""
        token = None
        while self._is_there:
            page = self._client.search_model_versions(wanted, page_token=token)
            yield from page
            if not (token := page.token):
                return

    def _of_model(self, name: str) -> list[Any]:
        """MLflow's versions of a model that belong to this project, oldest first."""
        if "'" in name:
            return []
        with self._errors(f"Listing the versions of {name!r}"):
            found = [each for each in self._search(f"name = '{name}'") if each.tags.get(_MANAGED_BY) == _OURS]
        return sorted(found, key=lambda each: int(each.version))

    def _numbered(self, name: str, number: str) -> Any:
        """MLflow's version with a number, without all the others of the model; None if there is none."""
        if not self._is_there or not _NUMBER.fullmatch(number):
            return None
        try:
            with mlflow_errors(f"Reading the version {number} of {name!r} in {self.uri}"):
                return self._client.get_model_version(name, number)
        except FileNotFoundError:
            return None

    def _all_aliases(self, name: str) -> dict[str, int]:
        """Version by alias, among all versions of a model."""
        if not self._is_there:
            return {}
        try:
            with mlflow_errors(f"Reading the aliases of {name!r} in {self.uri}"):
                model = self._client.get_registered_model(name)
        except FileNotFoundError:
            return {}
        return {alias: int(number) for alias, number in model.aliases.items()}

    def _version(self, version: Any, aliases: dict[str, int]) -> RegisteredVersion:
        name, number = version.name, int(version.version)
        place = self._place(version.run_id)
        created = datetime.fromtimestamp(version.creation_timestamp / 1000, timezone.utc).isoformat(timespec="seconds")
        recorded, unread = record_in(place)
        info = {"created": created, "passed": False, "metrics": {}, **recorded}
        named = tuple(sorted(alias for alias, named in aliases.items() if named == number))
        labelled = str(version.tags.get(_DIGEST, ""))
        return RegisteredVersion(name, number, place, named, info, f"models:/{name}/{number}", labelled, unread)

    def _place(self, run: str) -> str:
        return place_of_files(self.uri, run, _FOLDER)

    def _upload(self, name: str, model: Path, info: dict[str, Any], digest: str, check: Check | None) -> str:
        """Uploads the files into a run of their own, and checks them there; after a failure nothing stays.

        Returns:
            The id of the run.
        """
        with self._errors(f"Beginning the upload of {name!r}"):
            tags = {_UPLOAD_OF: name, _DIGEST: digest, **self._parent(str(info.get(TRACKED_RUN, "")))}
            run = str(self._client.create_run(self._experiment, tags=tags, run_name=name).info.run_id)
        try:
            names, folder = sorted(info["files"]), RemoteFolder(self._place(run))
            folder.upload(model, names)
            folder.require_same(model, names)
            write_document_at(f"{self._place(run)}/{VERSION}", info)
            if check:
                check(self._place(run))
            with self._errors(f"Ending the upload of {name!r}"):
                for metric, value in _metrics(info).items():
                    self._client.log_metric(run, metric, value)
        except OSError as error:
            self._delete(run)
            raise UserError(
                f"The model {name!r} could not be uploaded to {self.uri}: {error.strerror or error}.",
                "No version was added; upload again.",
            ) from None
        except BaseException:
            self._delete(run)
            raise
        return run

    def _registered(
        self, name: str, run: str, tags: dict[str, str], description: str, damaged: set[int]
    ) -> tuple[int, bool]:
        """Adds a version whose files are uploaded to MLflow.

        Its answer may be lost, and another upload of the same model may have been faster: the lowest number becomes the
        version, and any other that this upload has added is deleted.

        Returns:
            The number of the version, and whether this upload has added it.
        """
        failed: Exception | None = None
        try:
            with self._errors(f"Adding a version of {name!r}"):
                self._require_model(name)
                source = f"{self._client.get_run(run).info.artifact_uri}/{_FOLDER}"
                self._client.create_model_version(name, source, run_id=run, tags=tags, description=description)
        except UserError as error:
            failed = error
        there = [each for each in self._of_model(name) if each.tags.get(_DIGEST) == tags[_DIGEST]]
        there = [each for each in there if int(each.version) not in damaged]
        if not there:
            # A version whose answer was lost may still appear, and needs its files; if not, a later upload deletes
            # them.
            if not isinstance(failed, UnavailableError):
                self._delete(run)
            raise UserError(
                f"MLflow does not list the version of {name!r} that was added. {failed or ''}".strip(), "Upload again."
            ) from failed
        for each in there[1:]:
            if each.run_id == run:
                with self._errors("Deleting a version that was added twice"):
                    self._client.delete_model_version(name, str(each.version))
        is_own = there[0].run_id == run
        if is_own:
            with self._errors(f"Ending the upload of {name!r}"):
                self._client.set_terminated(run)
        else:
            self._delete(run)
        return int(there[0].version), is_own

    def _require_model(self, name: str) -> None:
        from mlflow.exceptions import MlflowException

        try:
            self._client.create_registered_model(name)
        except MlflowException as error:
            if error.error_code != _EXISTS:
                raise

    def _parent(self, key: str) -> dict[str, str]:
        """The tag that puts the run of the files below the tracker's run, if that is on the same server."""
        if not key or "'" in key:
            return {}
        experiments = [each.experiment_id for each in self._client.search_experiments()]
        found = self._client.search_runs(experiments, f"tags.`{TRACKED_RUN_TAG}` = '{key}'", max_results=1)
        return {_PARENT: str(found[0].info.run_id)} if found else {}

    def _point(self, name: str, alias: str, number: int) -> None:
        from mlflow.exceptions import MlflowException

        with self._errors(f"Moving the alias {alias} of {name!r}"):
            try:
                self._client.set_registered_model_alias(name, alias, str(number))
            except MlflowException:
                # If two create an alias at the same time, the server refuses one, which then moves the existing alias.
                if alias not in self._all_aliases(name):
                    raise
                self._client.set_registered_model_alias(name, alias, str(number))

    def _delete_abandoned(self, name: str) -> None:
        """Deletes what killed uploads of a model have left; one that may still go on is left alone.

        One that was killed right after its version was added has not ended either, but a version names it.
        """
        with self._errors(f"Looking for unfinished uploads of {name!r}"):
            wanted = f"tags.`{_UPLOAD_OF}` = '{name}' and attributes.status = 'RUNNING'"
            left = [run.info for run in self._client.search_runs([self._experiment], wanted)]
            old = [run.run_id for run in left if time.time() - run.start_time / 1000 > _ABANDONED_SECONDS]
            unnamed = [run for run in old if not list(self._search(f"run_id = '{run}'"))]
        for run in unnamed:
            self._delete(run)

    def _delete(self, run: str) -> None:
        """Deletes a run that no version names, and its files, as far as the server allows."""
        with suppress(UserError, OSError):
            folder = RemoteFolder(self._place(run))
            folder.delete(folder.names())
        with suppress(UserError), self._errors("Deleting an unfinished upload"):
            self._client.delete_run(run)


def _metrics(info: dict[str, Any]) -> dict[str, float]:
    """The scores on test by MLflow's names."""
    told = info.get("metrics", {}).items()
    return {mlflow_name(f"test_{name}"): value for name, value in told if value is not None}


def _tags(info: dict[str, Any], digest: str) -> dict[str, str]:
    """The tags of a version that MLflow shows, and by which it is found."""
    told = {name: str(info[name]) for name in _SHOWN if info.get(name) not in (None, "")}
    scores = {name: str(value) for name, value in _metrics(info).items()}
    return {_MANAGED_BY: _OURS, _DIGEST: digest, **told, **scores}


def _description(model: Path) -> str:
    return summary_of(Evaluation.load(model)) if (model / EVALUATION).is_file() else "not evaluated"


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
