"""The search space: the parameters of a training to search for, and their possible values."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

from gpu_pipelines.component_interface.parameter import CALLED, Parameter, parameters_in, plain
from gpu_pipelines.errors import UserError, nearest
from gpu_pipelines.numbers import LARGEST_WHOLE_NUMBER, number_of
from gpu_pipelines.training.settings import NOT_SHAPING, TrainingSettings
from gpu_pipelines.yaml_input import node_of, read_text, text_of

_KINDS = ("float", "int", "categorical")
#: The fields beside `type`, by type.
_FIELDS = {
    "float": ("low", "high", "log", "step", "when"),
    "int": ("low", "high", "log", "step", "when"),
    "categorical": ("choices", "when"),
}
_KFP_TYPES = {"float": ("Float",), "int": ("Integer", "Float")}
#: Parameters that cannot be judged by the loss on val, and why.
_NOT_JUDGED = {
    "beta": "The loss on val grows or falls with beta itself",
    "preference_loss": "Each preference_loss has a loss on val of its own",
    "ema_decay": "The loss on val is that of the weights, which ema_decay does not change, and not of their average",
}
#: How often a value is tried, each time with others of the other parameters, before anything is trained.
_TIMES_TRIED = 20
_TRUTHS = {"true": True, "false": False}


@dataclass(frozen=True)
class Dimension:
    """A parameter to search for.

    Attributes:
        name: the name of a parameter of `train_model`.
        kind: float, int or categorical.
        low: least value; not for a categorical one.
        high: largest value.
        log: whether all powers of ten are equally likely.
        step: between two values from `low` on; 0 for any, or for integers 1.
        choices: the values of a categorical parameter.
        when: values that others must have for this one to count, by name.
    """

    name: str
    kind: str
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    step: float = 0.0
    choices: tuple[Any, ...] = ()
    when: Mapping[str, Any] = field(default_factory=dict)

    def counts(self, values: Mapping[str, Any]) -> bool:
        """Whether it counts, given the values of those before it."""
        return all(name in values and values[name] == wanted for name, wanted in self.when.items())

    def samples(self) -> list[Any]:
        """Values that must all be valid for the training: all choices, or the ends and the value after the first."""
        if self.kind == "categorical":
            return list(self.choices)
        kind = int if self.kind == "int" else float
        second = min(self.high, self.low + self.step) if self.step else self.low
        return list(dict.fromkeys(kind(value) for value in (self.low, second, self.high)))


@dataclass(frozen=True)
class SearchSpace:
    """Dimensions, each after those that it depends on."""

    dimensions: tuple[Dimension, ...]

    @property
    def names(self) -> list[str]:
        return [dimension.name for dimension in self.dimensions]

    def problems(self, base: TrainingSettings, task: str, processes: int) -> list[str]:
        """Problems of the trainings that a search carries out.

        Args:
            base: the parameters that are not searched for.
            task: the task of the dataset.
            processes: processes of each trial.
        """

        def wrong(settings: TrainingSettings) -> list[str]:
            return list(dict.fromkeys([*settings.problems(task), *settings.problems_on(processes)]))

        tried = self._tried()
        found = Counter(each for values in tried for each in wrong(replace(base, **values)))
        everywhere = {each for each in wrong(base) if found[each] == len(tried)}
        return [each if each in everywhere else f"In the search space: {each}" for each in found]

    def _tried(self) -> list[dict[str, Any]]:
        """Values of trials that might be, with each sample of a dimension beside several of each other one.

        Only whole trials are right or wrong: `quantize_base` needs `lora_rank`, and `freeze` refuses it.
        """
        others = random.Random(0)  # noqa: S311 -- nothing secret
        found = [
            self._values({**self._needed_for(dimension), dimension.name: value}, others)
            for dimension in self.dimensions
            for value in dimension.samples()
            for _ in range(_TIMES_TRIED)
        ]
        return list({repr(each): each for each in found or [{}]}.values())

    def _values(self, fixed: Mapping[str, Any], others: random.Random) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for dimension in self.dimensions:
            if dimension.counts(values):
                values[dimension.name] = fixed.get(dimension.name, others.choice(dimension.samples()))
        return values

    def _needed_for(self, dimension: Dimension) -> dict[str, Any]:
        """The values of others without which a dimension does not count."""
        needed = dict(dimension.when)
        for each in reversed(self.dimensions):
            if each.name in needed:
                needed = {**each.when, **needed}
        return needed


def read_space(path: Path) -> SearchSpace:
    """Reads a search space.

    Args:
        path: YAML: for each name of a parameter of `train_model` its `type` (float, int, categorical), `low` and `high`
            with `log` and `step`, or `choices`, and `when`, the values of others for which it counts.

    Raises:
        UserError: the file cannot be read, or lists everything that is wrong with it.
    """
    what = f"The search space {path}"
    return space_in(read_text(path, what), what)


def is_address(space: str) -> bool:
    """Whether a text is the address of a search space, not the space itself."""
    return not any(sign in space for sign in ("\n", "{", ": "))


def space_in(text: str, what: str = "The search space") -> SearchSpace:
    """Reads a search space from the text of such a file.

    Args:
        text: YAML, as in a file.
        what: its name in messages.

    Raises:
        UserError: lists all problems.
    """
    return space_of(entries_in(text, what), what)


def entries_in(text: str, what: str = "The search space") -> dict[str, Any]:
    """The entries of such a text for each parameter, with the values as written.

    Args:
        text: YAML, as in a file.
        what: its name in messages.

    Raises:
        UserError: it is not such a mapping.
    """
    root = node_of(text, what)
    entries = text_of(root) if root is not None else None
    if not isinstance(entries, dict) or not entries:
        raise UserError(f"{what} is not a mapping of parameters to their ranges or choices.", _EXAMPLE)
    return entries


_EXAMPLE = "Give, say, learning_rate: {type: float, low: 0.001, high: 0.1, log: true}."


def space_of(entries: Mapping[str, Any], what: str = "The search space") -> SearchSpace:
    """A search space from the entries of a file or a program.

    Args:
        entries: as in a file; values may be texts.
        what: its name in messages.

    Raises:
        UserError: lists all problems.
    """
    space, problems = space_and_problems(entries, what)
    if problems:
        raise UserError.of_all(problems)
    return space


def space_and_problems(entries: Mapping[str, Any], what: str = "The search space") -> tuple[SearchSpace, list[str]]:
    """The valid dimensions of a search space, and all problems with the others.

    Args:
        entries: as in a file; values may be texts.
        what: its name in messages.
    """
    declared = parameters_in(TrainingSettings)
    problems: list[str] = [] if entries else [f"it is empty. {_EXAMPLE}"]
    found = {str(name): _dimension(str(name), entry, declared, problems) for name, entry in entries.items()}
    dimensions = {name: each for name, each in found.items() if each is not None}
    for dimension in list(dimensions.values()):
        if wrong := _problems_of_when(dimension, found):
            problems += wrong
            del dimensions[dimension.name]
    ordered: list[str] = []
    try:
        ordered = list(TopologicalSorter({name: list(each.when) for name, each in dimensions.items()}).static_order())
    except CycleError as error:
        problems.append(f"Each waits for the other by its when: {', '.join(error.args[1])}. Leave out one of these.")
    space = SearchSpace(tuple(dimensions[name] for name in ordered if name in dimensions))
    return space, [f"{what}: {each}" for each in problems]


def _dimension(name: str, entry: Any, declared: Mapping[str, Parameter], problems: list[str]) -> Dimension | None:
    before = len(problems)
    if name not in declared:
        shaping = [each for each in declared if each not in NOT_SHAPING]
        problems.append(f"There is no parameter {name[:80]!r} of train_model. {nearest(name, shaping)}")
    elif name in NOT_SHAPING:
        problems.append(f"{name} says how a training is carried out, not what comes of it. Give it beside the space.")
    elif name in _NOT_JUDGED:
        problems.append(f"{_NOT_JUDGED[name]}, so it does not tell which value is best. Give {name} beside the space.")
    if not isinstance(entry, Mapping):
        problems.append(f"{name} is {str(entry)[:80]!r}. {_EXAMPLE}")
        return None
    kind = str(entry.get("type", ""))
    if kind not in _KINDS:
        told = f"The type of {name} is {kind[:80]!r}." if kind else f"{name} has no type."
        problems.append(f"{told} {nearest(kind, _KINDS)}")
        return None
    for other in entry:
        if other not in ("type", *_FIELDS[kind]):
            problems.append(f"{name} has no {str(other)[:80]!r}. {nearest(str(other), _FIELDS[kind])}")
    if len(problems) > before:
        return None
    dimension = _chosen(name, entry, declared, problems) if kind == "categorical" else _ranged(name, entry, problems)
    if kind != "categorical" and declared[name].type not in _KFP_TYPES[kind]:
        problems.append(f"{name} takes {CALLED[declared[name].type]}, and its type here is {kind}.")
    return dimension if len(problems) == before else None


def _chosen(
    name: str, entry: Mapping[str, Any], declared: Mapping[str, Parameter], problems: list[str]
) -> Dimension | None:
    choices = plain(entry.get("choices"))
    if not isinstance(choices, Sequence) or isinstance(choices, str) or not choices:
        problems.append(f"{name} has no choices. Give a list, such as [adamw, sgd].")
        return None
    values = [_value(name, each, declared[name].type, problems) for each in choices]
    if len(set(map(repr, values))) < len(values):
        problems.append(f"{name} has a choice twice. Give each once.")
    return Dimension(name, "categorical", choices=tuple(values), when=_when(name, entry, declared, problems))


def _ranged(name: str, entry: Mapping[str, Any], problems: list[str]) -> Dimension | None:
    declared = parameters_in(TrainingSettings)
    kfp_type = "Integer" if entry["type"] == "int" else "Float"
    if missing := [each for each in ("low", "high") if each not in entry]:
        problems.append(f"{name} has no {' and no '.join(missing)}. Give both ends.")
        return None
    low, high = (_value(f"{each} of {name}", entry[each], kfp_type, problems) for each in ("low", "high"))
    step = _value(f"step of {name}", entry["step"], kfp_type, problems) if "step" in entry else 0
    log = _value(f"log of {name}", entry.get("log", "false"), "Boolean", problems)
    if None in (low, high, step, log):
        return None
    if not low < high:
        problems.append(f"{name} goes from {low} to {high}. Give a high that is more than low.")
    if log and low <= 0:
        problems.append(f"{name} begins at {low}, and has log. Give a low of more than 0.")
    if low < high and not 0 <= step <= high - low:
        problems.append(f"The step of {name} is {step}. Give more than 0, and at most {high - low:g}.")
    if log and step:
        problems.append(f"{name} has log and step. Give one of them.")
    when = _when(name, entry, declared, problems)
    return Dimension(name, entry["type"], low, high, log, step or (1 if kfp_type == "Integer" else 0), when=when)


def _when(
    name: str, entry: Mapping[str, Any], declared: Mapping[str, Parameter], problems: list[str]
) -> dict[str, Any]:
    when = entry.get("when") or {}
    if not isinstance(when, Mapping):
        problems.append(f"when of {name} is {str(when)[:80]!r}. Give, say, {{optimizer: sgd}}.")
        return {}
    return {
        str(other): _value(f"when of {name}", value, declared[other].type, problems) if other in declared else value
        for other, value in when.items()
    }


def _problems_of_when(dimension: Dimension, found: Mapping[str, Dimension | None]) -> list[str]:
    problems = []
    for other, wanted in dimension.when.items():
        if other not in found:
            told = f"{dimension.name} counts when {other[:80]} has a value, which is not searched for."
            problems.append(f"{told} {nearest(other, found)}")
        elif (known := found[other]) is not None and known.kind != "categorical":
            problems.append(f"{dimension.name} counts when {other} has a value, and that is not categorical.")
        elif known is not None and wanted not in known.choices:
            valid = ", ".join(map(str, known.choices))
            problems.append(f"{dimension.name} counts when {other} is {wanted!r}, which it never is. Valid: {valid}.")
    return problems


def _value(what: str, value: Any, kfp_type: str, problems: list[str]) -> Any:
    """A value of a parameter's type; None, with a problem, if it has another. YAML 1.1 itself reads 1e-3 as a text."""
    text = (str(value).lower() if isinstance(value, bool) else str(value)).strip()
    try:
        if kfp_type == "String" and not isinstance(value, (Mapping, list)):
            return "" if value is None else text
        if kfp_type == "Boolean":
            return _TRUTHS[text.lower()]
        number = number_of(text)
        if math.isfinite(number) and kfp_type == "Float":
            return number
        if kfp_type == "Integer" and number.is_integer() and abs(number) <= LARGEST_WHOLE_NUMBER:
            return int(number)
    except (ValueError, KeyError):
        pass
    problems.append(f"{what} takes {CALLED[kfp_type]}; got {text[:80]!r}.")
    return None
