"""Checks for drift: compares current rows with the profile of a registered model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from gpu_pipelines.artifacts.dataset import Dataset
from gpu_pipelines.artifacts.documents import write_document
from gpu_pipelines.artifacts.exported_model import PROFILE
from gpu_pipelines.artifacts.scratch import scratch_folder
from gpu_pipelines.data.sources.row_streams import LARGEST_TEXT
from gpu_pipelines.drift.comparison import INPUTS, PREDICTIONS, Finding, compared
from gpu_pipelines.drift.live_rows import LiveRows, live_rows, usable_rows
from gpu_pipelines.drift.settings import DriftSettings
from gpu_pipelines.errors import UserError
from gpu_pipelines.numbers import figure
from gpu_pipelines.prediction.model import Model
from gpu_pipelines.profiles.making import PREDICTED_ROWS, Gathered, profile_of
from gpu_pipelines.profiles.profile import Profile
from gpu_pipelines.serving.predictor import NUMBERS
from gpu_pipelines.serving.predictors import load_predictor
from gpu_pipelines.serving.served_models import task_of
from gpu_pipelines.serving.settings import ServerSettings
from gpu_pipelines.tasks.regression.task import WITHOUT_NUMBER, without_number
from gpu_pipelines.tasks.tasks import task_named

DOCUMENT = "drift.json"
DRIFT, NO_DRIFT, TOO_FEW = "drift", "no drift", "too few rows"
_UNUSABLE = "rows that cannot be used"
_NAMED = 3
#: Most findings of a representation, and most characters of each.
_MOST_SHOWN, _MOST_CHARACTERS = 8, 110
#: Most pixels of an image; the server, which others share, accepts fewer.
_MOST_PIXELS = 178_956_970


@dataclass(frozen=True)
class DriftCheck:
    """The result of a check, which is saved as `drift.json`.

    Attributes:
        outcome: drift, no drift, or too few rows.
        reason: the reason, in one line.
        task: the task of the model.
        model: the model; see `Model.said`.
        source: the source of the current rows, as it was named.
        is_log: whether they are logged requests.
        checked: when, ISO 8601, UTC.
        rows: current rows, each content once.
        rows_used: rows that were tested.
        rows_repeated: rows left out because the same content came before.
        unusable: tested rows that could not be predicted, by reason.
        reference_rows: rows of the profile.
        profile: the origin of the profile: the registry, or a dataset.
        level, least_effect: the thresholds of an alarm.
        findings: the result of each test, drift first.
    """

    outcome: str
    reason: str
    task: str
    model: dict[str, Any]
    source: str
    is_log: bool
    checked: str
    rows: int
    rows_used: int
    rows_repeated: int
    unusable: dict[str, int]
    reference_rows: int
    profile: str
    level: float
    least_effect: float
    findings: list[Finding]

    @property
    def has_drift(self) -> bool:
        return self.outcome == DRIFT

    @property
    def drifted(self) -> list[Finding]:
        """What has drifted."""
        return [finding for finding in self.findings if finding.drifted]

    def save(self, path: Path) -> None:
        write_document(path, asdict(self))

    def __repr__(self) -> str:
        told = [f"{each.name}: {each.before}, now {each.now}" for each in self.drifted[:_MOST_SHOWN]]
        more = [f"and {len(self.drifted) - _MOST_SHOWN} more"] if len(self.drifted) > _MOST_SHOWN else []
        lines = [f"DriftCheck of {self.rows_used:,} rows, {self.reason}", *(line[:_MOST_CHARACTERS] for line in told)]
        return "\n  ".join([*lines, *more])


def check_for_drift(settings: DriftSettings, model: Model, dataset: Callable[[], Dataset] | None = None) -> DriftCheck:
    """Compares current rows with a model's training data.

    Args:
        settings: the rows, and the thresholds of an alarm.
        model: the model.
        dataset: returns its training dataset, for a model without a profile; None if there is none.

    Raises:
        UserError: a value is wrong, the source or the model cannot be read, or there is nothing to compare with.
    """
    if problems := settings.problems():
        raise UserError.of_all(problems)
    profile, place = _profile(model, dataset)
    task = task_named(task_of(model.directory))
    if profile.task != task.name:
        raise UserError(f"The profile of {model.title} is for the task {profile.task}, and the model for {task.name}.")
    limits = replace(ServerSettings(), max_pixels=_MOST_PIXELS, max_characters=LARGEST_TEXT)
    predictor = load_predictor(model.directory, limits)
    inputs = predictor.inputs_of(model.directory)
    gathered, given = (Gathered(task.load_watched(), predictor) for _ in range(2))
    with scratch_folder("source") as scratch:
        live = live_rows(settings, task.name, inputs, Path(scratch))
        for rows in usable_rows(live, predictor):
            gathered.look_at(rows)
            given.predict(rows[: max(0, PREDICTED_ROWS - given.rows)])
    found: list[Finding] = []
    # If hardly a row can be used, only that is tested: it happens when the form of requests changes.
    if live.every >= settings.min_rows:
        is_enough = gathered.rows >= settings.min_rows
        before = {INPUTS: profile.inputs, PREDICTIONS: profile.outputs}
        now = {INPUTS: gathered.values(), PREDICTIONS: given.values()} if is_enough else {}
        unusable = _unusable(profile, live, inputs.columns if inputs.kind == NUMBERS else ())
        found = compared(before, now, unusable, settings.level, settings.least_effect)
    return DriftCheck(
        *_verdict(settings, model, gathered.rows, live.every, found),
        task.name,
        model.said,
        settings.source,
        live.is_log,
        datetime.now(timezone.utc).isoformat(timespec="seconds"),
        live.rows,
        gathered.rows,
        live.repeated,
        dict(live.unusable.most_common()),
        _rows_of(profile),
        place,
        settings.level,
        settings.least_effect,
        found,
    )


def _profile(model: Model, dataset: Callable[[], Dataset] | None) -> tuple[Profile, str]:
    """The profile kept with a model, else one made from its training dataset; and its origin."""
    if (path := model.directory / PROFILE).is_file():
        return Profile.load(path), "registry"
    if dataset is None:
        raise UserError(
            f"{model.title} has no {PROFILE}: it was evaluated before profiles existed, or none could be made.",
            "Give the dataset that it was trained on.",
        )
    found = dataset()
    print(f"{model.title} has no {PROFILE}; it is made from {found.directory}", flush=True)
    return profile_of(model.directory, found), str(found.directory)


def _rows_of(profile: Profile) -> int:
    return max((len(values.values) for values in profile.inputs.values()), default=0)


def _unusable(
    profile: Profile, live: LiveRows, numbers: tuple[str, ...]
) -> dict[str, tuple[tuple[int, int], tuple[int, int]]]:
    """What rows lacked in training and lack now. Labels do not count: the current rows have none."""
    lacking = {name: profile.rejected.get(without_number(name), 0) for name in numbers}
    rejected = sum(lacking.values()) + sum(
        rows
        for reason, rows in profile.rejected.items()
        if "label" not in reason and not reason.startswith(WITHOUT_NUMBER)
    )
    found = {_UNUSABLE: ((rejected, profile.rows_read), live.lost)}
    if live.is_log:
        return found
    return found | {
        f"{name} is missing": ((rows, profile.rows_read), (live.missing[name], live.every))
        for name, rows in lacking.items()
    }


def _verdict(settings: DriftSettings, model: Model, rows: int, every: int, found: list[Finding]) -> tuple[str, str]:
    drifted = [each for each in found if each.drifted]
    if rows < settings.min_rows and not drifted:
        told = f"{settings.source} has {rows:,} rows that can be used; min_rows is {settings.min_rows:,}"
        return TOO_FEW, f"{TOO_FEW}: {told}"
    tested = rows if rows >= settings.min_rows else every
    beside = f"the training data of {model.title} ({len(found)} tests on {tested:,} rows)"
    if not drifted:
        return NO_DRIFT, f"{NO_DRIFT}: {settings.source} is as {beside}"
    named = ", ".join(f"{each.name} by {figure(each.effect)}" for each in drifted[:_NAMED])
    named += f" and {len(drifted) - _NAMED} more" if len(drifted) > _NAMED else ""
    return DRIFT, f"{DRIFT}: {settings.source} is not as {beside}; in standard deviations: {named}"
