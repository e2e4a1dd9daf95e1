"""The compiled files that are published: their accelerators and names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from gpu_pipelines.accelerators import AcceleratorPlan, load_catalog, plan_request
from gpu_pipelines.accelerators.catalog import CatalogError
from gpu_pipelines.accelerators.request import PlanRequest
from gpu_pipelines.targets.messages import Published
from gpu_pipelines.tasks.tasks import TASKS

#: The rest of a file's name after the GPU: see `file_of`.
_PUBLISHED = re.compile(r"(?P<count>[0-9]+)(-(?P<nodes>[0-9]+)-nodes)?(-(?P<strategy>[a-z-]+))?")

#: The accelerators of files for predictions, and for searches for parameters.
_PREDICTS_ON = "l4:1"
_SEARCHES_ON = ("l4:1", "l4:4")


def published(most_used: bool = False) -> tuple[PlanRequest, ...]:
    """The accelerators of published compiled files, from the rows of the GPUs in the catalog.

    Args:
        most_used: only those that are used most; files for the others are compiled when they are needed.

    Raises:
        CatalogError: a row has another value.
    """
    found = []
    for gpu in load_catalog().gpus.values():
        for name in gpu.most_used if most_used else gpu.compiled:
            match = _PUBLISHED.fullmatch(name)
            if match is None:
                raise CatalogError(f"{gpu.name} should be compiled for {name!r}.", "Write 8, 8-4-nodes or 2-spot.")
            nodes, strategy = int(match["nodes"] or 1), match["strategy"]
            found.append(PlanRequest(f"{gpu.name}:{match['count']}", nodes=nodes, strategy=strategy))
    return tuple(found)


def file_of(plan: AcceleratorPlan) -> str:
    """Name of the file of a plan, such as `h100-8-4-nodes.yaml` or `h100-2-spot.yaml`."""
    parts = [plan.spec.replace(":", "-")]
    if plan.nodes > 1:
        parts.append(f"{plan.nodes}-nodes")
    if plan.strategy != "standard":
        parts.append(plan.strategy)
    return f"{'-'.join(parts)}.yaml"


def published_in_the_cloud(options: Any) -> Iterator[Published]:
    """The files of a target in Google Cloud.

    `train_evaluate_upload` has one for each accelerator and each task with published files; `scheduled_retraining`,
    with all tasks in one file, has one for each of the most used accelerators, `tune_train_evaluate_upload` has two,
    and `batch_prediction` one for the smallest GPU.

    Args:
        options: the dataclass of the target's options, a subclass of `CloudOptions`.
    """
    tasks = [task.name for task in TASKS.values() if task.published]
    wanted = [("train_evaluate_upload", request, task) for request in published() for task in tasks]
    wanted += [("scheduled_retraining", request, "") for request in published(most_used=True)]
    wanted += [("tune_train_evaluate_upload", PlanRequest(spec), "") for spec in _SEARCHES_ON]
    wanted.append(("batch_prediction", PlanRequest(_PREDICTS_ON), ""))
    for pipeline, request, task in wanted:
        file = file_of(plan_request(request))
        given = options(accelerator=request.spec, nodes=request.nodes, strategy=request.strategy)
        yield Published(pipeline, task, f"{task}/{file}" if task else file, given)
