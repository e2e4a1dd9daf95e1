"""transformers' Trainer on the data of the run, which `evaluate_checkpoints` scores as it leaves it.

    gpu-pipelines run train_evaluate_upload -p script=examples/training_scripts/transformers_trainer.py \
        -p task=text_classification -p source=sample:docstrings -p script_arguments=--steps,200
"""

import argparse
import json
import os
import signal
import sys
from pathlib import Path

import torch
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from gpu_pipelines.artifacts.dataset import Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--learning-rate", type=float, default=1e-3)
options = parser.parse_args()

data = Dataset(Path(os.environ["GPU_PIPELINES_DATASET"]))
checkpoints = os.environ["GPU_PIPELINES_CHECKPOINTS"]
Path(checkpoints).mkdir(parents=True, exist_ok=True)
# A model is scored with the tokenizer that its data was prepared with.
tokenizer = AutoTokenizer.from_pretrained(data.directory / "tokenizer")


class Rows(torch.utils.data.Dataset):
    """Rows of a split as the model takes them."""

    def __init__(self, split):
        self.rows = data.split(split)

    def __len__(self):
        return len(self.rows)

    def __getitems__(self, numbers):
        taken = self.rows.take(numbers)
        ids, lengths, labels = (torch.as_tensor(taken[name]) for name in ("input_ids", "length", "label"))
        return [
            {"input_ids": ids[row], "attention_mask": torch.arange(ids.shape[1]) < lengths[row], "labels": labels[row]}
            for row in range(len(numbers))
        ]


class Curves(TrainerCallback):
    """Writes the lines of which the step makes the curves of its report."""

    def on_log(self, arguments, state, control, logs=None, **others):
        if state.is_world_process_zero and "loss" in logs:
            line = {"step": state.global_step, "loss": logs["loss"], "learning_rate": logs["learning_rate"]}
            with Path(os.environ["GPU_PIPELINES_METRICS"]).open("a") as file:
                file.write(json.dumps(line) + "\n")


class Interruption(TrainerCallback):
    """Saves a checkpoint where the run is interrupted: `enable_jit_checkpoint` does so for a single process alone."""

    def __init__(self):
        self.told_to_stop = False

    def on_train_begin(self, arguments, state, control, **others):
        signal.signal(signal.SIGTERM, self.stop)

    def stop(self, *_):
        self.told_to_stop = True

    def on_step_end(self, arguments, state, control, **others):
        # All processes have to agree that one of them was interrupted.
        stop = torch.tensor(float(self.told_to_stop), device=arguments.device)
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(stop)
        if stop:
            self.told_to_stop = control.should_save = control.should_training_stop = True


def main():
    labels = data.manifest.labels
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=128,
        max_position_embeddings=512,
        id2label=dict(enumerate(labels)),
        label2id={label: number for number, label in enumerate(labels)},
    )
    torch.manual_seed(0)
    trainer = Trainer(
        BertForSequenceClassification(config),
        TrainingArguments(
            checkpoints,
            max_steps=options.steps,
            save_steps=max(1, options.steps // 2),
            logging_steps=max(1, options.steps // 50),
            learning_rate=options.learning_rate,
            per_device_train_batch_size=32,
            report_to=[],
            disable_tqdm=True,
        ),
        train_dataset=Rows("train"),
        processing_class=tokenizer,
        callbacks=[Curves(), interruption := Interruption()],
    )
    # A run that was interrupted goes on; the Trainer writes this file of a checkpoint last.
    whole = [file.parent for file in Path(checkpoints).glob("checkpoint-*/trainer_state.json")]
    last = max(whole, key=lambda folder: int(folder.name.partition("-")[2]), default=None)
    trainer.train(resume_from_checkpoint=last and str(last))
    if interruption.told_to_stop:
        sys.exit(75)


if __name__ == "__main__":
    main()
