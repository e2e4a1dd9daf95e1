"""The example of GRPO: TRL's trainer writes answers on a CPU, and its checkpoints are evaluated and promoted."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from runpy import run_path

import pytest
from conftest import PIPELINE, gpu_pipelines, newest_run

from gpu_pipelines.artifacts.dataset import Dataset
from gpu_pipelines.data.prepare import prepare_data
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.errors import UserError
from gpu_pipelines.evaluation.evaluate import evaluate_checkpoints
from gpu_pipelines.evaluation.settings import EvaluationSettings
from gpu_pipelines.tasks.causal_lm.recipe import CausalLanguageModel
from gpu_pipelines.tasks.text_encoding import TextEncoder
from gpu_pipelines.training.script.run import run_script
from gpu_pipelines.training.script.settings import ScriptSettings

EXAMPLE = Path(__file__).parents[2] / "examples/grpo/grpo.py"
#: As that of SmolLM2: a chat begins with the tokenizer's bos_token, which it adds to no text.
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
REWARD = """
def few_letters(completions, answer, **others):
    assert all(text.endswith(".") for text in answer)
    return [-float(len(text)) for text in completions]
"""


@pytest.mark.slow
def test_a_model_learns_from_rewards_and_is_evaluated_and_promoted(tmp_path: Path) -> None:
    shutil.copy(EXAMPLE, tmp_path / "grpo.py")
    (tmp_path / "rewards.py").write_text(REWARD)
    rows = [{"prompt": f"The number after {n} is", "completion": f" {n + 1}."} for n in range(120)]
    (tmp_path / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    script = "--steps,4,--generations,4,--completion-tokens,8,--learning-rate,1e-3,--reward,rewards:few_letters"
    data = ("task=causal_lm", "source=questions.jsonl", "sequence_length=64", "vocabulary_size=400")
    given = ("script=grpo.py", f"script_arguments={script}", "launcher=plain", *data, "gates=loss<=100")
    done = gpu_pipelines(
        *("run", PIPELINE, *(part for each in (*given, "smoke_test=false") for part in ("-p", each))),
        *("--accelerator", "cpu:1"),
        cwd=tmp_path,
    )
    assert done.status == 0, done.out + done.err
    assert "registered questions version 1 as challenger and champion" in done.out
    record = newest_run(tmp_path)
    written = {path.name: path for path in record["directory"].glob("artifacts/checkpoints/*/checkpoint-*")}
    assert sorted(written) == ["checkpoint-1", "checkpoint-2", "checkpoint-3", "checkpoint-4"]
    first, last = (written[f"checkpoint-{step}"] / "model.safetensors" for step in (1, 4))
    assert first.read_bytes() != last.read_bytes()


def training_on(rows: list[dict[str, str]], folder: Path, *arguments: str) -> None:
    """Runs the example on prepared rows, in a process of its own."""
    shutil.copy(EXAMPLE, folder / "grpo.py")
    (folder / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = str(folder / "questions.jsonl")
    shutil.rmtree(folder / "data", ignore_errors=True)
    prepare_data(
        PrepareSettings(source=source, task="causal_lm", sequence_length=64, vocabulary_size=400), folder / "data"
    )
    script = ScriptSettings(
        script=str(folder / "grpo.py"), launcher="plain", arguments=["--generations", "2", *arguments]
    )
    run_script(script, folder / "data", str(folder / "out"))


@pytest.mark.slow
def test_what_a_step_away_from_the_first_model_costs_needs_one_that_has_learned(tmp_path: Path) -> None:
    rows = [{"prompt": f"The number after {n} is", "completion": f" {n + 1}."} for n in range(60)]
    with pytest.raises(UserError, match="--beta needs a model that has learned; llama-micro is trained from scratch"):
        training_on(rows, tmp_path, "--beta", "0.1")


@pytest.mark.slow
def test_adapters_alone_are_trained_and_name_their_model(tmp_path: Path) -> None:
    rows = [{"prompt": f"The number after {n} is", "completion": f" {n + 1}."} for n in range(60)]
    few = ("--steps", "2", "--completion-tokens", "4", "--learning-rate", "1e-3", "--lora-rank", "4")
    with pytest.raises(UserError, match="--lora-rank needs a model that has learned; llama-micro is trained from"):
        training_on(rows, tmp_path, *few)
    dataset = Dataset(tmp_path / "data")
    CausalLanguageModel.for_dataset(dataset).build_model("llama-micro").save_pretrained(tmp_path / "base")
    shutil.rmtree(tmp_path / "out")
    training_on(rows, tmp_path, *few, "--model", str(tmp_path / "base"))
    settings = EvaluationSettings(registry=str(tmp_path / "registry"))
    evaluation = evaluate_checkpoints(settings, dataset.directory, tmp_path / "out", tmp_path / "best")
    assert [scored["name"] for scored in evaluation.checkpoints] == ["checkpoint-1", "checkpoint-2"]
    assert (tmp_path / "best/adapter/adapter_model.safetensors").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("reward", ["None", "1.0"])
def test_a_training_without_differences_between_rewards_fails(reward: str, tmp_path: Path) -> None:
    (tmp_path / "rewards.py").write_text(f"def same(completions, **others): return [{reward} for _ in completions]")
    rows = [{"prompt": f"The number after {n} is", "completion": f" {n + 1}."} for n in range(60)]
    few = ("--steps", "2", "--completion-tokens", "2")
    with pytest.raises(UserError, match="learned nothing: rewards:same gives all completions of a prompt the same"):
        training_on(rows, tmp_path, *few, "--reward", "rewards:same")


@pytest.mark.slow
def test_of_several_rewards_the_sum_counts(tmp_path: Path) -> None:
    (tmp_path / "rewards.py").write_text(
        "def length(completions, **others): return [float(len(text)) for text in completions]\n"
        "def same(completions, **others): return [1.0 for _ in completions]\n"
    )
    rows = [{"prompt": f"The number after {n} is", "completion": f" {n + 1}."} for n in range(60)]
    rewards = ("--reward", "rewards:length", "--reward", "rewards:same")
    # It fails where no two completions of a prompt have different rewards.
    training_on(rows, tmp_path, "--steps", "2", "--completion-tokens", "8", *rewards)


@pytest.mark.slow
def test_texts_without_prompts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no row has a prompt; give the columns prompt and completion, or chats"):
        training_on([{"text": f"The number after {n} is {n + 1}." * 3} for n in range(60)], tmp_path, "--steps", "1")


@pytest.mark.slow
@pytest.mark.parametrize("template", ["", CHATML])
def test_the_trainer_sees_the_tokens_of_a_prompt_that_the_evaluation_sees(
    template: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chats = [[("user", f"What comes after {n} ?"), ("assistant", f"{n + 1}.")] for n in range(60)]
    rows = [{"messages": [{"role": role, "content": text} for role, text in chat]} for chat in chats]
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    TextEncoder.train([text for chat in chats for _, text in chat], 400, False).save(tmp_path / "tokenizer", 64)
    if template:
        from tokenizers.processors import ByteLevel
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(tmp_path / "tokenizer")
        tokenizer.add_special_tokens({"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"})
        tokenizer.backend_tokenizer.post_processor = ByteLevel(trim_offsets=False)
        tokenizer.chat_template = template
        tokenizer.save_pretrained(tmp_path / "tokenizer")
    settings = PrepareSettings(
        source=str(tmp_path / "chats.jsonl"),
        task="causal_lm",
        sequence_length=64,
        tokenizer=str(tmp_path / "tokenizer"),
    )
    prepare_data(settings, tmp_path / "data")
    monkeypatch.setenv("GPU_PIPELINES_DATASET", str(tmp_path / "data"))
    monkeypatch.setenv("GPU_PIPELINES_CHECKPOINTS", str(tmp_path / "out"))
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE)])
    example = run_path(str(EXAMPLE))
    prompts = [row["prompt"] for row in example["rows_of"]("val")]
    found, *_ = example["Trainer"]._tokenize_prompts(None, prompts)
    split = Dataset(tmp_path / "data").split("val")
    (columns,) = split.columns(0, len(split))
    wanted = [
        [int(token) for token in columns["input_ids"][row, place][: list(columns["loss_mask"][row, place]).index(1)]]
        for row, place in example["documents_of"](columns)
    ]
    assert len(prompts) > 1
    assert found == wanted
