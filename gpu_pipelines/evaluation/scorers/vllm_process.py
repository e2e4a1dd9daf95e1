"""The process in which vLLM writes: when it ends, the memory of the GPU is free again."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from gpu_pipelines.artifacts.dataset import Dataset
from gpu_pipelines.distributed.processes import killed_is_said, one_process
from gpu_pipelines.errors import ProcessFailedError, UserError, named
from gpu_pipelines.evaluation.generation.port import Written
from gpu_pipelines.evaluation.generation.request import AUTO, VLLM
from gpu_pipelines.tasks.tasks import task_named


def writes_with_vllm(generate_with: str, device: str) -> bool:
    """Whether vLLM writes: where it was asked for, and else where it is installed and there is a GPU.

    Args:
        generate_with: the parameter.
        device: that models run on, in the terms of torch.
    """
    return generate_with == VLLM or (generate_with == AUTO and device != "cpu" and find_spec("vllm") is not None)


def written_in_process(
    dataset_directory: Path, model: Path, title: str, prompts: Sequence[np.ndarray], most: int
) -> list[Written]:
    """What a model writes behind prompts.

    Args:
        dataset_directory: where the prompts are from.
        model: in Hugging Face layout.
        title: what messages call it.
        prompts: tokens of each.
        most: tokens that are written for each at most.

    Raises:
        UserError: vLLM cannot write with it, or its process was killed.
    """
    torch.cuda.empty_cache()
    with one_process(_begin, ()) as pool:
        try:
            with killed_is_said("The process of vLLM"):
                return pool.submit(_write, dataset_directory, model, list(prompts), most).result()
        except UserError:
            raise
        except Exception as error:  # whatever vLLM raises there: it does not know the model, the GPU is full
            said = named(error)
            raise ProcessFailedError(
                f"vLLM cannot write with {title}: {said}", "Give generate_with=transformers to write without it."
            ) from None


def _begin() -> None:
    """vLLM sets itself up."""


def _write(dataset_directory: Path, model: Path, prompts: Sequence[np.ndarray], most: int) -> list[Written]:
    dataset = Dataset(dataset_directory)
    return task_named(dataset.manifest.task).load_text_task(dataset).write_with_vllm(model, prompts, most)
