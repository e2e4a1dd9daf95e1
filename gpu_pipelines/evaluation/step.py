"""What `evaluate_checkpoints` does with its KFP inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpu_pipelines.artifacts.benchmark_results import BENCHMARKS
from gpu_pipelines.artifacts.checkpoint import CONFIGURATION, read_configuration
from gpu_pipelines.artifacts.checkpoint_store import holds_training
from gpu_pipelines.artifacts.copied_checkpoints import local_copy
from gpu_pipelines.artifacts.dataset import Dataset
from gpu_pipelines.artifacts.evaluation import EVALUATION, MATRIX_CLASSES_SENT, Evaluation
from gpu_pipelines.artifacts.large_dataset import dataset_to_evaluate
from gpu_pipelines.artifacts.scratch import scratch_folder
from gpu_pipelines.component_interface.step import (
    log_metrics,
    output_files,
    own_process,
    place_of,
    storage_of,
    with_advanced,
    write_figures,
)
from gpu_pipelines.errors import UserError
from gpu_pipelines.evaluation.models.hugging_face import is_model
from gpu_pipelines.evaluation.report import write_report
from gpu_pipelines.evaluation.settings import EvaluationSettings
from gpu_pipelines.evaluation.trainings import named_by_settings, names_of
from gpu_pipelines.notifications import notes
from gpu_pipelines.registry import is_local
from gpu_pipelines.tracking.facts import Facts, benchmark_figures, facts_of_dataset, facts_of_evaluation
from gpu_pipelines.tracking.tracked import RUN_OF_ARTIFACT, Tracked, run_at, run_of


def run(
    settings: EvaluationSettings,
    *,
    dataset: Any,
    checkpoints: Any = None,
    more_checkpoints: Any = None,
    collected: Sequence[Any] | None = None,
    best_checkpoint: Any,
    evaluation: Any,
    confusion: Any,
    report: Any,
    benchmark_results: Any,
    tracking: str = "none",
    outcome_uri: str = "",
    advanced: Mapping[str, Any],
) -> tuple[bool]:
    """Runs the step.

    Args:
        settings: the parameters that the component declares.
        dataset: a KFP artifact, as are the others.
        checkpoints: what is evaluated.
        more_checkpoints: those of another training, ranked with them.
        collected: those of any number of other trainings.
        best_checkpoint: gets the best one.
        evaluation: gets the figures.
        confusion: gets the confusion matrix.
        report: gets the report.
        benchmark_results: gets what the benchmarks gave for each document; without benchmarks it is empty.
        tracking: the tracker.
        outcome_uri: where to leave the verdict, for the message at the end of the run; empty for none.
        advanced: values of parameters by name, which win.

    Returns:
        The output of the component that is no artifact: whether all gates passed.
    """
    with own_process():
        from gpu_pipelines.evaluation.evaluate import evaluate_checkpoints

        settings = with_advanced(settings, advanced)
        if warning := warning_of_registry(settings.registry, storage_of(best_checkpoint)):
            print(f"warning: {warning}", flush=True)
        rows = dataset_to_evaluate(place_of(dataset))
        trainings = [each for each in (checkpoints, more_checkpoints, *(collected or [])) if each is not None]
        places = _places(trainings)
        rehearsed = {place_of(each) for each in trainings if each.metadata.get("rehearsal")}
        with scratch_folder("checkpoints") as scratch:
            directories = local_checkpoints(places, scratch, has_own_scores=bool(settings.scoring_function))
            with _tracked(tracking, checkpoints, places, directories) as tracked:
                stores = _stores(places, directories)
                named = zip(directories, places.values(), strict=True)
                rehearsals = {name for name, place in named if place in rehearsed}
                with (
                    output_files(best_checkpoint, EVALUATION) as exported,
                    output_files(benchmark_results, BENCHMARKS) as results,
                ):
                    found = evaluate_checkpoints(
                        settings, rows, directories, exported, None, results, stores, rehearsals
                    )
                write_report(found, rows, Path(report.path))
                if tracked.is_on:
                    best_checkpoint.metadata[RUN_OF_ARTIFACT] = tracked.run.to_json()
                    tracked.add(_facts(rows, found), evaluation_report=report.path)
        _fill(best_checkpoint, evaluation, confusion, found)
        notes.leave(outcome_uri, notes.EVALUATED, _verdict(found))
        _print_gates(found)
    return (found.passed,)


def warning_of_registry(registry: str, storage: str) -> str:
    """Why no champion is known, where the registry is an empty directory of a container; else empty.

    Args:
        registry: its URI.
        storage: where in a bucket the step leaves its artifacts; empty where that is in no bucket.
    """
    if not storage or not is_local(registry):
        return ""
    return (
        f"the registry {registry} would be a directory of this container, so the model is compared with no champion. "
        "Give the registry that upload_model is given, such as registry=vertex://, and the same model_name."
    )


def _facts(rows: Path, found: Evaluation) -> Facts:
    """What the tracker is told."""
    return facts_of_dataset(Dataset(rows).manifest) + facts_of_evaluation(found)


def _fill(best_checkpoint: Any, evaluation: Any, confusion: Any, found: Evaluation) -> None:
    """Lets the artifacts say what was found."""
    best_checkpoint.metadata.update(task=found.task, checkpoint=found.best, rehearsal=found.rehearsal)
    if not found.scoring_function:
        best_checkpoint.metadata["framework"] = "pytorch"
    log_metrics(evaluation, _figures(found))
    _write_confusion(confusion, found)


def _print_gates(found: Evaluation) -> None:
    for gate in found.gates:
        print(f"gate {gate['gate']}: {'passed' if gate['passed'] else 'FAILED'}, {gate['why']}", flush=True)


def _figures(found: Evaluation) -> dict[str, float]:
    """What is logged as metrics; one that is not a number would fail the task on Vertex AI."""
    values = {name: metric["value"] for name, metric in found.test["metrics"].items()}
    if unknown := [name for name, value in values.items() if value is None]:
        print(f"warning: not a finite number on test, and left out of the metrics: {', '.join(unknown)}", flush=True)
    figures = {f"test_{name}": round(value, 6) for name, value in values.items() if value is not None}
    return figures | {name: round(value, 6) for name, value in benchmark_figures(found).items()}


def _verdict(found: Evaluation) -> dict[str, Any]:
    """What the message at the end of a run says of an evaluation."""
    return {
        "select_by": found.select_by,
        "metrics": found.test["metrics"],
        "gates_not_passed": found.gates_not_passed,
    }


def _tracked(tracking: str, checkpoints: Any, places: Mapping[str, str], directories: Mapping[str, Path]) -> Tracked:
    """The run that the training is in; of a single training it gets what it may have missed of the curves."""
    directory = next(iter(directories.values()))
    place, from_step = next(iter(places.values())), _told(directory).get("resume_from_step", 0)
    # The checkpoints of a search say whose they are: their place is that of a trial.
    says = checkpoints is not None and RUN_OF_ARTIFACT in checkpoints.metadata
    tracked = Tracked(tracking, run_of(checkpoints, place) if says else run_at(place, from_step))
    tracked.require_tracker()
    if len(directories) == 1:
        tracked.follow(directory)
    return tracked


def local_checkpoints(places: Mapping[str, str], scratch: Path, *, has_own_scores: bool) -> dict[str, Path]:
    """The checkpoints of each training on this machine, by what the training is called.

    Args:
        places: where they are, as `named_places` has them.
        scratch: a folder for copies of those in object storage.
        has_own_scores: whether a function of the user scores them, so that they may be of any kind.
    """
    directories = {
        name: local_copy(
            place,
            scratch / (name or "only"),
            foreign=has_own_scores or not holds_training(place),
            weights_only=not has_own_scores,
        )
        for name, place in places.items()
    }
    called = named_by_settings({name: _told(directory) for name, directory in directories.items()})
    return {called.get(name, name): directory for name, directory in directories.items()}


def _places(artifacts: Sequence[Any]) -> dict[str, str]:
    """Where the checkpoints are, by the names of the trainings; the name of a single one is empty.

    Raises:
        UserError: there are none.
    """
    places = list(dict.fromkeys(place_of(artifact) for artifact in artifacts))
    if not places:
        raise UserError(
            "evaluate_checkpoints has nothing to evaluate.",
            "Give it checkpoints, or the checkpoints of a ParallelFor as collected (dsl.Collected).",
        )
    return named_places(places)


def named_places(places: Sequence[str]) -> dict[str, str]:
    """Places of checkpoints by the names of the trainings; the name of a single one is empty."""
    return dict(zip(names_of(places) if len(places) > 1 else [""], places, strict=True))


def _stores(places: Mapping[str, str], directories: Mapping[str, Path]) -> dict[str, str]:
    """Where the checkpoints of each training are; a folder that is a model itself gets no folder beside its files."""
    each = zip(directories.items(), places.values(), strict=True)
    return {name: place for (name, directory), place in each if not is_model(directory)}


def _told(directory: Path) -> dict[str, Any]:
    """What a training was told; nothing of one that does not say it."""
    if not (directory / CONFIGURATION).is_file():
        return {}
    told: dict[str, Any] = read_configuration(directory).get("settings", {})
    return told


def _write_confusion(artifact: Any, evaluation: Evaluation) -> None:
    """Writes the confusion matrix; without classes, or with many, the metadata of the artifact is empty."""
    rows = evaluation.test.get("confusion", [])
    if rows and len(rows) <= MATRIX_CLASSES_SENT:
        artifact.log_confusion_matrix(evaluation.labels, rows)
    write_figures(artifact, {"labels": evaluation.labels if rows else [], "rows": rows})
