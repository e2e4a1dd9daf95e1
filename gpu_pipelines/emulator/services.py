"""The state of the server, and the API methods that it answers; REST and gRPC share both."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from gpu_pipelines.emulator.api_methods import methods_of
from gpu_pipelines.emulator.experiments.metadata import Metadata
from gpu_pipelines.emulator.experiments.tensorboards import Tensorboards
from gpu_pipelines.emulator.jobs.custom_jobs import CustomJobs
from gpu_pipelines.emulator.jobs.persistent_resources import PersistentResources
from gpu_pipelines.emulator.jobs.replicas import Replicas
from gpu_pipelines.emulator.jobs.tuning_jobs import TuningJobs
from gpu_pipelines.emulator.models.batch_prediction_jobs import BatchPredictionJobs
from gpu_pipelines.emulator.models.endpoints import Endpoints
from gpu_pipelines.emulator.models.model_servers import ModelServers
from gpu_pipelines.emulator.models.models import Models
from gpu_pipelines.emulator.names import Names
from gpu_pipelines.emulator.operations import Operations
from gpu_pipelines.emulator.pipelines.jobs import PipelineJobs
from gpu_pipelines.emulator.pipelines.repository import PipelineRepositories
from gpu_pipelines.emulator.pipelines.run_metadata import PipelineMetadata
from gpu_pipelines.emulator.pipelines.schedules import Schedules
from gpu_pipelines.emulator.project.logs import Logs
from gpu_pipelines.emulator.project.permissions import Permissions
from gpu_pipelines.emulator.project.project import Project
from gpu_pipelines.emulator.project.secret_manager import Secrets
from gpu_pipelines.emulator.state_folder import StateFolder
from gpu_pipelines.emulator.transcoding import Method, method

PROJECT = "example-project"
NUMBER = "123456789012"
REGION = "us-central1"
BUCKET = "example-bucket"
REPOSITORY = "pipelines"

#: Lists come in short pages, to expose clients that read only the first.
PAGE_SIZE = 2


class State:
    """The state of the server.

    Args:
        folder: its folder; its content is loaded at the start.

    Raises:
        UserError: the folder is damaged.

    Attributes:
        custom_jobs, tuning_jobs, batch_prediction_jobs, pipeline_jobs, schedules, models, endpoints, metadata,
            tensorboards, persistent_resources: the resources of Vertex AI.
        replicas: runs custom jobs as processes, once `run_jobs` is called.
        model_servers: the servers that answer predictions.
        logs: Cloud Logging.
        repositories: Artifact Registry; there is a repository `pipelines` of the format KFP.
        project: APIs, permissions and service accounts.
        secrets: Secret Manager.
        permissions: the permissions of accounts.
        keeps_requests: whether to keep requests, for a test to inspect; they would fill an emulator that runs for days.
        requests: the valid requests, as pairs of the method's name and its protobuf request.
    """

    def __init__(self, folder: StateFolder) -> None:
        names, operations = Names({PROJECT: NUMBER}), Operations()
        self.names, self.operations = names, operations
        self.logs = Logs(folder)
        self.custom_jobs = CustomJobs(names, PAGE_SIZE, folder)
        self.persistent_resources = PersistentResources(names, operations, PAGE_SIZE, folder)
        self.custom_jobs.check = self.persistent_resources.check_job
        self.tuning_jobs = TuningJobs(names, operations, PAGE_SIZE, folder)
        self.tuning_jobs.check = self.persistent_resources.check_job
        self.metadata = Metadata(names, operations, PAGE_SIZE, folder)
        self.tensorboards = Tensorboards(names, operations, PAGE_SIZE, folder)
        written = PipelineMetadata(self.metadata)
        self.pipeline_jobs = PipelineJobs(names, operations, self.logs, PAGE_SIZE, folder, written)
        self.schedules = Schedules(names, operations, PAGE_SIZE, folder)
        self.models = Models(names, operations, PAGE_SIZE, folder)
        self.replicas = Replicas(self.custom_jobs, self.logs, names)
        self.model_servers = ModelServers(self.replicas)
        self.endpoints = Endpoints(names, operations, self.models, self.model_servers, self.logs, PAGE_SIZE, folder)
        self.models.endpoint_with = self.endpoints.endpoint_with
        self.batch_prediction_jobs = BatchPredictionJobs(names, operations, self.models, PAGE_SIZE, folder)
        self.repositories = PipelineRepositories(folder)
        self.repositories.formats[f"{REGION}/{REPOSITORY}"] = "KFP"
        self.project = Project(names)
        self.secrets = Secrets(names)
        self.permissions = Permissions(f"tester@{PROJECT}.iam.gserviceaccount.com")
        self.custom_jobs.limits = self.batch_prediction_jobs.limits = self.project.limits
        self.keeps_requests = False
        self.requests: list[tuple[str, Any]] = []
        self.custom_jobs.end_of_before()
        self.tuning_jobs.end_of_before()
        self.batch_prediction_jobs.end_of_before()
        self.pipeline_jobs.end_of_before()

    @property
    def page_size(self) -> int:
        """The longest page of a list."""
        return self.pipeline_jobs.page_size

    @page_size.setter
    def page_size(self, size: int) -> None:
        jobs = (self.custom_jobs, self.batch_prediction_jobs, self.pipeline_jobs)
        for held in (*jobs, self.schedules, self.models, self.endpoints):
            held.page_size = size

    def requests_of(self, name: str) -> list[Any]:
        """The requests of a method, such as CreateCustomJob; raises RuntimeError if none are kept."""
        if not self.keeps_requests:
            raise RuntimeError("Set keeps_requests before they are sent.")
        return [request for called, request in self.requests if called == name]

    def call(self, called: Method, request: Any, account: str = "") -> Any:
        """Carries out a method for an account; by default for this machine's user.

        Raises:
            ApiError: the answer is an error.
        """
        self.permissions.check_method(account or self.permissions.caller, called.name, request, PROJECT)
        if self.keeps_requests:
            self.requests.append((called.name, request))
        return self.handlers[called.name][1](request)

    @cached_property
    def handlers(self) -> dict[str, tuple[Method, Callable[[Any], Any]]]:
        """Methods and their implementations, by the method's name."""
        return {
            name: (method(service, name), handle)
            for service, methods in methods_of(self).items()
            for name, handle in methods.items()
        }
