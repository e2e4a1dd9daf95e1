"""A pipeline of a few small steps. KFP reads annotations as they are, so they are not postponed here."""

from pathlib import Path

from kfp import compiler, dsl


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def add(a: int, b: int = 1) -> int:
    return a + b


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def tell_name(model: dsl.Input[dsl.Artifact]):
    print(model.metadata["resourceName"])


@dsl.pipeline(name="sum")
def sum_of_three(a: int, note: str = "none"):
    first = add(a=a)
    add(a=first.output)


def compiled_sum(folder: Path) -> Path:
    """The compiled file of `sum_of_three`: its tasks are add and add-2."""
    compiler.Compiler().compile(sum_of_three, str(folder / "sum.yaml"))
    return folder / "sum.yaml"


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def wait_for_the_end(seconds: int, place: str):
    import signal
    import sys
    import time

    def save(*_):
        print("saved", flush=True)
        sys.exit(0)

    signal.signal(signal.SIGTERM, save)
    print(f"waiting in {place}", flush=True)
    time.sleep(seconds)


def compiled_wait(folder: Path) -> Path:
    """The compiled file of one step on an L4, which waits until it is stopped: its task is wait-for-the-end."""
    from gpu_pipelines.accelerators import plan
    from gpu_pipelines.project_settings import ProjectSettings
    from gpu_pipelines.targets.vertex.target import VertexTarget

    placed = VertexTarget(ProjectSettings(image="eu.example/steps:1")).place(wait_for_the_end, plan("l4:1"))

    @dsl.pipeline(name="wait")
    def wait(seconds: int = 60):
        placed(seconds=seconds, place=f"{dsl.PIPELINE_ROOT_PLACEHOLDER}/here")

    compiler.Compiler().compile(wait, str(folder / "wait.yaml"))
    return folder / "wait.yaml"


def compiled_preparation(folder: Path, nodes: int) -> Path:
    """The compiled file of prepare_data alone, on several machines."""
    from gpu_pipelines.components.data_prep.component import prepare_data
    from gpu_pipelines.project_settings import ProjectSettings
    from gpu_pipelines.targets.vertex.placement.data_nodes import DataNodes
    from gpu_pipelines.targets.vertex.target import VertexTarget

    placed = VertexTarget(ProjectSettings(image="eu.example/steps:1"), data=DataNodes(nodes)).place(prepare_data, None)

    @dsl.pipeline(name="prepare")
    def prepare(source: str):
        placed(source=source, image_size=16)

    compiler.Compiler().compile(prepare, str(folder / "prepare.yaml"))
    return folder / "prepare.yaml"
