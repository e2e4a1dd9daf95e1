"""A pipeline of somebody's on this machine: run by the installed command, in real processes."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from command_line import command
from conftest import GPU_PIPELINES, gpu_pipelines, newest_run
from processes import InTerminal

from gpu_pipelines.distributed.signals import adopt_orphans
from gpu_pipelines.emulator.running.pipelines import _end_what_it_leaves as end_on_emulator
from gpu_pipelines.targets.local.runner.step_process import ReadToItsEnd

MINE = Path(__file__).with_name("mine.py")


@pytest.mark.slow
def test_steps_of_ones_own_run_among_those_of_this_project(tmp_path: Path) -> None:
    given = ("task=regression", "model=mlp-small", "source=sample:diabetes", "gates=r2>=-100", "steps=2")
    request = ("run", f"{MINE}:mine", "--accelerator", "cpu:1", *(part for each in given for part in ("-p", each)))
    done = gpu_pipelines(*request, cwd=tmp_path)
    assert done.status == 0, done.out + done.err
    assert "count: counting" in done.out
    assert "Output: 6" in done.out
    assert "registered digits version 1 as challenger and champion" in done.out
    record = newest_run(tmp_path)
    assert {step["name"] for step in record["steps"]} == {
        "count",
        "prepare-data",
        "train-model",
        "evaluate-checkpoints",
        "upload-model",
        "shrink",
    }
    assert record["outputs"] == {"Output": 6}
    assert list(record["directory"].glob("artifacts/checkpoints/*/train-model/step-00000002"))
    page = (record["directory"] / "report.html").read_text()
    for part in ("digits version 1 is the champion", "<h2>Training</h2>", "<h2>Data</h2>", "<h2>Outputs</h2>"):
        assert part in page
    again = gpu_pipelines(*request, "--cache", cwd=tmp_path)
    assert again.status == 0, again.out + again.err
    statuses = {step["name"]: step["status"] for step in newest_run(tmp_path)["steps"]}
    assert statuses["prepare-data"] == statuses["train-model"] == statuses["count"] == "reused"
    assert statuses["evaluate-checkpoints"] == "succeeded", "the champion may be another one"


STAGES = """
from kfp import dsl
from gpu_pipelines.components import prepare_data, train_model


