"""Prepare data, train, evaluate every checkpoint, upload the best one."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from kfp import dsl
from kfp.dsl import HTML, Model

from gpu_pipelines.accelerators import AcceleratorPlan
from gpu_pipelines.accelerators.one_gpu import one_gpu
from gpu_pipelines.components.data_prep.component import prepare_data
from gpu_pipelines.components.data_prep.settings import PrepareSettings
from gpu_pipelines.components.data_prep.source_files import source_state
from gpu_pipelines.components.evaluation.component import evaluate_checkpoints
from gpu_pipelines.components.evaluation.settings import EvaluationSettings
from gpu_pipelines.components.model_upload.component import upload_model
from gpu_pipelines.components.model_upload.upload import UploadSettings
from gpu_pipelines.components.training.component import train_model
from gpu_pipelines.components.training.settings import TrainingSettings
from gpu_pipelines.errors import UserError
from gpu_pipelines.pipelines.descriptions import described_by
from gpu_pipelines.recipes.tasks import TASKS
from gpu_pipelines.registry import is_local, model_name_for, open_registry
from gpu_pipelines.step_interface import fields_from
from gpu_pipelines.targets.local import digest_of_files, digest_of_program
from gpu_pipelines.targets.target import Target

# Stable over restarts of one run, unlike an artifact's place, which belongs to one attempt of one task.
CHECKPOINT_URI = f"{dsl.PIPELINE_ROOT_PLACEHOLDER}/checkpoints/{dsl.PIPELINE_JOB_ID_PLACEHOLDER}"


class Outputs(NamedTuple):
    """What a run of the pipeline leaves."""

    data_report: HTML
    training_report: HTML
    evaluation_report: HTML
    best_checkpoint: Model
    model: Model


def build(target: Target, plan: AcceleratorPlan | None) -> Any:
    """Builds the pipeline.

    Args:
        target: where it will run; places each step.
        plan: accelerators of the steps that use them; None for those that the target has.

    Returns:
        A KFP pipeline (`kfp.dsl.GraphComponent`).
    """
    prepare = target.place(prepare_data, None)
    train = target.place(train_model, plan)
    evaluate = target.place(evaluate_checkpoints, plan and one_gpu(plan))
    upload = target.place(upload_model, None)

    @dsl.pipeline(name="train-evaluate-upload")
    @described_by(prepare_data, train_model, evaluate_checkpoints, upload_model)
    def train_evaluate_upload(
        source: str = PrepareSettings.source,
        source_format: str = PrepareSettings.source_format,
        task: str = PrepareSettings.task,
        image_column: str = PrepareSettings.image_column,
        label_column: str = PrepareSettings.label_column,
        text_column: str = PrepareSettings.text_column,
        image_size: int = PrepareSettings.image_size,
        color_mode: str = PrepareSettings.color_mode,
        tokenizer: str = PrepareSettings.tokenizer,
        vocabulary_size: int = PrepareSettings.vocabulary_size,
        sequence_length: int = PrepareSettings.sequence_length,
        packing: bool = PrepareSettings.packing,
        val_fraction: float = PrepareSettings.val_fraction,
        test_fraction: float = PrepareSettings.test_fraction,
        split_seed: int = PrepareSettings.split_seed,
        stratify: bool = PrepareSettings.stratify,
        remove_duplicates: bool = PrepareSettings.remove_duplicates,
        near_duplicates: float = PrepareSettings.near_duplicates,
        max_rejected: str = PrepareSettings.max_rejected,
        shard_megabytes: int = PrepareSettings.shard_megabytes,
        model: str = TrainingSettings.model,
        recipe: str = TrainingSettings.recipe,
        epochs: float = TrainingSettings.epochs,
        max_steps: int = TrainingSettings.max_steps,
        learning_rate: float = TrainingSettings.learning_rate,
        learning_rate_schedule: str = TrainingSettings.learning_rate_schedule,
        weight_decay: float = TrainingSettings.weight_decay,
        warmup_steps: int = TrainingSettings.warmup_steps,
        gradient_clip: float = TrainingSettings.gradient_clip,
        global_batch_size: int = TrainingSettings.global_batch_size,
        micro_batch_size: int = TrainingSettings.micro_batch_size,
        precision: str = TrainingSettings.precision,
        parallelism: str = TrainingSettings.parallelism,
        activation_checkpointing: bool = TrainingSettings.activation_checkpointing,
        compile_model: bool = TrainingSettings.compile_model,
        lora_rank: int = TrainingSettings.lora_rank,
        lora_alpha: float = TrainingSettings.lora_alpha,
        checkpoint_every_steps: int = TrainingSettings.checkpoint_every_steps,
        keep_last: int = TrainingSettings.keep_last,
        keep_every_steps: int = TrainingSettings.keep_every_steps,
        early_stopping_patience: int = TrainingSettings.early_stopping_patience,
        seed: int = TrainingSettings.seed,
        gates: list = [],  # noqa: B006 (KFP takes the default from here)
        select_by: str = EvaluationSettings.select_by,
        scoring_function: str = EvaluationSettings.scoring_function,
        model_name: str = EvaluationSettings.model_name,
        registry: str = target.registry,
        serving_image: str = UploadSettings.serving_image,
    ) -> Outputs:
        """Prepares data, trains a model, evaluates every checkpoint and uploads the best one.

        Returns:
            data_report: Rows, rejected rows by reason, class balance and examples.
            training_report: Curves of loss, learning rate and throughput.
            evaluation_report: Verdict, checkpoints over time, test metrics, confusion matrix and mistakes.
            best_checkpoint: The best checkpoint in Hugging Face layout with evaluation.json and a model card.
            model: The version in the registry.
        """
        prepared = prepare(
            source=source,
            source_format=source_format,
            task=task,
            image_column=image_column,
            label_column=label_column,
            text_column=text_column,
            image_size=image_size,
            color_mode=color_mode,
            tokenizer=tokenizer,
            vocabulary_size=vocabulary_size,
            sequence_length=sequence_length,
            packing=packing,
            val_fraction=val_fraction,
            test_fraction=test_fraction,
            split_seed=split_seed,
            stratify=stratify,
            remove_duplicates=remove_duplicates,
            near_duplicates=near_duplicates,
            max_rejected=max_rejected,
            shard_megabytes=shard_megabytes,
        )
        trained = train(
            dataset=prepared.outputs["dataset"],
            model=model,
            recipe=recipe,
            epochs=epochs,
            max_steps=max_steps,
            learning_rate=learning_rate,
            learning_rate_schedule=learning_rate_schedule,
            weight_decay=weight_decay,
            warmup_steps=warmup_steps,
            gradient_clip=gradient_clip,
            global_batch_size=global_batch_size,
            micro_batch_size=micro_batch_size,
            precision=precision,
            parallelism=parallelism,
            activation_checkpointing=activation_checkpointing,
            compile_model=compile_model,
            lora_rank=lora_rank,
            lora_alpha=lora_alpha,
            checkpoint_every_steps=checkpoint_every_steps,
            keep_last=keep_last,
            keep_every_steps=keep_every_steps,
            early_stopping_patience=early_stopping_patience,
            seed=seed,
            checkpoint_uri=target.checkpoint_uri or CHECKPOINT_URI,
        )
        evaluated = evaluate(
            dataset=prepared.outputs["dataset"],
            checkpoints=trained.outputs["checkpoints"],
            gates=gates,
            select_by=select_by,
            scoring_function=scoring_function,
            registry=registry,
            model_name=model_name,
        )
        uploaded = upload(
            best_checkpoint=evaluated.outputs["best_checkpoint"],
            passed=evaluated.outputs["passed"],
            registry=registry,
            model_name=model_name,
            serving_image=serving_image,
        )
        return Outputs(
            data_report=prepared.outputs["report"],
            training_report=trained.outputs["training_report"],
            evaluation_report=evaluated.outputs["report"],
            best_checkpoint=evaluated.outputs["best_checkpoint"],
            model=uploaded.outputs["model"],
        )

    return train_evaluate_upload


def problems(arguments: Mapping[str, Any]) -> list[str]:
    """Everything that is wrong with the parameters of a run, without reading any data."""
    prepare = fields_from(PrepareSettings, arguments)
    training = fields_from(TrainingSettings, arguments)
    evaluation = fields_from(EvaluationSettings, arguments)
    found = [*prepare.problems(), *training.problems(prepare.task)]
    # Of a task that does not exist nothing is known, and prepare says so already.
    return [*found, *evaluation.problems(prepare.task)] if prepare.task in TASKS else found


def problems_here(arguments: Mapping[str, Any]) -> list[str]:
    """What is wrong with the parameters of a run on this machine: data that is not here, a registry not writable."""
    found = fields_from(PrepareSettings, arguments).problems_here()
    found += fields_from(EvaluationSettings, arguments).problems_here()
    try:
        open_registry(arguments["registry"]).require_writable()
    except UserError as error:
        found.append(f"{error.problem} {error.remedy}")
    return found


def problems_on_vertex(arguments: Mapping[str, Any]) -> list[str]:
    """What is wrong with the parameters of a run on Vertex AI: whatever is on this machine alone, or would be lost."""
    found = []
    prepare, evaluation = fields_from(PrepareSettings, arguments), fields_from(EvaluationSettings, arguments)
    source, registry = prepare.source, evaluation.registry
    if not source.startswith(("sample:", "gs://")) and not _in_mounted_bucket(source):
        found.append(
            f"The source {source} is not where Vertex AI can read it. Copy it into a bucket and give gs://BUCKET/FOLDER."
        )
    if is_local(registry):
        found.append(
            f"The registry {registry} would be a directory of the container, lost at its end. Give registry=vertex:// "
            "for Vertex AI Model Registry."
        )
    model = fields_from(TrainingSettings, arguments).model
    for name, value in (("model", model), ("tokenizer", prepare.tokenizer)):
        if value.startswith((".", "/", "~")) and not _in_mounted_bucket(value):
            found.append(f"{name} is {value}, a directory of this machine. Copy it into a bucket: {_MOUNTED}BUCKET/….")
    scoring = evaluation.scoring_file
    if scoring is not None and not _in_mounted_bucket(str(scoring)):
        found.append(
            f"scoring_function is in {scoring}, a file of this machine. Copy it into a bucket, {_MOUNTED}BUCKET/…, or "
            "add it to the image and give package.module:function."
        )
    return found


#: Where Vertex AI mounts the buckets of a project in the containers of its jobs.
_MOUNTED = "/gcs/"


def _in_mounted_bucket(path: str) -> bool:
    return path.startswith(_MOUNTED) and path != _MOUNTED


def state_here(arguments: Mapping[str, Any]) -> dict[str, str]:
    """For each step that reads more than its inputs on this machine, a digest of that; the key for `--reuse`."""
    program = digest_of_program()
    source = arguments["source"]
    data = "" if source.startswith("sample:") else source_state(source)
    champion = open_registry(arguments["registry"]).champion(arguments["model_name"] or model_name_for(source))
    seen = f"{champion.place} {champion.info['created']}" if champion else ""
    if scoring := fields_from(EvaluationSettings, arguments).scoring_file:
        seen += digest_of_files(scoring.resolve())
    return {"prepare-data": program + data, "train-model": program, "evaluate-checkpoints": program + seen}
