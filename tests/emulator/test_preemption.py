"""Spot machines that are taken away: who is told what, who starts again, and that trainings end with the same bits."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from conftest import gpu_pipelines
from rehearsed_jobs import await_message, create, ended, pool
from safetensors import safe_open

from gpu_pipelines.data.prepare import prepare_data
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.emulator.jobs.preemption import PreemptionRule
from gpu_pipelines.emulator.start import EmulatorSettings, running_emulator
from gpu_pipelines.errors import UserError

if TYPE_CHECKING:
    from gpu_pipelines.emulator.certificates import Certificates
    from gpu_pipelines.emulator.vertex_api import VertexApi

SPOT = {"strategy": "SPOT"}
# What a handler says is written by the system: the signal may come while `print` still has the buffer.
WAITS = (
    "import os, signal, time; signal.signal(signal.SIGTERM, lambda *_: {told}); "
    "print('ready', flush=True); time.sleep({s})"
)
SAVES = WAITS.format(told="(os.write(1, b'saved\\n'), exit(0))", s=60)
HOLDS_ON = WAITS.format(told="os.write(1, b'deaf\\n')", s=60)
SHORT = WAITS.format(told="exit(0)", s=0.4)
PREEMPTED = "was preempted"


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("20s", PreemptionRule(20.0)),
        ("0.5s:3", PreemptionRule(0.5, times=3)),
        ("0.1", PreemptionRule(None, 0.1)),
        ("1:2", PreemptionRule(None, 1.0, 2)),
    ],
)
def test_what_a_rule_says(text: str, rule: PreemptionRule) -> None:
    assert PreemptionRule.of(text) == rule


@pytest.mark.parametrize("text", ["", "often", "2", "0", "0s", "-1s", "20s:0", "20s:", "1e-3"])
def test_a_rule_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="neither seconds nor a probability"):
        PreemptionRule.of(text)


def preempted_replicas(folder: Path, certificates: Certificates, rule: str, seed: int) -> list[str]:
    settings = EmulatorSettings(state=folder, certificates=certificates, preempt=rule, seed=seed)
    with running_emulator(settings) as emulator:
        emulator.state.replicas.grace_s = 0.1
        name = create(emulator, pool("sleep", "2"), pool("sleep", "60", count=9), scheduling=SPOT)
        assert ended(emulator, name).state.name == "JOB_STATE_SUCCEEDED"
        return [line.split()[5] for line in emulator.state.logs.messages() if PREEMPTED in line]


@pytest.mark.slow
def test_who_is_preempted_is_the_same_with_the_same_seed(tmp_path: Path, vertex_certificates: Certificates) -> None:
    rule = "0.1s:6"
    first, again, other = (
        preempted_replicas(tmp_path / name, vertex_certificates, rule, seed)
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert first == again != other
    assert len(first) == 6


def test_a_machine_is_gone_after_its_grace_and_the_replica_starts_on_another(vertex_emulator: VertexApi) -> None:
    replicas = vertex_emulator.state.replicas
    replicas.grace_s = 0.3
    name = create(vertex_emulator, pool("python", "-c", HOLDS_ON), scheduling=SPOT)
    await_message(vertex_emulator, "ready")
    began = time.monotonic()
    replicas.preempt(name)
    await_message(vertex_emulator, "ready", times=2)
    assert time.monotonic() - began >= 0.3
    assert {"deaf", "The machine of the replica workerpool0-0 was preempted."} <= set(
        vertex_emulator.state.logs.messages()
    )
    assert vertex_emulator.state.custom_jobs.state(name) == "JOB_STATE_RUNNING"


@pytest.mark.parametrize(("whole", "starts"), [(True, 4), (False, 3)])
def test_the_whole_job_starts_again_where_it_says_so(vertex_emulator: VertexApi, whole: bool, starts: int) -> None:
    scheduling = {**SPOT, "restartJobOnWorkerRestart": whole}
    name = create(vertex_emulator, *[pool("python", "-c", SAVES)] * 2, scheduling=scheduling)
    await_message(vertex_emulator, "ready", times=2)
    vertex_emulator.state.replicas.preempt(name, 1)
    await_message(vertex_emulator, "ready", times=starts)
    # Another thread reads it than reads what the new one says.
    await_message(vertex_emulator, "saved", times=starts - 2)
    assert vertex_emulator.state.logs.messages().count("saved") == starts - 2


def test_a_job_starts_again_six_times_and_then_there_are_no_machines(vertex_emulator: VertexApi) -> None:
    name = create(vertex_emulator, pool("python", "-c", SAVES), scheduling=SPOT)
    for count in range(1, 8):
        await_message(vertex_emulator, "ready", times=count)
        vertex_emulator.state.replicas.preempt(name)
    job = ended(vertex_emulator, name)
    assert (job.state.name, job.error.code) == ("JOB_STATE_FAILED", 8)
    assert "Resources are insufficient in region: us-central1" in job.error.message
    assert vertex_emulator.state.logs.messages().count("ready") == 7


def test_a_job_that_wants_no_retries_ends_with_the_first(vertex_emulator: VertexApi) -> None:
    scheduling = {**SPOT, "disableRetries": True}
    name = create(vertex_emulator, pool("python", "-c", SAVES), scheduling=scheduling)
    await_message(vertex_emulator, "ready")
    vertex_emulator.state.replicas.preempt(name)
    assert "STOCKOUT" in ended(vertex_emulator, name).error.message


def test_other_machines_than_those_of_spot_stay(tmp_path: Path, vertex_certificates: Certificates) -> None:
    settings = EmulatorSettings(state=tmp_path, certificates=vertex_certificates, preempt="0.1s")
    with running_emulator(settings) as emulator:
        name = create(emulator, pool("python", "-c", SHORT))
        assert ended(emulator, name).state.name == "JOB_STATE_SUCCEEDED"
        assert not any(PREEMPTED in line for line in emulator.state.logs.messages())


TRAIN = """
import json, os, sys
os.environ["GPU_PIPELINES_ACCELERATOR"] = "cpu:1"
from gpu_pipelines.training.settings import TrainingSettings
from gpu_pipelines.training.train import train_model
from gpu_pipelines.component_interface.step import own_process
with own_process():
    train_model(TrainingSettings(**json.loads(sys.argv[1])), sys.argv[2], sys.argv[3])
