"""The parameters about benchmarks: names and files of lm-eval tasks, and options; checked without importing lm-eval."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from gpu_pipelines.artifacts.remote_files import is_remote
from gpu_pipelines.tasks.metric import Metric
from gpu_pipelines.tasks.tasks import task_named

#: What lm-eval runs: models that write texts.
PIPELINE_TAG = "text-generation"
#: What follows a dot in other metrics than those of benchmarks begins with one of these.
_NOT_OF_BENCHMARKS = ("slices.", "per_class.")
#: Metrics of lm-eval that are shares, by their names within a task.
SHARES = ("acc", "acc_norm", "acc_bytes", "acc_mutual_info", "exact_match")
MISSING = "Benchmarks need lm-eval. Install it: pip install 'gpu-pipelines[benchmarks]'."


@dataclass(frozen=True)
class BenchmarkOptions:
    """The options that change the results of a benchmark.

    Attributes:
        limit: documents of each task; 0 for all.
        fewshot: examples before each document; -1 for the number of the task.
        chat_template: whether prompts are written in the tokenizer's chat template.
        batch_size: documents at once; 0 to find it out.
    """

    limit: int
    fewshot: int
    chat_template: bool
    batch_size: int


def is_own(benchmark: str) -> bool:
    """Whether a benchmark is a file or folder of the user's, not the name of an lm-eval task."""
    return "/" in benchmark or benchmark.endswith((".yaml", ".yml"))


def places_of_benchmarks(benchmarks: Iterable[str]) -> list[str]:
    """The user's files and folders; those of this machine as paths that cannot be mistaken for names."""
    own = [each for each in benchmarks if is_own(each)]
    return [each if is_remote(each) or each.startswith((".", "/", "~")) else f"./{each}" for each in own]


def is_metric_of_benchmark(name: str) -> bool:
    """Whether a metric of a gate is one of a benchmark, such as `gsm8k.exact_match`."""
    return "." in name and not name.startswith(_NOT_OF_BENCHMARKS)


def bounds_of(name: str) -> Metric | None:
    """The range of a benchmark's metric; None if it is not known."""
    return Metric() if set(name.split(".")[1:2]) & set(SHARES) else None


def problems_of_benchmarks(benchmarks: Sequence[str], best: int, options: BenchmarkOptions, task: str) -> list[str]:
    """Problems with the parameters, each with what to do; an empty task means that it is not known."""
    found = []
    if benchmarks and task_named(task).pipeline_tag != PIPELINE_TAG:
        found.append(
            f"benchmarks are for models that write texts, and the task is {task}. Leave benchmarks out, or take a task "
            "such as causal_lm."
        )
    found += [f"benchmarks names {name!r} twice." for name in dict.fromkeys(_repeated(benchmarks))]
    found += [f"benchmarks has an empty name beside {len(benchmarks) - 1} others."] * (not all(benchmarks))
    counts = {"benchmark_best": (best, 0), "benchmark_limit": (options.limit, 0)}
    counts |= {"benchmark_batch_size": (options.batch_size, 0), "benchmark_fewshot": (options.fewshot, -1)}
    for name, (value, least) in counts.items():
        if value < least:
            found.append(f"{name} is {value}; give {least} or more.")
    return found


def problems_of_files(benchmarks: Iterable[str]) -> list[str]:
    """Problems on this machine: lm-eval or a file is missing."""
    if find_spec("lm_eval") is None:
        return [MISSING]
    found = []
    for each in benchmarks:
        if is_own(each) and not is_remote(each) and not Path(each).expanduser().exists():
            found.append(f"There is no file or folder {each!r} with tasks for lm-eval (benchmarks).")
    return found


def _repeated(names: Sequence[str]) -> list[str]:
    return [name for number, name in enumerate(names) if name in names[:number]]
