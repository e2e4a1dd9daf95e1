"""The methods of the services of Vertex AI, and what carries each of them out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpu_pipelines.emulator.batch_prediction_jobs import BatchPredictionJobs
from gpu_pipelines.emulator.custom_jobs import CustomJobs
from gpu_pipelines.emulator.endpoints import Endpoints
from gpu_pipelines.emulator.metadata import Metadata
from gpu_pipelines.emulator.models import Models
from gpu_pipelines.emulator.persistent_resources import PersistentResources
from gpu_pipelines.emulator.pipeline_jobs import PipelineJobs
from gpu_pipelines.emulator.schedules import Schedules
from gpu_pipelines.emulator.tensorboards import Tensorboards
from gpu_pipelines.emulator.tuning_jobs import TuningJobs

#: By the name of a method what takes its protobuf request and gives the answer.
Methods = dict[str, Callable[[Any], Any]]


def job_methods(
    custom_jobs: CustomJobs, tuning_jobs: TuningJobs, batch_prediction_jobs: BatchPredictionJobs
) -> Methods:
    """Those of JobService."""
    return {
        "CreateCustomJob": custom_jobs.create,
        "GetCustomJob": custom_jobs.get,
        "ListCustomJobs": custom_jobs.list,
        "CancelCustomJob": custom_jobs.cancel,
        "CreateHyperparameterTuningJob": tuning_jobs.create,
        "GetHyperparameterTuningJob": tuning_jobs.get,
        "ListHyperparameterTuningJobs": tuning_jobs.list,
        "CancelHyperparameterTuningJob": tuning_jobs.cancel,
        "DeleteHyperparameterTuningJob": tuning_jobs.delete,
        "CreateBatchPredictionJob": batch_prediction_jobs.create,
        "GetBatchPredictionJob": batch_prediction_jobs.get,
        "ListBatchPredictionJobs": batch_prediction_jobs.list,
        "CancelBatchPredictionJob": batch_prediction_jobs.cancel,
        "DeleteBatchPredictionJob": batch_prediction_jobs.delete,
    }


def pipeline_methods(pipeline_jobs: PipelineJobs) -> Methods:
    """Those of PipelineService."""
    return {
        "CreatePipelineJob": pipeline_jobs.create,
        "GetPipelineJob": pipeline_jobs.get,
        "ListPipelineJobs": pipeline_jobs.list,
        "CancelPipelineJob": pipeline_jobs.cancel,
        "DeletePipelineJob": pipeline_jobs.delete,
    }


def schedule_methods(schedules: Schedules) -> Methods:
    """Those of ScheduleService."""
    return {
        "CreateSchedule": schedules.create,
        "GetSchedule": schedules.get,
        "ListSchedules": schedules.list,
        "UpdateSchedule": schedules.update,
        "PauseSchedule": schedules.pause,
        "ResumeSchedule": schedules.resume,
        "DeleteSchedule": schedules.delete,
    }


def model_methods(models: Models) -> Methods:
    """Those of ModelService."""
    return {
        "UploadModel": models.upload,
        "GetModel": models.get,
        "ListModels": models.list,
        "ListModelVersions": models.list_versions,
        "MergeVersionAliases": models.merge_aliases,
        "UpdateModel": models.update,
        "DeleteModel": models.delete,
        "DeleteModelVersion": models.delete_version,
        "ImportModelEvaluation": models.import_evaluation,
        "ListModelEvaluations": models.list_evaluations,
    }


def endpoint_methods(endpoints: Endpoints) -> Methods:
    """Those of EndpointService."""
    return {
        "CreateEndpoint": endpoints.create,
        "GetEndpoint": endpoints.get,
        "ListEndpoints": endpoints.list,
        "UpdateEndpoint": endpoints.update,
        "DeleteEndpoint": endpoints.delete,
        "DeployModel": endpoints.deploy,
        "UndeployModel": endpoints.undeploy,
    }


def metadata_methods(metadata: Metadata) -> Methods:
    """Those of MetadataService."""
    return {
        "CreateMetadataStore": metadata.create_store,
        "GetMetadataStore": metadata.get_store,
        "ListMetadataStores": metadata.list_stores,
        "CreateContext": metadata.create_context,
        "GetContext": metadata.contexts.get,
        "ListContexts": metadata.list_contexts,
        "UpdateContext": metadata.update_context,
        "DeleteContext": metadata.delete_context,
        "AddContextArtifactsAndExecutions": metadata.add_members,
        "AddContextChildren": metadata.add_children,
        "QueryContextLineageSubgraph": metadata.context_graph,
        "CreateExecution": metadata.create_execution,
        "GetExecution": metadata.executions.get,
        "ListExecutions": metadata.list_executions,
        "UpdateExecution": metadata.update_execution,
        "DeleteExecution": metadata.delete_execution,
        "AddExecutionEvents": metadata.add_events,
        "QueryExecutionInputsAndOutputs": metadata.execution_graph,
        "CreateArtifact": metadata.create_artifact,
        "GetArtifact": metadata.artifacts.get,
        "ListArtifacts": metadata.list_artifacts,
        "UpdateArtifact": metadata.update_artifact,
        "DeleteArtifact": metadata.delete_artifact,
        "QueryArtifactLineageSubgraph": metadata.artifact_graph,
    }


def tensorboard_methods(tensorboards: Tensorboards) -> Methods:
    """Those of TensorboardService."""
    return {
        "CreateTensorboard": tensorboards.create,
        "GetTensorboard": tensorboards.boards.get,
        "ListTensorboards": tensorboards.boards.list,
        "DeleteTensorboard": tensorboards.delete,
        "CreateTensorboardExperiment": tensorboards.create_experiment,
        "GetTensorboardExperiment": tensorboards.experiments.get,
        "ListTensorboardExperiments": tensorboards.experiments.list,
        "CreateTensorboardRun": tensorboards.create_run,
        "GetTensorboardRun": tensorboards.runs.get,
        "ListTensorboardRuns": tensorboards.runs.list,
        "CreateTensorboardTimeSeries": tensorboards.time_series.create,
        "GetTensorboardTimeSeries": tensorboards.time_series.series.get,
        "ListTensorboardTimeSeries": tensorboards.time_series.list,
        "DeleteTensorboardTimeSeries": tensorboards.delete_time_series,
        "WriteTensorboardRunData": tensorboards.time_series.write,
        "ReadTensorboardTimeSeriesData": tensorboards.time_series.read,
        "BatchReadTensorboardTimeSeriesData": tensorboards.time_series.read_several,
    }


def persistent_resource_methods(persistent_resources: PersistentResources) -> Methods:
    """Those of PersistentResourceService."""
    return {
        "CreatePersistentResource": persistent_resources.create,
        "GetPersistentResource": persistent_resources.get,
        "ListPersistentResources": persistent_resources.list,
        "DeletePersistentResource": persistent_resources.delete,
    }
