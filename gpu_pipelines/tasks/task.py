"""The port of tasks: data, recipe, scores and predictor in one class.

A task is named without importing torch. Its parts are given as `module:name` and imported where they are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from gpu_pipelines.errors import UserError, columns_in_words
from gpu_pipelines.own_class import require_own_part
from gpu_pipelines.tasks.formats import TABLES
from gpu_pipelines.tasks.hyperparameters import FINE_TUNED, FROM_SCRATCH, WITH_ADAPTERS, Hyperparameters
from gpu_pipelines.tasks.metric import ERROR, Metric

if TYPE_CHECKING:
    from gpu_pipelines.artifacts.dataset import Dataset
    from gpu_pipelines.data.preparation import Preparation
    from gpu_pipelines.data.settings import PrepareSettings
    from gpu_pipelines.evaluation.generation.port import TextTask
    from gpu_pipelines.evaluation.scoring import Scoring
    from gpu_pipelines.profiles.watched import Watched
    from gpu_pipelines.serving.predictor import Predictor

#: Metrics of tasks that are scored by their loss, over tokens or whatever else a user's own loss is a mean of.
LOSS_METRICS = {
    "loss": ERROR,
    "perplexity": ERROR,
    "bits_per_byte": ERROR,
    "token_accuracy": Metric(),
    "completion_accuracy": Metric(),
}


class Task:
    """A task. A subclass overrides what differs from the default: rows of a table, scored by the loss of the recipe.

    Args:
        name: as given in the parameter `task`.

    Attributes:
        formats: file formats that it reads; `images` is a folder of images by class.
        column_parameters: the parameters that name the columns of a table.
        parameters: the parameters of this task that not every task has.
        takes_lists: whether its columns may hold lists, such as the tokens of a text.
        has_classes: whether each row has one class, named by `label_column` or a folder.
        samples: for each sample data set the function that writes it into a folder and returns the path of the source.
        defaults: values of a pipeline's parameters that only make sense for this task; `source` and `model`.
        preparation: class of a `Preparation`, or a function that chooses one; see `load_preparation`.
        recipe: class of a `Recipe`.
        models: architectures that are built from their name, untrained.
        without_adapters: those of `models` that have no linear layers for adapters.
        metrics: metrics to gate on and select by; the first is the default of `select_by`.
        figures: further figures of the test rows to gate on.
        gates: conditions on test metrics if the user gives none.
        scoring: class of a `Scoring`.
        text_task: class of a `TextTask`, for tasks whose models write text; empty for others.
        row_text: function that gives a row as parts of text, with what is learned marked, for people; empty for a task
            whose rows are `input_ids`, or not text.
        worst: which rows of test a report shows, for people; empty for those with the highest loss.
        predictor: class of a `Predictor`; empty for a task that the server does not serve.
        watched: class that says what is compared between the training data and current data; a subclass of
            `gpu_pipelines.profiles.watched.Watched`, which knows images, texts, numbers and all predictions.
        architectures: endings of the names of its architectures in Hugging Face's config.json.
        auto_class: transformers class that loads its models, such as AutoModelForCausalLM; empty if they have none or
            several, so that a model cannot be checked before it is loaded.
        row_tokens: tokens of a row of text if `sequence_length` is left open.
        serves_others: whether the server prepares inputs as any program that trains such a model does.
        from_scratch, fine_tuned, with_adapters: hyperparameters if the user gives none: for untrained models, for
            pretrained ones, and for adapters of pretrained ones.
        pipeline_tag: the hub's name of the task; empty for none.
        published: whether `compile --all` writes files for it.
    """

    formats: ClassVar[tuple[str, ...]] = TABLES
    column_parameters: ClassVar[tuple[str, ...]] = ("label_column",)
    parameters: ClassVar[tuple[str, ...]] = ()
    takes_lists: ClassVar[bool] = False
    has_classes: ClassVar[bool] = False
    samples: ClassVar[Mapping[str, str]] = {}
    defaults: ClassVar[Mapping[str, Any]] = {}
    preparation: ClassVar[str] = ""
    recipe: ClassVar[str] = ""
    models: ClassVar[tuple[str, ...]] = ()
    without_adapters: ClassVar[tuple[str, ...]] = ()
    metrics: ClassVar[Mapping[str, Metric]] = LOSS_METRICS
    figures: ClassVar[Mapping[str, Metric]] = {}
    gates: ClassVar[tuple[str, ...]] = ()
    scoring: ClassVar[str] = "gpu_pipelines.evaluation.metrics.loss:LossScoring"
    text_task: ClassVar[str] = ""
    row_text: ClassVar[str] = ""
    worst: ClassVar[str] = ""
    predictor: ClassVar[str] = ""
    watched: ClassVar[str] = "gpu_pipelines.profiles.watched:Watched"
    architectures: ClassVar[tuple[str, ...]] = ()
    auto_class: ClassVar[str] = ""
    row_tokens: ClassVar[int] = 128
    serves_others: ClassVar[bool] = True
    from_scratch: ClassVar[Hyperparameters] = FROM_SCRATCH
    fine_tuned: ClassVar[Hyperparameters] = FINE_TUNED
    with_adapters: ClassVar[Hyperparameters] = WITH_ADAPTERS
    pipeline_tag: ClassVar[str] = ""
    published: ClassVar[bool] = False

    def __init__(self, name: str) -> None:
        self.name = name

    def hyperparameters(self, *, is_pretrained: bool, has_adapters: bool) -> Hyperparameters:
        """The hyperparameters of a training if the user gives none.

        Args:
            is_pretrained: whether it begins with the weights of another training.
            has_adapters: whether adapters are trained instead of all weights.
        """
        if not is_pretrained:
            return self.from_scratch
        return self.with_adapters if has_adapters else self.fine_tuned

    def is_for(self, config: Mapping[str, Any]) -> bool:
        """Whether a model that another program trained is for this task.

        Args:
            config: its config.json.
        """
        names = config.get("architectures")
        return bool(names) and isinstance(names, list) and str(names[0]).endswith(self.architectures)

    @property
    def title(self) -> str:
        """The name, for people."""
        return self.name.replace("_", " ")

    def problems(self, settings: PrepareSettings) -> list[str]:
        """Problems with the preparation's parameters that only this task has, each with what to do.

        Args:
            settings: all parameters of the preparation.
        """
        return []

    def column_problems(self, settings: PrepareSettings) -> list[str]:
        """Problems if two parameters name the same column, such as a text that would be its own label.

        Args:
            settings: all parameters of the preparation.
        """
        columns = {name: column for name in self.column_parameters if (column := getattr(settings, name))}
        for column in dict.fromkeys(columns.values()):
            if len(both := [name for name in columns if columns[name] == column]) > 1:
                return [f"{' and '.join(both)} both name {column!r}. Name a column of its own with each."]
        return []

    def problems_without_classes(self, settings: PrepareSettings) -> list[str]:
        """Problems with parameters about classes, for a task whose rows have none.

        Args:
            settings: of the preparation; `stratify` and `label_conflicts` are checked.
        """
        found = []
        if settings.stratify:
            found.append(f"stratify needs a class for each row, which {self.name} has not. Leave it out.")
        if settings.label_conflicts != "keep":
            found.append(f"label_conflicts are of classes, which {self.name} has not. Leave it out.")
        return found

    def columns(self, settings: PrepareSettings) -> list[tuple[str, ...]]:
        """Alternative sets of columns to read, the preferred one first; a table needs all columns of one set.

        The columns of `slice_by` and `group_by` are added to each: see `PrepareSettings.column_choices`.

        Args:
            settings: all parameters of the preparation.
        """
        named = [getattr(settings, name) for name in self.column_parameters]
        return [tuple(dict.fromkeys(column for column in named if column))]

    def columns_of(self, settings: PrepareSettings, has: Sequence[str]) -> tuple[str, ...]:
        """The columns to read from a table; whoever reads one asks `PrepareSettings.columns_of`.

        Args:
            settings: has the names of the columns, and `source` for messages.
            has: the columns of the table.

        Raises:
            UserError: a column is missing.
        """
        choices = self.columns(settings)
        for wanted in choices:
            if set(wanted) <= set(has):
                return wanted
        raise self.lacks(settings, has, min(([c for c in wanted if c not in has] for wanted in choices), key=len))

    def lacks(self, settings: PrepareSettings, has: Sequence[str], missing: Sequence[str]) -> UserError:
        """The error for a table without some columns.

        Args:
            settings: all parameters of the preparation.
            has: the columns of the table.
            missing: those that it lacks.
        """
        beside = [name for name in ("slice_by", "group_by") if getattr(settings, name) in missing]
        named = " and ".join(f"-p {name}=…, which is {getattr(settings, name)!r}" for name in beside)
        other = f"Name the column with {named}, or leave it out."
        if ".json" in settings.source:
            other += " Of JSON lines the first 1,000 rows tell which columns there are."
        return UserError(
            f"The source {settings.source} has no column {' and no column '.join(map(repr, missing))}; "
            f"it has {columns_in_words(has)}.",
            other if set(missing) <= set(settings.columns_beside) else self.remedy_for_columns,
        )

    @property
    def remedy_for_columns(self) -> str:
        """What to do if a table lacks a column."""
        return f"Name the columns with {' and '.join(f'-p {name}=…' for name in self.column_parameters)}."

    def may_nest(self, settings: PrepareSettings, column: str, kind: str) -> bool:
        """Whether a column may hold lists or structures of an Arrow type, such as the messages of a chat.

        Args:
            settings: all parameters of the preparation.
            column: its name.
            kind: the name of the Arrow type.
        """
        return self.takes_lists and "list" in kind.partition("<")[0]

    def learns_from_images(self, settings: PrepareSettings, columns: Sequence[str]) -> bool:
        """Whether images of a table are learned from, for a task that also takes other rows.

        Args:
            settings: all parameters of the preparation.
            columns: the columns to read, from `columns_of`.
        """
        return columns[0] == settings.image_column

    def model_problems(self, settings: PrepareSettings, columns: Sequence[str], model: str) -> list[str]:
        """Problems with using a model for the columns of a table, each with what to do.

        Args:
            settings: all parameters of the preparation.
            columns: the columns to read, from `columns_of`.
            model: the name of an architecture, or of a pretrained model (`is_pretrained`).
        """
        return []

    def write_sample(self, name: str, folder: Path) -> Path:
        """Writes a sample data set, and returns the path of the source.

        Args:
            name: what follows `sample:`.
            folder: an empty folder.
        """
        return _part(self.samples[name])(folder)

    def require_parts(self) -> None:
        """Imports all parts, torch with them, before the first step: the last of them is needed after the training.

        Raises:
            UserError: a part cannot be imported, or lacks a method.
        """
        for what in ("preparation", "recipe", "scoring", "text_task", "row_text", "predictor", "watched"):
            if place := getattr(self, what):
                require_own_part(place, f"The {what} {place} of the task {self.name}", "See docs/tasks.md.")

    def load_preparation(self) -> Callable[[PrepareSettings, Path], Preparation[Any]]:
        """The function or class that makes the preparation from the settings and an empty directory."""
        return _part(self.preparation)

    def load_row_text(self) -> Callable[[dict[str, Any], Callable[[Any], str]], list[dict[str, Any]]] | None:
        """The function that gives a row as parts, each with `text` and whether it is `learned`; None for none.

        It takes the row and a function that decodes tokens.
        """
        return _part(self.row_text) if self.row_text else None

    def load_recipe(self) -> Any:
        """The class of the recipe; its import imports torch."""
        return _part(self.recipe)

    def load_scoring(self, dataset: Dataset) -> Scoring:
        """The scoring of predictions on a dataset.

        Args:
            dataset: the dataset that is predicted.
        """
        return _part(self.scoring)(dataset)

    def load_text_task(self, dataset: Dataset) -> TextTask:
        """The prompts of a dataset, and how text is written after them; its import imports torch.

        Args:
            dataset: the dataset whose prompts are continued.
        """
        return _part(self.text_task)(dataset)

    def load_predictor(self) -> type[Predictor]:
        """The class that serves a model of the task; its import imports torch."""
        return _part(self.predictor)

    def load_watched(self) -> Watched:
        """The features of rows and predictions that are checked for drift."""
        found: Watched = _part(self.watched)()
        return found


def _part(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