@dsl.pipeline(name="stages")
def stages(steps: int = 400):
    dataset = prepare_data(source="sample:digits").outputs["dataset"]
    first = train_model(dataset=dataset, max_steps=1)
    train_model(dataset=dataset, max_steps=steps, seed=1, checkpoint_every_steps=2).after(first)
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_an_interrupted_run_continues_its_training_and_has_the_steps_before(
    number: signal.Signals, tmp_path: Path
) -> None:
    (tmp_path / "stages.py").write_text(STAGES)
    request = ("run", "stages.py", "--accelerator", "cpu:1")
    with subprocess.Popen([str(GPU_PIPELINES), *request], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as first:
        while not list(tmp_path.glob("runs/*/artifacts/checkpoints/*/train-model-2/step-*/checkpoint.json")):
            assert first.poll() is None
            time.sleep(0.1)
        (page,) = tmp_path.glob("runs/*/report.html")
        while not re.search(r"<h2>train-model-2</h2>\s*<p>step [0-9]+ of 400</p>", page.read_text()):
            assert first.poll() is None, page.read_text()
            time.sleep(0.1)
        first.send_signal(number)
        # Whoever was killed leaves a step that has the other end of stdout.
        first.wait(timeout=60)
    killed = newest_run(tmp_path)
    assert killed["status"] == ("interrupted" if number == signal.SIGTERM else "running")
    second = subprocess.Popen(
        [str(GPU_PIPELINES), *request, "--resume"], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    with second:
        assert second.stdout
        lines = []
        for line in second.stdout:
            lines.append(line)
            if line.startswith("train-model-2: step"):
                break
        second.terminate()
        second.communicate(timeout=60)
    assert "train-model-2: continuing from step-" in "".join(lines), "".join(lines)
    statuses = {step["name"]: step["status"] for step in newest_run(tmp_path)["steps"]}
    assert statuses == {"prepare-data": "reused", "train-model": "reused", "train-model-2": "interrupted"}
    assert not list(newest_run(tmp_path)["directory"].glob("artifacts/checkpoints/*")), "it has those of the first"
    refused = command("run", "stages.py", "-p", "steps=401", "--resume", cwd=tmp_path)
    assert "no run of stages with these parameters that was interrupted or failed" in refused.err


METRICS = """
from kfp import dsl
from kfp.dsl import Dataset, Input, Metrics, Output


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def make(text: str, made: Output[Dataset], metrics: Output[Metrics]):
    open(made.path, "w").write(text)
    metrics.log_metric("length", len(text))


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def slow(made: Input[Dataset], seconds: float = 0.0) -> int:
    import time

    print("slow begins", flush=True)
    # Whoever waits for its lines acts on a signal with the next one, if it came just before the wait.
    for _ in range(int(10 * seconds)):
        time.sleep(0.1)
        print("slow goes on", flush=True)
    return len(open(made.path).read())


@dsl.pipeline(name="measured")
def measured(seconds: float = 0.0) -> int:
    return slow(made=make(text="text").outputs["made"], seconds=seconds).output
"""


def test_a_step_that_has_written_no_file_for_its_metrics_is_reused_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "measured.py").write_text(METRICS)
    for expected in ("succeeded", "reused"):
        done = gpu_pipelines("run", "measured.py", "--cache", cwd=tmp_path)
        assert done.status == 0, done.out + done.err
        record = newest_run(tmp_path)
        assert {step["name"]: step["status"] for step in record["steps"]} == {"make": expected, "slow": expected}
        assert record["metrics"]["length"] == 4


MEASURED = """
from kfp import dsl


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def measure(metrics: dsl.Output[dsl.Metrics]):
    from fractions import Fraction

    metrics.log_metric("loss", VALUE)


@dsl.pipeline(name="measured")
def measured():
    measure()
"""


def test_a_metric_that_json_cannot_hold_fails_its_step_and_is_no_traceback_of_the_run(tmp_path: Path) -> None:
    (tmp_path / "measured.py").write_text(MEASURED.replace("VALUE", "Fraction(1, 2)"))
    done = gpu_pipelines("run", "measured.py", cwd=tmp_path)
    assert done.status == 1
    assert "measure failed" in done.err
    assert "Object of type Fraction is not JSON serializable" in done.err
    assert newest_run(tmp_path)["status"] == "failed"


def test_a_metric_that_is_a_text_is_shown_with_the_others(tmp_path: Path) -> None:
    (tmp_path / "measured.py").write_text(MEASURED.replace("VALUE", '0.5)\n    metrics.log_metric("kind", "huber"'))
    assert command("run", "measured.py", cwd=tmp_path).status == 0
    shown = command("runs", "show", "latest", cwd=tmp_path).out
    assert re.search(r"^loss +0\.5\d*\nkind +huber$", shown, re.MULTILINE), shown


@pytest.mark.parametrize("where", [(), pytest.param(("--target", "vertex", "--emulate"), marks=pytest.mark.slow)])
def test_a_metric_that_no_platform_reads_fails_its_step(where: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "measured.py").write_text(MEASURED.replace("VALUE", 'float("nan")'))
    done = gpu_pipelines("run", "measured.py", *where, cwd=tmp_path)
    assert done.status == 1
    assert "measure failed" in done.err
    assert "An output or a metric is NaN" in done.err


@pytest.mark.slow_but_for("9")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_an_interrupted_run_without_a_training_is_continued_as_it_says(number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "measured.py").write_text(METRICS)
    request = ("run", "measured.py", "-p", "seconds=3")
    refused = command(*request, "--resume", cwd=tmp_path)
    assert "no run of measured with these parameters that was interrupted or failed" in refused.err
    with subprocess.Popen(
        [str(GPU_PIPELINES), *request], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as first:
        assert first.stdout
        assert any(line.startswith("slow: slow begins") for line in first.stdout)
        first.send_signal(number)
        _, err = first.communicate(timeout=60)
    assert ("run the same command with --resume to continue" in err) == (number == signal.SIGINT)
    interrupted = newest_run(tmp_path)["run_id"]
    done = gpu_pipelines(*request, "--resume", cwd=tmp_path)
    assert done.status == 0, done.out + done.err
    record = newest_run(tmp_path)
    assert {step["name"]: step["status"] for step in record["steps"]} == {"make": "reused", "slow": "succeeded"}
    assert record["resumes"] == interrupted


def test_a_run_whose_terminal_is_closed_is_interrupted_and_leaves_no_process(tmp_path: Path) -> None:
    (tmp_path / "measured.py").write_text(METRICS)
    started = InTerminal([str(GPU_PIPELINES), "run", "measured.py", "-p", "seconds=60"], tmp_path)
    started.await_file("runs/*/logs/slow.log", "slow begins", tmp_path)
    below = psutil.Process(started.process.pid).children(recursive=True)
    started.close()
    assert started.process.wait(30) == 130
    assert below
    assert not [process for process in below if process.is_running()]
    record = newest_run(tmp_path)
    assert (record["status"], record["steps"][-1]["status"]) == ("interrupted", "interrupted")


@pytest.mark.slow
def test_the_turns_of_a_loop_have_logs_and_checkpoints_of_their_own(tmp_path: Path) -> None:
    done = gpu_pipelines("run", f"{MINE}:seeds", "--accelerator", "cpu:1", "-p", "numbers=3,4", cwd=tmp_path)
    assert done.status == 0, done.out + done.err
    record = newest_run(tmp_path)
    assert {step["name"] for step in record["steps"]} == {"prepare-data", "train-model", "train-model #2"}
    logs = [(record["directory"] / step["log"]).read_text() for step in record["steps"]]
    assert all("[KFP Executor" in log for log in logs)
    settings = [json.loads(path.read_text())["settings"] for path in tmp_path.rglob("training.json")]
    assert sorted(each["seed"] for each in settings) == [3, 4]


def test_a_container_component_runs_as_a_process_where_that_is_asked_for(tmp_path: Path) -> None:
    done = gpu_pipelines("run", f"{MINE}:telling", "--no-containers", "-p", "text=two words; $(x)", cwd=tmp_path)
    assert done.status == 0, done.out + done.err
    assert newest_run(tmp_path)["outputs"] == {"Output": "two words; $(x)"}


STEPS = """from kfp import dsl
from gpu_pipelines.components import prepare_data
@dsl.pipeline
def wrong(source: str = "photos"):
    done = prepare_data(source=source)
    {}
"""


@pytest.mark.parametrize(
    ("text", "arguments", "messages"),
    [
        (None, (), ["has 3 pipelines", "mine.py:mine", "mine.py:telling"]),
        (None, (":nine",), ["has no pipeline 'nine'", "Did you mean 'mine'"]),
        ("import nothing_of_that_name", (), ["line 1: ModuleNotFoundError", "nothing_of_that_name"]),
        ("def a(:\n  pass", (), ["cannot be imported: line 1"]),
        ("x = 1", (), ["has no pipeline", "@dsl.pipeline"]),
        ("import sys\nsys.exit(3)", (), ["line 2: SystemExit: 3"]),
        ("from gpu_pipelines.components import prepare_dat", (), ["prepare_dat", "Did you mean 'prepare_data'?"]),
        (STEPS.format("prepare_data(taks='a')"), (), ["line 6: TypeError", '"taks"', "Did you mean 'task'?"]),
        (
            STEPS.format("done.outputs['data']"),
            (),
            ["line 6: KeyError", "The outputs of prepare-data: dataset, report"],
        ),
        (
            STEPS.format("prepare_data(source=done)"),
            (),
            ["line 6: ValueError", "such as task.outputs['dataset']. The outputs of prepare-data: dataset, report"],
        ),
        (STEPS.format("prepare_data(source=done.output)"), (), ["line 6: AttributeError", "The outputs of prepare-"]),
        (
            "from kfp import dsl\n@dsl.component\ndef end(state: dsl.PipelineTaskFinalStatus):\n    pass\n"
            "@dsl.pipeline\ndef wrong():\n    end(state={})\n",
            (),
            ["line 7: TypeError", "KFP itself fills in state, the state of the run: leave it out."],
        ),
        (STEPS.format("{}['data']"), (), ["line 6: KeyError: 'data'", "python", "says more"]),
        (STEPS.format("source or 'photos'"), (), ["wrong.py, line 6: `if`, `and`, `or`", "with dsl.If("]),
        (STEPS.format("1 if source == 'x' else 2"), (), ["wrong.py, line 6: `if`", "with dsl.If("]),
    ],
)
def test_a_file_that_is_no_pipeline_is_refused_with_its_line(
    tmp_path: Path, text: str | None, arguments: tuple[str, ...], messages: list[str]
) -> None:
    file = MINE
    if text is not None:
        file = tmp_path / "wrong.py"
        file.write_text(text)
    done = command("run", f"{file}{''.join(arguments)}", cwd=tmp_path)
    assert done.status == 2
    for message in messages:
        assert message in done.err
    assert "Traceback" not in done.err


POSTPONED = """
from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NamedTuple

from kfp import dsl
from kfp.dsl import Dataset, Input, Output

if TYPE_CHECKING:
    from pathlib import Path


@functools.cache
def at(place: Path) -> Path:
    return place


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def write(text: str, out: Output[Dataset]) -> None:
    open(out.path, "w").write(text)


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def read(written: Input[Dataset], times: int = 2) -> NamedTuple("Outputs", [("text", str), ("length", int)]):
    text = open(written.path).read() * times
    return text, len(text)


@dsl.pipeline(name="postponed")
def postponed(text: str = "ab") -> int:
    return read(written=write(text=text).outputs["out"]).outputs["length"]


@dsl.pipeline(name="nothing")
def nothing(text: str = "ab") -> None:
    write(text=text)
"""


def test_a_file_whose_annotations_are_postponed_is_a_pipeline_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "postponed.py").write_text(POSTPONED)
    done = gpu_pipelines("run", "postponed.py:postponed", cwd=tmp_path)
    assert done.status == 0, done.out + done.err
    assert newest_run(tmp_path)["outputs"] == {"Output": 4}
    done = command("compile", "postponed.py:nothing", "-o", "out.yaml", cwd=tmp_path)
    assert done.status == 0, done.err
    (tmp_path / "wrong.py").write_text(POSTPONED.replace("Input[Dataset]", "Input[Data]"))
    done = command("run", "wrong.py:postponed", cwd=tmp_path)
    assert done.status == 2
    assert "An annotation of read is not a type: name 'Data' is not defined" in done.err
    assert "import it before, and not under TYPE_CHECKING" in done.err


def test_what_cannot_run_here_is_said_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "needs.py").write_text(
        "from kfp import dsl\n"
        "@dsl.component(packages_to_install=['no-such-package>=2', 'numpy'])\n"
        "def a() -> None:\n    pass\n"
        "@dsl.component(packages_to_install=['numpy<1'])\n"
        "def b() -> None:\n    pass\n"
        "@dsl.container_component\n"
        "def c():\n    return dsl.ContainerSpec(image='busybox', command=['true'])\n"
        "@dsl.container_component\n"
        "def d():\n    return dsl.ContainerSpec('gcpc', ['google_cloud_pipeline_components.container.v1.bigquery'])\n"
        "@dsl.component\n"
        "def e() -> None:\n    from gpu_pipelines.data.settings import PrepareSettings\n\n"
        "    from gpu_pipelines.data.gone import one\n    from gpu_pipelines.gone.two import two\n"
        "@dsl.pipeline\n"
        "def needs():\n    a()\n    b()\n    c()\n    d()\n    e()\n"
    )
    done = command("run", "needs.py", cwd=tmp_path, environment={"PATH": str(tmp_path)})
    assert done.status == 2
    for message in (
        "a needs no-such-package>=2, which is not installed here",
        "b needs numpy<1, which is not installed here",
        "c runs in the container busybox, and there is neither docker nor podman here",
        "d is a component of Google's, which this machine starts only in a rehearsal: --target vertex --emulate. To "
        "run the other steps here, run a pipeline without it.",
        "e was compiled by another version of gpu-pipelines: it imports gpu_pipelines.data.gone, which this version",
        "it imports gpu_pipelines.gone.two, which this version does not have. Compile the pipeline again, or install",
    ):
        assert message in done.err
    assert "data.settings" not in done.err
    (tmp_path / "docker").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "docker").chmod(0o755)
    done = command("run", "needs.py", cwd=tmp_path, environment={"PATH": str(tmp_path)})
    assert "docker cannot be reached. Start it" in done.err
    assert not (tmp_path / "runs").exists()


