"""Lightning's Trainer on the data of the run, which leaves models that `evaluate_checkpoints` scores.

    pip install lightning
    gpu-pipelines run train_evaluate_upload -p script=examples/training_scripts/lightning_trainer.py \
        -p task=text_classification -p source=sample:docstrings -p script_arguments=--steps,200
"""

import argparse
import json
import os
import signal
import sys
from pathlib import Path

import lightning
import torch
from lightning.pytorch.callbacks import Callback
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

from gpu_pipelines.artifacts.dataset import Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--save-steps", type=int, default=100)
options = parser.parse_args()

data = Dataset(Path(os.environ["GPU_PIPELINES_DATASET"]))
checkpoints = Path(os.environ["GPU_PIPELINES_CHECKPOINTS"])
last = checkpoints / "last.ckpt"


class Rows(torch.utils.data.Dataset):
    """Rows of a split as the model takes them."""

    def __init__(self, split):
        self.rows = data.split(split)

    def __len__(self):
        return len(self.rows)

    def __getitems__(self, numbers):
        taken = self.rows.take(numbers)
        ids, lengths, labels = (torch.as_tensor(taken[name]).long() for name in ("input_ids", "length", "label"))
        masks = torch.arange(ids.shape[1]) < lengths[:, None]
        return [
            {"input_ids": ids[row], "attention_mask": masks[row], "labels": labels[row]} for row in range(len(numbers))
        ]


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        labels = data.manifest.labels
        config = BertConfig(
            vocab_size=len(AutoTokenizer.from_pretrained(data.directory / "tokenizer")),
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=128,
            id2label=dict(enumerate(labels)),
            label2id={label: number for number, label in enumerate(labels)},
        )
        self.model = BertForSequenceClassification(config)

    def training_step(self, batch, number):
        return self.model(**batch).loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class Checkpoints(Callback):
    """Saves models to be scored and the state of the training, also where the run is interrupted."""

    def __init__(self):
        self.told_to_stop = False

    def on_train_start(self, trainer, module):
        # In place of Lightning's own, which saves nothing, and can leave several processes waiting for each other.
        signal.signal(signal.SIGTERM, self.stop)

    def stop(self, *_):
        self.told_to_stop = True

    def on_train_batch_end(self, trainer, module, outputs, batch, number):
        step = trainer.global_step
        if trainer.is_global_zero:
            with Path(os.environ["GPU_PIPELINES_METRICS"]).open("a") as file:
                file.write(json.dumps({"step": step, "loss": float(outputs["loss"])}) + "\n")
        # All processes have to agree that one of them was interrupted.
        stop = trainer.strategy.reduce_boolean_decision(self.told_to_stop, all=False)
        if stop or step % options.save_steps == 0 or step == options.steps:
            self.save(trainer, module)
        if stop:
            sys.exit(75)

    def save(self, trainer, module):
        # Lightning's checkpoints are pickles, which are not scored; the models in Hugging Face layout are.
        if trainer.is_global_zero:
            module.model.save_pretrained(checkpoints / f"step-{trainer.global_step}")
        trainer.save_checkpoint(f"{last}.part")  # by all processes, which wait here for each other
        if trainer.is_global_zero:
            Path(f"{last}.part").replace(last)


if __name__ == "__main__":
    lightning.seed_everything(0)
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    trainer = lightning.Trainer(
        max_steps=options.steps,
        # torchrun has started the processes; Lightning finds them.
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        num_nodes=int(os.environ.get("GROUP_WORLD_SIZE", "1")),
        strategy="ddp" if processes > 1 else "auto",
        callbacks=[Checkpoints()],
        enable_checkpointing=False,
        enable_progress_bar=False,
        logger=False,
    )
    rows = torch.utils.data.DataLoader(Rows("train"), batch_size=32, shuffle=True)
    trainer.fit(Classifier(), rows, ckpt_path=str(last) if last.is_file() else None)
