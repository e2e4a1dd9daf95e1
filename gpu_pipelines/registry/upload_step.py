"""The step `upload_model` with its KFP inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpu_pipelines.artifacts.evaluation import EVALUATION, OVERTAKEN, Evaluation
from gpu_pipelines.component_interface.step import local_folder, own_process, place_of, storage_of, with_advanced
from gpu_pipelines.notifications import notes
from gpu_pipelines.registry.registered import CHAMPION, RegisteredVersion
from gpu_pipelines.registry.upload import UploadSettings, upload_model
from gpu_pipelines.tracking.facts import Facts, facts_of_evaluation, facts_of_version
from gpu_pipelines.tracking.tracked import Tracked, run_of


def run(
    settings: UploadSettings,
    *,
    best_checkpoint: Any,
    model: Any,
    passed: bool,
    tracking: str = "none",
    outcome_uri: str = "",
    advanced: Mapping[str, Any],
) -> None:
    """Runs the step.

    Args:
        settings: the parameters that the component declares.
        best_checkpoint: a KFP artifact.
        model: a KFP artifact, which gets the version.
        passed: whether the model may become the champion.
        tracking: the tracker.
        outcome_uri: where to leave the outcome for the message at the end of the run; empty for none.
        advanced: values of parameters by name, which take precedence.
    """
    with own_process():
        settings = with_advanced(settings, advanced)
        with Tracked(tracking, run_of(best_checkpoint, place_of(best_checkpoint))) as tracked:
            tracked.require_tracker()
            with local_folder(best_checkpoint) as files:
                key = tracked.run.key if tracked.is_on else ""
                version = upload_model(settings, files, passed, storage_of(model), key)
                evaluated = Evaluation.load(files) if (files / EVALUATION).is_file() else None
            place_of(model, version.place)
            model.metadata.update(
                resource_name=version.resource_name,
                # As in the schema google.VertexModel, which is the artifact's type on Vertex AI.
                resourceName=version.resource_name,
                model_name=version.name,
                version=version.number,
                aliases=list(version.aliases),
                added=version.added,
            )
            outcome = _outcome(version, evaluated, settings.pipeline_job)
            model.metadata["promoted"] = outcome == "promoted"
            named = {"model": f"{version.name}@{version.number}", "outcome": outcome}
            if outcome == "not promoted" and evaluated and evaluated.passed:
                named["reason"] = OVERTAKEN
            notes.leave(outcome_uri, notes.UPLOADED, named)
            known = facts_of_evaluation(evaluated) if evaluated else Facts()
            tracked.add(known + facts_of_version(model.metadata))


def _outcome(version: RegisteredVersion, evaluated: Evaluation | None, pipeline_job: str) -> str:
    """The outcome of an upload, in the words of docs/retraining.md."""
    # The step that made it the champion may run again; another run that finds it there has changed nothing.
    is_of_another_run = version.info.get("pipeline_job") != pipeline_job
    was_compared_with = evaluated is not None and evaluated.champion_version == version.number
    was_champion = version.led and (is_of_another_run or was_compared_with)
    if CHAMPION in version.aliases and not was_champion:
        return "promoted"
    return "not promoted" if version.added else "unchanged"
