"""A script of Lightning's, as it would be without any pipeline: only where things are comes from its environment."""

import argparse
import csv
import json
import os
from pathlib import Path

import lightning
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Regression(lightning.LightningModule):
    def __init__(self, columns: int):
        super().__init__()
        self.model = nn.Sequential(nn.Linear(columns, 16), nn.GELU(), nn.Linear(16, 1))

    def training_step(self, batch, number):
        inputs, targets = batch
        loss = nn.functional.mse_loss(self.model(inputs), targets)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


class Curves(Callback):
    """Writes the lines of which the step makes the curves of its report."""

    def on_train_batch_end(self, trainer, module, outputs, batch, number):
        if trainer.is_global_zero:
            line = {"step": trainer.global_step, "loss": float(outputs["loss"])}
            with Path(os.environ["GPU_PIPELINES_METRICS"]).open("a") as file:
                file.write(json.dumps(line) + "\n")


def rows(folder):
    with Path(folder, "rows.csv").open() as file:
        values = torch.tensor([[float(value) for value in row] for row in csv.reader(file)])
    return TensorDataset(values[:, :-1], values[:, -1:])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    lightning.seed_everything(0)
    checkpoints = Path(os.environ["GPU_PIPELINES_CHECKPOINTS"])
    data = rows(os.environ["GPU_PIPELINES_DATASET"])
    trainer = lightning.Trainer(
        max_steps=options.steps,
        # torchrun has started the processes; Lightning finds them.
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        num_nodes=int(os.environ.get("GROUP_WORLD_SIZE", "1")),
        strategy="ddp" if int(os.environ["WORLD_SIZE"]) > 1 else "auto",
        callbacks=[Curves(), ModelCheckpoint(dirpath=checkpoints, every_n_train_steps=20, save_last=True)],
        logger=False,
        enable_progress_bar=False,
        log_every_n_steps=1,
    )
    last = checkpoints / "last.ckpt"
    trainer.fit(
        Regression(data.tensors[0].shape[1]),
        DataLoader(data, batch_size=16, shuffle=True),
        # A run that was interrupted goes on.
        ckpt_path=str(last) if last.is_file() else None,
    )
