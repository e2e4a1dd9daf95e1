"""A pipeline of small steps that take a moment. KFP reads annotations as they are, so they are not postponed here."""

from kfp import dsl
from kfp.dsl import HTML, Metrics, Output


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def double(value: int, seconds: float) -> int:
    import time

    print(f"doubling {value}", flush=True)
    time.sleep(seconds)
    return value * 2


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def score(value: int, metrics: Output[Metrics], page: Output[HTML]) -> float:
    from pathlib import Path

    Path(page.path).write_text(f"<p>{value}</p>", encoding="utf-8")
    if value > 100:
        raise ValueError(f"{value} is too much")
    metrics.log_metric("quality", value / 10)
    # KFP's local cache takes an artifact without a file for deleted.
    Path(metrics.path).touch()
    return value / 10


@dsl.pipeline(name="small")
def small(value: int = 3, seconds: float = 0.0, note: str = "none") -> float:
    return score(value=double(value=value, seconds=seconds).output).outputs["Output"]
