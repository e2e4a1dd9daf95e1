"""Lists of machines on Vertex AI: what is planned, what stands in the file, what is sent, and where it ends."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import command_line
import numpy as np
import pytest
from random_runs import PROJECT, REGION, STAND_IN, choices_for, overlaps, quick, undisturbed
from safetensors import safe_open

from gpu_pipelines.accelerators.cost import dollars_per_hour
from gpu_pipelines.accelerators.fallback import PriceLimits, fallback, named
from gpu_pipelines.accelerators.spent import Spent
from gpu_pipelines.artifacts.versioned_file import versioned_file
from gpu_pipelines.data.prepare import prepare_data
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.distributed.signals import Signalled
from gpu_pipelines.errors import Interrupted, InvalidRequestError, NoMachinesError, ProcessFailedError, UserError
from gpu_pipelines.project_settings import ProjectSettings, load_project_settings
from gpu_pipelines.targets.fallback.tries import Choice, Tries
from gpu_pipelines.targets.fallback.trying import try_in_order
from gpu_pipelines.targets.vertex.fallback_launcher import VertexJobs, refusal, tries_of
from gpu_pipelines.targets.vertex.placement.fallback import CHOICES, LAUNCHER, choices_in, job_on
from gpu_pipelines.targets.vertex.runs.machine_times import planned_in
from gpu_pipelines.targets.vertex.runs.pipelines import parsed_spec

if TYPE_CHECKING:
    from gpu_pipelines.emulator.vertex_api import VertexApi

HERE = ("us-central1", "europe-west4")
LISTS = ("--accelerator", "h100:8,a100-80gb:8", "--strategy", "spot,standard", "--regions", ",".join(HERE))
IMAGE = ("--image", "us-docker.pkg.dev/p/r/steps:1")
PIPELINE = "train_evaluate_upload"
TRAIN = """
import json, os, sys
from gpu_pipelines.training.settings import TrainingSettings
from gpu_pipelines.training.train import train_model
from gpu_pipelines.component_interface.step import own_process
with own_process():
    train_model(TrainingSettings(**json.loads(sys.argv[1])), sys.argv[2], sys.argv[3])
