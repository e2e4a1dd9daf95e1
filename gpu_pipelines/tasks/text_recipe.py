"""What recipes for texts have in common: their models, checks of the dataset, and the trimming of rows."""

from __future__ import annotations

import json
from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn

from gpu_pipelines.errors import UserError, some_of
from gpu_pipelines.tasks import pretrained
from gpu_pipelines.tasks.batch_encoding import TYPE_IDS
from gpu_pipelines.tasks.model_check import known_tokens, longest_row
from gpu_pipelines.tasks.model_places import has_tokenizer, is_configuration_alone, place_and_revision
from gpu_pipelines.tasks.recipe import Batch, Recipe
from gpu_pipelines.tasks.saved_model import load_exported
from gpu_pipelines.tasks.text_tokenizer import TOKENIZER, TextTokenizer, rules_of, tokens_of

if TYPE_CHECKING:
    from typing_extensions import Self

    from gpu_pipelines.artifacts.dataset import Dataset

# Matrix multiplications on tensor cores want lengths that are multiples of this.
LENGTH_STEP = 8


#: Share of the tokens of pretrained weights that data may have renamed.
_RENAMED = 0.01
#: Label of a token that is not scored.
NOT_SCORED = -100


class TextRecipe(Recipe):
    """Hugging Face models that take tokens.

    Args:
        tokenizer: the tokenizer of the rows.
        sequence_length: tokens of the longest row.

    Attributes:
        models: architectures that `untrained` builds.
        auto_class: the class of transformers that builds and loads all other models.
        max_shard_size: largest size of a file that `export` writes, as `save_pretrained` takes it.
    """

    smooths = True
    models: ClassVar[tuple[str, ...]]
    auto_class: ClassVar[str]
    max_shard_size: str = pretrained.MAX_SHARD_SIZE

    def __init__(self, tokenizer: TextTokenizer, sequence_length: int) -> None:
        pretrained.quiet_transformers()
        self.labels: list[str] = []
        self.tokenizer = tokenizer
        self.sequence_length = sequence_length

    @abstractmethod
    def untrained(self, name: str) -> nn.Module:
        """Builds one of `models`, untrained.

        Args:
            name: one of `models`.
        """

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """Entries of the configuration of an untrained model that follow from the data."""

    @abstractmethod
    def changes(self) -> dict[str, Any]:
        """Entries of the configuration of a pretrained model that the data replaces."""

    @staticmethod
    def may_be_new(model: nn.Module, key: str) -> bool:
        """Whether a pretrained model may lack a weight, such as that of a new head.

        Args:
            model: the model that is built.
            key: the name of the weight in its state dict.
        """
        return pretrained.is_outside_backbone(model, key)

    def build_model(self, name: str) -> nn.Module:
        """Builds the model to train.

        Args:
            name: an architecture of the task (untrained), a directory with only a config.json (untrained), a local
                directory in Hugging Face layout, or a hub id. The latter two also give the weights, except for the head
                of a task that has its own.

        Raises:
            UserError: the name is unknown, or the model does not take these tokens.
        """
        if name in self.models:
            model = self.untrained(name)
        elif is_configuration_alone(name):
            model = pretrained.from_configuration(self._auto_class, name, **self.config())
        else:
            require_known_tokens(name, self.tokenizer)
            model = pretrained.from_pretrained(self._auto_class, name, self.models, self.may_be_new, **self.changes())
        require_text_fits(name, model, self.tokenizer, self.sequence_length)
        return model

    def load_exported(self, directory: Path) -> nn.Module:
        """Loads an exported model; every weight must be in the file and in the model.

        Args:
            directory: the model, in Hugging Face layout.
        """
        return load_exported(self._auto_class, directory)

    def taking_over(self, directory: Path, model: nn.Module) -> tuple[Self, nn.Module]:
        require_taken_over(directory, model, self.tokenizer, self.sequence_length)
        return self, model

    def export(self, model: nn.Module, directory: Path) -> None:
        """Writes config.json, model.safetensors and the tokenizer."""
        pretrained.save(model, directory, self.max_shard_size)
        self.tokenizer.copy_to(directory)
        if self.tokenizer.takes_pairs:
            declare_inputs(directory)

    @property
    def _auto_class(self) -> Any:
        import transformers

        return getattr(transformers, self.auto_class)


def read_exported(directory: Path) -> tuple[list[str], TextTokenizer, int]:
    """The classes or tags, the tokenizer and the tokens of the longest row of an exported model."""
    config, of_tokenizer = (
        json.loads((directory / name).read_text(encoding="utf-8")) for name in ("config.json", "tokenizer_config.json")
    )
    return pretrained.labels_of(config), TextTokenizer.read(directory), of_tokenizer["model_max_length"]


def encoder_logits(model: nn.Module, batch: Batch) -> torch.Tensor:
    """The logits of a model with a head for a batch, float32.

    XLNet has read a text at its last token, and takes the last place of a row for it: padding stands in front then.
    """
    names = ("input_ids", "attention_mask", *([TYPE_IDS] if TYPE_IDS in batch and knows_types(model) else []))
    given = {name: batch[name] for name in names}
    if getattr(config_of(model), "summary_type", None) != "last":
        return model(**given).logits.float()
    mask = batch["attention_mask"]
    # Where each place of a row comes from, and where it went.
    places, lengths = torch.arange(mask.shape[1], device=mask.device), mask.sum(dim=1, keepdim=True)
    before, after = (places + lengths) % len(places), (places - lengths) % len(places)
    logits = model(**{name: values.gather(1, before) for name, values in given.items()}).logits.float()
    # Those of tags stand where their tokens do in the batch.
    return logits.take_along_dim(after[..., None], dim=1) if logits.ndim == 3 else logits


