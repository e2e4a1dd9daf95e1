"""The examples: each is compiled for the cloud, and run here as its first lines say."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from command_line import command
from conftest import gpu_pipelines, newest_run

EXAMPLES = Path(__file__).parents[2] / "examples/pipelines"
FILES = sorted(EXAMPLES.glob("*.py"))


def test_the_document_names_all_examples() -> None:
    document = (EXAMPLES.parents[1] / "docs/own-pipelines.md").read_text(encoding="utf-8")
    assert set(re.findall(r"examples/pipelines/(\w+\.py)\)", document)) == {path.name for path in FILES}


@pytest.mark.parametrize("document", ["README.md", "docs/own-pipelines.md"])
def test_the_pipeline_of_a_document_can_be_run(document: str, tmp_path: Path) -> None:
    text = (EXAMPLES.parents[1] / document).read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "reviews.py").write_text(code)
    rows = [{"text": f"review {number}", "label": "ab"[number % 2]} for number in range(40)]
    (tmp_path / "reviews.jsonl").write_text("\n".join(map(json.dumps, rows)))
    done = command("run", "reviews.py", "-p", "source=reviews.jsonl", "--dry-run", cwd=tmp_path)
    assert done.status == 0, done.err


@pytest.mark.usefixtures("no_project_settings")
@pytest.mark.parametrize("target", ["vertex", "kubeflow"])
@pytest.mark.parametrize("file", FILES, ids=lambda path: path.stem)
def test_an_example_is_compiled_for_the_cloud(file: Path, target: str, tmp_path: Path) -> None:
    done = command("compile", str(file), "--target", target, "--accelerator", "l4:1", "-o", str(tmp_path / "out.yaml"))
    assert done.status == 0, done.err
    text = (tmp_path / "out.yaml").read_text()
    assert ("NVIDIA_L4" if target == "vertex" else "nvidia-l4") in text
    without = command("compile", str(file), "--target", target, "-o", str(tmp_path / "other.yaml"))
    assert re.search("(train-model|run-training-script) has no accelerator", without.err)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "parameters", "said", "steps"),
    [
        ("own_steps", ["steps=4"], "Output: step-00000001 is the best", ["clean-reviews", "summarize"]),
        ("container_step", ["steps=2"], "make-rows: wrote 300 rows", ["make-rows", "train-model"]),
        (
            "architectures",
            ["steps=30"],
            "registered digits version 1 as challenger and champion",
            ["train-model", "train-model #2"],
        ),
        ("seeds", ["steps=3"], "checkpoint 2/2", ["train-model #2"]),
        (
            "pretrain_then_lora",
            ["steps=4", "lora_steps=2"],
            "train-model-2: .* 2 steps of 16",
            ["place-of", "train-model-2", "evaluate-checkpoints-2"],
        ),
        ("onnx_export", ["steps=4"], "registered digits-onnx version 1 as challenger and champion", ["export-to-onnx"]),
    ],
)
def test_an_example_runs_here(name: str, parameters: list[str], said: str, steps: list[str], tmp_path: Path) -> None:
    given = [part for parameter in parameters for part in ("-p", parameter)]
    arguments = ("--accelerator", "cpu:1", "--no-containers", *given)
    done = gpu_pipelines("run", str(EXAMPLES / f"{name}.py"), *arguments, cwd=tmp_path)
    assert done.status == 0, done.out + done.err
    assert re.search(said, done.out), done.out
    ended = {step["name"]: step["status"] for step in newest_run(tmp_path)["steps"]}
    assert set(steps) <= ended.keys()
    assert set(ended.values()) == {"succeeded"}


@pytest.mark.slow
def test_the_script_of_lightning_runs_as_a_pipeline(tmp_path: Path) -> None:
    place = f"{tmp_path}/examples/pipelines"
    shutil.copytree(EXAMPLES, place)
    arguments = ("run", f"{place}/lightning_script.py", "-p", "steps=20")
    done = gpu_pipelines(*arguments, cwd=tmp_path)
    assert done.status == 0, done.out + done.err
    lines = next(tmp_path.glob("runs/**/metrics.jsonl")).read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(1, 21))
    assert list(tmp_path.glob("runs/**/last.ckpt"))


@pytest.mark.slow
def test_a_second_stage_whose_condition_is_not_met_is_not_run(tmp_path: Path) -> None:
    arguments = ("--accelerator", "cpu:1", "-p", "steps=2", "-p", "gate=loss<=0")
    done = gpu_pipelines("run", str(EXAMPLES / "pretrain_then_lora.py"), *arguments, cwd=tmp_path)
    assert done.status == 0, done.out + done.err
    assert "train-model-2" not in {step["name"] for step in newest_run(tmp_path)["steps"]}
