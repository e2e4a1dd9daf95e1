"""A pipeline of a few small steps. KFP reads annotations as they are, so they are not postponed here."""

from pathlib import Path

from kfp import compiler, dsl


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def add(a: int, b: int = 1) -> int:
    return a + b


@dsl.pipeline(name="sum")
def sum_of_three(a: int, note: str = "none"):
    first = add(a=a)
    add(a=first.output)


def compiled_sum(folder: Path) -> Path:
    """The compiled file of `sum_of_three`: its tasks are add and add-2."""
    compiler.Compiler().compile(sum_of_three, str(folder / "sum.yaml"))
    return folder / "sum.yaml"