"""


def test_the_order_is_that_of_the_lists_and_the_region_changes_fastest() -> None:
    asked = fallback(["h100:8", "a100-80gb:8"], ["spot", "flex-start"], HERE)
    assert [named(each) for each in asked.plans] == [
        f"{spec} {strategy} in {region}"
        for spec in ("h100:8", "a100-80gb:8")
        for strategy in ("spot", "flex-start")
        for region in HERE
    ]


def test_the_document_has_the_prices_of_the_catalog() -> None:
    ways, limits = ("spot", "flex-start", "standard"), PriceLimits(per_hour=100, total=1500)
    asked = fallback(["h100:8", "a100-80gb:8"], ways, HERE, limits)
    first = asked.plans[0]
    told = f"choice 1 of {len(asked.plans)}: {named(first)}, about ${dollars_per_hour(first):,.2f} an hour"
    text = (Path(__file__).parents[2] / "docs/fallback.md").read_text(encoding="utf-8")
    assert f"train-model, {told}\n" in text


def test_what_cannot_be_had_or_costs_too_much_is_left_out_with_the_reason() -> None:
    asked = fallback(["k80:1", "h100:8", "l4:1"], ["standard"], HERE, PriceLimits(per_hour=100))
    assert [named(each) for each in asked.plans] == [
        "h100:8 standard in us-central1",
        *(f"l4:1 standard in {region}" for region in HERE),
    ]
    assert [each.partition(":")[2].split(":")[-1][:40] for each in asked.left_out if "h100" in each]
    assert any("h100:8 standard in europe-west4: costs $112.54 an hour" in each for each in asked.left_out)
    assert sum("k80" in each and "shut it down" in each for each in asked.left_out) == 2
    dear = fallback(["l4:1"], ["standard"], ["us-central1"], PriceLimits(total=10), hours=2)
    assert not dear.is_plain
    with pytest.raises(InvalidRequestError, match=r"costs \$.* in 20 h; --max-price is 10.00"):
        fallback(["l4:1"], ["standard"], ["us-central1"], PriceLimits(total=10), hours=20)
    with pytest.raises(InvalidRequestError, match=r"l4:1 standard .* in the 5 minutes .*; --max-price is 0.00"):
        fallback(["l4:1"], ["standard"], ["us-central1"], PriceLimits(total=0))
    part = fallback(["h100:8", "l4:1"], ["standard"], ["us-central1"], PriceLimits(total=1))
    assert [each.spec for each in part.plans] == ["l4:1"]
    with pytest.raises(UserError, match="banana"):
        fallback(["banana:1"])


def test_a_file_has_its_choices_in_order_for_the_training_and_the_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = command_line.command(
        "compile", PIPELINE, "--target", "vertex", *LISTS, *IMAGE, "--max-price", "500", "-o", "p.yaml"
    )
    assert done.status == 0, done.err
    spec = parsed_spec((tmp_path / "p.yaml").read_text(), "p.yaml")
    found = choices_in(spec)
    assert {step: len(choices) for step, (choices, _) in found.items()} == {"train-model": 8, "evaluate-checkpoints": 8}
    choices, limit = found["train-model"]
    assert (choices[0].told, choices[-1].told, limit) == (
        "h100:8 spot in us-central1",
        "a100-80gb:8 standard in europe-west4",
        500,
    )
    container = spec["deploymentSpec"]["executors"]["exec-train-model"]["container"]
    assert container["image"] == IMAGE[1]
    assert container["command"][-1] == LAUNCHER
    assert container["args"][:1] == [CHOICES]
    assert {"--payload", "--gcp_resources", "--location"} <= set(container["args"]), "those of GCPC's launcher follow"
    waiting = ("--accelerator", "l4:1", "--strategy", "spot,flex-start", "--max-wait", "2", "-o", "w.yaml")
    assert command_line.command("compile", PIPELINE, "--target", "vertex", *waiting, *IMAGE).status == 0
    [first, second] = choices_in(parsed_spec((tmp_path / "w.yaml").read_text(), ""))["train-model"][0]
    assert "max_wait_duration" not in first.machines["scheduling"]
    assert second.machines["scheduling"]["max_wait_duration"] == "7200s"
    plain = command_line.command(
        "compile", PIPELINE, "--target", "vertex", "--accelerator", "l4:1", *IMAGE, "-o", "q.yaml"
    )
    assert plain.status == 0
    assert LAUNCHER not in (tmp_path / "q.yaml").read_text()
    later = [{**each, "new": "of a later version"} for each in json.loads(container["args"][1])]
    container["args"][1] = json.dumps(later)
    assert choices_in(spec) == found


def test_at_most_is_what_the_limit_leaves_all_steps_together_and_not_told_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def planned(*given: str) -> Spent:
        done = command_line.command("compile", PIPELINE, "--target", "vertex", *given, *IMAGE, "-o", "p.yaml")
        assert done.status == 0, done.err
        return Spent(planned=planned_in(parsed_spec((tmp_path / "p.yaml").read_text(), "p.yaml"), HERE[0]))

    limited = planned(*LISTS, "--max-price", "500")
    assert (limited.planned["train-model"].at_most, limited.at_most) == (500, 500)
    choices, _ = choices_in(parsed_spec((tmp_path / "p.yaml").read_text(), "p.yaml"))["train-model"]
    dearest = max(each.per_hour or 0 for each in choices)
    assert limited.planned["train-model"].usd_per_hour == dearest
    assert planned(*LISTS).at_most is None, "one after the other may run for its whole time"
    one = ("--accelerator", "l4:1", "--regions", HERE[0], "--hours", "2")
    below = planned(*one, "--max-price", "500").at_most
    assert below is not None
    assert below == pytest.approx(
        sum(each.usd_per_hour * (each.hours or 0) for each in planned(*one).planned.values()), abs=0.01
    )


def test_the_settings_say_what_to_fall_back_to_and_flags_win(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "gpu-pipelines.yaml"
    file.write_text(
        "fallback:\n  accelerator: [l4:2, l4:1]\n  strategy: [spot, standard]\n  regions: [us-central1, europe-west4]\n"
        "  max_price_per_hour: 1.5\n"
    )

    def choices(*given: str) -> list[str]:
        done = command_line.command("compile", PIPELINE, "--target", "vertex", *given, *IMAGE, "-o", "p.yaml")
        assert done.status == 0, done.err
        return [each.told for each in choices_in(parsed_spec((tmp_path / "p.yaml").read_text(), ""))["train-model"][0]]

    assert choices()[0] == "l4:2 spot in us-central1"
    assert len(choices()) == 6, "two cost more"
    assert choices("--strategy", "spot", "--region", "us-central1") == [
        "l4:2 spot in us-central1",
        "l4:1 spot in us-central1",
    ]
    file.write_text("fallback: {accelerators: [l4:1], max_price: much}\n")
    with pytest.raises(UserError) as error:
        load_project_settings(directory=tmp_path)
    assert "fallback (from gpu-pipelines.yaml) has 'accelerators'. Did you mean 'accelerator'?" in str(error.value)
    assert "max_price (from gpu-pipelines.yaml) is 'much'" in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("compile", "tune_train_evaluate_upload", "--target", "vertex", *LISTS), "A search for parameters"),
        (("vm", "create", "--accelerator", "l4:1", "--strategy", "spot,standard", "--project", "p-1234"), "A VM takes"),
        (
            ("compile", PIPELINE, "--target", "vertex", *LISTS, "--persistent-resource", "pool-1"),
            "the persistent resource pool-1 is one choice",
        ),
        (
            ("compile", PIPELINE, "--target", "vertex", *LISTS, "--network-attachment",
             "projects/p/regions/asia-east1/networkAttachments/a"),
            "network_attachment is in asia-east1",
        ),
    ],
    ids=["a search", "a VM", "a persistent resource", "a network elsewhere"],
)  # fmt: skip
def test_what_takes_one_choice_refuses_a_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = command_line.command(*arguments, *IMAGE)
    assert done.status == 2
    assert told in done.err


def test_the_quota_and_the_place_of_the_data_are_looked_at_before_a_run_is_sent(
    vertex_emulator: VertexApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gpu-pipelines.yaml").write_text(f"pipeline_root: gs://example-bucket/runs\nimage: {IMAGE[1]}\n")
    vertex_emulator.storage.put(
        "texts/a.jsonl", b'{"text": "good", "label": "a"}\n{"text": "bad", "label": "b"}\n' * 20
    )
    metric = "aiplatform.googleapis.com/custom_model_training_preemptible_nvidia_l4_gpus"
    vertex_emulator.state.project.limits[metric] = {"us-central1": 1, "europe-west4": 8}
    given = ("--accelerator", "l4:2,l4:1", "--strategy", "spot", "--regions", ",".join(HERE), "--dry-run")
    parameters = ("-p", "task=text_classification", "-p", "source=gs://example-bucket/texts", "-p", "model_name=m")
    done = command_line.command("run", PIPELINE, "--target", "vertex", *given, *parameters)
    assert done.status == 0, done.err
    assert f"left out: l4:2 spot in us-central1: the quota {metric.rpartition('/')[2]} is 1 in us-central1" in done.err
    assert "warning: gs://example-bucket is in us-central1: a training in europe-west4 reads its data there" in done.err
    assert "train-model, choice 1 of 3: l4:2 spot in europe-west4, about $" in done.err
    assert not vertex_emulator.state.custom_jobs.jobs


def test_the_job_of_a_choice_has_its_machines_its_variables_and_its_time() -> None:
    choices, payload = choices_for((["l4:2", "h100:8"], ["standard", "flex-start"], list(HERE)), ["python", "train.py"])
    last = choices[-1]
    payload["job_spec"]["service_account"] = ""
    spec = job_on(payload, last, choices[0], 90.5, '[["1"]]')["job_spec"]
    [pool] = spec["worker_pool_specs"]
    assert pool["machine_spec"]["machine_type"] == "a3-highgpu-8g"
    variables = {each["name"]: each["value"] for each in pool["container_spec"]["env"]}
    assert variables == {"GPU_PIPELINES_ACCELERATOR": "h100:8", "GPU_PIPELINES_TRIES": '[["1"]]'}
    assert spec["scheduling"]["strategy"] == "FLEX_START"
    assert spec["scheduling"]["timeout"] == "90s"
    assert "service_account" not in spec, "as GCPC's launcher leaves out what was not given"


@pytest.mark.parametrize(
    ("said", "state"),
    [
        ("Resources are insufficient in region: us-central1. Try a different region. (STOCKOUT)", "no capacity"),
        ("The zone 'z' does not have enough resources available (ZONE_RESOURCE_POOL_EXHAUSTED).", "no capacity"),
        ("The following quota metrics exceed quota limits: aiplatform.googleapis.com/x", "no quota"),
        ('400 List of found errors: 1. Message: Machine type "a3-highgpu-1g" is not supported.', "no capacity"),
        ("The replica workerpool0-0 exited with a non-zero status of 1.", None),
        ("The replica workerpool0-0 ran out of memory and exited with a non-zero status of 137.", None),
    ],
)
def test_which_messages_let_the_next_be_tried(said: str, state: str | None) -> None:
    assert refusal(said) == state


def tries_in(folder: Path, max_price: float | None = None, per_hour: float = 3600.0) -> Tries:
    choices = [Choice(told, per_hour=per_hour) for told in ("first", "second")]
    return Tries(choices, versioned_file(str(folder / "tries.json")), max_price)


def test_two_processes_never_both_begin_a_try(tmp_path: Path) -> None:
    one, other = tries_in(tmp_path), tries_in(tmp_path)
    begun = one.begin()
    assert begun is not None
    assert other.begin() is None
    assert other.current is not None
    assert (other.current.label, other.current.holder) == (begun.label, one.holder)


def test_a_run_ends_where_its_money_does_also_that_of_its_other_steps(tmp_path: Path) -> None:
    # A dollar a second; a job is worth while from five minutes on.
    tries = tries_in(tmp_path, max_price=1000)
    assert tries.begin()
    tries.change(state="no capacity", began=0.0, ended=600.0)
    assert tries.seconds_left(tries.choices[1]) == 400
    assert tries.begin()
    tries.change(state="no capacity", began=0.0, ended=150.0)
    with pytest.raises(
        NoMachinesError, match=r"None of the 2 choices was available\. Tried: first: no capacity; second"
    ):
        tries.begin()
    (tmp_path / "other").mkdir()
    dear = tries_in(tmp_path / "other", max_price=200)
    with pytest.raises(NoMachinesError, match=r"is not worth beginning first, which costs \$3,600.00 an hour"):
        dear.begin()
    again = tries_in(tmp_path / "other", max_price=5000)
    with pytest.raises(NoMachinesError, match="not worth beginning"):
        again.begin()
    _, payload = choices_for((["l4:1"], ["standard"], ["us-central1"]), ["true"])
    step = tries_of(payload, str(tmp_path), [Choice("x", per_hour=1.0)], 1000)
    assert step.max_price == pytest.approx(1000 - 750), "what the document beside it says"


def launched(
    emulator: VertexApi, command: list[str], lists: Any, place: str, stopped: Signalled | None = None
) -> Tries:
    """Runs a launcher in this process."""
    choices, payload = choices_for(lists, command)
    return run_launcher(choices, payload, place, stopped)


def run_launcher(choices: list[Choice], payload: dict[str, Any], place: str, stopped: Signalled | None = None) -> Tries:
    tries = tries_of(payload, f"gs://example-bucket/r/fallback/{place}", choices, None)
    jobs = VertexJobs(payload, choices[0], ProjectSettings(project=PROJECT, region=REGION))
    try_in_order(tries, jobs, Signalled() if stopped is None else stopped, lambda line: None)
    return tries


def test_a_training_that_fails_by_itself_is_not_tried_elsewhere_and_a_cancelled_one_ends(
    vertex_emulator: VertexApi, tmp_path: Path
) -> None:
    lists = (["l4:1"], ["spot", "standard"], ["us-central1"])
    with quick():
        command = [sys.executable, "-I", "-S", str(STAND_IN), str(tmp_path / "a"), "4", "0", "2"]
        with pytest.raises(ProcessFailedError, match="exited with a non-zero status of 1"):
            launched(vertex_emulator, command, lists, "fails")
        slow = [sys.executable, "-I", "-S", str(STAND_IN), str(tmp_path / "b"), "400", "0.1"]

        def cancel() -> None:
            jobs = vertex_emulator.state.custom_jobs
            while not (running := [name for name, job in jobs.jobs.items() if job.state.name == "JOB_STATE_RUNNING"]):
                time.sleep(0.05)
            from google.cloud import aiplatform_v1 as api

            jobs.cancel(api.CancelCustomJobRequest(name=running[0]))

        thread = threading.Thread(target=cancel)
        thread.start()
        with pytest.raises(ProcessFailedError, match="was cancelled"):
            launched(vertex_emulator, slow, lists, "cancelled")
        thread.join()
        # A launcher that is started again does not begin it anew.
        with pytest.raises(NoMachinesError, match="was cancelled"):
            launched(vertex_emulator, slow, lists, "cancelled")
    assert len(vertex_emulator.state.custom_jobs.jobs) == 2


def test_an_interrupted_launcher_ends_its_job_and_the_next_goes_on_with_the_same_choice(
    vertex_emulator: VertexApi, tmp_path: Path
) -> None:
    lists = (["l4:1"], ["spot", "standard"], ["us-central1"])
    command = [sys.executable, "-I", "-S", str(STAND_IN), str(tmp_path / "run"), "12", "0.1"]
    stopped = Signalled()

    def stop() -> None:
        while not list((tmp_path / "run").glob("step-*")):
            time.sleep(0.02)
        stopped.note(signal.SIGTERM)

    thread = threading.Thread(target=stop)
    thread.start()
    with quick():
        with pytest.raises(Interrupted):
            launched(vertex_emulator, command, lists, "stopped", stopped)
        thread.join()
        assert not vertex_emulator.state.replicas.capacity.used()
        tries = launched(vertex_emulator, command, lists, "stopped")
        assert [(each.state, each.choice) for each in tries.made] == [("interrupted", 0), ("succeeded", 0)]
        # One that died between writing down that the money is spent, and asking that the job end.
        choices, payload = choices_for(lists, ["sleep", "60"])
        dying = tries_of(payload, "gs://example-bucket/r/fallback/dear", choices, None)
        jobs = VertexJobs(payload, choices[0], ProjectSettings(project=PROJECT, region=REGION))
        made = dying.begin()
        assert made is not None
        dying.change(state="sent", job=jobs.send(choices[0], made, None), ending="stopped at the price limit")
        with pytest.raises(NoMachinesError, match="the limit of --max-price"):
            run_launcher(choices, payload, "dear")
    assert overlaps(vertex_emulator.state.replicas.bill.lines) == 0


def test_checkpoints_carry_over_to_another_number_of_gpus(vertex_emulator: VertexApi, tmp_path: Path) -> None:
    place = tmp_path / "run"
    command = [sys.executable, "-I", "-S", str(STAND_IN), str(place), "8", "0.1"]
    capacity = vertex_emulator.state.replicas.capacity

    def take_away() -> None:
        jobs = vertex_emulator.state.custom_jobs
        while not list(place.glob("step-*")):
            time.sleep(0.02)
        capacity.limit("us-central1", "NVIDIA_L4", 1)
        vertex_emulator.state.replicas.preempt(next(iter(jobs.jobs)))

    thread = threading.Thread(target=take_away)
    thread.start()
    with quick():
        tries = launched(vertex_emulator, command, (["l4:4", "l4:1"], ["spot"], ["us-central1"]), "carries")
    thread.join()
    assert [each.state for each in tries.made] == ["no capacity", "succeeded"]
    assert any("on 1 GPUs" in line and "from step 0" not in line for line in vertex_emulator.state.logs.messages())
    assert json.loads((place / "weights.json").read_text()) == [*undisturbed(tmp_path / "alone")]
    assert overlaps(vertex_emulator.state.replicas.bill.lines) == 0


def weights_of(folder: Path) -> dict[str, Any]:
    found = {}
    for file in sorted(folder.rglob("*.safetensors")):
        with safe_open(file, "numpy") as tensors:
            found |= {f"{file.name} {name}": tensors.get_tensor(name) for name in list(tensors.keys())}
    return found


@pytest.mark.slow
def test_a_real_training_goes_on_with_another_number_of_processes(vertex_emulator: VertexApi, tmp_path: Path) -> None:
    numbers, steps = tmp_path / "numbers", 600
    (tmp_path / "numbers.csv").write_text("a,b,label\n" + "".join(f"{n % 7},{n % 5},{n % 3}\n" for n in range(200)))
    prepare_data(PrepareSettings(task="regression", source=str(tmp_path / "numbers.csv")), numbers)
    settings = {"model": "mlp-small", "max_steps": steps, "checkpoint_every_steps": 100, "global_batch_size": 16}

    def taken_away(place: Path) -> None:
        while not list(place.glob("step-*/checkpoint.json")):
            time.sleep(0.05)
        vertex_emulator.state.replicas.capacity.limit("us-central1", "NVIDIA_L4", 1)
        vertex_emulator.state.replicas.preempt(list(vertex_emulator.state.custom_jobs.jobs)[-1])

    for name in ("alone", "moved"):
        place = tmp_path / name
        command = [sys.executable, "-u", "-c", TRAIN, json.dumps(settings), str(numbers), str(place)]
        choices, payload = choices_for((["l4:2", "l4:1"], ["spot"], ["us-central1"]), command)
        for choice, processes in zip(choices, ("cpu:2", "cpu:1"), strict=True):
            choice.machines["environment"][:] = [{"name": "GPU_PIPELINES_ACCELERATOR", "value": processes}]
        payload["job_spec"]["worker_pool_specs"][0]["container_spec"]["env"] = choices[0].machines["environment"]
        thread = threading.Thread(target=taken_away, args=(place,)) if name == "moved" else None
        if thread:
            thread.start()
        with quick():
            tries = run_launcher(choices, payload, name)
        assert [each.choice for each in tries.made] == ([0, 1] if thread else [0])
    said = vertex_emulator.state.logs.messages()
    assert any("continuing from step-" in line for line in said)
    alone, moved = (weights_of(tmp_path / name / f"step-{steps:08}") for name in ("alone", "moved"))
    assert alone.keys() == moved.keys()
    worst = max(float(np.abs(alone[name] - moved[name]).max()) for name in alone)
    assert worst < 1e-4, worst
