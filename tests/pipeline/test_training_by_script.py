"""`train_evaluate_upload` with a training script in place of `train_model`."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import command
from conftest import GPU_PIPELINES, PIPELINE, gpu_pipelines, newest_run

BY_SCRIPT = "train_script_evaluate_upload"
EXAMPLE = Path(__file__).parents[2] / "examples/training_scripts/transformers_trainer.py"
SETTINGS = ("--project", "my-project-123", "--region", "europe-west4", "--pipeline-root", "gs://bucket/root")
IMAGE = ("--image", "europe-docker.pkg.dev/p/r/steps:1")


@pytest.mark.slow
def test_a_script_of_transformers_trains_and_its_model_is_evaluated_and_uploaded(tmp_path: Path) -> None:
    script = Path(shutil.copy(EXAMPLE, tmp_path / "train.py"))
    data = ("task=text_classification", "source=sample:docstrings", "gates=accuracy>=0", "smoke_test=false")
    given = ("script=train.py", "script_arguments=--steps,4", 'script_environment={"KEY": "a-secret"}', *data)
    request = ("run", PIPELINE, *(part for each in given for part in ("-p", each)), "--accelerator", "cpu:1")
    done = gpu_pipelines(*request, cwd=tmp_path)
    assert done.status == 0, done.out + done.err
    assert "registered docstrings version 1 as challenger and champion" in done.out
    record = newest_run(tmp_path)
    steps = ["check-request", "prepare-data", "run-training-script", "evaluate-checkpoints", "upload-model"]
    assert [step["name"] for step in record["steps"]] == steps
    assert {path.name for path in record["directory"].glob("artifacts/checkpoints/*/checkpoint-*")} == {
        "checkpoint-2",
        "checkpoint-4",
    }
    page = (record["directory"] / "report.html").read_text()
    assert "docstrings version 1 is the champion" in page
    assert "<h2>Training</h2>" in page
    assert ">KEY<" in page
    assert "a-secret" not in page
    again = gpu_pipelines(*request, "--cache", cwd=tmp_path)
    assert again.status == 0, again.out + again.err
    assert "run-training-script: reused" in again.out
    script.write_text(script.read_text() + "\n# changed\n")
    changed = gpu_pipelines(*request, "--cache", cwd=tmp_path)
    assert "prepare-data: reused" in changed.out
    assert "run-training-script: succeeded" in changed.out, "goes on from its last checkpoint no more than it has to"


BREAKS_OFF = """
import os
from pathlib import Path

place = Path(os.environ["GPU_PIPELINES_CHECKPOINTS"], "checkpoint-1")
if not place.is_dir():
    place.mkdir()
    raise RuntimeError("broken off")
print("goes on", flush=True)
"""


@pytest.mark.slow
def test_a_script_that_broke_off_goes_on_by_the_command_that_is_shown(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(BREAKS_OFF)
    given = ("script=train.py", "launcher=plain", "source=sample:digits")
    failed = gpu_pipelines("run", PIPELINE, *(part for each in given for part in ("-p", each)), cwd=tmp_path)
    assert failed.status == 1
    assert "broken off" in failed.err
    command = failed.err.strip().splitlines()[-1].split()
    assert command == ["gpu-pipelines", "run", "--resume", newest_run(tmp_path)["run_id"]]
    done = gpu_pipelines(*command[1:], cwd=tmp_path)
    assert "run-training-script: goes on" in done.out
    assert "has no checkpoint that can be scored: the training left only checkpoint-1 there." in done.err
    assert "GPU_PIPELINES_CHECKPOINTS" in done.err
    assert "with run --resume the training is not repeated" in done.err


@pytest.mark.slow
def test_a_script_may_print_what_is_no_utf_8(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import os\nos.write(1, b'caf\\xe9\\n')\nraise RuntimeError('broken off')\n")
    given = ("script=train.py", "launcher=plain", "source=sample:digits")
    failed = gpu_pipelines("run", PIPELINE, *(part for each in given for part in ("-p", each)), cwd=tmp_path)
    assert "run-training-script: caf\N{REPLACEMENT CHARACTER}" in failed.out
    assert "RuntimeError: broken off" in failed.err
    assert "UnicodeDecodeError" not in failed.err


@pytest.mark.slow
def test_a_script_that_ends_as_one_that_is_interrupted_is_said_to_have_been(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys\nsys.exit(75)\n")
    given = ("script=train.py", "launcher=plain", "source=sample:digits")
    ended = gpu_pipelines("run", PIPELINE, *(part for each in given for part in ("-p", each)), cwd=tmp_path)
    assert ended.status == 1
    assert "error: run-training-script failed: it was interrupted: the processes ended early" in ended.err
    assert "its log ends" not in ended.err


TALKS = """
import os
import signal
import sys
import time
from pathlib import Path

