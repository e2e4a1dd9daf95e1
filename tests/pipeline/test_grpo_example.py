"""The example of GRPO: TRL's trainer writes answers on a CPU, and its checkpoints are evaluated and promoted."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from conftest import PIPELINE, gpu_pipelines, newest_run

from gpu_pipelines.data.prepare import prepare_data
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.errors import UserError
from gpu_pipelines.training.script.run import run_script
from gpu_pipelines.training.script.settings import ScriptSettings

EXAMPLE = Path(__file__).parents[2] / "examples/grpo/grpo.py"
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


@pytest.mark.slow
def test_what_a_step_away_from_the_first_model_costs_needs_one_that_has_learned(tmp_path: Path) -> None:
    rows = [{"prompt": f"The number after {n} is", "completion": f" {n + 1}."} for n in range(60)]
    (tmp_path / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = str(tmp_path / "questions.jsonl")
    prepare_data(
        PrepareSettings(source=source, task="causal_lm", sequence_length=64, vocabulary_size=400), tmp_path / "data"
    )
    script = ScriptSettings(script=str(EXAMPLE), launcher="plain", arguments=["--beta", 0.1, "--generations", 2])
    with pytest.raises(UserError, match="--beta needs a model that has learned; llama-micro is trained from scratch"):
        run_script(script, tmp_path / "data", str(tmp_path / "out"))
