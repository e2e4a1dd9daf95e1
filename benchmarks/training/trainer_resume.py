"""The result of transformers.Trainer when it continues from its own checkpoint.

As a program, one training: trainer_resume.py MODEL DATASET DIRECTORY CHECKPOINT ("-" to begin), RESULT.json.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

MODELS = {
    "vit-micro": "image_classification",
    "swin-micro": "image_classification",
    "mixtral-micro": "causal_lm",
}
STEPS, BATCH = 24, 16


def resume_with_transformers(model: str, scratch: Path) -> dict[str, Any]:
    """Trains without interruption, and again from the checkpoint at half the steps in a separate process.

    Returns:
        same_bits: whether the model ends with the same bits; keys_missing and keys_unexpected: the numbers of weights
        that the checkpoint lacked and had in excess when it was loaded, according to the Trainer.
    """
    from workloads import write_dataset

    dataset, directory = scratch / f"peer {MODELS[model]}", scratch / f"peer {model}"
    if not dataset.exists():
        shape = (3, 32, 32) if MODELS[model] == "image_classification" else (64,)
        write_dataset(dataset, MODELS[model], shape, rows=96, vocabulary=400)
    whole = _run(model, dataset, directory, "-")
    shutil.rmtree(directory / f"checkpoint-{STEPS}")
    resumed = _run(model, dataset, directory, str(directory / f"checkpoint-{STEPS // 2}"))
    return {
        "same_bits": whole["digest"] == resumed["digest"],
        "keys_missing": resumed["missing"],
        "keys_unexpected": resumed["unexpected"],
        "final_loss": [whole["loss"], resumed["loss"]],
    }


def _run(model: str, dataset: Path, directory: Path, checkpoint: str) -> dict[str, Any]:
    result = directory.with_suffix(".json")
    command = [sys.executable, __file__, model, str(dataset), str(directory), checkpoint, str(result)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"transformers.Trainer failed:\n{done.stdout}{done.stderr}")
    return json.loads(result.read_text(encoding="utf-8"))


def main(name: str, dataset: str, directory: str, checkpoint: str, result: str) -> None:
    """One training."""
    import torch
    from contenders import Rows
    from transformers import Trainer, TrainingArguments

    from gpu_pipelines.artifacts.dataset import Dataset
    from gpu_pipelines.tasks.tasks import TASKS

    class Watched(Trainer):
        missing, unexpected = 0, 0

        def _issue_warnings_after_load(self, load_result: Any) -> None:
            # The model's tied weights are not in a file, which is correct.
            tied = set(getattr(self.model, "_tied_weights_keys", None) or ())
            self.missing = len([key for key in load_result.missing_keys if key not in tied])
            self.unexpected = len(load_result.unexpected_keys)
            super()._issue_warnings_after_load(load_result)

    torch.manual_seed(0)
    prepared = Dataset(Path(dataset))
    model = TASKS[MODELS[name]].load_recipe().for_dataset(prepared).build_model(name)
    rows = Rows(prepared, "train")
    arguments = TrainingArguments(
        output_dir=directory,
        per_device_train_batch_size=BATCH,
        max_steps=STEPS,
        save_steps=STEPS // 2,
        learning_rate=1e-3,
        use_cpu=True,
        remove_unused_columns=False,
        report_to=[],
        disable_tqdm=True,
        seed=0,
    )
    trainer = Watched(model=model, args=arguments, train_dataset=rows, data_collator=rows.collate)
    ended = trainer.train(resume_from_checkpoint=None if checkpoint == "-" else checkpoint)
    digest = hashlib.sha256()
    for key, tensor in sorted(model.state_dict().items()):
        digest.update(key.encode() + tensor.contiguous().numpy().tobytes())
    found = {"digest": digest.hexdigest(), "loss": ended.training_loss}
    found |= {"missing": trainer.missing, "unexpected": trainer.unexpected}
    Path(result).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
