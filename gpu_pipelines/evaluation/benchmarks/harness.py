"""Runs a benchmark with a model in memory, with lm-eval's own functions, and splits up the results."""

from __future__ import annotations

import functools
import hashlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from gpu_pipelines.artifacts.benchmark_results import (
    BenchmarkResult,
    GroupMetric,
    GroupResult,
    MetricResult,
    TaskResult,
)
from gpu_pipelines.errors import UserError, first_line, named
from gpu_pipelines.evaluation.benchmark_catalog import WITH_INTERVALS, Benchmark, name_within
from gpu_pipelines.evaluation.benchmark_request import BenchmarkOptions
from gpu_pipelines.evaluation.benchmarks.store import ResultStore
from gpu_pipelines.evaluation.models.loading import ModelSource, champion_errors
from gpu_pipelines.evaluation.scorers.runner import Runner
from gpu_pipelines.numbers import finite_or_none

#: Documents at once where lm-eval does not find out how many fit: on a CPU it would try until the memory is full.
ON_CPU = 8
#: What a task is told about where its data lies, which is no part of what the task is: the documents are looked at.
_PLACES = ("dataset_path", "dataset_name", "dataset_kwargs")


@dataclass(frozen=True)
class Asked:
    """A benchmark to be run with one model.

    Attributes:
        benchmark: the benchmark.
        options: how to run it.
        store: where results are kept so that they are not measured again; None for nowhere.
        key: of the result in the store.
    """

    benchmark: Benchmark
    options: BenchmarkOptions
    store: ResultStore | None = None
    key: str = ""


@dataclass(frozen=True)
class Measured:
    """The result of a benchmark.

    Attributes:
        result: figures, and the values of the documents.
        samples: for each task what lm-eval logs of each document, without prompts.
        kept: whether it comes from the store.
    """

    result: BenchmarkResult
    samples: dict[str, list[dict[str, Any]]]
    kept: bool = False


def measure(runner: Runner, source: ModelSource, asked: Asked) -> Measured:
    """Runs a benchmark with the model of a source, or takes its result from the store.

    Args:
        runner: of this process.
        source: the model.
        asked: the benchmark.

    Raises:
        NoComparisonError: the model is the champion, and the benchmark cannot be run with it.
        UserError: it cannot be run: the model is none of transformers, the task's data is not there, a function fails.
    """
    if asked.store is not None and (found := asked.store.read(asked.key)):
        return Measured(BenchmarkResult.from_json(found["result"]), found["samples"], kept=True)
    with champion_errors(source):
        measured = _measured(runner, source, asked)
    if asked.store is not None:
        asked.store.write(asked.key, {"result": asdict(measured.result), "samples": measured.samples})
    return measured


def _measured(runner: Runner, source: ModelSource, asked: Asked) -> Measured:
    from transformers import PreTrainedModel

    loaded = runner.models.load(source)
    if not isinstance(loaded.model, PreTrainedModel):
        raise UserError(
            f"{source.title} is a {type(loaded.model).__name__}; lm-eval runs models of transformers.",
            "Leave benchmarks out.",
        )
    try:
        with _as_lm_eval_is_used_here():
            return _evaluated(loaded.model, loaded.recipe.tokenizer.directory, runner.models.device, asked)
    except UserError:
        raise
    except torch.cuda.OutOfMemoryError as error:
        raise UserError(
            f"The benchmark {asked.benchmark.name!r} needs more memory than the GPU has: {first_line(error)}",
            "Give benchmark_batch_size=1.",
        ) from None
    except Exception as error:  # whatever lm-eval, datasets, or a function of the task raises
        raise UserError(
            f"The benchmark {asked.benchmark.name!r} cannot be run: {named(error)}",
            "A task of lm-eval downloads its data from the Hugging Face hub; one of your own can name local files.",
        ) from error


def _evaluated(model: Any, tokenizer: Path, device: torch.device, asked: Asked) -> Measured:
    from lm_eval import simple_evaluate
    from transformers import AutoTokenizer

    options = asked.options
    batch_size = options.batch_size or ("auto" if device.type == "cuda" else ON_CPU)
    lm = _model_without_bars()(
        pretrained=model, tokenizer=AutoTokenizer.from_pretrained(tokenizer), batch_size=batch_size
    )
    manager = _task_manager(asked.benchmark)
    # Loaded here, so that what a group consists of is known.
    found = manager.load([asked.benchmark.name])
    tasks, groups = found["tasks"], found["groups"]
    inside = {task.task_name for group in groups.values() for task in group.get_all_tasks()}
    given = [*_outermost(groups), *(task for name, task in tasks.items() if name not in inside)]
    evaluated = simple_evaluate(
        model=lm,
        tasks=given,
        task_manager=manager,
        limit=options.limit or None,
        num_fewshot=None if options.fewshot < 0 else options.fewshot,
        apply_chat_template=options.chat_template,
        fewshot_as_multiturn=options.chat_template,
        bootstrap_iters=0,
        log_samples=True,
    )
    assert evaluated is not None
    return _taken_apart(evaluated, tasks, groups, asked)


