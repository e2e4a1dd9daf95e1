"""The request of a study, in a file of the study's folder that all trials read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import quote

from gpu_pipelines.errors import UserError, nearest
from gpu_pipelines.numbers import number_of
from gpu_pipelines.training.settings import TrainingSettings
from gpu_pipelines.tuning.service.documents import StudyDocuments
from gpu_pipelines.tuning.space import Dimension, SearchSpace
from gpu_pipelines.tuning.study import StudyRequest

STUDY = "study.json"
#: The metric that a trial reports to the service, to be minimized.
METRIC = "val_loss"


@dataclass(frozen=True)
class ServiceStudy:
    """A study whose trials a service starts.

    Attributes:
        request: the request; its sampler and seed are left to the service.
        budget: US dollars that all trials together may cost; 0 for no limit.
        dollars_per_hour: price of the machines of one trial; 0 if it is not known.
        longer: the best parameters are trained again, for this many times the steps; 1 keeps the trial.
    """

    request: StudyRequest
    budget: float = 0.0
    dollars_per_hour: float = 0.0
    longer: float = 1.0

    def save(self, folder: StudyDocuments) -> None:
        """Writes the study to its folder.

        Raises:
            UserError: the storage cannot be written to.
        """
        request = self.request
        space = [{**asdict(each), "choices": list(each.choices)} for each in request.space.dimensions]
        of_request = {
            name: getattr(request, name)
            for name in ("dataset", "task", "rows", "trials", "parallel", "seed", "sampler", "reduction")
        }
        own = {"budget": self.budget, "dollars_per_hour": self.dollars_per_hour, "longer": self.longer}
        folder.write(STUDY, {**of_request, **own, "base": asdict(request.base), "space": space})

    @classmethod
    def load(cls, folder: StudyDocuments) -> ServiceStudy:
        """Reads what `save` wrote.

        Raises:
            UserError: it does not exist, or cannot be read.
        """
        found = folder.read(STUDY)
        if found is None:
            raise UserError(f"{folder.address} is not a study: it has no {STUDY}.", "Give the folder of one.")
        del found["format_version"]
        own = {name: found.pop(name) for name in ("budget", "dollars_per_hour", "longer")}
        base = TrainingSettings.from_json(found.pop("base"))
        dimensions = [Dimension(**{**each, "choices": tuple(each["choices"])}) for each in found.pop("space")]
        return cls(StudyRequest(base=base, space=SearchSpace(tuple(dimensions)), **found), **own)


def values_of(space: SearchSpace, arguments: Sequence[str]) -> dict[str, Any]:
    """The values of a trial, which a service gives its program as arguments.

    Args:
        space: the search space.
        arguments: such as --learning_rate=0.01; a service that knows no conditions gives all, and those that do not
            count are left out here.

    Raises:
        UserError: an argument belongs to no dimension or has an impossible value, or one is missing.
    """
    given: dict[str, str] = {}
    for argument in arguments:
        name, separator, value = argument.removeprefix("--").partition("=")
        if not (separator and argument.startswith("--") and name in space.names):
            raise UserError(f"A trial got the unknown argument {argument[:100]!r}.", nearest(name, space.names))
        given[name] = value
    values: dict[str, Any] = {}
    for dimension in space.dimensions:
        if not dimension.counts(values):
            continue
        if dimension.name not in given:
            raise UserError(
                f"The service gave this trial no value for {dimension.name}.", "Look at the study's parameters."
            )
        values[dimension.name] = _value(dimension, given[dimension.name])
    return values


def _value(dimension: Dimension, text: str) -> Any:
    """A value from its text: services write integers with a decimal point, and truth values in various forms."""
    try:
        if dimension.kind != "categorical":
            number = number_of(text)
            return round(number) if dimension.kind == "int" else number
        return next(choice for choice in dimension.choices if _is_same(choice, text))
    except (ValueError, StopIteration):
        raise UserError(f"{dimension.name} cannot be {text[:60]!r} in this study.", "Look at its space.") from None


def _is_same(choice: Any, text: str) -> bool:
    if text in (text_of(choice), in_a_template(choice)):
        return True
    if isinstance(choice, (int, float)) and not isinstance(choice, bool):
        try:
            return number_of(text) == float(choice)
        except ValueError:
            return False
    return str(choice).lower() == text.lower() if isinstance(choice, bool) else False


def text_of(choice: Any) -> str:
    """A choice in the form of a service."""
    return str(choice).lower() if isinstance(choice, bool) else str(choice)


def in_a_template(choice: Any) -> str:
    """A choice in the form of a service that puts it into JSON and shell commands unquoted, as Katib does."""
    return quote(text_of(choice), safe="/:@=+, ")


def is_numeric(choices: Sequence[Any]) -> bool:
    """Whether all choices are numbers, which a service may order."""
    return all(isinstance(each, (int, float)) and not isinstance(each, bool) for each in choices)


def listed_values(dimension: Dimension) -> list[float]:
    """The values of a number with a step.

    Args:
        dimension: a dimension with `step`.
    """
    count = int((dimension.high - dimension.low) / dimension.step + 1e-9)
    found = [dimension.low + number * dimension.step for number in range(count + 1)]
    return [round(value) for value in found] if dimension.kind == "int" else found


def conditions_of(space: SearchSpace, dimension: Dimension) -> Mapping[str, Any]:
    """The conditions of a dimension, besides those of the dimensions that it depends on.

    Args:
        space: its search space.
        dimension: one of the space.
    """
    above = {each.name: each for each in space.dimensions}
    inherited: dict[str, Any] = {}
    for name in dimension.when:
        inherited |= {**conditions_of(space, above[name]), **above[name].when}
    return {name: value for name, value in dimension.when.items() if name not in inherited}