"""


def digest(folder: Path) -> str:
    """Hash of all tensors below a folder, by their names."""
    found = hashlib.sha256()
    files = sorted(folder.rglob("*.safetensors"))
    assert files
    for file in files:
        with safe_open(file, "numpy") as tensors:
            for name in sorted(tensors.keys()):
                found.update(name.encode() + tensors.get_tensor(name).tobytes())
    return found.hexdigest()


@pytest.mark.slow
def test_a_training_that_is_preempted_ends_with_the_same_bits(vertex_emulator: VertexApi, tmp_path: Path) -> None:
    numbers, steps = tmp_path / "numbers", 1000
    (tmp_path / "numbers.csv").write_text("a,b,label\n" + "".join(f"{n % 7},{n % 5},{n % 3}\n" for n in range(200)))
    prepare_data(PrepareSettings(task="regression", source=str(tmp_path / "numbers.csv")), numbers)
    settings = {"model": "mlp-small", "max_steps": steps, "checkpoint_every_steps": 250, "global_batch_size": 16}
    digests = []
    for place in ("alone", "preempted"):
        command = ("python", "-u", "-c", TRAIN, json.dumps(settings), str(numbers), str(tmp_path / place))
        name = create(vertex_emulator, pool(*command), scheduling=SPOT)
        if place == "preempted":
            await_message(vertex_emulator, f"step 250/{steps}", job=name)
            vertex_emulator.state.replicas.preempt(name)
        assert ended(vertex_emulator, name).state.name == "JOB_STATE_SUCCEEDED", "\n".join(
            vertex_emulator.state.logs.messages()[-40:]
        )
        digests.append(digest(tmp_path / place / f"step-{steps:08}"))
    assert digests[0] == digests[1]
    assert any("continuing from step-" in line for line in vertex_emulator.state.logs.messages())


#: What the pipelines have of this project, and a training that is long enough to be interrupted ten times.
PROJECT_FILE = "pipeline_root: gs://example-bucket/runs\nimage: eu.example/steps:1\n"
STEPS = 4000
TRAINING = {"max_steps": STEPS, "checkpoint_every_steps": 500}
PLACES = {"l4:2": ("--nodes", "2"), "h100:8": ()}


def rehearsed(emulator: VertexApi, folder: Path, pipeline: str, accelerator: str, preemptions: int) -> str:
    """Runs a pipeline to its end on Spot machines; gives the hash of the weights that its training ends with."""
    folder.mkdir()
    (folder / "gpu-pipelines.yaml").write_text(PROJECT_FILE)
    lines = "".join(f"{n % 7},{n % 5},{n % 3}\n" for n in range(200))
    emulator.storage.put("numbers/all.csv", f"a,b,label\n{lines}".encode())
    given = {
        "task": "regression",
        "source": "gs://example-bucket/numbers/all.csv",
        "model": "mlp-small",
        "model_name": folder.name,
        "global_batch_size": 16,
        "advanced": json.dumps(TRAINING),
        "gates": "[]",
        **({"notify": "team@example.com"} if pipeline == "scheduled_retraining" else {}),
    }
    parameters = [part for name, value in given.items() for part in ("-p", f"{name}={value}")]
    placed = ("--target", "vertex", "--accelerator", accelerator, *PLACES[accelerator], "--strategy", "spot")
    before, checkpoints = set(emulator.state.custom_jobs.jobs), emulator.folder / "gcs/example-bucket/runs/checkpoints"
    done = gpu_pipelines("run", pipeline, *placed, *parameters, cwd=folder)
    assert done.status == 0, done.out + done.err
    (run,) = [job for job in emulator.state.pipeline_jobs.jobs.values() if job.end_time is None]
    for number in range(preemptions):
        preempt_a_training(emulator, before, number)
    until = time.monotonic() + 400
    while run.state.name in ("PIPELINE_STATE_PENDING", "PIPELINE_STATE_RUNNING"):
        assert time.monotonic() < until
        time.sleep(0.2)
    assert run.state.name == "PIPELINE_STATE_SUCCEEDED", "\n".join(emulator.state.logs.messages()[-60:])
    return digest(max(checkpoints.glob(f"*/step-{STEPS:08}"), key=lambda path: path.stat().st_mtime_ns))


def preempt_a_training(emulator: VertexApi, before: set[str], number: int) -> None:
    """Preempts a machine of the training that runs, once it has gone on since the last time."""
    until = time.monotonic() + 200
    while True:
        assert time.monotonic() < until, "\n".join(emulator.state.logs.messages()[-60:])
        for name, job in list(emulator.state.custom_jobs.jobs.items()):
            if name not in before and job.state.name == "JOB_STATE_RUNNING" and has_gone_on(emulator, name):
                machines = sum(pool.replica_count for pool in job.job_spec.worker_pool_specs)
                emulator.state.replicas.preempt(name, number % machines)
                await_message(emulator, PREEMPTED, times=number + 1)
                return
        time.sleep(0.1)


def has_gone_on(emulator: VertexApi, name: str) -> bool:
    """Whether a training has made a step since its last start; what it says while it is stopped does not count."""
    said = emulator.state.logs.messages(job_id=name.rpartition("/")[2])
    stopped = max([-1, *(place for place, line in enumerate(said) if PREEMPTED in line)])
    started = [place for place, line in enumerate(said) if line.startswith("training ") and place > stopped]
    return bool(started) and any(line.startswith("step ") for line in said[started[0] :])


@pytest.fixture(scope="module")
def alone() -> dict[tuple[str, str], str]:
    """Hashes of the weights of the trainings that nobody interrupted, once they are known."""
    return {}


@pytest.mark.slow
@pytest.mark.parametrize("accelerator", list(PLACES))
@pytest.mark.parametrize("pipeline", ["train_evaluate_upload", "scheduled_retraining"])
@pytest.mark.parametrize("preemptions", [1, 3, 10])
def test_weights_of_a_pipeline_are_the_same_however_often_it_is_preempted(
    vertex_emulator: VertexApi,
    tmp_path: Path,
    alone: dict[tuple[str, str], str],
    preemptions: int,
    pipeline: str,
    accelerator: str,
) -> None:
    key = pipeline, accelerator
    if key not in alone:
        alone[key] = rehearsed(vertex_emulator, tmp_path / "alone", *key, 0)
    assert rehearsed(vertex_emulator, tmp_path / "preempted", *key, preemptions) == alone[key]
    said = vertex_emulator.state.logs.messages()
    assert sum(PREEMPTED in line for line in said) == preemptions
    # The service starts a job six times again; after that the pipeline's task creates another one.
    assert any("(STOCKOUT)" in line for line in said) == (preemptions > 6)
