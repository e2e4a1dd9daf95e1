"""How much a result owes to chance: the same training from several seeds, ranked together.

gpu-pipelines run examples/pipelines/seeds.py -p numbers=1,2,3
"""

from kfp import dsl

from gpu_pipelines.components import accelerate, evaluate_checkpoints, prepare_data, train_model


@dsl.pipeline(name="seeds")
def seeds(numbers: list = [1, 2], steps: int = 20, source: str = "sample:digits"):  # noqa: B006
    prepared = prepare_data(source=source)
    with dsl.ParallelFor(numbers) as seed:
        trained = accelerate(
            train_model(dataset=prepared.outputs["dataset"], seed=seed, max_steps=steps, checkpoint_every_steps=steps)
        )
    evaluate_checkpoints(
        dataset=prepared.outputs["dataset"],
        collected=dsl.Collected(trained.outputs["checkpoints"]),
        model_name="digits-of-seeds",
        gates=["accuracy>=0"],
    )