def test_a_training_script_that_is_missing_is_said_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "scripted.py").write_text(
        "from kfp import dsl\n"
        "from gpu_pipelines.components import prepare_data, run_training_script\n"
        "@dsl.pipeline\n"
        "def scripted(script: str = 'trian.py', elsewhere: str = '/opt/train.py'):\n"
        "    data = prepare_data(source='sample:digits').outputs['dataset']\n"
        "    run_training_script(dataset=data, script=script)\n"
        "    run_training_script(dataset=data, script=elsewhere)\n"
    )
    done = command("run", "scripted.py", "--dry-run", cwd=tmp_path)
    assert (done.status, done.err.strip()) == (2, "error: There is no script trian.py.")
    (tmp_path / "train.py").touch()
    assert command("run", "scripted.py", "-p", "script=train.py", "--dry-run", cwd=tmp_path).status == 0


def test_a_package_that_cannot_be_looked_for_is_named(tmp_path: Path) -> None:
    address = "git+https://git.example/own.git"
    (tmp_path / "needs.py").write_text(
        "from kfp import dsl\n"
        f"@dsl.component(packages_to_install=['{address}', 'numpy'], pip_index_urls=['https://index.example/simple'])\n"
        "def a() -> None:\n    pass\n"
        "@dsl.pipeline\n"
        "def needs():\n    a()\n"
    )
    done = command("run", "needs.py", "--dry-run", cwd=tmp_path)
    assert done.status == 0, done.err
    (note,) = [line for line in done.err.splitlines() if line.startswith("note: ")]
    assert note.startswith(f"note: a would install {address}, which has no name to search for")


