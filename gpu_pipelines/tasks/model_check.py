"""What a config.json says before any data is read: whether a model is for the task, and how long its rows may be."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gpu_pipelines.artifacts.exported_model import INDEX, WEIGHTS, weight_files
from gpu_pipelines.artifacts.remote_files import is_remote, read_remote
from gpu_pipelines.errors import UserError, first_line, said_by, some_of
from gpu_pipelines.tasks.model_places import (
    ADAPTERS,
    CONFIG,
    PICKLED,
    SAFE,
    files_of,
    is_of_timm,
    is_pretrained,
    may_be_pretrained,
    place_and_revision,
    place_told,
)
from gpu_pipelines.tasks.task import Task
from gpu_pipelines.tasks.text_tokenizer import TOKENIZER, load_tokenizer

_NETWORK = "Check the network, or give a directory or gs://…, which need no hub."
#: What the client of the hub raises, and what to do; the first that fits. TransportError is httpx's.
_REMEDIES = {
    "GatedRepoError": "Agree to its owner's terms on the model's page, and set HF_TOKEN where the steps run.",
    "RepositoryNotFoundError": "Check its name; for a private one set HF_TOKEN where the steps run.",
    "RevisionNotFoundError": "Check the revision behind the @: a branch, a tag, or a commit.",
    "LocalEntryNotFoundError": _NETWORK,
    "TransportError": _NETWORK,
    "EntryNotFoundError": "Give a whole model in Hugging Face layout; adapters alone are none.",
}
#: How a file begins that Git LFS has left in place of another.
_POINTER = b"version https://git-lfs"
#: Families of transformers that take positions and look across the documents of a row all the same: by a mask that does
#: not go by positions, or by a state that goes on from token to token. A test tries each; of others the training finds
#: out.
CROSSING = frozenset(
    (
        *("afmoe", "bailing_hybrid", "biogpt", "falcon_h1", "gpt_oss", "jamba", "lfm3", "minimax"),
        *("nemotron_h", "opt", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next", "recurrent_gemma", "zaya"),
    )
)
#: How transformers says that a class builds no model of a kind.
_OTHER_KIND = "Unrecognized configuration class"


def problems_of_configuration(
    task: Task,
    model: str,
    sequence_length: int,
    tokenizer: str = "",
    *,
    packing: bool = False,
    training: Mapping[str, Any] | None = None,
) -> list[str]:
    """Problems with a model for a task, as far as the names of its files and its config.json show them.

    It builds the model without its weights, and looks whether they are there, so that what is refused here is what the
    training would refuse.

    Args:
        task: what it is trained for.
        model: a directory in Hugging Face layout, local or remote, or a hub id; nothing is known of other names.
        sequence_length: tokens of a row, as the parameter has it.
        tokenizer: what texts are prepared with, a directory or a hub id; what has no tokenizer.json is not looked at.
        packing: whether rows of a task that packs documents will hold several.
        training: parameters of the training by name, as far as its model has to have something for them.
    """
    if not task.auto_class or not may_be_pretrained(model):
        return []
    files = files_of(model) or _files_on_hub(model)
    if any(file.endswith(PICKLED) for file in files) and not any(file.endswith(SAFE) for file in files):
        return [
            f"The weights of {model} are pickled, and a pickle can run any code. Save them as *.safetensors, as "
            "save_pretrained does."
        ]
    try:
        built = _without_weights(task, model)
        _require_weights(model, files)
    except UserError as error:
        return [error.in_one_line]
    if built is None:
        return []
    method = (built.config.to_dict().get("quantization_config") or {}).get("quant_method")
    # transformers makes bf16 of MXFP4, which gpt-oss is in, where it has no kernels for it.
    if method not in (None, "mxfp4") and is_pretrained(model):
        return [
            f"The weights of {model} are quantized ({method}), and numbers of so few bits cannot be trained. Give the "
            "model that it was made of; beside adapters -p quantize_base=nf4 holds that in four bits."
        ]
    if task.auto_class == "AutoModelForCausalLM" and _is_encoder(built):
        return [" ".join(sees_ahead(model))]
    if task.auto_class == "AutoModelForCausalLM" and is_pretrained(model) and (saved := _without_head(built)):
        return [
            f"The model {model} was saved as a {saved}, without the head that predicts tokens. Give one that was saved "
            f"as a {type(built).__name__}."
        ]
    if wrong := said_by(lambda: _require_layers(built, training or {})):
        return wrong
    if "sequence_length" not in task.parameters:
        return []
    may_cross = built.config.model_type in CROSSING or not takes_positions(built)
    if may_cross and packing and "packing" in task.parameters:
        return [" ".join(crosses_documents(model))]
    try:
        known = known_tokens(model, built)
    except UserError as error:
        return [error.in_one_line]
    if is_pretrained(model) and (needed := _tokens_in(tokenizer)) > known:
        return [
            f"The model {model} knows {known:,} tokens, and the tokenizer {tokenizer} has {needed:,}. Give the model's "
            "own, -p tokenizer=…; where tokens were added to it, give the model room for them with "
            "resize_token_embeddings(len(tokenizer)), and save it."
        ]
    longest, length = longest_row(built), sequence_length or task.row_tokens
    if length <= longest:
        return []
    return [
        f"The model {model} takes at most {longest:,} tokens, and rows of {length:,} would be prepared for it. Give "
        f"-p sequence_length={longest} or less."
    ]


def _require_layers(built: Any, training: Mapping[str, Any]) -> None:
    """Checks that a model has the layers that a training's parameters are about; freezes what the training freezes.

    Raises:
        UserError: as the training would.
    """
    from gpu_pipelines.tasks.adapters import layers_to_adapt
    from gpu_pipelines.tasks.attention import require_attention
    from gpu_pipelines.tasks.frozen import freeze
    from gpu_pipelines.tasks.nf4 import require_layers
    from gpu_pipelines.tasks.pretrained import head_of
    from gpu_pipelines.tasks.recipe import require_blocks, usual_blocks

    if training.get("lora_rank"):
        layers_to_adapt(built, training.get("lora_targets", ""))
        built.requires_grad_(False)
        for name in head_of(built):
            built.get_submodule(name).requires_grad_(True)
    elif patterns := training.get("freeze"):
        freeze(built, patterns)
    if training.get("quantize_base"):
        require_layers(built)
    if decay := training.get("layer_decay"):
        require_blocks(built, usual_blocks(built), decay)
    require_attention(built, training.get("attention", "auto"))


def _tokens_in(tokenizer: str) -> int:
    """One more than the largest token of a tokenizer; 0 where it cannot be read, which what takes it says."""
    if not may_be_pretrained(tokenizer):
        return 0
    try:
        with TemporaryDirectory() as folder:
            held = load_tokenizer(with_file(tokenizer, TOKENIZER, Path(folder)))
    except Exception:  # the library raises a bare one for all that can be wrong with the file
        return 0
    return max(held.get_vocab(with_added_tokens=True).values(), default=-1) + 1


def _require_weights(model: str, files: set[str]) -> None:
    """Looks for the files that transformers loads weights from, and at the beginning of those that are here.

    Raises:
        UserError: one is not there, or is no such file.
    """
    from safetensors import SafetensorError, safe_open

    # Beside that file stand adapters, whose weights transformers loads as well.
    if ADAPTERS in files or not any(file.endswith(SAFE) for file in files):
        return
    directory = Path(model).expanduser()
    with TemporaryDirectory() as folder:
        indexed = WEIGHTS not in files and INDEX in files
        named = weight_files(with_file(model, INDEX, Path(folder))) if indexed else [WEIGHTS]
    if lost := [name for name in named if name not in files]:
        there = some_of((file for file in files if file.endswith(SAFE)), most=3)
        raise UserError(
            f"The model {model} lacks {some_of(lost, most=3)}; it has {there}.",
            f"Its weights are in {WEIGHTS}, or in the files that {INDEX} names, as save_pretrained writes them.",
        )
    for path in (directory / name for name in named if directory.is_dir()):
        try:
            safe_open(path, framework="numpy").__exit__(None, None, None)
        except (SafetensorError, OSError) as error:
            with path.open("rb") as file:
                is_pointer = file.read(len(_POINTER)) == _POINTER
            raise UserError(
                f"The weights {path} cannot be read: {first_line(error)}.",
                "It is a pointer of Git LFS, which has no weights: git lfs pull." if is_pointer else "Copy it again.",
            ) from None


def longest_row(model: Any) -> float:
    """Tokens of the longest row that a model of transformers has positions for; infinite where any length will do.

    Models of RoBERTa's family count from behind the number of their padding, so that the first positions are no
    token's (`create_position_ids_from_input_ids` of transformers).

    Args:
        model: with or without weights.
    """
    positions = getattr(model.config, "max_position_embeddings", None)
    if not isinstance(positions, int) or positions < 0:  # XLNet says -1
        return math.inf
    table = next((part for name, part in model.named_modules() if name.endswith("position_embeddings")), None)
    padding = getattr(table, "padding_idx", None)
    return positions if padding is None else positions - padding - 1


def known_tokens(name: str, model: Any) -> int:
    """How many tokens a model has embeddings for.

    Args:
        name: what the user called it.
        model: of transformers, with or without weights.

    Raises:
        UserError: it has none for tokens.
    """
    try:
        return len(model.get_input_embeddings().weight)  # the table of an I-BERT is no nn.Embedding
    except (NotImplementedError, AttributeError):  # of a Perceiver they are no table, but its latents
        raise UserError(
            f"The model {name} has no embeddings of tokens: it reads characters or bytes, as CANINE does, and rows "
            "hold tokens.",
            "Give a model that has a tokenizer.json.",
        ) from None


def takes_positions(model: Any) -> bool:
    """Whether a model can be told where the documents of a row begin, which is by the positions of their tokens.

    Args:
        model: with or without weights.
    """
    return "position_ids" in inspect.signature(model.forward).parameters


def sees_ahead(model: str) -> tuple[str, str]:
    """What is wrong with a model whose tokens see those behind them, and what to do."""
    return (
        f"The attention of the model {model} sees later tokens.",
        "Choose a decoder, such as those of GPT-2, Llama, Qwen or Mixtral.",
    )


def _is_encoder(model: Any) -> bool:
    """Whether the attention of a model of transformers is told to see all tokens, as in BERT's family.

    Its configuration alone does not tell: those of some decoders say the same, and nothing reads it.
    """
    told = getattr(model.config, "is_decoder", None)
    return told is False and any(getattr(part, "is_decoder", None) is False for part in model.modules())


def _without_head(built: Any) -> str:
    """The class that weights were saved of, if it has no head that predicts tokens and the table is none; else empty.

    Args:
        built: a language model of transformers, with the configuration of the weights.
    """
    import transformers

    saved, *_ = built.config.architectures or [""]
    head, kind = built.get_output_embeddings(), getattr(transformers, saved, type(built))
    is_table = head is None or head.weight is built.get_input_embeddings().weight
    return "" if is_table or issubclass(kind, transformers.GenerationMixin) else saved


def crosses_documents(model: str) -> tuple[str, str]:
    """What is wrong with a model that does not keep the documents of a packed row apart, and what to do."""
    return (
        f"The attention of the model {model} would cross the documents of a row.",
        "Give -p packing=false, which has one document in a row, or another architecture, such as those of GPT-2, "
        "Llama, Qwen or Mixtral.",
    )


def _without_weights(task: Task, model: str) -> Any:
    """The model that a config.json describes, on PyTorch's meta device; None where it cannot be built there.

    Raises:
        UserError: there is none, or it is of no kind that is trained for the task.
    """
    import torch
    import transformers

    from gpu_pipelines.tasks.pretrained import UNUSABLE, quiet_transformers

    quiet_transformers()
    kind, raw = "unknown", dict[str, Any]()
    with TemporaryDirectory() as folder:
        place = with_file(model, CONFIG, Path(folder))
        try:
            raw = dict(transformers.PreTrainedConfig.get_config_dict(place, local_files_only=True)[0])
            if is_of_timm(raw):
                raise UserError(
                    f"The model {model} is a timm model, whose head and preprocessor differ from those of "
                    "transformers' own models.",
                    "Give one of these, such as facebook/convnext-tiny-224, or a recipe of your own.",
                )
            config = transformers.AutoConfig.from_pretrained(place, local_files_only=True, trust_remote_code=False)
            kind = config.model_type
            with torch.device("meta"):
                return getattr(transformers, task.auto_class).from_config(config, trust_remote_code=False)
        except RuntimeError:  # it computes with its weights as it is built; the training finds out what it needs
            return None
        except UNUSABLE as error:
            if str(error).startswith(_OTHER_KIND):
                raise UserError(
                    f"The model {model} is of the kind {kind!r}, which transformers does not have for {task.title} "
                    f"({task.auto_class}).",
                    "Give another model, or another task.",
                ) from None
            if "auto_map" in raw:
                raise UserError(
                    f"The model {model} is not one of transformers' own: it needs the code beside it, which is not "
                    "run, because it could do anything.",
                    "Give another model, or a recipe of your own.",
                ) from None
            raise UserError(f"The model {model} cannot be built from its {CONFIG}: {first_line(error)}") from None


def _files_on_hub(model: str) -> set[str]:
    """The names of a model's files on the hub, but for those in folders; none where the hub cannot say."""
    from huggingface_hub import HfApi

    place, revision = place_and_revision(model)
    if not revision:
        return set()
    try:
        files = HfApi().list_repo_files(place, revision=revision)
    except Exception:  # Names, networks: of several packages. Reading the config.json says what is wrong.
        return set()
    return {file for file in files if "/" not in file}


def with_file(model: str, name: str, scratch: Path) -> Path:
    """A folder with a file of a model.

    Args:
        model: a directory, local or remote, which may lack the file; or a hub id.
        name: of the file.
        scratch: an empty folder for a remote one.

    Raises:
        UserError: it cannot be read from where it is.
    """
    from huggingface_hub import hf_hub_download

    place, revision = place_and_revision(model)
    if is_remote(model):
        (scratch / name).write_bytes(read_remote(f"{place.rstrip('/')}/{name}"))
        return scratch
    if not revision:
        return Path(place)
    try:
        return Path(hf_hub_download(place, name, revision=revision)).parent
    except Exception as error:  # Names, networks: of several packages.
        kinds = {kind.__name__ for kind in type(error).__mro__}
        raise UserError(
            f"The model {place_told(model)} cannot be read from the hub: {first_line(error)}",
            next((said for kind, said in _REMEDIES.items() if kind in kinds), ""),
        ) from None
