"""A second stage under a condition: a language model is trained, and adapted with LoRA if the first stage was good.

gpu-pipelines run examples/pipelines/pretrain_then_lora.py
gpu-pipelines run examples/pipelines/pretrain_then_lora.py --target vertex --accelerator l4:1
"""

from kfp import dsl
from kfp.dsl import Input, Model

from gpu_pipelines.components import accelerate, evaluate_checkpoints, prepare_data, train_model


@dsl.component(base_image="python:3.11")
def place_of(model: Input[Model]) -> str:
    """Where a model is, as `train_model` takes it."""
    return model.uri


@dsl.pipeline(name="pretrain-then-lora")
def pretrain_then_lora(
    source: str = "sample:documentation", steps: int = 10, lora_steps: int = 4, gate: str = "loss<=20"
):
    prepared = prepare_data(source=source, task="causal_lm", sequence_length=64, vocabulary_size=512)
    dataset = prepared.outputs["dataset"]
    pretrained = accelerate(train_model(dataset=dataset, model="llama-micro", max_steps=steps, global_batch_size=16))
    first = evaluate_checkpoints(dataset=dataset, checkpoints=pretrained.outputs["checkpoints"], gates=[gate])
    with dsl.If(first.outputs["passed"] == True, name="good-enough"):  # noqa: E712 (KFP compiles the comparison)
        adapted = accelerate(
            train_model(
                dataset=dataset,
                model=place_of(model=first.outputs["best_checkpoint"]).output,
                lora_rank=4,
                max_steps=lora_steps,
                global_batch_size=16,
            )
        )
        evaluate_checkpoints(
            dataset=dataset,
            checkpoints=pretrained.outputs["checkpoints"],
            more_checkpoints=adapted.outputs["checkpoints"],
        )