def test_a_file_that_cannot_be_imported_is_named_in_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "my file.py").write_text("from kfp import dsl\n\n1 / 0\n")
    done = command("run", "my file.py", cwd=tmp_path)
    assert "my file.py cannot be imported: line 3: ZeroDivisionError: division by zero." in done.err
    assert "Fix it: python 'my file.py' says more." in done.err


ON_A_CLUSTER = """
from kfp import dsl, kubernetes


@dsl.component(base_image="python:3.11")
def read() -> str:
    import os
    from pathlib import Path

    return os.environ["TOKEN"] + Path(os.environ["CLAIM"], "word").read_text()


@dsl.pipeline(name="on-a-cluster")
def on_a_cluster() -> str:
    step = read()
    kubernetes.use_secret_as_env(step, "keys", {"token": "TOKEN"})
    kubernetes.use_secret_as_env(step, "more-keys", {"token": "OTHER_TOKEN"}, optional=True)
    kubernetes.use_config_map_as_env(step, "places", {"claim": "CLAIM"})
    kubernetes.use_field_path_as_env(step, "POD", "metadata.name")
    kubernetes.mount_pvc(step, "words", "FOLDER")
    kubernetes.empty_dir_mount(step, "shared", "/dev/shm", "Memory", "1Gi")
    return step.output


@dsl.pipeline(name="with-a-claim")
def with_a_claim():
    claim = kubernetes.CreatePVC(pvc_name="words", access_modes=["ReadWriteOnce"], size="1Gi")
    read().after(claim)
"""