def knows_types(model: Any) -> bool:
    """Whether a model distinguishes the two texts of a pair by the types of their tokens.

    Args:
        model: a transformers model, or a wrapper of one.
    """
    return has_types(config_of(model))


def config_of(model: Any) -> Any:
    """The configuration of a transformers model, which may be in a wrapper."""
    return getattr(model, "module", model).config


def declare_inputs(directory: Path) -> None:
    """Lets transformers give a model the types of tokens if, and only if, this program does.

    Args:
        directory: an exported model for pairs of texts, whose tokenizer_config.json is rewritten.
    """
    from transformers import AutoConfig

    # What config.json leaves out has the default of the model's kind.
    types = [TYPE_IDS] if has_types(AutoConfig.from_pretrained(directory, local_files_only=True)) else []
    path = directory / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["model_input_names"] = ["input_ids", *types, "attention_mask"]
    path.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def has_types(config: Any) -> bool:
    """Whether the models of a configuration distinguish the two texts of a pair by the types of their tokens."""
    return (getattr(config, "type_vocab_size", None) or 0) > 1


def mean_of_scored(logits: torch.Tensor, targets: torch.Tensor, smoothing: float = 0.0) -> torch.Tensor:
    """Mean cross entropy over the tokens that are scored, in nats; 0 if there are none.

    Args:
        logits: of shape (rows, tokens, classes).
        targets: of shape (rows, tokens).
        smoothing: share of each target that is spread over all classes.
    """
    total = nn.functional.cross_entropy(
        logits.flatten(0, 1),
        targets.flatten(),
        ignore_index=NOT_SCORED,
        reduction="sum",
        label_smoothing=smoothing,
    )
    return total / (targets != NOT_SCORED).sum().clamp(min=1)


def require_dataset_of(dataset: Dataset, task: str, features: tuple[str, ...]) -> TextTokenizer:
    """The tokenizer of a dataset that has the features of a task.

    Raises:
        UserError: the dataset was prepared for something else.
    """
    manifest = dataset.manifest
    missing = set(features) - set(manifest.features)
    if missing or not dataset.tokenizer:
        raise UserError(
            f"The dataset {dataset.directory} was prepared for {manifest.task}; {task} needs the features "
            f"{some_of(features, most=5)} and a tokenizer.",
            f"Prepare it with task={task}.",
        )
    return TextTokenizer.read(dataset.tokenizer)


def require_known_tokens(model: str, tokenizer: TextTokenizer) -> None:
    """Refuses pretrained weights for which the tokens of the data mean something else.

    The data may add tokens that a model does not have, and rename a few, such as reserved ones.

    Args:
        model: its directory, or a hub id; without a tokenizer.json nothing is checked.
        tokenizer: of the data.

    Raises:
        UserError: more than one in a hundred of the numbers that both know stands for another token.
    """
    from transformers.utils import cached_file

    place, revision = place_and_revision(model)
    try:
        file = cached_file(place, TOKENIZER, revision=revision or None)
    except OSError:
        return
    theirs, ours = tokens_of(Path(str(file)).parent), tokens_of(tokenizer.directory)
    both = theirs.keys() & ours.keys()
    other = sum(theirs[number] != ours[number] for number in both)
    if other > _RENAMED * len(both):
        raise UserError(
            f"The model {model!r} has another tokenizer than the dataset: {other:,} of {len(both):,} tokens differ.",
            f"Prepare the data with the model's own tokenizer (-p tokenizer={model}).",
        )


def require_text_fits(name: str, model: Any, tokenizer: TextTokenizer, length: int) -> None:
    """Refuses a model that lacks tokens or positions; it would fail in the middle of the data, or silently on a GPU.

    Raises:
        UserError: the vocabulary or the longest text of the model is smaller than that of the data, or it does not take
            tokens.
    """
    known = known_tokens(name, model)
    if known < tokenizer.vocabulary_size:
        raise UserError(
            f"The model {name!r} knows {known:,} tokens; the tokenizer of the dataset has "
            f"{tokenizer.vocabulary_size:,}.",
            f"Prepare the data with the model's own tokenizer (-p tokenizer={name}). If that is already its tokenizer, "
            "tokens were added to it: give the model room for them with resize_token_embeddings(len(tokenizer)), and "
            "save it."
            if has_tokenizer(name)
            else "Put the model's own tokenizer beside it (tokenizer.save_pretrained), or name it: -p tokenizer=…",
        )
    positions = longest_row(model)
    if positions < length:
        raise UserError(
            f"The model {name!r} takes at most {positions:,} tokens; the rows of the dataset have {length:,}.",
            f"Prepare the data with -p sequence_length={positions}.",
        )


def require_taken_over(directory: Path, model: Any, tokenizer: TextTokenizer, length: int) -> None:
    """Refuses a model of another program that has another tokenizer, or lacks tokens or positions.

    A model without a tokenizer of its own is assumed to use that of the dataset.

    Raises:
        UserError: it is such a model.
    """
    if (directory / TOKENIZER).is_file() and rules_of(directory) != rules_of(tokenizer.directory):
        raise UserError(
            f"The model in {directory} has another tokenizer than the dataset.",
            f"Prepare the data with -p tokenizer={directory}.",
        )
    require_text_fits(str(directory), model, tokenizer, length)


def trimmed_length(longest: int, sequence_length: int) -> int:
    """How many columns of a batch are needed: its longest row, rounded up to a multiple of 8."""
    return min(-(-max(longest, 1) // LENGTH_STEP) * LENGTH_STEP, sequence_length)
