"""Every kind of report, written by the steps' own functions, of what makes pages ugly: long names, big numbers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from gpu_pipelines.artifacts.evaluation import Evaluation
from gpu_pipelines.data.prepare import prepare_data
from gpu_pipelines.data.report import write_report as write_data_report
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.evaluation.report import write_report as write_evaluation_report
from gpu_pipelines.reports.run_report import write_run_report
from gpu_pipelines.reports.runs_page import INDEX, write_runs_page
from gpu_pipelines.targets.runs.record import RunRecord
from gpu_pipelines.targets.steps import StepRecord
from gpu_pipelines.training.machine.local_devices import Devices
from gpu_pipelines.training.script.run import ScriptSummary
from gpu_pipelines.training.script.settings import ScriptSettings
from gpu_pipelines.training.script.step import write_report as write_script_report
from gpu_pipelines.training.settings import TrainingSettings
from gpu_pipelines.training.step import write_report as write_training_report
from gpu_pipelines.training.train import TrainingSummary
from gpu_pipelines.tuning.report import write_report as write_tuning_report
from gpu_pipelines.tuning.result import Trial, TuningResult
from gpu_pipelines.tuning.space import space_of
from gpu_pipelines.tuning.study import StudyRequest

LONG = "a_class_name_that_somebody_took_from_the_path_of_a_file_" * 4
CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "photographs of ships", LONG]
METRICS = ("accuracy", "macro_f1", "macro_recall", "min_recall", "roc_auc", "ece", "log_loss")
STEPS = {
    "prepare-data": [],
    "train-model": ["prepare-data"],
    "evaluate-checkpoints": ["prepare-data", "train-model"],
    "upload-model": ["evaluate-checkpoints"],
}


def evaluation_of(classes: list[str]) -> Evaluation:
    """Of thousands of rows, with a champion, slices and eight checkpoints."""
    generator = np.random.default_rng(0)
    counts = generator.integers(0, 90, (len(classes), len(classes))) + np.eye(len(classes), dtype=int) * 12_000

    def metric(value: float) -> dict[str, float]:
        return {"value": value, "low": value - 0.01, "high": value + 0.01}

    metrics = {name: metric(0.9 - place / 10) for place, name in enumerate(METRICS)}
    per_class = {"precision": 0.93, "recall": 0.91, "f1": 0.92}
    bins = [
        {"low": n / 10, "high": (n + 1) / 10, "rows": 100 * (n + 1), "confidence": n / 10 + 0.05, "accuracy": n / 11}
        for n in range(10)
    ]
    names = [f"step-{step:08d}" for step in range(1000, 9000, 1000)]
    return Evaluation(
        model_name="photos",
        task="image_classification",
        labels=classes,
        dataset_fingerprint="0" * 64,
        configuration={},
        select_by="accuracy",
        checkpoints=[
            {"name": name, "step": 1000 * (n + 1), "epoch": 1.5 * n, "val": dict.fromkeys(METRICS, 0.5 + n / 20)}
            for n, name in enumerate(names)
        ],
        best=names[-1],
        test={
            "rows": int(counts.sum()),
            "loss_tokens": int(counts.sum()),
            "metrics": metrics,
            "per_class": [{"rows": int(row.sum()), **per_class} for row in counts],
            "confusion": counts.tolist(),
            "confused": [[0, 1, 9_000]],
            "calibration": bins,
            "slices": [
                {"value": LONG, "rows": 12_345, "metrics": metrics, "champion": dict.fromkeys(METRICS, 0.8)},
                {"value": "", "rows": 1_000, "metrics": metrics, "champion": dict.fromkeys(METRICS, 0.8)},
            ],
        },
        champion={
            "version": 3,
            "metrics": metrics,
            "differences": {name: metric(0.02) for name in METRICS},
            "mcnemar": {"this_model_alone_right": 1_234, "champion_alone_right": 1_100, "p_value": 0.004},
        },
        gates=[{"gate": "accuracy>=0.8", "passed": True, "why": "accuracy is 0.9000, wanted >= 0.8"}],
        passed=True,
        mistakes=[],
        slice_by="camera",
    )


def training_summary() -> TrainingSummary:
    """Ten thousand steps whose loss stays between 7.2 and 7.8, at thousands of samples a second."""
    entries = [
        {
            "step": step,
            "epoch": step / 1000,
            "loss": 7.5 + 0.3 * math.cos(step / 700),
            "learning_rate": 4e-3 * (1 - step / 10_100),
            "samples_per_second": 12_345.0 + step % 900,
            "memory_gb": 71.3,
            "data_loading_share": 0.01,
            "mfu": 0.41,
        }
        for step in range(100, 10_001, 100)
    ]
    watched = [{"step": entry["step"], "val_loss": entry["loss"]} for entry in entries[::10]]
    settings = TrainingSettings(model="organisation/a-model-with-a-long-name", global_batch_size=4096)
    profiles = ["gs://a-bucket/" + "a-folder/" * 20 + "profile/steps-00000010-00000012.trace.json.gz"]
    devices = Devices("cuda", 8)
    return TrainingSummary(
        "image_classification", devices, 4, settings, 1_281_167, 3600.0, ["step"], entries, watched, profiles
    )


def script_summary() -> ScriptSummary:
    """A script whose metrics span five powers of ten."""
    metrics = [
        {"step": float(step), "tokens": step * 1e6, "perplexity": 5e4 / step, "error": 10.0 ** (-step / 2000)}
        for step in range(100, 10_001, 100)
    ]
    arguments = ["--data", "gs://a-bucket/" + "a-folder/" * 20, "--lr", "1e-4"]
    return ScriptSummary(ScriptSettings("train.py", arguments=arguments), Devices("cuda", 8), 2, 60.0, [], metrics)


def write_tuning(path: Path) -> None:
    """The report of twenty trials, of which the last one ended early."""
    space = space_of(
        {
            "learning_rate": {"type": "float", "low": 1e-5, "high": 0.1, "log": True},
            "warmup_steps": {"type": "int", "low": 0, "high": 30, "step": 10},
        }
    )
    trials = tuple(
        Trial(
            number,
            {"learning_rate": 10 ** (number / 5 - 5), "warmup_steps": number % 4 * 10},
            2 - number / 20,
            1,
            number < 19,
            12_000,
            768_000,
            61.0,
            tuple((step, 2 - number * step / 240_000) for step in range(1000, 12_001, 1000)),
            "",
        )
        for number in range(20)
    )
    result = TuningResult(trials[18].parameters, path, 1.1, 18, trials, 1234.5, 0.0, "trials", path)
    settings = TrainingSettings(model="vit-micro", max_steps=12_000, global_batch_size=64)
    request = StudyRequest(settings, space, 20, 4, 0, "tpe", 3, dataset="", task="image_classification", rows=1430)
    write_tuning_report(result, request, path)


def write_data(folder: Path) -> Path:
    """The report of images in classes, one of a long name, with a file that is no image."""
    source = folder / "photos"
    generator = np.random.default_rng(0)
    for name in ("red", "green", LONG[:200]):
        (source / name).mkdir(parents=True)
        for number in range(8):
            pixels = generator.integers(0, 255, (12, 12, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(source / name / f"{number}.png")
    (source / "red" / "a-file-whose-name-is-long-and-which-is-no-image.jpg").write_bytes(b"no image")
    prepare_data(PrepareSettings(source=str(source), image_size=8), folder / "dataset")
    write_data_report(folder / "dataset", folder / "data.html")
    return folder / "data.html"


def write_pages(folder: Path) -> dict[str, Path]:
    """All reports below a folder, by name; that of the run has those of its steps in it."""
    pages = {name: folder / f"{name}.html" for name in ("training", "evaluation", "many_classes", "script", "data")}
    write_data(folder)
    write_training_report(training_summary(), pages["training"])
    write_script_report(script_summary(), pages["script"])
    write_evaluation_report(evaluation_of(CLASSES), folder / "dataset", pages["evaluation"])
    many = [f"{name} {number}" for number in range(20) for name in CLASSES[:9]]
    write_evaluation_report(evaluation_of(many), folder / "dataset", pages["many_classes"])
    record = run_record(folder)
    record.artifacts = {f"{name}_report": str(pages[name]) for name in ("evaluation", "training", "data")}
    write_run_report(record)
    live = run_record(folder / "live")
    live.status = live.steps[-1].status = "running"
    write_run_report(live)
    registered = run_record(folder)
    registered.status, registered.model = "succeeded", {"model_name": LONG[:63], "version": 12.0}
    registered.metrics, registered.key_metric = {f"test_{LONG[:40]}": 0.9312}, f"test_{LONG[:40]}"
    write_runs_page(folder, [live, record, registered])
    return {**pages, "run": record.report, "live": live.report, "runs": folder / INDEX}


def run_record(folder: Path) -> RunRecord:
    """A run of four steps, the last of which failed."""
    parameters: dict[str, Any] = {"source": "gs://a-bucket/" + "a-folder/" * 20, "gates": [], "epochs": 15.0}
    record = RunRecord(
        "train_evaluate_upload-20261122-044314",
        "train_evaluate_upload",
        "2026-11-22T04:43:14+00:00",
        {**parameters, "packing": True, "row_filter": "", "model_name": "photos"},
        "",
        STEPS,
        folder,
    )
    record.status = "failed"
    record.steps = [StepRecord(name, "succeeded", 100.0 * (n + 1), f"logs/{name}.log") for n, name in enumerate(STEPS)]
    record.steps[-1].status = "failed"
    record.steps[-1].message = "The registry cannot be written.\n  Fix its permissions."
    return record