def test_what_a_cluster_gives_a_step_has_to_be_here(tmp_path: Path) -> None:
    """A secret was not there in the middle of the run, and a claim was a container that no engine finds."""
    claim = tmp_path / "claim"
    (tmp_path / "own.py").write_text(ON_A_CLUSTER.replace("FOLDER", str(claim)))
    done = command("run", "own.py:on_a_cluster", cwd=tmp_path)
    assert done.status == 2
    for message in (
        "read has the variable TOKEN of the secret keys on Kubernetes, which is not here. Set it: export TOKEN=…",
        "read has the variable CLAIM of the ConfigMap places on Kubernetes",
        "read has the variable POD of the pod's field metadata.name on Kubernetes",
        f"read has the volume claim words at {claim} on Kubernetes, which is not here. Make the folder",
    ):
        assert message in done.err
    assert "OTHER_TOKEN" not in done.err
    assert "/dev/shm" not in done.err
    claim.mkdir()
    (claim / "word").write_text("b")
    there = {"TOKEN": "a", "CLAIM": str(claim), "POD": "c"}
    done = command("run", "own.py:on_a_cluster", cwd=tmp_path, environment=there)
    assert done.status == 0, done.err
    assert newest_run(tmp_path)["outputs"] == {"Output": "ab"}
    done = command("run", "own.py:with_a_claim", cwd=tmp_path)
    assert done.status == 2
    assert "createpvc makes or deletes a volume claim, and no Kubernetes is here." in done.err


TRAINS_ON_A_CLUSTER = """
from kfp import dsl, kubernetes

from gpu_pipelines.components import accelerate, prepare_data, train_model


@dsl.pipeline(name="trains-on-a-cluster")
def trains_on_a_cluster():
    prepared = prepare_data(source="sample:digits")
    trained = accelerate(train_model(dataset=prepared.outputs["dataset"]), "l4:1")
    kubernetes.use_secret_as_env(trained, "keys", {"token": "OF_A_TRACKER"})
    kubernetes.mount_pvc(prepared, "photos", "/of/a/cluster")
"""


def test_what_a_cluster_gives_steps_of_this_project_is_noted(tmp_path: Path) -> None:
    """They have other means, such as the token of a login; a file for a cluster failed at its training."""
    (tmp_path / "own.py").write_text(TRAINS_ON_A_CLUSTER)
    done = command("run", "own.py", "--dry-run", cwd=tmp_path)
    assert (done.status, done.err.count("note: ")) == (0, 2)
    assert "note: train-model has the variable OF_A_TRACKER of the secret keys on Kubernetes, which is not" in done.err
    assert "note: prepare-data has the volume claim photos at /of/a/cluster on Kubernetes, which is not" in done.err
    elsewhere = command("run", "own.py", "--target", "compute_engine", "--accelerator", "l4:1", cwd=tmp_path)
    assert elsewhere.status == 2
    assert "Only Kubernetes has the volume claim photos at /of/a/cluster (prepare-data), the var" in elsewhere.err
    assert command("compile", "own.py", "--target", "kubeflow", "-o", "own.yaml", cwd=tmp_path).status == 0
    done = command("run", "own.yaml", cwd=tmp_path)
    assert (done.status, done.err.count("was compiled for --target kubeflow")) == (2, 1)


