"""The contenders' training programs, as a competent user writes them; one process of torchrun, but for ours.

Usage: contenders.py NAME JOB.json, where NAME is ours, hand-written, lightning or transformers.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import stopwatch
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

from gpu_pipelines.artifacts.dataset import Dataset as OurDataset
from gpu_pipelines.tasks.tasks import TASKS
from gpu_pipelines.training.rows.batches import SampleOrder
from gpu_pipelines.training.settings import TrainingSettings
from gpu_pipelines.training.train import train_model

Batch = dict[str, torch.Tensor]
TIMED_RECIPES = {
    "image_classification": "timed_recipes:TimedImages",
    "causal_lm": "timed_recipes:TimedText",
}
#: The logging interval of Lightning; as usual as any.
LOG_EVERY = 50


class Job:
    """What is trained, read from the job's file: the same for all contenders."""

    def __init__(self, file: Path) -> None:
        content = json.loads(file.read_text(encoding="utf-8"))
        self.settings = TrainingSettings.from_json(content["settings"])
        self.dataset = Path(content["dataset"])
        self.output = Path(content["output"])
        self.device: str = content["device"]
        self.save_every: int = content["save_every"]
        self.task = OurDataset(self.dataset).manifest.task

    def model(self) -> nn.Module:
        """The model with the same first weights as ours."""
        torch.manual_seed(self.settings.seed)
        recipe = TASKS[self.task].load_recipe().for_dataset(OurDataset(self.dataset))
        return recipe.build_model(self.settings.model)

    def rate(self, step: int) -> float:
        """Share of the peak learning rate: warm-up, then a cosine to 0."""
        warmup = min(self.settings.warmup_steps, max(1, self.settings.max_steps // 10))
        if step < warmup:
            return (step + 1) / warmup
        done = (step - warmup) / max(1, self.settings.max_steps - warmup)
        return 0.5 * (1 + math.cos(math.pi * done))

    def optimizer(
        self, model: nn.Module, fused: bool = True
    ) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LambdaLR]:
        """AdamW and its schedule."""
        parameters = list(model.parameters())
        groups = [
            {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": self.settings.weight_decay},
            {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
        ]
        optimizer = torch.optim.AdamW(groups, lr=self.settings.learning_rate, fused=fused)
        return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, self.rate)

    def batch_per_process(self) -> int:
        return self.settings.global_batch_size // int(os.environ["WORLD_SIZE"])

    def finish(self, model: nn.Module) -> None:
        """Leaves the loss on val, taken the same way for all."""
        if int(os.environ["RANK"]):
            return
        rows = Rows(OurDataset(self.dataset), "val")
        device = next(model.parameters()).device
        batch = {name: value.to(device) for name, value in rows.collate(rows[np.arange(len(rows))]).items()}
        with torch.no_grad(), autocast(self.device):
            loss = loss_of(model.eval(), batch).item()
        (self.output / "val_loss.json").write_text(json.dumps(loss), encoding="utf-8")


class Rows(Dataset[Any]):
    """A split in memory. An index gives a row, an array of indices a batch."""

    def __init__(self, dataset: OurDataset, split: str) -> None:
        rows = dataset.split(split)
        columns = rows.take(np.arange(len(rows)))
        self._columns = {name: torch.from_numpy(array) for name, array in columns.items()}
        self._rows = len(rows)

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, index: Any) -> Batch:
        return {name: column[index] for name, column in self._columns.items()}

    @staticmethod
    def collate(rows: list[Batch] | Batch) -> Batch:
        """The model's inputs from rows, or from a batch of them."""
        if isinstance(rows, list):
            rows = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
        if "image" in rows:
            return {"pixel_values": rows["image"].float().div_(127.5).sub_(1.0), "labels": rows["label"].long()}
        tokens = rows["input_ids"].long()
        return {"input_ids": tokens, "position_ids": rows["position_ids"].long(), "labels": tokens}


class BatchesInOurOrder(Sampler[Any]):
    """The indices of this process's rows of each step."""

    def __init__(self, job: Job, rows: int) -> None:
        settings, rank, world = job.settings, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self._order = SampleOrder(rows, settings.global_batch_size, settings.seed, rank, world)
        self._steps = settings.max_steps

    def __iter__(self) -> Iterator[Any]:
        return (torch.from_numpy(self._order.rows_of_step(step)) for step in range(self._steps))

    def __len__(self) -> int:
        return self._steps


def loss_of(model: nn.Module, batch: Batch) -> torch.Tensor:
    """The loss that every Hugging Face model computes from `labels`; of text, of the tokens that follow."""
    return model(**batch).loss


def autocast(device: str) -> torch.autocast:
    return torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda")


def train_ours(job: Job) -> None:
    """`train_model`, which starts its processes itself."""
    train_model(replace(job.settings, recipe=TIMED_RECIPES[job.task]), job.dataset, str(job.output / "checkpoints"))
    lines = (job.output / "checkpoints" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    losses = [entry["val_loss"] for entry in map(json.loads, lines) if "val_loss" in entry]
    (job.output / "val_loss.json").write_text(json.dumps(losses[-1]), encoding="utf-8")


def train_by_hand(job: Job) -> None:
    """A plain DDP loop."""
    device = torch.device("cpu")
    if job.device == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if job.device == "cuda" else "gloo")
    model = job.model().to(device)
    parallel = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer, schedule = job.optimizer(model)
    rows = Rows(OurDataset(job.dataset), "train")
    loader = DataLoader(rows, sampler=BatchesInOurOrder(job, len(rows)), batch_size=None)
    parallel.train()
    for step, raw in enumerate(loader, start=1):
        moved = {name: value.to(device, non_blocking=True) for name, value in raw.items()}
        with autocast(job.device):
            loss = loss_of(parallel, rows.collate(moved))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), job.settings.gradient_clip)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % LOG_EVERY == 0 and dist.get_rank() == 0:
            print(f"step {step}  loss {loss.item():.4f}", flush=True)
        if job.save_every and step % job.save_every == 0 and dist.get_rank() == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, job.output / f"step-{step}.pt")
    job.finish(model)
    dist.destroy_process_group()


