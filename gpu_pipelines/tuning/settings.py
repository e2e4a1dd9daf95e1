"""The parameters of `tune_model`, checked without importing torch or Optuna."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpu_pipelines.artifacts.remote_files import is_remote, problems_of_place, read_remote
from gpu_pipelines.component_interface.parameter import Flag, parameter, parameters_in
from gpu_pipelines.component_interface.step import fields_from
from gpu_pipelines.errors import UserError, nearest
from gpu_pipelines.numbers import LARGEST_WHOLE_NUMBER
from gpu_pipelines.tasks.tasks import TASKS, defaults_of_task
from gpu_pipelines.training.settings import TrainingSettings
from gpu_pipelines.tuning.halving import FIRST_RUNG, REDUCTION
from gpu_pipelines.tuning.sampler import SAMPLERS
from gpu_pipelines.tuning.space import SearchSpace, entries_in, is_address, space_and_problems, space_of
from gpu_pipelines.yaml_input import LARGEST_BYTES, read_text

#: The largest integers of a search; one of them has another name in the form of a pipeline.
_MOST = {"trials": 10_000, "parallel": 1_000, "parallel_trials": 1_000, "reduction": 9}
_MOST_LONGER = 1_000
_GROUP = "Search for parameters (pipeline tune_train_evaluate_upload)"


@dataclass(frozen=True)
class TuningSettings(TrainingSettings):
    """The parameters of `tune_model`: those of its trainings, the same in all trials, and those of the search."""

    space: str = parameter(
        "",
        "The search space: YAML text, or the path of such a file, local or gs://. docs/tuning.md describes it.",
        common=True,
        flag=Flag("--space", "FILE", _GROUP, is_file=True),
    )
    trials: int = parameter(40, "Number of trials.", common=True, flag=Flag("--trials", "N", _GROUP))
    parallel_trials: int = parameter(
        1,
        "Number of trials at the same time. They share the GPUs, or the CPUs, of the machine.",
        common=True,
        flag=Flag("--parallel", "N", _GROUP),
    )
    budget: float = parameter(
        0.0,
        "Most that the search may cost, in US dollars, by the price of its machine; 0 for no limit.",
        common=True,
        flag=Flag("--budget", "DOLLARS", _GROUP),
    )
    longer: float = parameter(
        1.0,
        "Train once more with the best parameters, for this many times the steps; 1 keeps the trial itself.",
        common=True,
    )
    sampler: str = parameter("tpe", "How values are chosen: tpe, by the losses so far, or random.", choices=SAMPLERS)
    reduction: int = parameter(REDUCTION, "One trial in this many continues past each rung; 1 trains all to the end.")
    first_rung: float = parameter(
        FIRST_RUNG,
        "Share of its steps before which no trial ends early. Less is cheaper, and misleads if the learning rate falls "
        "until the end.",
    )
    study_seed: int = parameter(0, "Seed of the choice of values; the trainings use seed.")
    dollars_per_hour: float = parameter(
        0.0,
        "Price of the machine of the search, US dollars per hour, by which the budget is counted. A pipeline for an "
        "accelerator has its list price here.",
        common=True,
    )

    @property
    def base(self) -> TrainingSettings:
        """The parameters of all trials."""
        return fields_from(TrainingSettings, asdict(self))

    def search_space(self) -> SearchSpace:
        """The search space.

        Raises:
            UserError: it cannot be read, or is wrong; lists all problems.
        """
        return space_of(*self._entries())

    def _entries(self) -> tuple[dict[str, Any], str]:
        """The entries of the search space, and its name in messages."""
        if not self.space:
            raise UserError("No search space is given.", "Give --space FILE; docs/tuning.md describes the file.")
        if not is_address(self.space):
            return entries_in(self.space), "The search space"
        what = f"The search space {self.space}"
        if not is_remote(self.space):
            return entries_in(read_text(Path(self.space).expanduser(), what), what), what
        try:
            content = read_remote(self.space, LARGEST_BYTES)
        except FileNotFoundError:
            raise UserError(f"{what} does not exist.", "Give the address of such a file, or its text.") from None
        return entries_in(content.decode("utf-8", "replace"), what), what

    def problems(self, task: str = "image_classification", processes: int = 0) -> list[str]:
        """All problems with the values; for a space in object storage, only those that need no reading.

        Args:
            task: the task of the dataset.
            processes: processes of the machine, which the trials share; 0 if that is not known.
        """
        share = max(1, processes // max(1, self.parallel_trials)) if processes else 0
        found = self.problems_of_values()
        if is_address(self.space) and is_remote(self.space):
            unread = SearchSpace(()).problems(self.base, task, share)
            return [*unread, *found, *problems_of_place("space", self.space)]
        return [*found, *self.problems_of_space(task, share)]

    def problems_of_values(self) -> list[str]:
        """Problems with the values that do not depend on the data, without the space."""
        found = problems_of_search(asdict(self))
        if not 0 <= self.study_seed <= LARGEST_WHOLE_NUMBER:
            found.append(f"study_seed is {self.study_seed}; give 0 to 2^53.")
        if self.resume_from_step:
            found.append(f"resume_from_step is {self.resume_from_step}; trials begin at step 0. Leave it out.")
        return found

    def problems_of_space(self, task: str = "", processes: int = 0) -> list[str]:
        """Problems with the search space, which is read, and with the trainings that it describes.

        Args:
            task: the task of the dataset; empty for problems that do not depend on it, and are those of the space.
            processes: processes of each trial; 0 if that is not known.
        """
        try:
            space, wrong = space_and_problems(*self._entries())
        except UserError as error:
            space, wrong = SearchSpace(()), [error.in_one_line]
        declared = parameters_in(TrainingSettings)
        # A command fills in what depends on the task, such as its model, so nobody has given that.
        filled_in = [defaults_of_task(each) for each in ([task] if task else TASKS)]
        found = wrong + [
            f"{name} is searched for, and given as well. Leave one of the two out."
            for name in space.names
            if getattr(self, name) not in (declared[name].default, *(each.get(name) for each in filled_in))
        ]
        return [*found, *space.problems(self.base, task, processes)] if task else found


def problems_of_search(values: Mapping[str, Any]) -> list[str]:
    """Problems with the parameters of a search, without its space.

    Args:
        values: their values by name; others are ignored.
    """
    found = [
        f"{name} is {values[name]}; give a whole number from 1 to {most:,}."
        for name, most in _MOST.items()
        if name in values and not (isinstance(values[name], int) and 1 <= values[name] <= most)
    ]
    budget, price, sampler, longer = (values[name] for name in ("budget", "dollars_per_hour", "sampler", "longer"))
    for name in ("budget", "dollars_per_hour"):
        if not 0 <= values[name] < math.inf:
            found.append(f"{name} is {values[name]}; give dollars, at least 0.")
    if budget > 0 and price == 0:
        found.append(
            f"budget is {budget:g} dollars, and no price is known of what the search runs on; this machine costs "
            "nothing. Give dollars_per_hour, which gpu-pipelines accelerators plan shows, or no budget."
        )
    if not 0 < values["first_rung"] <= 1:
        found.append(f"first_rung is {values['first_rung']}; give a share of the steps, such as {FIRST_RUNG}.")
    if sampler not in SAMPLERS:
        found.append(f"There is no sampler {sampler!r}. {nearest(sampler, SAMPLERS)}")
    if not 1 <= longer <= _MOST_LONGER:
        found.append(f"longer is {longer}; give 1 to {_MOST_LONGER:,}.")
    return found
