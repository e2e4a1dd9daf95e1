"""The parameters of the first step of each pipeline, besides those of the other steps."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_pipelines.component_interface.parameter import parameter


@dataclass(frozen=True)
class Request:
    """The parameters of `check_request` itself."""

    notify: list[str] = parameter(
        [],
        "Who gets a message when the run ends: e-mail addresses, and channels as send_message takes them. Empty for "
        "no message.",
    )
    told_by_step: bool = parameter(
        False, "Whether the messages are sent by a step of the pipeline, send_message, and not by the service."
    )
    checkpoint_uri: str = parameter(
        "",
        "Checkpoints of an earlier run, local or gs://, from which the training continues; its data and the parameters "
        "that shape the weights must be the same. Empty for a place of the run's own.",
        common=True,
    )
    tracking: str = parameter(
        "none",
        "Tracker that shows the run beside others: mlflow (on this machine a file beside the runs) or "
        "mlflow:https://HOST, vertex or vertex:EXPERIMENT for Vertex AI Experiments, wandb or wandb:ENTITY/PROJECT for "
        "Weights & Biases, or none. Changing it does not train again.",
        common=True,
    )
    pipeline: str = parameter(
        "train_evaluate_upload",
        "Pipeline of the request: train_evaluate_upload, scheduled_retraining or tune_train_evaluate_upload.",
    )
    place: str = parameter("local", "Where the pipeline runs: local, vertex or kubeflow.")
    data_nodes: int = parameter(1, "Machines that prepare the data.")
    processes: int = parameter(0, "Processes that train, on all nodes together; 0 if that is not known.")
    storage: str = parameter("", "Where the run leaves its artifacts.")
    run_name: str = parameter(
        "", "Name of the run. It differs for each run, so that no service reuses the answer of an earlier one."
    )
