"""The KFP interface of `evaluate_checkpoints`."""

from typing import NamedTuple

from kfp import dsl
from kfp.dsl import HTML, Artifact, ClassificationMetrics, Dataset, Input, Metrics, Model, Output

from gpu_pipelines.component_interface.image import STEPS_IMAGE


@dsl.component(base_image=STEPS_IMAGE, install_kfp_package=False)
def evaluate_checkpoints(
    dataset: Input[Dataset],
    best_checkpoint: Output[Model],
    evaluation: Output[Metrics],
    confusion: Output[ClassificationMetrics],
    report: Output[HTML],
    benchmark_results: Output[Artifact],
    checkpoints: Input[Artifact] = None,
    more_checkpoints: Input[Artifact] = None,
    collected: Input[list[Artifact]] | None = None,
    gates: list = [],  # noqa: B006 (KFP takes the default from here)
    select_by: str = "",
    scoring_function: str = "",
    average_last: int = 0,
    slice_by: str = "",
    benchmarks: list = [],  # noqa: B006
    benchmark_best: int = 1,
    benchmark_limit: int = 0,
    benchmark_fewshot: int = -1,
    benchmark_chat_template: bool = False,
    benchmark_batch_size: int = 0,
    registry: str = "./registry",
    model_name: str = "",
    accept_shift: bool = False,
    generate: list = [],  # noqa: B006
    max_new_tokens: int = 0,
    generate_rows: int = 500,
    generate_with: str = "auto",
    json_schema: str = "",
    judge: str = "",
    judge_model: str = "",
    judge_prompt: str = "",
    judge_key: str = "",
    tracking: str = "none",
    outcome_uri: str = "",
    advanced: dict = {},  # noqa: B006
) -> NamedTuple("Outputs", [("passed", bool)]):  # type: ignore[valid-type]
    """Scores every checkpoint on val, the best one on test, and compares it with the champion on the same rows.

    Args:
        dataset: Made by prepare_data; the one the checkpoints were trained on.
        checkpoints: Made by train_model or run_training_script; or a model in Hugging Face layout, or a folder of
            them, with safetensors weights.
        more_checkpoints: Checkpoints of another training, to be ranked together with these.
        collected: Checkpoints of any number of other trainings, to be ranked together with these: after a ParallelFor,
            dsl.Collected(train.outputs["checkpoints"]). A checkpoint is then called TRAINING/step-NUMBER.
        gates: Conditions on test metrics that a champion must meet, such as accuracy>=0.95. Metrics of the
            classification tasks: accuracy, macro_f1, macro_recall, min_recall, roc_auc, ece (calibration error),
            log_loss, and per_class.recall.min (also precision, f1; also mean); of multi_label_classification: f1,
            precision, recall, macro_f1, exact_match, log_loss, and per_class as before; of causal_lm: loss, perplexity,
            bits_per_byte, token_accuracy, completion_accuracy, and those of generate; of regression: rmse, mae, r2,
            coverage; of token_classification: f1, precision, recall, macro_f1, token_accuracy; of preference: accuracy,
            margin, loss; of tasks of your own: loss, perplexity, token_accuracy. For all tasks, slices.METRIC.min and
            .max, and latency_p95_ms and latency_p50_ms of one row on the device of this step. better_than_champion by
            0.005 at 95% asks for a difference whose 95% interval lies above 0.005. by and at can be left out; a metric
            can stand in front, as in gsm8k.exact_match better_than_champion. Empty for the default of the task:
            accuracy>=0.9 for image_classification, none for others.
        select_by: Metric that chooses the best checkpoint on val, and compares it with the champion on test; empty for
            the first metric of the task. For metrics of a scoring_function more is better, unless the name begins with
            a minus, as in -error_rate.
        scoring_function: A function of your own for checkpoints in a format of your own, as package.module:function or
            path/to/file.py:function. It is called with the path of a checkpoint, the path of the dataset and the name
            of a split, and returns a dict of metrics. Checkpoints are the folders or files step-NUMBER,
            checkpoint-NUMBER and epoch-NUMBER.
        average_last: Number of last checkpoints to average into one more candidate, 2 or more; 0 for none.
        slice_by: Column whose values are also scored separately; prepare_data must have kept it. Empty for none.
        benchmarks: Benchmarks of lm-eval to run the best checkpoints on: names of its tasks, groups and tags, such as
            gsm8k, or your own task files (YAML) and folders of them, local or gs://; a folder's name has a slash in it.
            Gates can read the results: gsm8k.exact_match>=0.4, gsm8k.exact_match better_than_champion by 0.01 at 95%.
            Functions that your own files name are run.
        benchmark_best: Number of checkpoints, the best on val, to run on the benchmarks; 0 for all. Gates read those of
            the best.
        benchmark_limit: Run only the first so many documents of each benchmark's tasks; 0 for all.
        benchmark_fewshot: Examples before each document of a benchmark; -1 for the number of the task. A task that says
            0 gets none.
        benchmark_chat_template: Whether to put benchmarks into the tokenizer's chat template, with examples as turns,
            for a chat model.
        benchmark_batch_size: Documents of a benchmark at once; 0 for as many as fit on a GPU (lm-eval tries it), and
            for 8 on CPUs.
        registry: Model registry that has the champion: a directory, vertex://PROJECT/REGION for Vertex AI Model
            Registry, vertex:// alone for the registry of the job's own project and region, or mlflow:https://HOST for
            the registry of an MLflow server.
        model_name: Name of the model in the registry; empty to name it after the source of the data.
        accept_shift: Whether the data is meant to differ from what the champion was evaluated on. Otherwise no model
            passes if the champion's own score has fallen by more than chance allows, if classes or columns that it knew
            are gone, or if the shares of the classes have moved.
        generate: Metrics of the text that the model writes after the prompts of test, for preference, and for causal_lm
            with prompts and completions or messages: exact_match, contains, rouge_1, rouge_2, rouge_l, json_valid,
            json_schema, judge, and functions of your own as package.module:function or path/to/file.py:function, which
            are called with prompt, answer and reference. gates and select_by can name them; for all of them more is
            better. Empty to write nothing.
        max_new_tokens: Most tokens to write after a prompt; 0 for 256.
        generate_rows: Most prompts of a split to answer, chosen by a hash of their content, the same for all models; 0
            for all.
        generate_with: What writes the text: vllm, transformers, or auto for vLLM if it is installed and there is a GPU.
        json_schema: JSON Schema of the metric json_schema: its text, or the path of such a file, local or gs://.
        judge: Address of the language model that gives the metric judge, a score of 0 to 10, in the form of OpenAI's
            chat completions, such as https://host/v1.
        judge_model: Name of the judge's model at that address.
        judge_prompt: Prompt for the judge, with {prompt}, {answer} and {reference} as placeholders; the form of its
            answer is added. Empty to ask how right and complete the answer is.
        judge_key: Where the judge's key is: a variable of the step's environment, or a secret of Secret Manager as
            projects/PROJECT/secrets/SECRET/versions/VERSION; never the key itself. Empty for no key.
        tracking: Tracker that shows the run, as for check_request; none for no tracker.
        outcome_uri: Directory, local or gs://, in which the step leaves its outcome for the message at the end of the
            run; empty for a run without a message.
        advanced: Parameters by name, from check_request; they win over those above.

    Returns:
        best_checkpoint: The best checkpoint in Hugging Face layout, with evaluation.json, a model card and
            examples.json (a few inputs with the model's outputs), and with generate also generated.jsonl (what it
            wrote). With a scoring_function, the checkpoint's own files instead.
        evaluation: Test metrics of the best checkpoint.
        confusion: Its confusion matrix on test; empty for a task without classes.
        report: Verdict, checkpoints over time, test metrics with intervals beside the champion's, slices, written
            text, benchmarks, the worst rows, and for a classifier confusion matrix and calibration.
        benchmark_results: Results of the benchmarks: benchmarks.json with figures and the values of each document, and
            a folder for each checkpoint that was run, with a file of documents and responses for each task. Without
            benchmarks only an empty benchmarks.json.
        passed: True if all gates passed, the model is better than the champion, and the data has not shifted.
    """
    from gpu_pipelines.evaluation.step import EvaluationSettings, run

    return run(
        EvaluationSettings(
            gates=gates,
            select_by=select_by,
            scoring_function=scoring_function,
            average_last=average_last,
            slice_by=slice_by,
            benchmarks=benchmarks,
            benchmark_best=benchmark_best,
            benchmark_limit=benchmark_limit,
            benchmark_fewshot=benchmark_fewshot,
            benchmark_chat_template=benchmark_chat_template,
            benchmark_batch_size=benchmark_batch_size,
            registry=registry,
            model_name=model_name,
            accept_shift=accept_shift,
            generate=generate,
            max_new_tokens=max_new_tokens,
            generate_rows=generate_rows,
            generate_with=generate_with,
            json_schema=json_schema,
            judge=judge,
            judge_model=judge_model,
            judge_prompt=judge_prompt,
            judge_key=judge_key,
        ),
        dataset=dataset,
        best_checkpoint=best_checkpoint,
        evaluation=evaluation,
        confusion=confusion,
        report=report,
        benchmark_results=benchmark_results,
        checkpoints=checkpoints,
        more_checkpoints=more_checkpoints,
        collected=collected,
        tracking=tracking,
        outcome_uri=outcome_uri,
        advanced=advanced,
    )
