"""Runs batch prediction jobs: starts the model's server, and sends it the instances in batches.

An instance that the server refuses is written with the reason: a refused batch is sent again one by one.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import requests
from google.protobuf import json_format

from gpu_pipelines.emulator.api_error import ApiError, answer_to
from gpu_pipelines.emulator.jobs.job_states import STATES
from gpu_pipelines.emulator.jobs.preemption import stockout
from gpu_pipelines.emulator.models.batch_prediction_jobs import BatchPredictionJobs
from gpu_pipelines.emulator.models.batch_prediction_rules import accelerators_of_batch
from gpu_pipelines.emulator.models.model_servers import ModelServers
from gpu_pipelines.emulator.names import region_of
from gpu_pipelines.emulator.running.batch_instances import Instance, instances_of, rows_of_csv, rows_of_json_lines
from gpu_pipelines.emulator.running.batch_outputs import FileOutput, Output
from gpu_pipelines.emulator.running.batch_tables import TableOutput, rows_of_table
from gpu_pipelines.emulator.vertex_api import VertexApi

if TYPE_CHECKING:
    from gpu_pipelines.emulator.bigquery.tables import Tables

#: Reference of `ManualBatchTuningParameters`.
_BATCH_SIZE = 64
_ANSWER_S = 600.0
_FAILED_PRECONDITION, _RESOURCE_EXHAUSTED = 9, 8
#: Reference of `BatchPredictionJob.partial_failures`.
_MOST_FAILURES = 20


class BatchPredictor:
    """Runs batch prediction jobs.

    Args:
        api: has the jobs and models, the available machines, the buckets and BigQuery.
        work: a folder for unfinished files.
    """

    def __init__(self, api: VertexApi, work: Path) -> None:
        self._api, self._state, self._places, self._work = api, api.state, api.places, work
        state = api.state
        self._jobs: BatchPredictionJobs = state.batch_prediction_jobs
        self._servers: ModelServers = state.model_servers
        self._stopped: set[str] = set()
        self._closed = threading.Event()

    def run_jobs(self) -> None:
        """Makes new jobs run, each in a thread; models that cannot be run are refused."""
        # Left by an emulator that was killed.
        shutil.rmtree(self._work, ignore_errors=True)
        self._servers.runs = True
        self._jobs.check = self._check
        self._jobs.start = lambda name: threading.Thread(target=self._run, args=(name,), daemon=True).start()
        self._jobs.stop = self._stop

    def close(self) -> None:
        """Ends what runs."""
        self._closed.set()
        self._servers.close()

    def _check(self, job: Any, model: Any) -> None:
        self._servers.check(model.container_spec)

    def _stop(self, name: str) -> bool:
        self._stopped.add(name)
        self._servers.stop(name)
        return True

    def _is_over(self, name: str) -> bool:
        return name in self._stopped or self._closed.is_set()

    def _run(self, name: str) -> None:
        """Runs a job to its end."""
        job, capacity = self._jobs.one(name), self._state.replicas.capacity
        error, code, fields = "", 3, {}
        if not capacity.take(name, region_of(name), accelerators_of_batch(job)):
            error, code = stockout(region_of(name)), _RESOURCE_EXHAUSTED
        else:
            try:
                fields = _Run(self, job).whole()
                error = self._verdict(fields)
            except ApiError as refused:
                error, code = refused.message, _FAILED_PRECONDITION
            except Exception as problem:
                # Whatever the error is, the job has to end, and to report it.
                error = answer_to(problem).message
            finally:
                self._servers.stop(name)
                capacity.free(name)
        if self._closed.is_set():
            return
        if name in self._stopped:
            self._jobs.set_state(name, STATES.JOB_STATE_CANCELLED, **fields)
        elif error:
            self._jobs.set_state(name, STATES.JOB_STATE_FAILED, error, code, **fields)
        else:
            self._jobs.set_state(name, STATES.JOB_STATE_SUCCEEDED, **fields)

    @staticmethod
    def _verdict(fields: dict[str, Any]) -> str:
        """The error of a job that went through its instances without predicting any."""
        counted = fields["completion_stats"]
        if counted["successful_count"] or not counted["failed_count"]:
            return ""
        first = fields["partial_failures"][0]["message"]
        return f"All {counted['failed_count']} instances failed. The first of them: {first}"


class _Run:
    """One running job."""

    def __init__(self, settings: BatchPredictor, job: Any) -> None:
        self._job, self._settings = job, settings
        self._state, self._servers = settings._state, settings._servers
        self._model = settings._jobs.model_of(job)
        plain = type(job).pb(job)
        self._parameters = (
            {"parameters": json_format.MessageToDict(plain.model_parameters)}
            if plain.HasField("model_parameters")
            else {}
        )
        self._done, self._failed = 0, 0
        self._failures: list[dict[str, Any]] = []

    def whole(self) -> dict[str, Any]:
        """Goes through all instances; returns the fields of the job about them.

        Raises:
            ApiError: it could not begin, or the server could not be started.
        """
        instances = self._instances()
        output = self._output()
        try:
            self._url()
            self._settings._jobs.set_state(self._job.name, STATES.JOB_STATE_RUNNING)
            size = self._job.manual_batch_tuning_parameters.batch_size or _BATCH_SIZE
            for batch in _batches(instances, size):
                if self._settings._is_over(self._job.name):
                    break
                self._take(batch, output)
            info = output.finish()
        finally:
            output.close()
        counted = {"successful_count": self._done, "failed_count": self._failed}
        return {"output_info": info, "completion_stats": counted, "partial_failures": self._failures}

    def _instances(self) -> Iterator[Instance]:
        """The instances.

        Raises:
            ApiError: there are no such files, or no such table.
        """
        source, places, config = self._job.input_config, self._settings._places, self._job.instance_config
        if source.instances_format == "bigquery":
            rows: Iterable[Any] = rows_of_table(self._tables(), source.bigquery_source.input_uri)
            return instances_of(rows, config, is_table=True)
        files = [file for uri in source.gcs_source.uris for file in places.matching(uri)]
        if source.instances_format == "jsonl":
            return instances_of(rows_of_json_lines(files), config, is_table=False)
        return instances_of(rows_of_csv(files), config, is_table=True, is_told_whole=self._is_to_a_table)

    @property
    def _is_to_a_table(self) -> bool:
        return bool(self._job.output_config.predictions_format == "bigquery")

    def _tables(self) -> Tables:
        return self._settings._api.bigquery().tables

    def _output(self) -> Output:
        target, created = self._job.output_config, self._job.create_time
        name = getattr(self._model, "display_name", "") or self._job.display_name
        if self._is_to_a_table:
            return TableOutput(self._tables(), target.bigquery_destination.output_uri, name, created)
        prefix = target.gcs_destination.output_uri_prefix
        return FileOutput(self._settings._places, prefix, name, created, self._settings._work)

    def _url(self) -> str:
        """The address for predictions; the server is started again if it has ended."""
        job = self._job
        return self._servers.predict_url(job.name, self._model, job.service_account, self._say)

    def _say(self, line: str, severity: str) -> None:
        if self._job.disable_container_logging:
            return
        labels = {"job_id": self._job.name.rpartition("/")[2], "task_name": "prediction_container"}
        self._state.logs.write(self._state.names.project(self._job.name), "ml_job", labels, line, severity)

    def _take(self, batch: list[Instance], output: Output) -> None:
        """Predicts a batch, and writes the results."""
        for instance in batch:
            if instance.error:
                self._refuse(instance, instance.error, output)
        asked = [instance for instance in batch if not instance.error]
        if not asked:
            return
        found = self._predictions(asked)
        if isinstance(found, str) and self._settings._is_over(self._job.name):
            return
        if isinstance(found, str) and len(asked) > 1:
            for instance in asked:
                self._take([instance], output)
        elif isinstance(found, str):
            self._refuse(asked[0], found, output)
        else:
            for instance, prediction in zip(asked, found, strict=True):
                output.add(instance.told, prediction)
            self._done += len(asked)

    def _refuse(self, instance: Instance, error: str, output: Output) -> None:
        self._failed += 1
        if len(self._failures) < _MOST_FAILURES:
            self._failures.append({"code": 3, "message": error})
        output.refuse(instance.told, error)

    def _predictions(self, batch: list[Instance]) -> list[Any] | str:
        """The predictions of a batch, or the reason why there are none."""
        body = {"instances": [instance.sent for instance in batch], **self._parameters}
        try:
            answer = requests.post(self._url(), json=body, timeout=_ANSWER_S)
            if answer.status_code != 200:
                return f"Non-OK result {answer.status_code} ({answer.text[:500]}) from server."
            found = answer.json()["predictions"]
        except (requests.RequestException, ValueError, KeyError, TypeError) as error:
            return f"Post request fails. Cannot get predictions. Error: {type(error).__name__}: {error}"
        if not isinstance(found, list) or len(found) != len(batch):
            return f"The server has not answered one prediction for each of {len(batch)} instances."
        return found


def _batches(instances: Iterable[Instance], size: int) -> Iterator[list[Instance]]:
    left = iter(instances)
    while batch := list(islice(left, size)):
        yield batch
