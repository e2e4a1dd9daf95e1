"""TRL's GRPOTrainer on the prompts of the run; each checkpoint is scored by `evaluate_checkpoints` as any other.

    gpu-pipelines run train_evaluate_upload -p script=examples/grpo/grpo.py -p task=causal_lm \
        -p source=questions.jsonl -p tokenizer=organisation/model \
        -p script_arguments=--model,organisation/model,--steps,200

The rows are prompts with completions, or chats that end with an answer. What the model writes is rewarded by how near
it comes to the answer of the row, or by a function of your own, `--reward module:function`, which TRL calls as its
own: with the completions and the column `answer`, and keyword arguments for the rest. It may lie beside this file.
Of several, each with a `--reward` of its own, the sum counts.
"""

import argparse
import importlib
import json
import os
import sys
from difflib import SequenceMatcher
from pathlib import Path

import numpy as np
import torch
from datasets import Dataset as Table
from peft import LoraConfig
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from gpu_pipelines.artifacts.dataset import Dataset
from gpu_pipelines.tasks.causal_lm.recipe import CausalLanguageModel
from gpu_pipelines.tasks.causal_lm.scoring import documents_of
from gpu_pipelines.tasks.model_places import place_and_revision

parser = argparse.ArgumentParser()
parser.add_argument("--model", default="llama-micro", help="a directory, a hub id, or a name for one from scratch")
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--learning-rate", type=float, default=1e-6)
parser.add_argument("--generations", type=int, default=8, help="completions of each prompt")
parser.add_argument("--completion-tokens", type=int, default=64, help="of what is written, at most")
parser.add_argument("--beta", type=float, default=0.0, help="what it costs to go away from the first model")
parser.add_argument("--lora-rank", type=int, default=0, help="of adapters, which are trained alone; 0 for all weights")
parser.add_argument(
    "--reward", action="append", default=[], help="module:function, several times for a sum; likeness if left out"
)
options = parser.parse_args()

data = Dataset(Path(os.environ["GPU_PIPELINES_DATASET"]))
checkpoints = os.environ["GPU_PIPELINES_CHECKPOINTS"]
Path(checkpoints).mkdir(parents=True, exist_ok=True)
# A model is scored with the tokenizer that its data was prepared with.
tokenizer = AutoTokenizer.from_pretrained(data.directory / "tokenizer")
#: The tokens of each prompt, by its text.
tokens_of = {}


def likeness(completions, answer, **_):
    """How much of a completion and of the answer is the same, between 0 and 1."""
    return [
        SequenceMatcher(None, written.strip(), wanted.strip()).ratio()
        for written, wanted in zip(completions, answer, strict=True)
    ]


def rows_of(split):
    """The prompts and answers of a split, as texts; where several answers are learned, the last one."""
    rows = data.split(split)
    for columns in rows.columns(0, len(rows)):
        for row, place in documents_of(columns):
            tokens, learned = columns["input_ids"][row, place], columns["loss_mask"][row, place] != 0
            last = int(np.flatnonzero(learned)[-1]) + 1
            begins = int(np.flatnonzero(~learned[:last])[-1]) + 1
            if begins > 1:  # else the first token alone is not learned, since nothing foretells it
                prompt = tokenizer.decode(tokens[:begins])
                tokens_of[prompt] = tokens[:begins].tolist()
                yield {"prompt": prompt, "answer": tokenizer.decode(tokens[begins:last], skip_special_tokens=True)}


class Curves(TrainerCallback):
    """Writes the lines of which the step makes the curves of its report."""

    def on_log(self, arguments, state, control, logs=None, **others):
        if state.is_world_process_zero and "reward" in logs:
            names = {"loss": "loss", "learning_rate": "learning_rate", "reward": "reward", "kl": "kl"}
            line = {"step": state.global_step} | {name: logs[key] for name, key in names.items() if key in logs}
            with Path(os.environ["GPU_PIPELINES_METRICS"]).open("a") as file:
                file.write(json.dumps(line) + "\n")


class Trainer(GRPOTrainer):
    def _tokenize_prompts(self, prompts):
        """The tokens that the data has; those of the text may begin otherwise."""
        return [tokens_of[prompt] for prompt in prompts], None, {}


def main():
    prompts = list(rows_of("train"))
    if not prompts:
        parser.error("no row has a prompt; give the columns prompt and completion, or chats")
    sys.path.insert(0, str(Path(__file__).parent))
    parts = [name.partition(":") for name in options.reward]
    rewards = [getattr(importlib.import_module(module), function) for module, _, function in parts] or [likeness]
    torch.manual_seed(0)
    model = CausalLanguageModel.for_dataset(data).build_model(options.model)
    if options.beta and not model.config._name_or_path:  # the trainer reads the first model from there once more
        parser.error(f"--beta needs a model that has learned; {options.model} is trained from scratch")
    adapters = None
    if options.lora_rank:
        if not model.config._name_or_path:
            parser.error(f"--lora-rank needs a model that has learned; {options.model} is trained from scratch")
        # By this name the evaluation finds the model that the adapters of a checkpoint are for.
        model.name_or_path, revision = place_and_revision(options.model)
        adapters = LoraConfig(
            r=options.lora_rank,
            lora_alpha=2 * options.lora_rank,
            target_modules="all-linear",
            task_type="CAUSAL_LM",
            revision=revision or None,
        )
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    trainer = Trainer(
        model=model,
        reward_funcs=rewards,
        args=GRPOConfig(
            checkpoints,
            max_steps=options.steps,
            save_steps=max(1, options.steps // 4),
            logging_steps=max(1, options.steps // 50),
            learning_rate=options.learning_rate,
            beta=options.beta,
            num_generations=options.generations,
            max_completion_length=options.completion_tokens,
            # Completions of one prompt are compared with each other: each process has whole groups.
            per_device_train_batch_size=options.generations * (2 if processes == 1 else 1),
            bf16=torch.cuda.is_available(),
            report_to=[],
            disable_tqdm=True,
        ),
        train_dataset=Table.from_list(prompts),
        processing_class=tokenizer,
        peft_config=adapters,
        callbacks=[Curves()],
    )
    # A run that was interrupted goes on; the Trainer writes this file of a checkpoint last.
    whole = [file.parent for file in Path(checkpoints).glob("checkpoint-*/trainer_state.json")]
    last = max(whole, key=lambda folder: int(folder.name.partition("-")[2]), default=None)
    trainer.train(resume_from_checkpoint=last and str(last))
    # Only differences between the completions of one prompt change the model; a reward of None counts for nothing.
    log = [entry for entry in trainer.state.log_history if entry.get("reward") is not None]
    if not any(entry["frac_reward_zero_std"] < 1 for entry in log):
        named = " + ".join(options.reward) or "likeness"
        same = f"{named} gives all completions of a prompt the same reward, or None"
        sys.exit(f"error: The model has learned nothing: {same}.")


if __name__ == "__main__":
    main()
