"""What `tune_model` is asked to do, checked without importing torch or Optuna."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path

from gpu_pipelines.artifacts.remote_files import is_remote, problems_of_place
from gpu_pipelines.component_interface.parameter import parameter, parameters_in
from gpu_pipelines.component_interface.step import fields_from
from gpu_pipelines.errors import UserError, nearest
from gpu_pipelines.training.settings import TrainingSettings
from gpu_pipelines.tuning.sampler import SAMPLERS
from gpu_pipelines.tuning.space import SearchSpace, is_address, read_space, space_in

#: The largest whole numbers that a search takes.
_MOST = {"trials": 10_000, "parallel_trials": 1_000, "reduction": 9}
_MOST_LONGER = 1_000


@dataclass(frozen=True)
class TuningSettings(TrainingSettings):
    """The parameters of `tune_model`: those of its trainings, the same in all trials, and those of the search."""

    space: str = parameter(
        "",
        "What is searched for: the text of a search space in YAML, or where such a file is, local or gs://. "
        "docs/tuning.md says what stands in it.",
        common=True,
    )
    trials: int = parameter(40, "Trials that are begun.", common=True)
    parallel_trials: int = parameter(
        1, "Trials that are trained at the same time; they share the GPUs, or the CPUs, of the machine.", common=True
    )
    budget: float = parameter(
        0.0, "US dollars that the search may cost by the price of its machine; 0 for no limit.", common=True
    )
    longer: float = parameter(
        1.0,
        "The best parameters are trained with anew, for so many times the steps; 1 keeps the trial itself.",
        common=True,
    )
    sampler: str = parameter("tpe", "How values are chosen: tpe, by the losses so far, or random.", choices=SAMPLERS)
    reduction: int = parameter(
        3,
        "One trial in so many goes on from each rung, at a ninth and a third of its steps where that is 3; 1 trains all "
        "trials to their end.",
    )
    study_seed: int = parameter(0, "Of the choice of values; that of the trainings is seed.")
    dollars_per_hour: float = parameter(
        0.0,
        "Price of the machine of the search, US dollars; 0 for the list price of the accelerator that the pipeline was "
        "made for, which on this machine is nothing.",
    )

    @property
    def base(self) -> TrainingSettings:
        """The parameters that all trials have."""
        return fields_from(TrainingSettings, asdict(self))

    def search_space(self) -> SearchSpace:
        """What is searched for.

        Raises:
            UserError: it cannot be read, or lists everything that is wrong with it.
        """
        if not is_address(self.space):
            return space_in(self.space)
        if not self.space:
            raise UserError("The search space is not given.", "Give --space FILE; docs/tuning.md says what is in it.")
        if not is_remote(self.space):
            return read_space(Path(self.space).expanduser())
        from gpu_pipelines.artifacts.versioned_file import versioned_file

        content, _ = versioned_file(self.space).read()
        if not content:
            raise UserError(f"There is no search space {self.space}.", "Give the address of such a file, or its text.")
        return space_in(content.decode("utf-8", "replace"), f"The search space {self.space}")

    def problems(self, task: str = "image_classification") -> list[str]:
        """Everything that is wrong with the values; of a space that is elsewhere than here, what can be known."""
        found = [*self.base.problems(task), *self.problems_of_search()]
        if self.resume_from_step:
            found.append(f"resume_from_step is {self.resume_from_step}; trials begin at step 0. Leave it out.")
        if is_address(self.space) and is_remote(self.space):
            return [*found, *problems_of_place("space", self.space)]
        return [*found, *self.problems_of_space(task)]

    def problems_of_space(self, task: str = "image_classification", processes: int = 0) -> list[str]:
        """What is wrong with the search space, which is read for it.

        Args:
            task: of the dataset.
            processes: of each trial; 0 if that is not known.
        """
        try:
            space = self.search_space()
        except UserError as error:
            return [f"{error.problem} {error.remedy}".strip()]
        declared = parameters_in(TrainingSettings)
        found = [
            f"{name} is searched for, and given as well. Leave one of the two out."
            for name in space.names
            if getattr(self, name) != declared[name].default
        ]
        return [*found, *space.problems(self.base, task, processes)]

    def problems_of_search(self) -> list[str]:
        """What is wrong with the parameters of the search itself."""
        found = [
            f"{name} is {getattr(self, name)}; give a whole number from 1 to {most:,}."
            for name, most in _MOST.items()
            if not 1 <= getattr(self, name) <= most
        ]
        for name in ("budget", "dollars_per_hour"):
            if not 0 <= getattr(self, name) < math.inf:
                found.append(f"{name} is {getattr(self, name)}; give dollars, at least 0.")
        if self.study_seed < 0:
            found.append(f"study_seed is {self.study_seed}; give at least 0.")
        if self.sampler not in SAMPLERS:
            found.append(f"There is no sampler {self.sampler!r}. {nearest(self.sampler, SAMPLERS)}")
        if not 1 <= self.longer <= _MOST_LONGER:
            found.append(f"longer is {self.longer}; give 1 to {_MOST_LONGER:,}.")
        return found

    def problems_of_price(self) -> list[str]:
        """What is wrong with the budget where the price is known to be the one that stands here."""
        if self.budget <= 0 or self.dollars_per_hour > 0:
            return []
        return [
            f"budget is {self.budget:g} dollars, and no price of the machine is known. Give dollars_per_hour, which "
            "gpu-pipelines accelerators plan shows, or no budget."
        ]
