"""Tasks of lm-eval with data in files beside them, and small models that count, for the tests of benchmarks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from evaluations import LENGTH, text_dataset, write_checkpoint, write_tokenizer

from gpu_pipelines.artifacts.checkpoint import write_configuration
from gpu_pipelines.artifacts.dataset import Dataset

DOCUMENTS = 24
FILES: dict[str, str] = {
    "following.yaml": """
task: following
dataset_path: json
dataset_kwargs: {data_files: {test: following.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{text}}"
doc_to_target: answer
doc_to_choice: choices
metric_list:
  - {metric: acc, aggregation: mean, higher_is_better: true}
  - {metric: acc_norm, aggregation: mean, higher_is_better: true}
metadata: {version: 1.0}
""",
    "written.yaml": """
task: written-on
dataset_path: json
dataset_kwargs: {data_files: {test: following.jsonl}}
test_split: test
output_type: generate_until
doc_to_text: "{{text}}"
doc_to_target: "{{choices[answer]}}"
generation_kwargs: {until: ["<end>"], max_gen_toks: 3, do_sample: false}
filter_list:
  - name: first-word
    filter: [{function: regex, regex_pattern: "(w[0-9]+)"}, {function: take_first}]
  - name: whole
    filter: [{function: take_first}]
metric_list:
  - {metric: exact_match, aggregation: mean, higher_is_better: true}
  - {metric: !function functions.starts_alike, aggregation: mean, higher_is_better: true}
metadata: {version: 2.0}
""",
    "texts.yaml": """
task: texts
dataset_path: json
dataset_kwargs: {data_files: {test: texts.jsonl}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metadata: {version: 1.0}
""",
    "group.yaml": """
group: both
task:
  - following
  - task: rather
    dataset_path: json
    dataset_kwargs: {data_files: {test: rather.jsonl}}
    test_split: test
    output_type: multiple_choice
    doc_to_text: "{{text}}"
    doc_to_target: answer
    doc_to_choice: choices
    metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
aggregate_metric_list:
  - {metric: acc, aggregation: mean, weight_by_size: true}
metadata: {version: 1.0}
""",
    "functions.py": """
def starts_alike(references, predictions, **kwargs):
    return float(predictions[0][:2] == references[0][:2])
""",
}


def write_tasks(folder: Path) -> Path:
    """Task files: `following` (choices), `written-on` (generation), `texts` (perplexity) and `both`, a group."""
    folder.mkdir(parents=True)
    for name, content in FILES.items():
        (folder / name).write_text(content)
    write_rows(folder)
    generator = np.random.default_rng(2)
    starts = generator.integers(1, 20, DOCUMENTS)
    texts = [
        " ".join(f"w{start + k}" for k in range(length)) for start, length in zip(starts, range(4, 28), strict=True)
    ]
    _write(folder / "texts.jsonl", [{"text": text} for text in texts])
    return folder


def write_rows(folder: Path, seed: int = 1) -> None:
    """The rows of `following` and `rather`: two words, and three that may come next."""
    generator = np.random.default_rng(seed)
    for name, rows in (("following", DOCUMENTS), ("rather", DOCUMENTS // 2)):
        found = []
        for _ in range(rows):
            start, answer = int(generator.integers(1, 25)), int(generator.integers(0, 3))
            choices = [f"w{start + 2 + step}" for step in generator.choice(np.arange(1, 10), 3, replace=False)]
            # In every fourth row another word is called right, so that no model is right in all.
            choices[answer if generator.random() < 0.75 else (answer + 1) % 3] = f"w{start + 2}"
            found.append({"text": f"w{start} w{start + 1}", "choices": choices, "answer": answer})
        _write(folder / f"{name}.jsonl", found)


def counting_dataset(folder: Path) -> Dataset:
    return text_dataset(folder)


def counting_model(steps: int, seed: int = 0) -> Any:
    """A Llama of two layers that has learned to count for so many steps, from each word to the next."""
    torch.manual_seed(seed)
    model = untrained()
    generator = np.random.default_rng(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-2)
    for _ in range(steps):
        rows = torch.from_numpy(generator.integers(1, 24, (16, 1)) + np.arange(LENGTH - 1))
        model(input_ids=rows, labels=rows).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


def untrained() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=40,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=2,
            intermediate_size=16,
            max_position_embeddings=LENGTH,
            bos_token_id=0,
            eos_token_id=0,
            pad_token_id=None,
        )
    )


def write_training(directory: Path, dataset: Dataset, steps: list[int], seed: int = 0) -> Path:
    """The checkpoints of a training that has come so far."""
    directory.mkdir(parents=True)
    architecture = directory.parent / "architecture"
    untrained().config.save_pretrained(architecture)
    settings = {"model": str(architecture), "seed": 0, "global_batch_size": 8}
    write_configuration(directory, {"task": "causal_lm", "settings": settings, "devices": {}})
    for number in steps:
        write_checkpoint(directory, number, counting_model(number, seed), dataset)
    return directory


def write_model(directory: Path, steps: int, seed: int = 0) -> Path:
    """A model in Hugging Face layout."""
    counting_model(steps, seed).save_pretrained(directory)
    write_tokenizer(directory)
    return directory


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