IN_A_POOL = """
from kfp import dsl, kubernetes
from kfp.dsl import Artifact, Output


@dsl.component(base_image="python:3.11")
def train(out: Output[Artifact]):
    from pathlib import Path

    artifacts = next(folder for folder in Path(out.path).absolute().parents if folder.name == "artifacts")
    (artifacts / "checkpoints").mkdir(exist_ok=True)
    (artifacts / "checkpoints" / "events.out.tfevents.1").write_text("")


@dsl.pipeline(name="in-a-pool")
def in_a_pool(steps: int = 1):
    SELECTOR
"""


@pytest.mark.parametrize(
    ("step", "target"), [("train()", "vertex"), ('kubernetes.add_node_selector(train(), "pool", "gpu")', "kubeflow")]
)
def test_the_next_command_names_a_target_that_takes_the_pipeline(tmp_path: Path, step: str, target: str) -> None:
    (tmp_path / "own.py").write_text(IN_A_POOL.replace("SELECTOR", step))
    done = command("run", "own.py", "-p", "steps=2", cwd=tmp_path)
    assert done.status == 0, done.err
    last = done.out.splitlines()[-1].strip()
    assert last == f"gpu-pipelines run own.py -p steps=2 --target {target} --accelerator l4:1"


def test_parameters_are_checked_by_their_types_and_by_the_components_that_take_them(tmp_path: Path) -> None:
    done = command("run", f"{MINE}:mine", "-p", "steps=many", "-p", "txet=a", cwd=tmp_path)
    assert "steps takes a whole number (at most 2^53); got 'many'." in done.err
    assert "There is no parameter 'txet'. Did you mean 'text'?" in done.err
    done = command("run", f"{MINE}:mine", "-p", "source=sample:digit", "-p", "steps=-1", cwd=tmp_path)
    assert done.status == 2
    assert "prepare-data: There is no 'sample:digit'" in done.err
    assert "train-model: max_steps is -1" in done.err


def test_what_lists_hold_is_checked_before_a_run(tmp_path: Path) -> None:
    (tmp_path / "lists.py").write_text(
        "from typing import List, Optional\n"
        "from kfp import dsl\n"
        "@dsl.component(base_image='python:3.11')\n"
        "def add(sizes: List[int], rates: List[float], names: List[str]) -> float:\n"
        "    return sum(sizes) + sum(rates) + len(names)\n"
        "@dsl.pipeline\n"
        "def lists(sizes: List[int] = [1], rates: Optional[list[float]] = [0.5], names: List[str] = []) -> float:\n"
        "    return add(sizes=sizes, rates=rates, names=names).output\n"
    )
    done = command("run", "lists.py", "-p", 'sizes=[1, "a"]', "-p", "rates=low", "-p", "names=1", cwd=tmp_path)
    assert done.status == 2
    assert 'sizes takes a list of whole numbers; "a" is none.' in done.err
    assert 'rates takes a list of numbers; "low" is none.' in done.err
    assert "names" not in done.err
    done = command("run", "lists.py", "-p", "sizes=1,2", "-p", "rates=1,1e-1", "-p", "names=a,b", cwd=tmp_path)
    assert done.status == 0, done.err
    assert newest_run(tmp_path)["outputs"] == {"Output": 6.1}


READING = """
from kfp import dsl

from gpu_pipelines.components import prepare_data


@dsl.component(base_image="python:3.11")
def write(path: str):
    pass


@dsl.pipeline(name="reading")
def reading(source: str, advanced: dict = {}):
    prepare_data(source=source, task="text_classification", advanced=advanced)
    prepare_data(source="made.csv", task="text_classification").after(write(path="made.csv"))
"""


def test_data_is_looked_at_before_the_run_unless_a_step_may_make_it(tmp_path: Path) -> None:
    (tmp_path / "reading.py").write_text(READING)
    (tmp_path / "rows.csv").write_text("body,label\none,a\ntwo,b\n")
    for advanced, message in (
        ("{}", "The source rows.csv has no column 'text'; it has body, label."),
        ('{"text_colum": "body"}', "prepare-data: advanced has a field 'text_colum'. Did you mean 'text_column'?"),
        ('{"text_column": "body"}', ""),
    ):
        words = ("-p", "source=rows.csv", "-p", f"advanced={advanced}", "--dry-run")
        done = command("run", "reading.py", *words, cwd=tmp_path)
        assert (done.status, message in done.err) == (2 if message else 0, True), done.err
    done = command("run", "reading.py", "-p", "source=.", "--dry-run", cwd=tmp_path)
    assert "Runs write to runs, which lies in the data ." in done.err


