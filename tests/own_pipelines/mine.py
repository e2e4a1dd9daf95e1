"""A pipeline of somebody's: steps of their own before and after those of this project, and a loop."""

from kfp import dsl
from kfp.dsl import Input, Model

from gpu_pipelines.components import accelerate, evaluate_checkpoints, prepare_data, train_model, upload_model


@dsl.component(base_image="europe-docker.pkg.dev/p/r/mine:1")
def count(text: str, times: int = 2) -> int:
    print("counting")
    return len(text) * times


@dsl.component(base_image="python:3.11", packages_to_install=["numpy"])
def shrink(model: Input[Model]) -> str:
    return str(model.metadata["checkpoint"])


@dsl.container_component
def tell(text: str, out: dsl.OutputPath(str)):
    return dsl.ContainerSpec(image="busybox", command=["sh", "-c", 'printf %s "$0" > "$1"', text, out])


@dsl.pipeline(name="mine")
def mine(
    source: str = "sample:digits",
    task: str = "image_classification",
    model: str = "convnext-micro",
    steps: int = 4,
    gates: list = ["accuracy>=0"],  # noqa: B006
    text: str = "abc",
) -> int:
    counted = accelerate(count(text=text).set_env_variable("MINE", "yes"), strategy="spot")
    prepared = prepare_data(source=source, task=task)
    trained = accelerate(train_model(dataset=prepared.outputs["dataset"], model=model, max_steps=steps), "l4:4")
    trained.after(counted).set_retry(5)
    evaluated = evaluate_checkpoints(
        dataset=prepared.outputs["dataset"], checkpoints=trained.outputs["checkpoints"], gates=gates
    )
    uploaded = upload_model(
        best_checkpoint=evaluated.outputs["best_checkpoint"],
        passed=evaluated.outputs["passed"],
        model_name="digits",
        smoke_test=False,
    )
    shrink(model=evaluated.outputs["best_checkpoint"]).after(uploaded).set_cpu_limit("2")
    return counted.output


@dsl.pipeline(name="seeds")
def seeds(numbers: list = [1, 2], source: str = "sample:digits"):  # noqa: B006
    prepared = prepare_data(source=source)
    with dsl.ParallelFor(numbers) as number:
        train_model(dataset=prepared.outputs["dataset"], seed=number, max_steps=2)


@dsl.pipeline(name="telling")
def telling(text: str = "hello") -> str:
    return tell(text=text).outputs["out"]
