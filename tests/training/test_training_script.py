"""`run_training_script`: scripts of a user's own, run for real, and the examples of the documentation."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from conftest import write_photos
from forked import Forked
from kfp import dsl
from network import ADDRESSES, two_machines
from torch.utils.tensorboard import SummaryWriter

from gpu_pipelines.artifacts.checkpoint import complete_checkpoints
from gpu_pipelines.artifacts.remote_files import RemoteFolder
from gpu_pipelines.data.prepare import prepare_data
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.distributed.members import Cluster
from gpu_pipelines.errors import Interrupted, UserError
from gpu_pipelines.evaluation.models.hugging_face import models_in
from gpu_pipelines.training.machine.local_devices import Devices
from gpu_pipelines.training.script import variables
from gpu_pipelines.training.script.metrics import add_logged, read_metrics
from gpu_pipelines.training.script.processes import trains_alone
from gpu_pipelines.training.script.run import ScriptSummary, horovodrun, run_script
from gpu_pipelines.training.script.settings import ScriptSettings
from gpu_pipelines.training.script.step import run as run_step
from gpu_pipelines.training.script.step import write_report
from gpu_pipelines.training.script.variables import tf_config

DOCUMENT = Path(__file__).parents[2] / "docs" / "training-scripts.md"
EXAMPLE = Path(__file__).parents[2] / "examples/training_scripts/transformers_trainer.py"
LIGHTNING = EXAMPLE.with_name("lightning_trainer.py")

TELLS = """
import json, os, sys
names = [name for name in os.environ if name.startswith(("AIP_", "GPU_PIPELINES_", "MINE"))]
out = {"arguments": sys.argv[1:], "variables": {name: os.environ[name] for name in names}}
open(os.path.join(os.environ["AIP_CHECKPOINT_DIR"], "told.json"), "w").write(json.dumps(out))
with open(os.environ["GPU_PIPELINES_METRICS"], "a") as file:
    for step in (1, 2, 2, 3):
        file.write(json.dumps({"step": step, "loss": 1 / step, "bad": float("nan"), "note": "x"}) + "\\n")
    file.write("not JSON\\n")
"""

RUN = """
import os, sys
from pathlib import Path
from gpu_pipelines.training.script.run import run_script
from gpu_pipelines.training.script.settings import ScriptSettings
from gpu_pipelines.component_interface.step import own_process
with own_process():
    summary = run_script(ScriptSettings(script=sys.argv[1], launcher=sys.argv[2]), Path("data"), "out")
    print("reported" if summary else "nothing to report")
