"""The KFP interface of `check_request`."""

from typing import NamedTuple

from kfp import dsl

from gpu_pipelines.component_interface.image import STEPS_IMAGE


@dsl.component(base_image=STEPS_IMAGE, install_kfp_package=False)
def check_request(
    source: str = "sample:digits",
    task: str = "image_classification",
    label_column: str = "label",
    text_column: str = "text",
    image_size: int = 0,
    tokenizer: str = "train",
    sequence_length: int = 0,
    model: str = "convnext-micro",
    epochs: float = 0.0,
    learning_rate: float = 0.0,
    global_batch_size: int = 64,
    lora_rank: int = 0,
    space: str = "",
    trials: int = 40,
    parallel_trials: int = 1,
    budget: float = 0.0,
    longer: float = 1.0,
    dollars_per_hour: float = 0.0,
    gates: list = [],  # noqa: B006 (KFP takes the default from here)
    registry: str = "./registry",
    model_name: str = "",
    start_from_champion: bool = False,
    retrain_on: str = "new_data",
    drift_source: str = "",
    notify: list = [],  # noqa: B006
    told_by_step: bool = False,
    checkpoint_uri: str = "",
    tracking: str = "none",
    pipeline: str = "train_evaluate_upload",
    place: str = "local",
    data_nodes: int = 1,
    processes: int = 0,
    storage: str = "",
    run_name: str = "",
    advanced: dict = {},  # noqa: B006
) -> NamedTuple(  # type: ignore[valid-type]
    "Outputs",
    [
        ("source_fingerprint", str),
        ("prepare", dict),
        ("train", dict),
        ("evaluate", dict),
        ("upload", dict),
        ("watch", dict),
    ],
):
    """Checks every parameter of a run, opens what its last steps need, and takes a fingerprint of the data.

    Args:
        source: As for prepare_data.
        task: As for prepare_data.
        label_column: As for prepare_data.
        text_column: As for prepare_data.
        image_size: As for prepare_data.
        tokenizer: As for prepare_data.
        sequence_length: As for prepare_data.
        model: As for train_model.
        epochs: As for train_model.
        learning_rate: As for train_model.
        global_batch_size: As for train_model.
        lora_rank: As for train_model.
        space: As for tune_model.
        trials: As for tune_model.
        parallel_trials: As for tune_model.
        budget: As for tune_model.
        longer: As for tune_model.
        dollars_per_hour: As for tune_model.
        gates: As for evaluate_checkpoints.
        registry: As for upload_model.
        model_name: As for upload_model.
        start_from_champion: As for check_for_new_data.
        retrain_on: As for check_for_new_data.
        drift_source: As for check_for_new_data.
        notify: Who gets a message when the run ends: e-mail addresses, and channels as send_message takes them. Empty
            for no message.
        told_by_step: Whether the messages are sent by a step of the pipeline, send_message, and not by the service.
        checkpoint_uri: Checkpoints of an earlier run, local or gs://, from which the training continues; its data and
            the parameters that shape the weights must be the same. Empty for a place of the run's own.
        tracking: Tracker that shows the run beside others: mlflow (on this machine a file beside the runs) or
            mlflow:https://HOST, vertex or vertex:EXPERIMENT for Vertex AI Experiments, wandb or wandb:ENTITY/PROJECT
            for Weights & Biases, or none. Changing it does not train again.
        pipeline: Pipeline of the request: train_evaluate_upload, scheduled_retraining or tune_train_evaluate_upload.
        place: Where the pipeline runs: local, vertex or kubeflow.
        data_nodes: Machines that prepare the data.
        processes: Processes that train, on all nodes together; 0 if that is not known.
        storage: Where the run leaves its artifacts.
        run_name: Name of the run. It differs for each run, so that no service reuses the answer of an earlier one.
        advanced: The other parameters of the steps, by name; those left out have their defaults.

    Returns:
        source_fingerprint: Fingerprint of the source as it is now, taken without reading its rows.
        prepare: The fields of advanced that prepare_data takes.
        train: The fields of advanced that train_model takes, with checkpoint_uri if it was given.
        evaluate: The fields of advanced that evaluate_checkpoints takes.
        upload: The fields of advanced that upload_model takes.
        watch: The fields of advanced that check_for_new_data takes.
    """
    from gpu_pipelines.dag.check import Request, run

    return run(
        {
            "source": source,
            "task": task,
            "label_column": label_column,
            "text_column": text_column,
            "image_size": image_size,
            "tokenizer": tokenizer,
            "sequence_length": sequence_length,
            "model": model,
            "epochs": epochs,
            "learning_rate": learning_rate,
            "global_batch_size": global_batch_size,
            "lora_rank": lora_rank,
            "space": space,
            "trials": trials,
            "parallel_trials": parallel_trials,
            "budget": budget,
            "longer": longer,
            "dollars_per_hour": dollars_per_hour,
            "gates": gates,
            "registry": registry,
            "model_name": model_name,
            "start_from_champion": start_from_champion,
            "retrain_on": retrain_on,
            "drift_source": drift_source,
        },
        Request(
            notify=notify,
            told_by_step=told_by_step,
            checkpoint_uri=checkpoint_uri,
            tracking=tracking,
            pipeline=pipeline,
            place=place,
            data_nodes=data_nodes,
            processes=processes,
            storage=storage,
            run_name=run_name,
        ),
        advanced=advanced,
    )