told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(True))
while not told:
    print("at work", flush=True)
    time.sleep(0.1)
print("writes a checkpoint", flush=True)
Path(os.environ["GPU_PIPELINES_CHECKPOINTS"], "checkpoint-1").mkdir()
sys.exit(75)
"""


@pytest.mark.slow
def test_a_script_that_is_interrupted_may_print_before_it_writes_its_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TALKS)
    given = ("script=train.py", "launcher=plain", "source=sample:digits")
    request = [str(GPU_PIPELINES), "run", PIPELINE, *(part for each in given for part in ("-p", each))]
    with subprocess.Popen(request, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert any("at work" in line for line in process.stdout)
        process.terminate()
        process.communicate(timeout=60)
    assert process.returncode == 130
    assert list(tmp_path.glob("runs/*/artifacts/checkpoints/*/checkpoint-1"))


@pytest.mark.slow
def test_a_script_goes_on_also_where_the_folder_has_been_moved(tmp_path: Path) -> None:
    before = tmp_path / "before"
    before.mkdir()
    (before / "train.py").write_text(BREAKS_OFF)
    given = ("script=train.py", "launcher=plain", "source=sample:digits")
    request = ("run", PIPELINE, *(part for each in given for part in ("-p", each)))
    assert "broken off" in gpu_pipelines(*request, cwd=before).err
    after = before.rename(tmp_path / "after")
    done = gpu_pipelines(*request, "--resume", cwd=after)
    assert "run-training-script: goes on" in done.out, done.out + done.err
    assert not before.exists()


@pytest.mark.usefixtures("no_project_settings")
@pytest.mark.parametrize("target", ["vertex", "kubeflow"])
def test_it_is_compiled_with_the_script_on_the_accelerators(target: str, tmp_path: Path) -> None:
    arguments = ("--target", target, "--accelerator", "l4:4", "--task", "text_classification")
    done = command("compile", BY_SCRIPT, *arguments, "-o", str(tmp_path / "out.yaml"))
    assert done.status == 0, done.err
    spec, *_ = yaml.load_all((tmp_path / "out.yaml").read_text(), Loader=yaml.CSafeLoader)
    tasks: dict[str, Any] = spec["root"]["dag"]["tasks"]
    assert tasks.keys() == {
        "check-request",
        "prepare-data",
        "run-training-script",
        "evaluate-checkpoints",
        "upload-model",
    }
    known = spec["root"]["inputDefinitions"]["parameters"]
    assert "isOptional" not in known["script"]
    assert known["source"]["defaultValue"] == "sample:docstrings"
    assert not {"model", "epochs", "checkpoint_uri", "task"} & known.keys(), "these are of train_model, or say nothing"
    given = tasks["run-training-script"]["inputs"]["parameters"]
    assert given["arguments"] == {"componentInputParameter": "script_arguments"}
    assert "checkpoints/" in json.dumps(given["checkpoint_uri"])
    text = json.dumps(spec["components"]["comp-run-training-script"]) + json.dumps(spec["deploymentSpec"])
    assert ("NVIDIA_L4" if target == "vertex" else "nvidia.com/gpu") in text


def test_with_a_script_given_it_is_the_pipeline_that_is_compiled(tmp_path: Path) -> None:
    made = []
    for pipeline in (PIPELINE, BY_SCRIPT):
        done = command("compile", pipeline, "-p", "script=gs://bucket/train.py", "-o", f"{pipeline}.yaml", cwd=tmp_path)
        assert done.status == 0, done.err
        made.append((tmp_path / f"{pipeline}.yaml").read_text())
    assert made[0] == made[1]
    assert "defaultValue: gs://bucket/train.py" in made[0]


@pytest.mark.usefixtures("no_project_settings")
def test_a_run_in_the_cloud_takes_a_script_that_its_steps_can_read(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    there = ("--target", "vertex", "--accelerator", "l4:1", "--dry-run", *SETTINGS, *IMAGE)
    done = command("run", PIPELINE, "-p", "script=gs://bucket/train.py", *there)
    assert done.status == 0, done.err
    assert "run-training-script: 1 × g2-standard" in done.err
    body = json.loads(done.out)["body"]
    assert body["runtimeConfig"]["parameterValues"]["script"] == "gs://bucket/train.py"
    for script in ("train.py", str(tmp_path / "train.py")):
        refused = command("run", PIPELINE, "-p", f"script={script}", *there, cwd=tmp_path)
        assert refused.status == 2
        assert f"script is {script}, of this machine. Copy it into a bucket" in refused.err
    for in_image in ("script=/app/train.py", "script=-m trainer.task"):
        assert command("run", PIPELINE, "-p", in_image, *there).status == 0


def test_a_pipeline_that_runs_no_script_names_the_one_that_does() -> None:
    for pipeline in ("scheduled_retraining", "tune_train_evaluate_upload"):
        done = command("run", pipeline, "-p", "script=train.py")
        assert done.status == 2
        assert f"The pipeline {pipeline} does not run a script." in done.err
        assert "Give script to train_evaluate_upload." in done.err


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("-p", "script=none.py"), "There is no script none.py."),
        (("-p", "script=train.sh"), "script is 'train.sh': give a .py file, or -m and a module"),
        (("-p", "script=train.py", "-p", "launcher=mpi"), "launcher is 'mpi'"),
        (("-p", "script=train.py", "-p", "code=none"), "There is no code at none."),
        (("-p", "script=train.py", "-p", "model=convnext-tiny"), "There is no parameter 'model'"),
        (("-p", "script=train.py", "--trial"), "--trial trains with train_model"),
        (("-p", "script=train.py", "-p", "gates=acuracy>=1"), "acuracy"),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(given: tuple[str, ...], said: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    done = command("run", PIPELINE, *given, cwd=tmp_path)
    assert done.status == 2
    assert said in done.err
    assert not (tmp_path / "runs").exists()


@pytest.mark.usefixtures("no_project_settings")
@pytest.mark.parametrize("target", [("vertex",), ("kubeflow", "--kubeflow-host", "http://localhost:1")])
def test_a_pipeline_of_ones_own_is_held_to_the_same(target: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "own.py").write_text(
        "from kfp import dsl\n"
        "from gpu_pipelines.components import prepare_data, run_training_script, train_model\n"
        "@dsl.pipeline(name='own')\n"
        "def own(script: str):\n"
        "    prepared = prepare_data(source='sample:digits')\n"
        "    run_training_script(dataset=prepared.outputs['dataset'], script=script)\n"
        "@dsl.pipeline(name='other')\n"
        "def other(steps: int = 2):\n"
        "    prepared = prepare_data(source='sample:digits')\n"
        "    train_model(dataset=prepared.outputs['dataset'], max_steps=steps)\n"
    )
    there = ("--target", *target, "--accelerator", "l4:2", "--dry-run", *SETTINGS, *IMAGE)
    refused = command("run", "own.py:other", "-p", "steps=-1", *there, cwd=tmp_path)
    assert "train-model: max_steps is -1" in refused.err
    refused = command("run", "own.py:own", "-p", "script=train.py", *there, cwd=tmp_path)
    assert "script is train.py, of this machine. Copy it into" in refused.err
    assert command("run", "own.py:own", "-p", "script=gs://bucket/train.py", *there, cwd=tmp_path).status == 0
