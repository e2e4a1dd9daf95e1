"""What TRL's trainers compute of rows of preferences: the loss of each row, by two models of one architecture."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer

Row = dict[str, Any]
#: Arguments of all trainers: on CPUs, in fp32, with nothing that is written or told.
_QUIET: dict[str, Any] = {
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
    "report_to": [],
    "disable_tqdm": True,
    "max_length": None,
}


def dpo_losses(rows: Sequence[Row], models: tuple[Path, Path], tokenizer: Path, **asked: Any) -> list[float]:
    """The loss of each pair, by itself.

    Args:
        rows: as they are in a table.
        models: the model and its reference.
        tokenizer: with a chat template.
        asked: parameters of `DPOConfig`, such as `loss_type` and `beta`.
    """
    from trl import DPOConfig, DPOTrainer

    with _made(DPOTrainer, DPOConfig, rows, models, tokenizer, **asked) as trainer:
        return [_loss(trainer, trainer.data_collator([row])) for row in trainer.train_dataset]


def kto_losses(rows: Sequence[Row], models: tuple[Path, Path], tokenizer: Path, **asked: Any) -> list[float]:
    """The loss of each judged completion, whose divergence is estimated by the completions of all rows, rotated."""
    from trl import KTOConfig, KTOTrainer

    asked |= {"per_device_train_batch_size": len(rows)}
    with _made(KTOTrainer, KTOConfig, rows, models, tokenizer, **asked) as trainer:
        whole = trainer.data_collator(list(trainer.train_dataset))
        rest = {name: value for name, value in whole.items() if name.startswith("KL_")}
        own = {name: value for name, value in whole.items() if name not in rest}
        return [
            _loss(trainer, rest | {name: value[number : number + 1] for name, value in own.items()})
            for number in range(len(rows))
        ]


def orpo_losses(rows: Sequence[Row], models: tuple[Path, Path], tokenizer: Path, **asked: Any) -> list[float]:
    """The loss of each pair, by itself."""
    from trl.experimental.orpo import ORPOConfig, ORPOTrainer

    with _made(ORPOTrainer, ORPOConfig, rows, models[:1], tokenizer, **asked) as trainer:
        return [_loss(trainer, trainer.data_collator([row])) for row in trainer.train_dataset]


@contextmanager
def _made(
    trainer: Any, config: Any, rows: Sequence[Row], models: Sequence[Path], tokenizer: Path, **asked: Any
) -> Iterator[Any]:
    model, *reference = (AutoModelForCausalLM.from_pretrained(each) for each in models)
    given = {"ref_model": reference[0].eval()} if reference else {}
    with tempfile.TemporaryDirectory() as scratch:
        made = trainer(
            model=model,
            args=config(output_dir=scratch, **(_QUIET | asked)),
            train_dataset=Dataset.from_list(list(rows)),
            processing_class=AutoTokenizer.from_pretrained(tokenizer),
            **given,
        )
        made.model.eval()
        yield made


def _loss(trainer: Any, batch: Any) -> float:
    with torch.no_grad():
        return float(trainer.compute_loss(trainer.model, batch))
