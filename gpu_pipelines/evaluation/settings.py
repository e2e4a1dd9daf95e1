"""The parameters of `evaluate_checkpoints`, checked without importing torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpu_pipelines.component_interface.default_registry import DEFAULT_REGISTRY
from gpu_pipelines.component_interface.parameter import parameter
from gpu_pipelines.errors import nearest
from gpu_pipelines.evaluation.benchmark_request import (
    BenchmarkOptions,
    is_metric_of_benchmark,
    problems_of_benchmarks,
    problems_of_files,
)
from gpu_pipelines.evaluation.gates import ChampionGate, Gate, parse_gate
from gpu_pipelines.evaluation.generation.judge_settings import JudgeSettings
from gpu_pipelines.evaluation.generation.request import AUTO, NAMES, NEW_TOKENS, WRITERS, TextRequest
from gpu_pipelines.evaluation.user_function import file_of, names_function, why_not_there
from gpu_pipelines.registry import registry_problems
from gpu_pipelines.tasks.metric import Metric
from gpu_pipelines.tasks.tasks import task_named


@dataclass(frozen=True)
class Ranking:
    """What decides which of two models is better: a metric and its direction."""

    metric: str
    more_is_better: bool


@dataclass(frozen=True)
class EvaluationSettings:
    """The parameters of `evaluate_checkpoints`."""

    gates: list[str] = parameter(
        [],
        "Conditions on test metrics that a champion must meet, such as accuracy>=0.95. Metrics of the classification "
        "tasks: accuracy, macro_f1, macro_recall, min_recall, roc_auc, ece (calibration error), log_loss, and "
        "per_class.recall.min (also precision, f1; also mean); of multi_label_classification: f1, precision, recall, "
        "macro_f1, exact_match, log_loss, and per_class as before; of causal_lm: loss, perplexity, bits_per_byte, "
        "token_accuracy, completion_accuracy, and those of generate; of regression: rmse, mae, r2, coverage; of "
        "token_classification: f1, precision, recall, macro_f1, token_accuracy; of preference: accuracy, margin, loss; "
        "of tasks of your own: loss, perplexity, token_accuracy. For all tasks, slices.METRIC.min and .max, and "
        "latency_p95_ms and latency_p50_ms of one row on the device of this step. better_than_champion by 0.005 at 95% "
        "asks for a difference whose 95% interval lies above 0.005. by and at can be left out; a metric can stand in "
        "front, as in gsm8k.exact_match better_than_champion. Empty for the default of the task: accuracy>=0.9 for "
        "image_classification, none for others.",
        common=True,
    )
    select_by: str = parameter(
        "",
        "Metric that chooses the best checkpoint on val, and compares it with the champion on test; empty for the "
        "first metric of the task. For metrics of a scoring_function more is better, unless the name begins with a "
        "minus, as in -error_rate.",
    )
    scoring_function: str = parameter(
        "",
        "A function of your own for checkpoints in a format of your own, as package.module:function or "
        "path/to/file.py:function. It is called with the path of a checkpoint, the path of the dataset and the name "
        "of a split, and returns a dict of metrics. Checkpoints are the folders or files step-NUMBER, "
        "checkpoint-NUMBER and epoch-NUMBER.",
    )
    average_last: int = parameter(
        0,
        "Number of last checkpoints to average into one more candidate, 2 or more; 0 for none.",
    )
    slice_by: str = parameter(
        "",
        "Column whose values are also scored separately; prepare_data must have kept it. Empty for none.",
    )
    benchmarks: list[str] = parameter(
        [],
        "Benchmarks of lm-eval to run the best checkpoints on: names of its tasks, groups and tags, such as gsm8k, or "
        "your own task files (YAML) and folders of them, local or gs://; a folder's name has a slash in it. Gates can "
        "read the results: gsm8k.exact_match>=0.4, gsm8k.exact_match better_than_champion by 0.01 at 95%. Functions "
        "that your own files name are run.",
    )
    benchmark_best: int = parameter(
        1,
        "Number of checkpoints, the best on val, to run on the benchmarks; 0 for all. Gates read those of the best.",
    )
    benchmark_limit: int = parameter(0, "Run only the first so many documents of each benchmark's tasks; 0 for all.")
    benchmark_fewshot: int = parameter(
        -1,
        "Examples before each document of a benchmark; -1 for the number of the task. A task that says 0 gets none.",
    )
    benchmark_chat_template: bool = parameter(
        False,
        "Whether to put benchmarks into the tokenizer's chat template, with examples as turns, for a chat model.",
    )
    benchmark_batch_size: int = parameter(
        0,
        "Documents of a benchmark at once; 0 for as many as fit on a GPU (lm-eval tries it), and for 8 on CPUs.",
    )
    registry: str = parameter(
        DEFAULT_REGISTRY,
        "Model registry that has the champion: a directory, vertex://PROJECT/REGION for Vertex AI Model Registry, "
        "vertex:// alone for the registry of the job's own project and region, or mlflow:https://HOST for the registry "
        "of an MLflow server.",
    )
    model_name: str = parameter("", "Name of the model in the registry; empty to name it after the source of the data.")
    accept_shift: bool = parameter(
        False,
        "Whether the data is meant to differ from what the champion was evaluated on. Otherwise no model passes if "
        "the champion's own score has fallen by more than chance allows, if classes or columns that it knew are gone, "
        "or if the shares of the classes have moved.",
    )

    generate: list[str] = parameter(
        [],
        "Metrics of the text that the model writes after the prompts of test, for preference, and for causal_lm with "
        "prompts and completions or messages: exact_match, contains, rouge_1, rouge_2, rouge_l, json_valid, "
        "json_schema, judge, and functions of your own as package.module:function or path/to/file.py:function, which "
        "are called with prompt, answer and reference. gates and select_by can name them; for all of them more is "
        "better. Empty to write nothing.",
    )
    max_new_tokens: int = parameter(0, f"Most tokens to write after a prompt; 0 for {NEW_TOKENS}.")
    generate_rows: int = parameter(
        500,
        "Most prompts of a split to answer, chosen by a hash of their content, the same for all models; 0 for all.",
    )
    generate_with: str = parameter(
        AUTO,
        "What writes the text: vllm, transformers, or auto for vLLM if it is installed and there is a GPU.",
        choices=WRITERS,
    )
    json_schema: str = parameter(
        "",
        "JSON Schema of the metric json_schema: its text, or the path of such a file, local or gs://.",
    )
    judge: str = parameter(
        "",
        "Address of the language model that gives the metric judge, a score of 0 to 10, in the form of OpenAI's chat "
        "completions, such as https://host/v1.",
    )
    judge_model: str = parameter("", "Name of the judge's model at that address.")
    judge_prompt: str = parameter(
        "",
        "Prompt for the judge, with {prompt}, {answer} and {reference} as placeholders; the form of its answer is "
        "added. Empty to ask how right and complete the answer is.",
    )
    judge_key: str = parameter(
        "",
        "Where the judge's key is: a variable of the step's environment, or a secret of Secret Manager as "
        "projects/PROJECT/secrets/SECRET/versions/VERSION; never the key itself. Empty for no key.",
    )

    @property
    def texts(self) -> TextRequest:
        """The parameters about written text."""
        judge = JudgeSettings(self.judge, self.judge_model, self.judge_prompt, self.judge_key)
        most = self.max_new_tokens or NEW_TOKENS
        return TextRequest(tuple(self.generate), most, self.generate_rows, self.generate_with, self.json_schema, judge)

    @property
    def texts_on_val(self) -> bool:
        """Whether text is written with every checkpoint, because it chooses the best one."""
        return self.select_by in self.texts.metrics

    def problems(self, task: str) -> list[str]:
        """All problems with the values, each with what to do."""
        found = [*registry_problems(self.registry, self.model_name), *self.texts.problems(task)]
        metrics = self._known_metrics(task)
        if self.scoring_function and not names_function(self.scoring_function):
            found.append(
                f"scoring_function is {self.scoring_function!r}; give package.module:function or "
                "path/to/file.py:function."
            )
        if metrics is not None and self.select_by and self.select_by not in metrics:
            found.append(f"select_by is {self.select_by!r}, which is not a metric. {nearest(self.select_by, metrics)}")
        if self.average_last < 0 or self.average_last == 1:
            found.append(f"average_last is {self.average_last}; give 2 or more checkpoints, or 0 to average none.")
        for gate in self._gates(task):
            try:
                found += self._gate_problems(gate, self._parsed(gate, task))
            except ValueError as error:
                found.append(f"{error}{self._hint_of_text(gate, task)}")
        found += problems_of_benchmarks(self.benchmarks, self.benchmark_best, self.benchmark_options, task)
        return found + self._function_problems() if self.scoring_function else found

    def _hint_of_text(self, gate: str, task: str) -> str:
        """What to do where a gate names a metric of text that is not written."""
        able = task_named(task).text_task and not self.scoring_function
        lacking = [name for name in NAMES if name in gate and name not in self.generate]
        return f"\n      {lacking[0]} needs generate={lacking[0]}." if able and lacking else ""

    def _gate_problems(self, text: str, gate: Gate | ChampionGate) -> list[str]:
        """What a gate asks for that cannot be known."""
        if isinstance(gate, Gate):
            if gate.metric.startswith("slices.") and not self.slice_by and not self.scoring_function:
                return [f"The gate {text!r} is about slices. Name a column with slice_by."]
            return []
        if self.scoring_function and gate.confidence is not None:
            return [
                f"The gate {text!r} asks for an interval; of a scoring_function only the metric of all rows is known. "
                "Leave out at …%."
            ]
        if self.scoring_function and gate.metric:
            return [f"The gate {text!r} names a metric; with a scoring_function the one of select_by is compared."]
        return []

    def _function_problems(self) -> list[str]:
        """What a scoring function cannot do."""
        found = []
        if self.average_last:
            found.append(
                "average_last needs checkpoints of train_model; of a scoring_function's the format is unknown."
            )
        if self.slice_by:
            found.append("slice_by needs predictions of each row; a scoring_function gives metrics of all rows.")
        if self.generate:
            found.append(
                "generate and scoring_function are both given, and a scoring_function gives all metrics. Give one."
            )
        if self.benchmarks:
            found.append("benchmarks need models that this program loads; with a scoring_function it loads none.")
        return found

    def problems_here(self) -> list[str]:
        """What is wrong with them on this machine: a function, a file, a variable or a benchmark that is not there."""
        found = self.texts.problems_here()
        if self.benchmarks:
            # lm-eval itself, which takes seconds to import, is asked last.
            from gpu_pipelines.evaluation.benchmark_catalog import problems_in_catalog

            found += problems_of_files(self.benchmarks)
            return found or problems_in_catalog(self.benchmarks, self.gates_on_benchmarks())
        why = why_not_there(self.scoring_function) if self.scoring_function else ""
        return [*found, f"scoring_function is {self.scoring_function!r}: {why}"] if why else found

    @property
    def scoring_file(self) -> Path | None:
        """The file of the scoring function, where it is given by its file."""
        return file_of(self.scoring_function)

    @property
    def benchmark_options(self) -> BenchmarkOptions:
        """What shapes the results of benchmarks."""
        return BenchmarkOptions(
            self.benchmark_limit, self.benchmark_fewshot, self.benchmark_chat_template, self.benchmark_batch_size
        )

    def gates_on_benchmarks(self) -> dict[str, Gate | ChampionGate]:
        """The gates on metrics of benchmarks, by their texts; those that are wrong are left out."""
        found = {}
        for text in self.gates if self.benchmarks else ():
            with suppress(ValueError):
                gate = parse_gate(text, None, with_benchmarks=True)
                if is_metric_of_benchmark(gate.metric):
                    found[text] = gate
        return found

    def parsed_gates(self, task: str) -> list[Gate | ChampionGate]:
        """The gates given, or the task's own where none are and its own metrics are used."""
        return [self._parsed(gate, task) for gate in self._gates(task)]

    def _gates(self, task: str) -> Sequence[str]:
        return self.gates or (() if self.scoring_function else task_named(task).gates)

    def _parsed(self, gate: str, task: str) -> Gate | ChampionGate:
        return parse_gate(gate, self._known_metrics(task), task_named(task).figures, bool(self.benchmarks))

    def ranking(self, task: str, metrics: Mapping[str, float], metric: str = "") -> Ranking:
        """What two models are compared by: `metric`, else `select_by`, else the first of the metrics.

        Args:
            task: task of the dataset.
            metrics: of some checkpoint, by name.
            metric: one of the task's.
        """
        known = self._known_metrics(task)
        if known is not None:
            metric = metric or self.select_by or next(iter(known))
            return Ranking(metric, known[metric].more_is_better)
        metric = self.select_by.removeprefix("-") or next(iter(metrics))
        return Ranking(metric, not self.select_by.startswith("-"))

    def _known_metrics(self, task: str) -> Mapping[str, Metric] | None:
        return None if self.scoring_function else {**task_named(task).metrics, **self.texts.metrics}
