"""The methods of Vertex AI's services, and their implementations."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpu_pipelines.emulator.experiments.metadata import Metadata, Nodes
    from gpu_pipelines.emulator.experiments.tensorboards import Tensorboards

#: The functions that take a method's protobuf request and return the answer, by the method's name.
Methods = dict[str, Callable[[Any], Any]]


def methods_of(state: Any) -> dict[str, Methods]:
    """The methods of each service, carried out by the attributes of the emulator's `State`."""
    models, endpoints = state.models, state.endpoints
    return {
        "JobService": {
            **_usual("CustomJob", state.custom_jobs, "create", "get", "list", "cancel"),
            **_usual("HyperparameterTuningJob", state.tuning_jobs, "create", "get", "list", "cancel", "delete"),
            **_usual("BatchPredictionJob", state.batch_prediction_jobs, "create", "get", "list", "cancel", "delete"),
        },
        "PipelineService": _usual("PipelineJob", state.pipeline_jobs, "create", "get", "list", "cancel", "delete"),
        "ScheduleService": _usual(
            "Schedule", state.schedules, "create", "get", "list", "update", "pause", "resume", "delete"
        ),
        "ModelService": {
            **_usual("Model", models, "upload", "get", "list"),
            "ListModelVersions": models.list_versions,
            "MergeVersionAliases": models.merge_aliases,
            **_usual("Model", models, "update", "delete"),
            "DeleteModelVersion": models.delete_version,
            "ImportModelEvaluation": models.import_evaluation,
            "ListModelEvaluations": models.list_evaluations,
        },
        "EndpointService": {
            **_usual("Endpoint", endpoints, "create", "get", "list", "update", "delete"),
            **_usual("Model", endpoints, "deploy", "undeploy"),
        },
        "MetadataService": _of_metadata(state.metadata),
        "TensorboardService": _of_tensorboards(state.tensorboards),
        "PersistentResourceService": _usual(
            "PersistentResource", state.persistent_resources, "create", "get", "list", "delete"
        ),
        "PredictionService": {"Predict": endpoints.predict},
    }


def _usual(noun: str, resources: Any, *verbs: str) -> Methods:
    """Methods that are called after what they do, such as CreateModel and ListModels, and so are those of Python."""
    return {f"{verb.title()}{noun}{'s' if verb == 'list' else ''}": getattr(resources, verb) for verb in verbs}


def _of_metadata(metadata: Metadata) -> Methods:
    return {
        "CreateMetadataStore": metadata.create_store,
        "GetMetadataStore": metadata.get_store,
        "ListMetadataStores": metadata.list_stores,
        **_of_nodes("Context", metadata, metadata.contexts),
        "AddContextArtifactsAndExecutions": metadata.add_members,
        "AddContextChildren": metadata.add_children,
        "QueryContextLineageSubgraph": metadata.context_graph,
        **_of_nodes("Execution", metadata, metadata.executions),
        "AddExecutionEvents": metadata.add_events,
        "QueryExecutionInputsAndOutputs": metadata.execution_graph,
        **_of_nodes("Artifact", metadata, metadata.artifacts),
        "QueryArtifactLineageSubgraph": metadata.artifact_graph,
    }


def _of_nodes(noun: str, metadata: Metadata, nodes: Nodes) -> Methods:
    return {
        f"Create{noun}": partial(metadata.create, nodes),
        f"Get{noun}": nodes.get,
        f"List{noun}s": partial(metadata.find, nodes),
        f"Update{noun}": nodes.update,
        f"Delete{noun}": partial(metadata.delete, nodes),
    }


def _of_tensorboards(boards: Tensorboards) -> Methods:
    curves = boards.time_series
    return {
        "CreateTensorboard": boards.create,
        **_usual("Tensorboard", boards.boards, "get", "list"),
        "DeleteTensorboard": boards.delete,
        "CreateTensorboardExperiment": boards.create_experiment,
        **_usual("TensorboardExperiment", boards.experiments, "get", "list"),
        "CreateTensorboardRun": boards.create_run,
        **_usual("TensorboardRun", boards.runs, "get", "list"),
        "CreateTensorboardTimeSeries": curves.create,
        "GetTensorboardTimeSeries": curves.series.get,
        "ListTensorboardTimeSeries": curves.list,
        "DeleteTensorboardTimeSeries": boards.delete_time_series,
        "WriteTensorboardRunData": curves.write,
        "ReadTensorboardTimeSeriesData": curves.read,
        "BatchReadTensorboardTimeSeriesData": curves.read_several,
    }