def _model_without_bars() -> Any:
    """lm-eval's class of transformers' models; it draws bars, which a step's log would be full of."""
    from lm_eval.models.huggingface import HFLM

    class WithoutBars(HFLM):
        def loglikelihood(self, requests: Any, disable_tqdm: bool = True) -> Any:
            return super().loglikelihood(requests, disable_tqdm=True)

        def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = True) -> Any:
            return super().loglikelihood_rolling(requests, disable_tqdm=True)

        def generate_until(self, requests: Any, disable_tqdm: bool = True) -> Any:
            return super().generate_until(requests, disable_tqdm=True)

        def _loglikelihood_tokens(self, requests: Any, disable_tqdm: bool = True, **told: Any) -> Any:
            return super()._loglikelihood_tokens(requests, disable_tqdm=True, **told)

    return WithoutBars


def _outermost(groups: Mapping[str, Any]) -> list[Any]:
    inner = {each.name for group in groups.values() for each in group.get_all_groups()}
    return [group for name, group in groups.items() if name not in inner]


def _task_manager(benchmark: Benchmark) -> Any:
    """lm-eval's index of the tasks that a benchmark consists of; data beside a task file of the user's is found."""
    from lm_eval.tasks import TaskManager
    from lm_eval.tasks._index import Entry, Kind
    from lm_eval.tasks._yaml_loader import load_yaml

    manager = TaskManager(include_defaults=False)
    for name, known in benchmark.needed.items():
        path = Path(known.path) if known.path else None
        content = None
        if known.is_own and known.kind in ("TASK", "GROUP"):
            assert path is not None
            content, path = _with_data_beside(load_yaml(path), path.parent), None
        manager.task_index[name] = Entry(name, Kind[known.kind], path, content, set(known.members))
    return manager


