"""The step `check_for_new_data` with its KFP inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpu_pipelines.artifacts.exported_model import PROFILE
from gpu_pipelines.component_interface.step import log_metrics, own_process, with_advanced
from gpu_pipelines.data.watch import WatchSettings, check_for_new_data
from gpu_pipelines.notifications import notes
from gpu_pipelines.registry import RegisteredVersion
from gpu_pipelines.reports.page import render, write_page

_NOBODY_ASKED = "Drift was not checked: retrain_on does not ask for it, or there was no champion to compare with."


def run(
    settings: WatchSettings, *, drift_report: Any, drift: Any, outcome_uri: str = "", advanced: Mapping[str, Any]
) -> tuple[bool, str, str, str, str]:
    """Runs the step.

    Args:
        settings: the parameters that the component declares.
        drift_report: a KFP artifact, as is the next; gets the report of the drift check.
        drift: gets its figures.
        outcome_uri: where to leave the outcome for the message at the end of the run; empty for none.
        advanced: values of some parameters by name, which take precedence.

    Returns:
        The outputs of the component, in their order.
    """
    with own_process():
        settings = with_advanced(settings, advanced)
        look = _Look(settings, drift_report, drift)
        decision = check_for_new_data(settings, look)
        look.finish()
        print(decision.reason, flush=True)
        notes.leave(outcome_uri, notes.LOOKED, {"retrain": decision.retrain, "reason": decision.reason})
    return decision.retrain, decision.reason, decision.model, decision.tokenizer, decision.image_processor


class _Look:
    """Checks for drift, and fills two KFP artifacts in any case."""

    def __init__(self, settings: WatchSettings, report: Any, metrics: Any) -> None:
        self._settings, self._report, self._metrics = settings, report, metrics
        self._why_not = _NOBODY_ASKED  # empty once it was checked

    def __call__(self, champion: RegisteredVersion) -> tuple[bool | None, str]:
        # Runs that do not ask for drift do not import torch.
        from gpu_pipelines.drift.check import check_for_drift
        from gpu_pipelines.drift.settings import DriftSettings
        from gpu_pipelines.drift.step import leave
        from gpu_pipelines.prediction.model import registered_model

        asked = self._settings
        model = registered_model(asked.registry, champion.name, str(champion.number))
        if not (model.directory / PROFILE).is_file():
            self._why_not = f"drift cannot be checked: {model.title} has no {PROFILE}"
            return None, self._why_not
        found = check_for_drift(
            DriftSettings(
                source=asked.drift_source,
                registry=asked.registry,
                model_name=champion.name,
                billing_project=asked.billing_project,
                days=asked.drift_days,
            ),
            model,
        )
        leave(found, self._report, self._metrics)
        self._why_not = ""
        return found.has_drift, found.reason

    def finish(self) -> None:
        """Leaves a page that says why there is no result, and no figures, if drift was not checked."""
        if not self._why_not:
            return
        page = render(Path(__file__).with_name("nothing.html"), why=self._why_not)
        write_page(Path(self._report.path), "Drift", page)
        log_metrics(self._metrics, {})