"""


def run(tmp_path: Path, text: str, **settings: Any) -> ScriptSummary:
    script = tmp_path / "script.py"
    script.write_text(text)
    summary = run_script(
        ScriptSettings(**{"script": str(script), "launcher": "plain", **settings}),
        tmp_path / "data",
        str(tmp_path / "out"),
    )
    assert summary
    return summary


def told(tmp_path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((tmp_path / "out" / "told.json").read_text())
    return content


def test_a_script_is_told_where_things_are_and_its_metrics_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("GPU_PIPELINES_ACCELERATOR")
    monkeypatch.setenv("AIP_CHECKPOINT_DIR", "gs://bucket/other")
    monkeypatch.setenv("AIP_TENSORBOARD_LOG_DIR", "gs://bucket/logs")
    awkward = ["--text", "two words", "$(touch x); 'quoted\"", "", "--n", 3, "{other} {}"]
    summary = run(tmp_path, TELLS, arguments=awkward, environment={"MINE": "ünicode ${PATH}"})
    content = told(tmp_path)
    assert content["arguments"] == [str(argument) for argument in awkward]
    out, data = tmp_path / "out", tmp_path / "data"
    # Where a program may leave an error as data; see gpu_pipelines/errors.py.
    assert content["variables"].pop("GPU_PIPELINES_ERROR_FILE").endswith("/user_error.json")
    assert content["variables"] == {
        "GPU_PIPELINES_DATASET": str(data),
        "GPU_PIPELINES_CHECKPOINTS": str(out),
        "GPU_PIPELINES_METRICS": str(out / "metrics.jsonl"),
        "AIP_CHECKPOINT_DIR": f"{out}/",
        "AIP_MODEL_DIR": f"{out}/model/",
        "AIP_TENSORBOARD_LOG_DIR": "gs://bucket/logs",
        "AIP_TRAINING_DATA_URI": str(data / "train" / "part-*.arrow"),
        "AIP_VALIDATION_DATA_URI": str(data / "val" / "part-*.arrow"),
        "AIP_TEST_DATA_URI": str(data / "test" / "part-*.arrow"),
        "MINE": "ünicode ${PATH}",
    }
    assert summary.series() == {"loss": [(step, 1 / step) for step in (1.0, 2.0, 3.0)]}
    assert {name: summary.figures()[name] for name in ("steps", "final_loss", "processes")} == {
        "steps": 3.0, "final_loss": 1 / 3, "processes": 1
    }  # fmt: skip
    assert "metrics.jsonl, line 5, is not a JSON object with a number step: left out" in capfd.readouterr().out
    write_report(summary, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert page.count("<figure>") == 1
    assert ">loss</text>" in page


@pytest.mark.parametrize("spec", ["", "cpu:1"])
def test_what_a_rehearsed_script_leaves_is_marked(spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPU_PIPELINES_REHEARSE", spec)
    (tmp_path / "script.py").write_text("print('trained')")
    names = ("dataset", "checkpoints", "training_metrics", "training_report")
    kinds = (dsl.Dataset, dsl.Artifact, dsl.Metrics, dsl.HTML)
    made = {name: kind(name=name, uri=str(tmp_path / name)) for name, kind in zip(names, kinds, strict=True)}
    run_step(ScriptSettings(script=str(tmp_path / "script.py"), launcher="plain"), **made)
    assert made["checkpoints"].metadata["rehearsal"] is bool(spec)


def test_arguments_and_variables_are_those_that_were_written(tmp_path: Path) -> None:
    run(tmp_path, TELLS, arguments=["--flag", True, 40.0, 0.5], environment={"MINE": False, "MINE_TOO": 40.0})
    assert told(tmp_path)["arguments"] == ["--flag", "true", "40", "0.5"]
    assert told(tmp_path)["variables"].items() >= {"MINE": "false", "MINE_TOO": "40"}.items()


def test_arguments_name_places_that_are_known_when_the_script_runs(tmp_path: Path) -> None:
    run(tmp_path, TELLS, arguments=["--output_dir={checkpoints}", "{dataset}/train", "{metrics}"])
    out = tmp_path / "out"
    assert told(tmp_path)["arguments"] == [
        f"--output_dir={out}",
        f"{tmp_path / 'data'}/train",
        str(out / "metrics.jsonl"),
    ]


def test_a_place_in_a_bucket_is_a_path_where_that_is_mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variables, "MOUNTED", tmp_path)
    (tmp_path / "bucket").mkdir()
    uris = ("gs://bucket/a/1", "gs://other/a/1", "s3://bucket/a", "/a/1")
    assert [variables.mounted(uri) for uri in uris] == [f"{tmp_path}/bucket/a/1", *uris[1:]]


def test_a_script_that_writes_to_a_path_has_written_to_a_bucket_and_finds_it_again(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import os, pathlib\n"
        "out = pathlib.Path(os.environ['GPU_PIPELINES_CHECKPOINTS'])\n"
        "step = len(list(out.glob('checkpoint-*'))) + 1\n"
        "(out / f'checkpoint-{step}').mkdir()\n"
        "(out / f'checkpoint-{step}' / 'config.json').write_text(os.environ['AIP_CHECKPOINT_DIR'])\n"
    )
    uri = f"memory://{tmp_path.name}/run"
    for _ in range(2):
        summary = run_script(ScriptSettings(script=str(tmp_path / "script.py"), launcher="plain"), tmp_path, uri)
    folder = RemoteFolder(uri)
    assert folder.names() == ["checkpoint-1/config.json", "checkpoint-2/config.json"]
    assert summary
    assert summary.figures()["checkpoints"] == 2
    assert folder.read("checkpoint-2/config.json").decode() == f"{uri}/"


def test_a_script_that_takes_a_bucket_for_a_folder_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("script.py").write_text("import os\nos.makedirs(os.environ['AIP_CHECKPOINT_DIR'])\n")
    with pytest.raises(UserError, match="The script used memory://bucket/run as a local path"):
        run_script(ScriptSettings(script="script.py", launcher="plain"), tmp_path, "memory://bucket/run")


def test_metrics_keep_their_order_and_may_come_now_and_then(tmp_path: Path) -> None:
    lines = [{"step": 2, "zeta": 2, "alpha": 5}, {"step": 1, "zeta": 1, "beta": 7}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    metrics = read_metrics(tmp_path / "metrics.jsonl")
    series = ScriptSummary(ScriptSettings(), Devices("cpu", 1), 1, 0.0, [], metrics).series()
    assert list(series.items()) == [("zeta", [(1, 1), (2, 2)]), ("beta", [(1, 7)]), ("alpha", [(2, 5)])]


def test_metrics_of_a_step_may_come_in_several_lines(tmp_path: Path) -> None:
    lines = [{"step": 1, "loss": 3}, {"step": 2, "loss": 2}, {"step": 2, "val_loss": 5}, {"step": 2, "loss": 1}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert read_metrics(tmp_path / "metrics.jsonl") == [{"step": 1, "loss": 3}, {"step": 2, "loss": 1, "val_loss": 5}]


def test_a_metric_that_ends_as_no_number_has_no_last_value(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = ['{"step": 1, "loss": 1}', '{"step": 2, "loss": NaN}', '{"step": 3, "loss": Infinity}', '{"step": NaN}']
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    summary = ScriptSummary(ScriptSettings(), Devices("cpu", 1), 1, 0.0, [], read_metrics(tmp_path / "metrics.jsonl"))
    assert summary.series() == {"loss": [(1, 1)]}
    assert summary.figures()["steps"] == 3
    assert "final_loss" not in summary.figures()
    assert "warning: loss is not finite at step 2" in capsys.readouterr().out


LOGS = """
import csv, json, os
from pathlib import Path
out = Path(os.environ["GPU_PIPELINES_CHECKPOINTS"])
for step in (2, 4):
    log = [{"step": n, "loss": 1 / n, "epoch": n / 4, "learning_rate": 0.1} for n in range(1, step + 1)]
    log += [{"step": 4, "eval_loss": 0.3, "eval_runtime": 1.0}, {"step": 4, "train_runtime": 9.0}] if step == 4 else []
    (out / f"checkpoint-{step}").mkdir()
    state = {"global_step": step, "log_history": log}
    (out / f"checkpoint-{step}/trainer_state.json").write_text(json.dumps(state))