def train_with_lightning(job: Job) -> None:
    """Lightning's Trainer with its DDP strategy and its usual logger."""
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning.pytorch.strategies import DDPStrategy

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = job.model()

        def training_step(self, batch: Batch, number: int) -> torch.Tensor:
            loss = loss_of(self.model, batch)
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            # It refuses to clip gradients beside a fused optimizer and mixed precision.
            optimizer, schedule = job.optimizer(self.model, fused=job.device == "cpu")
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    saving = ModelCheckpoint(dirpath=job.output / "lightning", every_n_train_steps=job.save_every, save_top_k=-1)
    rows = Rows(OurDataset(job.dataset), "train")
    module = Module()
    module.model.train()
    trainer = lightning.Trainer(
        accelerator="gpu" if job.device == "cuda" else "cpu",
        devices=int(os.environ["WORLD_SIZE"]),
        strategy=DDPStrategy(
            process_group_backend="nccl" if job.device == "cuda" else "gloo", gradient_as_bucket_view=True
        ),
        precision="bf16-mixed" if job.device == "cuda" else "32-true",
        max_steps=job.settings.max_steps,
        gradient_clip_val=job.settings.gradient_clip,
        callbacks=[saving] if job.save_every else [],
        enable_checkpointing=bool(job.save_every),
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=job.output,
    )
    loader = DataLoader(rows, batch_size=job.batch_per_process(), shuffle=True, collate_fn=rows.collate, drop_last=True)
    trainer.fit(module, loader)
    job.finish(module.model)


def train_with_transformers(job: Job) -> None:
    """The Trainer of transformers."""
    from transformers import Trainer, TrainingArguments

    rows = Rows(OurDataset(job.dataset), "train")
    arguments = TrainingArguments(
        output_dir=str(job.output / "transformers"),
        per_device_train_batch_size=job.batch_per_process(),
        max_steps=job.settings.max_steps,
        max_grad_norm=job.settings.gradient_clip,
        logging_steps=LOG_EVERY,
        save_strategy="steps" if job.save_every else "no",
        save_steps=job.save_every or 500,
        use_cpu=job.device == "cpu",
        bf16=job.device == "cuda",
        ddp_backend="nccl" if job.device == "cuda" else "gloo",
        ddp_find_unused_parameters=False,
        dataloader_drop_last=True,
        dataloader_pin_memory=job.device == "cuda",
        remove_unused_columns=False,
        report_to=[],
        disable_tqdm=True,
        seed=job.settings.seed,
    )
    model = job.model()
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=rows,
        data_collator=rows.collate,
        optimizers=job.optimizer(model.to(arguments.device)),
    )
    trainer.train()
    job.finish(model)


CONTENDERS = {
    "ours": train_ours,
    "hand-written": train_by_hand,
    "lightning": train_with_lightning,
    "transformers": train_with_transformers,
}


def main(name: str, file: str) -> None:
    """Trains as one process of a contender."""
    if name != "ours":  # ours starts it in its own processes
        stopwatch.install()
    CONTENDERS[name](Job(Path(file)))
    # Left to the interpreter's end, gloo's threads abort a process now and then.
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