UPLOADING = """
from kfp import dsl

from gpu_pipelines.components import evaluate_checkpoints, prepare_data, train_model, upload_model


@dsl.pipeline(name="uploading")
def uploading(registry: str):
    data = prepare_data(source="sample:digits")
    training = train_model(dataset=data.outputs["dataset"])
    evaluation = evaluate_checkpoints(
        dataset=data.outputs["dataset"], checkpoints=training.outputs["checkpoints"], registry=registry, model_name="m"
    )
    best, passed = evaluation.outputs["best_checkpoint"], evaluation.outputs["passed"]
    upload_model(best_checkpoint=best, passed=passed, registry=registry, model_name="m")
"""


@pytest.mark.parametrize("registry", ["mlflow:http://127.0.0.1:9", "/dev/null/registry"])
def test_a_registry_is_looked_at_before_the_run(registry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    (tmp_path / "uploading.py").write_text(UPLOADING)
    done = command("run", "uploading.py", "-p", f"registry={registry}", cwd=tmp_path)
    assert done.status == 2
    assert registry in done.err
    assert not (tmp_path / "runs").exists()


def test_the_cloud_is_not_looked_at_where_an_emulator_takes_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    (tmp_path / "uploading.py").write_text(UPLOADING)
    wanted = ("--target", "vertex", "--emulate", "--accelerator", "l4:1", "--dry-run")
    done = command("run", "uploading.py", *wanted, "-p", "registry=vertex://", cwd=tmp_path)
    assert done.status == 0, done.err


def test_a_dry_run_shows_the_steps_and_values_of_any_type(tmp_path: Path) -> None:
    done = command("run", f"{MINE}:seeds", "--dry-run", "-p", 'numbers=[1, "b"]', cwd=tmp_path)
    assert done.status == 0, done.err
    assert "prepare-data → train-model" in done.out
    assert '[1, "b"]' in done.out
    done = command("run", f"{MINE}:seeds", "--dry-run", "--json", "-p", 'numbers=[1, "b"]', cwd=tmp_path)
    said = json.loads(done.out)
    assert (said["pipeline"], list(said["steps"])) == ("seeds", ["prepare-data", "train-model"])
    assert said["parameters"]["numbers"] == [1, "b"]


LISTS = """
from kfp import dsl


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def same(folds: list) -> list:
    return folds


@dsl.pipeline(name="lists")
def lists(folds: list = [1, 2], rates: dict = {"a": 1, "b": 0.5}) -> list:
    return same(folds=folds).output
"""


def test_whole_numbers_in_lists_are_told_as_the_author_has_written_them(tmp_path: Path) -> None:
    (tmp_path / "lists.py").write_text(LISTS)
    done = gpu_pipelines("run", "lists.py", cwd=tmp_path)
    assert done.status == 0, done.err
    assert "Output: [1, 2]" in done.out
    told = json.dumps(newest_run(tmp_path)["parameters"])
    assert told == '{"folds": [1, 2], "rates": {"a": 1, "b": 0.5}}'


ELSEWHERE = """
from kfp import dsl
from kfp.dsl import Dataset, Input, Output


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def fill(text: str, place: str, filled: Output[Dataset]):
    with open(place, "w") as file:
        file.write(text)
    filled.uri = place


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def read(table: Input[Dataset]) -> str:
    return open(table.path).read()


@dsl.pipeline(name="imported")
def imported(table: str) -> str:
    return read(table=dsl.importer(artifact_uri=table, artifact_class=Dataset).output).output


@dsl.pipeline(name="filled")
def filled(text: str, table: str) -> str:
    return read(table=fill(text=text, place=table).outputs["filled"]).output
"""


def _read(folder: Path, pipeline: str, *parameters: str) -> tuple[str, set[str]]:
    assignments = [word for each in (f"table={folder / 'table.csv'}", *parameters) for word in ("-p", each)]
    done = gpu_pipelines("run", f"elsewhere.py:{pipeline}", *assignments, "--cache", cwd=folder)
    assert done.status == 0, done.out + done.err
    record = newest_run(folder)
    return record["outputs"]["Output"], {step["name"] for step in record["steps"] if step["status"] == "reused"}


def test_a_file_that_is_imported_is_read_again_once_it_has_changed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere.py").write_text(ELSEWHERE)
    # Of another program, and no run's.
    (tmp_path / "run.json").write_text("{}")
    for text, reused in (("two rows", set()), ("three rows", set()), ("three rows", {"read"})):
        if not reused:
            (tmp_path / "table.csv").write_text(text)
        assert _read(tmp_path, "imported") == (text, reused)


CLEANING = """
from kfp import dsl


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def breaks():
    raise RuntimeError("it is broken")


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def cleans(place: str):
    with open(place, "a+") as file:
        file.seek(0)
        tries = file.read()
        file.write("x")
    if not tries:
        raise RuntimeError("once more")


@dsl.pipeline
def cleaning(place: str):
    with dsl.ExitHandler(cleans(place=place).set_retry(2, backoff_duration="0s")):
        breaks()
"""


def test_an_attempt_after_which_a_step_succeeded_is_not_why_the_run_failed(tmp_path: Path) -> None:
    (tmp_path / "cleaning.py").write_text(CLEANING)
    done = command("run", "cleaning.py", "-p", f"place={tmp_path / 'tries'}", cwd=tmp_path)
    assert done.status == 1
    assert (tmp_path / "tries").read_text() == "xx"
    assert "error: breaks failed; its log ends:" in done.err
    assert "RuntimeError: it is broken" in done.err.partition("log: ")[0]


RETURNS_NOTHING = """
from kfp import dsl


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def forgets(number: int) -> int:
    pass


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def takes(number: int):
    pass


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def cleans(status: dsl.PipelineTaskFinalStatus, place: str):
    open(place, "w").write(status.state)


@dsl.pipeline
def forgetting(place: str):
    with dsl.ExitHandler(cleans(place=place)):
        takes(number=forgets(number=1).output)
"""


def test_an_exit_handler_runs_though_a_step_has_not_made_what_another_takes(tmp_path: Path) -> None:
    (tmp_path / "forgetting.py").write_text(RETURNS_NOTHING)
    done = command("run", "forgetting.py", "-p", f"place={tmp_path / 'state'}", cwd=tmp_path)
    assert done.status == 1
    assert "error: forgets has not given its output Output: a function that returns None" in done.err
    assert newest_run(tmp_path)["reason"].startswith("forgets has not given its output Output")
    assert (tmp_path / "state").read_text() == "FAILED"


def test_a_process_that_a_step_leaves_behind_ends_with_the_step_as_with_a_container(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    adopt_orphans()
    monkeypatch.setattr("gpu_pipelines.targets.local.runner.processes.SECONDS_AFTER_STEP", 0.01)
    monkeypatch.setattr("gpu_pipelines.emulator.running.pipelines.SECONDS_AFTER_STEP", 0.01)
    command = ["sh", "-c", "sleep 60 & echo started"]
    on_emulator = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True, text=True)
    end_on_emulator(on_emulator)
    began = time.monotonic()
    for step in (on_emulator, ReadToItsEnd(command, stdout=subprocess.PIPE)):
        assert step.communicate() == ("started\n", None)
        assert step.returncode == 0
    assert time.monotonic() - began < 30


# KFP's, also for steps that read the bucket.
@pytest.mark.filterwarnings("error:It looks like you're using the remote file")
def test_a_path_in_a_bucket_that_is_mounted_nowhere_is_told_as_such(tmp_path: Path) -> None:
    (tmp_path / "elsewhere.py").write_text(ELSEWHERE)
    done = gpu_pipelines("run", "elsewhere.py:imported", "-p", "table=gs://bucket/table.csv", cwd=tmp_path)
    assert done.status == 1
    assert "no bucket is mounted here: open the uri of the artifact, not its path" in done.err


def test_a_file_at_a_place_of_its_own_is_not_what_another_run_has_written_there(tmp_path: Path) -> None:
    (tmp_path / "elsewhere.py").write_text(ELSEWHERE)
    for text, reused in (("one", set()), ("two", set()), ("one", set()), ("one", {"fill", "read"})):
        assert _read(tmp_path, "filled", f"text={text}") == (text, reused)


WORKSPACE = """
from kfp import dsl


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def write(place: str):
    open(place + "/text", "w").write("written")


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def read(place: str) -> str:
    return open(place + "/text").read()


@dsl.pipeline(name="working", pipeline_config=dsl.PipelineConfig(workspace=dsl.WorkspaceConfig(size="1Gi")))
def working() -> str:
    written = write(place=dsl.WORKSPACE_PATH_PLACEHOLDER)
    return read(place=dsl.WORKSPACE_PATH_PLACEHOLDER).after(written).output
"""


def test_a_step_finds_the_workspace_of_the_run(tmp_path: Path) -> None:
    (tmp_path / "working.py").write_text(WORKSPACE)
    done = gpu_pipelines("run", "working.py", cwd=tmp_path)
    assert done.status == 0, done.out + done.err
    assert newest_run(tmp_path)["outputs"] == {"Output": "written"}