def _with_data_beside(content: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A task or group whose relative data files are those beside it: a step runs in a folder of its own."""

    def found(place: Any) -> Any:
        if isinstance(place, str):
            return str(folder / place) if "://" not in place and (folder / place).exists() else place
        if isinstance(place, list):
            return [found(each) for each in place]
        return {name: found(each) for name, each in place.items()} if isinstance(place, dict) else place

    told = dict(content.get("dataset_kwargs") or {})
    for name in ("data_files", "data_dir"):
        if name in told:
            told[name] = found(told[name])
    members = content.get("task")
    inside = [_with_data_beside(each, folder) if isinstance(each, dict) else each for each in members or ()]
    return {
        **content,
        **({"dataset_kwargs": told} if told else {}),
        **({"task": inside} if isinstance(members, list) else {}),
    }


def _taken_apart(
    evaluated: Mapping[str, Any], tasks: Mapping[str, Any], groups: Mapping[str, Any], asked: Asked
) -> Measured:
    samples = evaluated["samples"]
    results = {
        name: _task_result(task, evaluated["results"][name], samples[name], asked) for name, task in tasks.items()
    }
    with_metrics = {name: group for name, group in groups.items() if group.has_aggregation}
    found = {name: _group_result(group, evaluated["results"][name], results) for name, group in with_metrics.items()}
    main = [asked.benchmark.name] if asked.benchmark.name in (*results, *found) else [*found, *results]
    inside = {task for group in found.values() for task in group.tasks}
    main = main if len(main) == 1 else [name for name in main if name not in inside]
    logged = {name: [_logged(sample) for sample in each] for name, each in samples.items()}
    return Measured(BenchmarkResult(version("lm-eval"), main, results, found), logged)


def _task_result(
    task: Any, figures: Mapping[str, Any], samples: Sequence[Mapping[str, Any]], asked: Asked
) -> TaskResult:
    filters = list(dict.fromkeys(sample["filter"] for sample in samples))
    first = [sample for sample in samples if sample["filter"] == filters[0]]
    higher, aggregations = task.higher_is_better(), task.aggregation()
    metrics = {}
    for key, value in figures.items():
        metric, comma, kind = key.partition(",")
        if not comma or metric.endswith("_stderr"):
            continue
        aggregation = getattr(aggregations.get(metric), "__name__", "mean")
        of_documents = _of_documents([s for s in samples if s["filter"] == kind], metric, aggregation)
        metrics[name_within(metric, "" if kind == filters[0] else kind)] = MetricResult(
            finite_or_none(float(value)),
            bool(higher.get(metric, True)),
            aggregation if of_documents else "",
            of_documents,
        )
    hashes = [[sample[name] for name in ("doc_hash", "prompt_hash", "target_hash")] for sample in first]
    return TaskResult(str(task.VERSION), _fingerprint(task, asked), len(first), _sha256(hashes), metrics)


def _of_documents(samples: Sequence[Mapping[str, Any]], metric: str, aggregation: str) -> list[Any]:
    """What the value of a metric is made of; empty where that is not a mean."""
    if aggregation == "nanmean" or aggregation not in WITH_INTERVALS:
        return []
    try:
        if aggregation in ("mean", "perplexity"):
            return [None if metric not in s else finite_or_none(float(s[metric])) for s in samples]
        return [None if metric not in s else [float(each) for each in s[metric]] for s in samples]
    except (TypeError, ValueError):  # a value of a user's own function
        return []


def _group_result(group: Any, figures: Mapping[str, Any], results: Mapping[str, TaskResult]) -> GroupResult:
    tasks = [task.task_name for task in group.get_all_tasks()]
    by_size = {each.metric: each.weight_by_size for each in group.aggregate_metric_list}
    found = {}
    for key, value in figures.items():
        metric, comma, kind = key.partition(",")
        if not comma or metric.endswith("_stderr"):
            continue
        # Of a task whose first filter it is, the metric is called without it.
        names = (name_within(metric, ""), name_within(metric, kind))
        name = next((each for each in names if any(each in results[task].metrics for task in tasks)), names[0])
        name = names[1] if names[0] in found else name
        direction = next((results[t].metrics[name].more_is_better for t in tasks if name in results[t].metrics), True)
        found[name] = GroupMetric(finite_or_none(float(value)), direction, by_size[metric])
    return GroupResult(tasks, found)


def _fingerprint(task: Any, asked: Asked) -> str:
    """SHA-256 of what a task is and how it is run, besides its documents and the number of them at once."""
    told = {name: value for name, value in task.dump_config().items() if name not in _PLACES}
    told["metadata"] = {n: v for n, v in (told.get("metadata") or {}).items() if n != "config_source"}
    options = {name: value for name, value in asdict(asked.options).items() if name != "batch_size"}
    return _sha256([version("lm-eval"), str(task.VERSION), told, options])


def _logged(sample: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept of a document: all that lm-eval logs but for the prompts, which repeat the examples each time."""
    return json.loads(json.dumps({n: v for n, v in sample.items() if n != "arguments"}, default=_as_text))


def _sha256(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=_as_text).encode()).hexdigest()


def _as_text(value: Any) -> Any:
    """What is no JSON: numbers of NumPy as numbers, functions by their names."""
    if hasattr(value, "item"):
        return value.item()
    return getattr(value, "__qualname__", None) or (sorted(map(str, value)) if isinstance(value, set) else str(value))


@contextmanager
def _as_lm_eval_is_used_here() -> Iterator[None]:
    """No metric's code is downloaded and run, no bars are drawn in the log, and what lm-eval tells is left out.

    Of each result lm-eval would tell the commit of this folder and the machine, which it finds out by commands for
    seconds; nothing here reads that.
    """
    import evaluate
    from datasets.utils import logging as of_datasets
    from lm_eval import evaluator
    from lm_eval.api import task

    changed: list[tuple[Any, str, Any]] = [
        (evaluate, "load", _refuse),
        (task, "tqdm", functools.partial(task.tqdm, disable=True)),
        (evaluator, "get_git_commit_hash", lambda: None),
        (evaluator, "add_env_info", lambda results: None),
    ]
    before = [getattr(module, name) for module, name, _ in changed]
    logger = logging.getLogger("lm_eval")
    level, shown = logger.level, of_datasets.is_progress_bar_enabled()
    logger.setLevel(logging.ERROR)
    of_datasets.disable_progress_bar()
    for module, name, value in changed:
        setattr(module, name, value)
    try:
        yield
    finally:
        for (module, name, _), value in zip(changed, before, strict=True):
            setattr(module, name, value)
        logger.setLevel(level)
        if shown:
            of_datasets.enable_progress_bar()


def _refuse(name: str, *_: Any, **__: Any) -> Any:
    raise UserError(
        f"The benchmark would download and run the code of the metric {name!r} (evaluate.load).",
        "Name a metric of lm-eval, or a function beside the task file.",
    )
