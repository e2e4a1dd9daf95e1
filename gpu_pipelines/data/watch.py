"""Whether a model is to be trained again: the files of its source beside what its versions were trained on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from gpu_pipelines.component_interface.default_registry import DEFAULT_REGISTRY, REGISTRIES
from gpu_pipelines.component_interface.parameter import parameter
from gpu_pipelines.data.default_tokenizer import tokenizer_for
from gpu_pipelines.data.sources.fingerprint import source_fingerprint
from gpu_pipelines.errors import UserError
from gpu_pipelines.registry import RegisteredVersion, model_name_for, open_registry, registry_problems
from gpu_pipelines.registry.registered import CHAMPION
from gpu_pipelines.tasks.tasks import image_processor_for

MOST_DAYS = 36_500
#: How the reason begins where nothing is to be trained; a person, and a program, can tell by it.
NOTHING_NEW = "nothing new: "
TOO_SOON = "too soon: "
NO_DRIFT = "no drift: "
#: What a training is begun for.
NEW_DATA, DRIFT, EITHER = "new_data", "drift", "either"
REASONS = (NEW_DATA, DRIFT, EITHER)
#: Looks for drift against a champion: whether there is any, None where nobody can tell; and why, in a line.
Look = Callable[[RegisteredVersion], tuple[bool | None, str]]


@dataclass(frozen=True)
class WatchSettings:
    """The parameters of `check_for_new_data`."""

    source: str = parameter("sample:digits", "What prepare_data would read.")
    billing_project: str = parameter("", "As for prepare_data.")
    task: str = parameter("image_classification", "What the rows are for.")
    tokenizer: str = parameter(
        "train",
        "As for prepare_data. In place of train, the tokenizer of model is taken if that is pretrained, else the "
        "champion's: two text models can only be compared on the same tokens.",
    )
    model: str = parameter("convnext-micro", "As for train_model.")
    registry: str = parameter(DEFAULT_REGISTRY, REGISTRIES)
    model_name: str = parameter("", "Name of the model in the registry; empty to name it after the source.")
    min_champion_age_days: float = parameter(
        0.0,
        "Days for which a champion gets no challenger, however much the data has grown; 0 for none.",
    )
    start_from_champion: bool = parameter(
        False,
        "Whether to start from the champion's weights instead of model, if there is a champion.",
        common=True,
    )
    retrain_on: str = parameter(
        "new_data",
        "When to train, once the source has changed: new_data, always; drift, only if the rows of drift_source have "
        "drifted from the champion's training data; either, always, and after drift even if the champion is younger "
        "than min_champion_age_days.",
        choices=REASONS,
        common=True,
    )
    drift_source: str = parameter(
        "",
        "The current rows, without labels, to check for drift: as source of check_for_drift. Needed unless retrain_on "
        "is new_data.",
        common=True,
    )
    drift_days: float = parameter(0.0, "For logged requests as drift_source, the last days to read; 0 for all.")
    source_fingerprint: str = parameter(
        "",
        "Fingerprint of the source that check_request found; empty to look at the source here.",
        filled_in=True,
    )

    def problems(self) -> list[str]:
        """Everything that is wrong with the values that no other step checks, each with what to do."""
        found = []
        if not 0 <= self.min_champion_age_days <= MOST_DAYS:
            found.append(f"min_champion_age_days is {self.min_champion_age_days}; give 0 to {MOST_DAYS:,} days.")
        if self.retrain_on not in REASONS:
            found.append(f"retrain_on is {self.retrain_on!r}; give {', '.join(REASONS)}.")
        elif self.looks_for_drift and not self.drift_source:
            found.append(
                f"retrain_on is {self.retrain_on}, and drift_source is empty. Give the rows of now, such as logged "
                "requests."
            )
        elif self.drift_source and not self.looks_for_drift:
            found.append(f"drift_source is given, and retrain_on is {NEW_DATA}. Give retrain_on={EITHER}.")
        if not 0 <= self.drift_days <= MOST_DAYS:
            found.append(f"drift_days is {self.drift_days:g}; give 0 to {MOST_DAYS:,} days.")
        return found

    @property
    def looks_for_drift(self) -> bool:
        """Whether drift has a say."""
        return self.retrain_on in (DRIFT, EITHER)


@dataclass(frozen=True)
class Decision:
    """What is to be done.

    Attributes:
        retrain: whether to train.
        reason: why, in one line.
        model: what to train.
        tokenizer: what to prepare texts with.
        image_processor: the model whose preprocessor says how images are prepared; empty for none.
    """

    retrain: bool
    reason: str
    model: str
    tokenizer: str
    image_processor: str = ""


def check_for_new_data(settings: WatchSettings, look: Look | None = None) -> Decision:
    """Compares the source with what every version was trained on, and, if that is asked for, looks for drift.

    A version that did not become the champion counts as well: the same data would give the same model again, whatever
    has drifted. Drift says when to train, and never which model is the champion: that is what the gates are for.

    Args:
        settings: source, registry and name of the model.
        look: looks for drift; needed unless `retrain_on` is `new_data`.

    Raises:
        UserError: a value is wrong, source or registry cannot be read, the record of the champion cannot be read, or a
            champion that is to be trained on, or whose tokenizer is to be taken, is damaged.
    """
    if problems := [*registry_problems(settings.registry, settings.model_name), *settings.problems()]:
        raise UserError.of_all(problems)
    name = settings.model_name or model_name_for(settings.source)
    versions = open_registry(settings.registry).versions(name)
    champion = next((version for version in versions if CHAMPION in version.aliases), None)
    retrain, reason = _decided(settings, name, versions, champion)
    if champion is not None and settings.looks_for_drift:
        assert look is not None
        retrain, reason = _with_drift(settings, retrain, reason, *look(champion))
    model = settings.model
    if champion is not None and settings.start_from_champion:
        model = champion.place
    tokenizer = tokenizer_for(settings.tokenizer, settings.task, model, champion)
    if champion is not None and retrain and champion.place in (model, tokenizer):
        champion.require_undamaged()
    return Decision(retrain, reason, model, tokenizer, image_processor_for(settings.task, model))


def _decided(
    settings: WatchSettings, name: str, versions: list[RegisteredVersion], champion: RegisteredVersion | None
) -> tuple[bool, str]:
    source = f"the source {settings.source}"
    fingerprint = settings.source_fingerprint or source_fingerprint(settings.source, settings.billing_project)
    same = [version for version in versions if fingerprint in version.sources]
    if same:
        kind = ", the champion" if same[-1] == champion else ""
        return False, f"{NOTHING_NEW}{source} is as it was for version {same[-1].number} of {name}{kind}"
    if champion is None:
        return True, f"training: there was no champion of {name}"
    if champion.unread:  # how old it is, and what it was trained on, is not known
        champion.require_undamaged()
    version = f"version {champion.number} of {name}"
    # The clock of who registered it may be ahead of this one.
    age = max(datetime.now(timezone.utc) - datetime.fromisoformat(champion.info["created"]), timedelta())
    if age < timedelta(days=settings.min_champion_age_days):
        return False, (
            f"{TOO_SOON}{source} has changed, but {version}, the champion, is {age / timedelta(days=1):.1f} days old; "
            f"min_champion_age_days is {settings.min_champion_age_days:g}"
        )
    if not champion.sources:
        return True, f"training: {version}, the champion, does not say what it was trained on"
    return True, f"training: {source} has changed since {version} was trained"


def _with_drift(
    settings: WatchSettings, retrain: bool, reason: str, has_drifted: bool | None, why: str
) -> tuple[bool, str]:
    """What comes of a decision, beside what was found of drift."""
    if reason.startswith(NOTHING_NEW):
        # New rows are needed to learn from; those of now have no labels.
        return False, f"{reason}; {why}"
    if has_drifted is None:
        # The next champion can be compared with; until there is one, new data is reason enough.
        return retrain, f"{reason}; {why}"
    if has_drifted:
        kept = reason.removeprefix(TOO_SOON)
        return True, f"{kept if retrain else f'training: {kept}'}; {why}"
    if settings.retrain_on == DRIFT:
        known = reason.partition(": ")[2]
        return False, f"{NO_DRIFT}{known}; {why}" if retrain else f"{reason}; {why}"
    return retrain, f"{reason}; {why}"