"""
CSV = """
import os
from pathlib import Path
log = Path(os.environ["GPU_PIPELINES_CHECKPOINTS"]) / "lightning_logs/version_0"
log.mkdir(parents=True)
(log / "metrics.csv").write_text("epoch,step,train_loss,val_loss\\n0,1,0.5,\\n0,1,,0.25\\n")
"""
OWN = """
with open(os.environ["GPU_PIPELINES_METRICS"], "a") as file:
    file.write(json.dumps({"step": 3, "mine": 7}) + "\\n")
"""


@pytest.mark.parametrize(
    ("text", "curves"),
    [
        (LOGS, {"loss": [(n, 1 / n) for n in (1, 2, 3, 4)], "learning_rate": 4, "eval_loss": [(4, 0.3)]}),
        (LOGS + OWN, {"mine": [(3, 7)], "loss": [(4, 0.25)], "learning_rate": 1, "eval_loss": [(4, 0.3)]}),
        (CSV, {"train_loss": [(1, 0.5)], "val_loss": [(1, 0.25)]}),
    ],
)
def test_what_a_framework_has_logged_beside_its_checkpoints_is_reported(
    tmp_path: Path, text: str, curves: dict[str, Any]
) -> None:
    found = run(tmp_path, text).series()
    found = {name: len(each) if isinstance(curves.get(name), int) else each for name, each in found.items()}
    assert found == curves


def test_where_tensorboard_alone_has_a_log_it_is_reported(tmp_path: Path) -> None:
    checkpoints, metrics = tmp_path / "checkpoints", tmp_path / "metrics.jsonl"
    with SummaryWriter(checkpoints / "lightning_logs/version_0") as writer:
        writer.add_scalar("hp_metric", -1, 0)
        writer.add_text("said", "nothing", 1)
        for step in (1, 2):
            writer.add_scalar("epoch", 0, step)
            writer.add_scalar("train_loss", 1 / step, step)
    (killed,) = checkpoints.rglob("events*")
    killed.write_bytes(killed.read_bytes() + killed.read_bytes()[:20])
    add_logged(checkpoints, metrics)
    assert read_metrics(metrics) == [{"step": 1, "train_loss": 1.0}, {"step": 2, "train_loss": 0.5}]
    metrics.unlink()
    (checkpoints / "metrics.csv").write_text("epoch,step,train_loss\n0,2,0.5\n")
    add_logged(checkpoints, metrics)
    assert read_metrics(metrics) == [{"step": 2, "train_loss": 0.5}]


def test_a_log_of_another_program_by_the_same_name_is_no_failure(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_bytes(b"step,loss,caf\xe9\nnan,1,0\n2,0.5,0\n")
    (tmp_path / "trainer_state.json").write_text('{"log_history": [null, "x"]}')
    add_logged(tmp_path, tmp_path / "metrics.jsonl")
    assert read_metrics(tmp_path / "metrics.jsonl")[0]["loss"] == 0.5


def test_a_number_without_bounds_is_not_finite(tmp_path: Path) -> None:
    huge, metrics = "9" * 400, tmp_path / "metrics.jsonl"
    metrics.write_text(f'{{"step": 1, "loss": {huge}, "note": "2"}}\n{{"step": {huge}, "loss": 1}}\n')
    (tmp_path / "trainer_state.json").write_text(f'{{"log_history": [{{"step": 2, "loss": {huge}}}]}}')
    add_logged(tmp_path, metrics)
    assert read_metrics(metrics) == [{"step": 1, "loss": float("inf")}, {"step": 2, "loss": float("inf")}]


def test_a_script_without_metrics_has_a_report_too(tmp_path: Path) -> None:
    summary = run(tmp_path, "print('done')\n")
    assert not {"steps", "checkpoints"} & summary.figures().keys()
    write_report(summary, tmp_path / "report.html")
    assert "wrote no metrics" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("launcher", ["plain", "torchrun"])
def test_a_script_that_fails_ends_with_its_status_and_last_lines(
    tmp_path: Path, launcher: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError) as caught:
        run(
            tmp_path,
            "raise ValueError('no column label')\n",
            launcher=launcher,
            processes_per_node=1,
        )
    assert "ended with exit status 1." in str(caught.value)
    assert str(caught.value).endswith("ValueError: no column label")
    prefix = "[rank 0] " if launcher == "torchrun" else ""
    assert capfd.readouterr().err.splitlines()[-1] == f"{prefix}ValueError: no column label"


def test_a_progress_bar_does_not_hide_why_a_script_has_failed(tmp_path: Path) -> None:
    text = "import sys\nsys.stderr.write('no key lr in config.yaml\\n')\n"
    text += "for step in range(20):\n    sys.stderr.write(f'\\r{step}/20')\nsys.exit(3)\n"
    with pytest.raises(UserError) as caught:
        run(tmp_path, text)
    assert str(caught.value).splitlines()[1:] == ["  no key lr in config.yaml", "  19/20"]


def test_progress_bars_are_drawn_seldom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TQDM_MININTERVAL", "7")
    text = "import os, tqdm\nopen('%s', 'w').write(str(tqdm.tqdm([]).mininterval))" % (tmp_path / "seconds")
    for environment, seconds in ({}, "7.0"), ({"TQDM_MININTERVAL": 2}, "2.0"):
        run(tmp_path, text, environment=environment)
        assert (tmp_path / "seconds").read_text() == seconds
    monkeypatch.delenv("TQDM_MININTERVAL")
    run(tmp_path, text)
    assert (tmp_path / "seconds").read_text() == "15.0"


def test_a_row_in_an_error_does_not_fill_the_record_of_the_run(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        run(tmp_path, "raise ValueError('no label in ' + 'row' * 100_000)\n")
    assert "\n  ValueError: no label in rowrow" in str(caught.value)
    assert len(str(caught.value)) < 5_000


@pytest.mark.parametrize("how", ["sys.exit(75)", "os.kill(os.getpid(), signal.SIGTERM)"])
def test_a_script_that_was_told_to_stop_is_no_failure(tmp_path: Path, how: str) -> None:
    with pytest.raises(Interrupted):
        run(tmp_path, f"import os, signal, sys\n{how}\n")


def test_sigterm_is_passed_on_and_the_step_ends_with_75(tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text(RUN)
    (tmp_path / "waits.py").write_text(
        "import signal, sys, time\n"
        "def stop(*_):\n    print('saved')\n    sys.exit(75)\n"
        "signal.signal(signal.SIGTERM, stop)\nprint('begun')\ntime.sleep(600)\n"
    )
    process = Forked("run.py", ["waits.py", "plain"], os.environ, merged=True, cwd=tmp_path)
    while "begun" not in process.stdout.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=40)
    assert process.returncode == 75, out
    assert "saved" in out
    assert "interrupted: stopped by SIGTERM; run the same command again to continue" in out
    assert "Traceback" not in out


@pytest.mark.parametrize("launcher", ["plain", "torchrun"])
def test_a_script_is_done_when_it_ends_whatever_it_has_started(tmp_path: Path, launcher: str) -> None:
    (tmp_path / "run.py").write_text(RUN)
    (tmp_path / "leaves.py").write_text(
        "import subprocess\nsubprocess.Popen(['sleep', '600'], start_new_session=True)\n"
    )
    # What the script leaves has the pipes open that are read here to their ends.
    printed, errors = Forked("run.py", ["leaves.py", launcher], os.environ, cwd=tmp_path).communicate(60)
    assert "reported" in printed, errors


@pytest.mark.slow
def test_the_example_goes_on_from_a_checkpoint_that_the_trainer_has_finished(tmp_path: Path) -> None:
    (tmp_path / "texts.csv").write_text("text,label\n" + "".join(f"row {n},{n % 2}\n" for n in range(60)))
    prepare_data(PrepareSettings(source=str(tmp_path / "texts.csv"), task="text_classification"), tmp_path / "data")
    run(tmp_path, "", script=str(EXAMPLE), arguments=["--steps", 4])
    # As a kill leaves it: the Trainer writes these last.
    for name in ("trainer_state.json", "rng_state.pth", "scheduler.pt"):
        (tmp_path / "out/checkpoint-4" / name).unlink()
    run(tmp_path, "", script=str(EXAMPLE), arguments=["--steps", 6])
    lines = (tmp_path / "out/metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3, 4, 3, 4, 5, 6]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("example", "begins", "left"),
    [
        (EXAMPLE, "    def on_step_end(self, arguments, state, control, **others):\n", {"checkpoint-2"}),
        (LIGHTNING, "        step = trainer.global_step\n", {"step-2", "last.ckpt"}),
    ],
)
def test_the_examples_save_what_they_have_where_they_are_interrupted(
    tmp_path: Path, example: Path, begins: str, left: set[str]
) -> None:
    (tmp_path / "texts.csv").write_text("text,label\n" + "".join(f"row {n},{n % 2}\n" for n in range(60)))
    prepare_data(PrepareSettings(source=str(tmp_path / "texts.csv"), task="text_classification"), tmp_path / "data")
    text = example.read_text()
    assert begins in text
    step = "step" if example == LIGHTNING else "state.global_step"
    raises = f"        if {step} == 2 and os.environ['RANK'] == '0':\n            signal.raise_signal(signal.SIGTERM)\n"
    told_at_2 = text.replace(begins, begins + raises)
    given: dict[str, Any] = {"launcher": "torchrun", "processes_per_node": 2, "arguments": ["--steps", 6]}
    with pytest.raises(Interrupted):
        run(tmp_path, told_at_2, **given)
    assert {path.name for path in (tmp_path / "out").glob("*")} == {*left, "metrics.jsonl"}
    assert [entry["step"] for entry in run(tmp_path, text, **given).metrics] == [1, 2, 3, 4, 5, 6]
    lines = (tmp_path / "out/metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3, 4, 5, 6]


@pytest.mark.slow
def test_processes_of_accelerate_train_together_without_a_gpu(tmp_path: Path) -> None:
    says = "from accelerate import Accelerator\na = Accelerator()\n"
    says += "import os\nopen(os.environ['AIP_CHECKPOINT_DIR'] + f'{a.process_index} of {a.num_processes}', 'w')\n"
    run(tmp_path, says, launcher="torchrun", processes_per_node=2)
    assert {path.name for path in (tmp_path / "out").glob("* of *")} == {"0 of 2", "1 of 2"}


def archive(path: Path, **files: str) -> None:
    with tarfile.open(path, "w:gz") as file:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text.encode())
            file.addfile(entry, io.BytesIO(text.encode()))


@pytest.mark.parametrize(
    ("text", "framework"),
    [
        ("import numpy\nfrom keras import layers", "keras"),
        ("import jax.numpy as jnp, os", "jax"),
        ("import jax, os\nprocesses = os.environ['WORLD_SIZE']", ""),
        ("import keras\nfrom torch import distributed", ""),
        ("import torch\nfrom lightning import Trainer\nTrainer()", "lightning"),
        ("import torch\nfrom lightning import Trainer\nTrainer(devices=2)", ""),
        ("import torch\nloss.backward()", "torch"),
        ("import torch.nn as nn, transformers\nloss.backward()", "torch"),
        ("import torch\nfrom torch.nn.parallel import DistributedDataParallel\nloss.backward()", ""),
        ("import torch, accelerate\naccelerate.Accelerator().backward(loss)", ""),
        ("import torch\nfrom mine import fit\nfit()", ""),
        ("import numpy", ""),
        ("no Python", ""),
    ],
)
def test_a_script_whose_processes_would_train_alone_is_found(tmp_path: Path, text: str, framework: str) -> None:
    (tmp_path / "train.py").write_text(text)
    assert trains_alone(tmp_path / "train.py", "cpu") == framework
    assert trains_alone(tmp_path / "train.py", "cuda") == ("" if framework == "lightning" else framework)


@pytest.mark.parametrize(("processes", "warned"), [(2, True), (1, False)])
def test_processes_that_would_train_alone_are_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], processes: int, warned: bool
) -> None:
    script = tmp_path / "train.py"
    script.write_text("if False:\n    import keras\n")
    settings = ScriptSettings(script=str(script), processes_per_node=processes)
    run_script(settings, tmp_path / "data", str(tmp_path / "out"))
    assert ("each of 2 processes trains by itself" in capsys.readouterr().out) == warned


@pytest.mark.parametrize("script", ["-m trainer.task", "trainer/task.py"])
@pytest.mark.parametrize("place", ["archive", "folder", "uri"])
def test_code_comes_from_a_folder_or_an_archive(tmp_path: Path, script: str, place: str) -> None:
    files = {"trainer/__init__.py": "", "trainer/names.py": "NAME = 'mine'\n"}
    task = "import os\nfrom trainer.names import NAME\nopen(os.environ['AIP_CHECKPOINT_DIR'] + NAME, 'w')\n"
    code = tmp_path / "code.tar.gz"
    archive(code, **files, **{"trainer/task.py": task})
    if place == "folder":
        code = tmp_path / "code"
        with tarfile.open(tmp_path / "code.tar.gz") as file:
            file.extractall(code, filter="data")
    given = f"file://{code}" if place == "uri" else str(code)
    run(tmp_path, "", script=script, code=given)
    assert (tmp_path / "out" / "mine").exists()


@pytest.mark.parametrize(("script", "folder"), [("-m trainer.task", "trainer-0.1"), ("trainer/task.py", "trainer")])
def test_an_archive_may_have_all_in_one_folder(tmp_path: Path, script: str, folder: str) -> None:
    # As an sdist has it, and what tar makes of a folder.
    task = "import os\nfrom trainer.names import NAME\nopen(os.environ['AIP_CHECKPOINT_DIR'] + NAME, 'w')\n"
    files = {"trainer/__init__.py": "", "trainer/names.py": "NAME = 'mine'\n", "trainer/task.py": task, "setup.py": ""}
    archive(tmp_path / "code.tar.gz", **{f"{folder}/{name}": text for name, text in files.items()})
    run(tmp_path, "", script=script, code=str(tmp_path / "code.tar.gz"))
    assert (tmp_path / "out" / "mine").exists()


def test_an_archive_that_would_write_elsewhere_is_refused(tmp_path: Path) -> None:
    archive(tmp_path / "code.tar.gz", **{"../escaped.py": "x = 1\n"})
    with pytest.raises(UserError, match="cannot be unpacked"):
        run(tmp_path, "", script="escaped.py", code=str(tmp_path / "code.tar.gz"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"script": ""}, "script is empty"),
        ({"script": "train.sh"}, "give a .py file"),
        ({"script": "torchrun --nproc-per-node 2 train.py"}, "give the .py file alone"),
        ({"script": "train.py --epochs 3"}, "what follows it as arguments"),
        ({"script": "-c print"}, "a module is given as -m package.module"),
        ({"script": "-m a.b --flag"}, "a module is given as -m package.module"),
        ({"script": "missing.py"}, "There is no script"),
        ({"script": "memory://missing/a.py"}, "There is nothing at memory://missing/a.py"),
        ({"code": "missing.tar.gz", "script": "a.py"}, "There is no code at missing.tar.gz"),
        ({"launcher": "torchrum"}, "Did you mean 'torchrun'?"),
        ({"processes_per_node": -1}, "processes_per_node is -1"),
        ({"launcher": "tensorflow", "processes_per_node": 2}, "tensorflow has one process per node"),
        ({"environment": {"A B": "1"}}, "which is not the name of a variable"),
        ({"environment": {"WORLD_SIZE": "1"}}, "environment has WORLD_SIZE, which the step sets itself"),
        ({"arguments": [["nested"]]}, "give texts and numbers"),
        ({"arguments": ["--name=a b", "--rate 0.1 --steps 3"]}, "'--rate 0.1 --steps 3' as one word"),
    ],
)
def test_a_wrong_request_is_refused(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        run(tmp_path, "", **settings)
    assert message in str(caught.value)


def test_tf_config_is_made_of_the_cluster() -> None:
    addresses = ("a:2222", "b:2222", "c:2222")
    made = tf_config(Cluster(3, 2, addresses, "a", 2222))
    assert json.loads(made["TF_CONFIG"]) == {
        "cluster": {"chief": ["a:2222"], "worker": ["b:2222", "c:2222"]},
        "task": {"type": "worker", "index": 1},
    }
    assert tf_config(Cluster()) == {}
    with pytest.raises(UserError, match="address of every node"):
        tf_config(Cluster(2, 0, (), "a", 2222))


@pytest.mark.slow
def test_on_two_nodes_tensorflow_is_told_the_cluster_and_only_rank_0_reports(tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text(RUN)
    (tmp_path / "shows.py").write_text("import os\nprint('TF_CONFIG is', os.environ['TF_CONFIG'])\n")
    with two_machines(tmp_path) as network:
        nodes = [
            network.start(
                machine,
                ["run.py", "shows.py", "tensorflow"],
                {"TF_CONFIG": json.dumps({
                    "cluster": {"worker": [f"{address}:2222" for address in ADDRESSES]},
                    "task": {"type": "worker", "index": machine},
                })},
            )
            for machine in (0, 1)
        ]  # fmt: skip
        assert [node.wait(60) for node in nodes] == [0, 0], nodes[0].output + nodes[1].output
    for node, kind in zip(nodes, ("chief", "worker"), strict=True):
        shown = json.loads(re.search(r"TF_CONFIG is (.*)", node.output)[1])  # type: ignore[index]
        assert shown["cluster"] == {"chief": [f"{ADDRESSES[0]}:2222"], "worker": [f"{ADDRESSES[1]}:2222"]}
        assert shown["task"] == {"type": kind, "index": 0}
    assert "nothing to report" not in nodes[0].output
    assert "nothing to report" in nodes[1].output


def test_horovod_is_run_on_one_node_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="Horovod on 2 nodes"):
        horovodrun(4, Cluster(2, 0, (), "a"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="horovodrun is not installed"):
        horovodrun(4, Cluster())
    (tmp_path / "horovodrun").write_text("#!/bin/sh\n")
    (tmp_path / "horovodrun").chmod(0o755)
    assert horovodrun(4, Cluster())[1:] == ["-np", "4", "-H", "localhost:4"]


def examples() -> dict[str, str]:
    """The Python examples of the document, by the file name in their first line."""
    blocks = re.findall(r"```python\n# (\S+)\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    return dict(blocks)


@pytest.mark.slow
def test_the_examples_run_as_a_pipeline_and_their_checkpoints_are_evaluated(tmp_path: Path) -> None:
    written = examples()
    assert set(written) == {"train.py", "my_pipeline.py", "train_tf.py"}
    for name, text in written.items():
        (tmp_path / name).write_text(text)
        compile(text, name, "exec")
    write_photos(tmp_path / "photos")
    done = subprocess.run(
        [sys.executable, "my_pipeline.py", "photos"], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    directory = next((tmp_path / "runs").glob("**/training.json")).parent
    assert [checkpoint.info.step for checkpoint in complete_checkpoints(directory)] == [20, 40]
    assert [entry["step"] for entry in read_metrics(directory / "metrics.jsonl")] == list(range(1, 41))
    evaluation = json.loads(next((tmp_path / "runs").glob("**/evaluation.json")).read_text())
    assert evaluation["passed"] is True


SHARDED = """
import os
from pathlib import Path
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.fsdp import fully_shard
from transformers import BertConfig, BertForSequenceClassification
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
model = BertForSequenceClassification(BertConfig(vocab_size=64, **sizes))
before = {name: value.clone() for name, value in model.state_dict().items()}
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, weight_decay=0.0)
model(torch.ones(1, 4, dtype=torch.long), labels=torch.ones(1, dtype=torch.long)).loss.backward()
optimizer.step()
folder = Path(os.environ["GPU_PIPELINES_CHECKPOINTS"]) / "step-1"
"""
COMPARES = """
if rank == 0:
    saved = BertForSequenceClassification.from_pretrained(folder).state_dict()
    assert all(torch.equal(saved[name], value) for name, value in before.items())
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_a_sharded_model_is_saved_whole_beside_its_shards(tmp_path: Path) -> None:
    (saves,) = re.findall(r"## FSDP\n.*?```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    run(tmp_path, SHARDED + saves + COMPARES, launcher="torchrun", processes_per_node=2)
    assert models_in(tmp_path / "out") == [(tmp_path / "out/step-1", 1)]
    assert (tmp_path / "out/step-1/dcp/.metadata").is_file()
