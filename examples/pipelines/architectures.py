"""Two architectures trained side by side; the better model, by the same rows, is uploaded.

gpu-pipelines run examples/pipelines/architectures.py
gpu-pipelines run examples/pipelines/architectures.py --target vertex --accelerator train-model=l4:4,evaluate=l4:1
"""

from kfp import dsl

from gpu_pipelines.components import accelerate, evaluate_checkpoints, prepare_data, train_model, upload_model


@dsl.pipeline(name="architectures")
def architectures(models: list = ["convnext-micro", "vit-micro"], steps: int = 40, source: str = "sample:digits"):  # noqa: B006
    prepared = prepare_data(source=source)
    with dsl.ParallelFor(models) as model:
        trained = accelerate(train_model(dataset=prepared.outputs["dataset"], model=model, max_steps=steps))
    evaluated = evaluate_checkpoints(
        dataset=prepared.outputs["dataset"],
        collected=dsl.Collected(trained.outputs["checkpoints"]),
        gates=["accuracy>=0.3"],
    )
    upload_model(best_checkpoint=evaluated.outputs["best_checkpoint"], passed=evaluated.outputs["passed"])
