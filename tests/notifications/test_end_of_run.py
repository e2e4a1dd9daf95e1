"""What is said at the end of a run, here and by the last step of a pipeline in the cloud."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from command_line import command
from servers import Posts, webhook

from gpu_pipelines.accelerators import plan
from gpu_pipelines.accelerators.cost import dollars_per_hour
from gpu_pipelines.accelerators.fallback import fallback
from gpu_pipelines.dag.telling import price_of
from gpu_pipelines.notifications import notes
from gpu_pipelines.notifications.recipients import Recipients
from gpu_pipelines.notifications.settings import MessageSettings
from gpu_pipelines.notifications.step import message_of, run
from gpu_pipelines.project_settings import ProjectSettings
from gpu_pipelines.targets.compiled import documents_of
from gpu_pipelines.targets.vertex.target import VertexTarget

if TYPE_CHECKING:
    from gpu_pipelines.emulator.vertex_api import VertexApi

RESOURCE = "projects/123/locations/us-central1/pipelineJobs/scheduled-retraining-1"
SECRET = "projects/example-project/secrets/hook/versions/latest"


@dataclass
class Status:
    """As `kfp.dsl.PipelineTaskFinalStatus`."""

    state: str
    pipeline_job_resource_name: str = RESOURCE
    pipeline_task_name: str = "exit-handler-1"
    error_code: int | None = None
    error_message: str | None = None


LOOKED = {"retrain": True, "reason": "training: the source gs://b/photos has changed since version 3 was trained"}
EVALUATED = {
    "select_by": "accuracy",
    "metrics": {"loss": {"value": 0.3, "low": 0.2, "high": 0.4}, "accuracy": {"value": 0.9, "low": 0.8, "high": 0.95}},
    "gates_not_passed": ["accuracy>=0.95: accuracy is 0.9, wanted >= 0.95"],
}
UPLOADED = {"model": "photos@4", "outcome": "not promoted"}
ALL = {notes.LOOKED: LOOKED, notes.TRAINED: {"seconds": 5400.0}, notes.EVALUATED: EVALUATED, notes.UPLOADED: UPLOADED}


def settings(**more: Any) -> MessageSettings:
    return MessageSettings(**{"run_name": RESOURCE, "dollars_per_hour": 8.2, **more})


def test_a_run_that_trained_says_what_came_of_it() -> None:
    message = message_of(settings(), Status("SUCCEEDED"), ALL, "scheduled_retraining")
    assert (message.outcome, message.model, message.reason) == ("not promoted", "photos@4", LOOKED["reason"])
    assert [str(metric) for metric in message.metrics] == [
        "accuracy 0.9000 (0.8000 to 0.9500)",
        "loss 0.3000 (0.2000 to 0.4000)",
    ]
    assert list(message.gates) == EVALUATED["gates_not_passed"]
    assert message.cost == "about $12.30, 1.50 h of training at $8.20 an hour"
    short = message_of(
        settings(), Status("SUCCEEDED"), {**ALL, notes.TRAINED: {"seconds": 2.0}}, "scheduled_retraining"
    )
    assert short.cost == "about $0.0046, 0.00 h of training at $8.20 an hour"
    page = "https://console.cloud.google.com/vertex-ai/locations/us-central1/pipelines/runs/scheduled-retraining-1?project=123"
    assert (message.link, message.run) == (page, "scheduled-retraining-1")


@pytest.mark.parametrize("state", ["FAILED", "CANCELLED", "PIPELINE_STATE_FAILED"])
def test_a_run_that_failed_says_why_and_what_it_may_have_cost(state: str) -> None:
    status = Status(state, error_code=9, error_message="The failed tasks are: [train-model].")
    message = message_of(settings(began="2026-11-23T00:00:00Z"), status, {notes.LOOKED: LOOKED}, "mine")
    assert message.outcome == ("cancelled" if state == "CANCELLED" else "failed")
    assert message.reason == status.error_message
    assert message.is_bad
    assert message.cost.startswith("at most about $")
    assert (
        "not known; the training's machines cost about $8.20 an hour"
        in message_of(settings(began="{{$.pipeline_job_create_time_utc}}"), status, {}, "mine").cost
    )


@pytest.mark.parametrize("outcome", ["nothing new", "too soon"])
def test_nothing_new_is_known_for_what_it_is(outcome: str) -> None:
    looked = {"retrain": False, "reason": f"{outcome}: the source is as it was"}
    message = message_of(settings(), Status("SUCCEEDED"), {notes.LOOKED: looked}, "mine")
    assert (message.outcome, message.cost) == (outcome, "no machine for a training was used")
    assert not message.is_eventful


def test_on_kubeflow_the_page_is_given() -> None:
    status = Status("SUCCEEDED", pipeline_job_resource_name="")
    message = message_of(settings(run_name="run-1", run_page="https://kfp/#/runs/details/1"), status, {}, "mine")
    assert (message.outcome, message.run, message.link) == ("finished", "run-1", "https://kfp/#/runs/details/1")


def test_a_step_that_cannot_leave_a_note_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    notes.leave(str(tmp_path / "file" / "folder"), notes.LOOKED, LOOKED)
    notes.leave("gs://no-such-bucket-${GPU_PIPELINES_RUN}/x", notes.LOOKED, LOOKED)
    assert capsys.readouterr().out.count("will lack the outcome of this step") == 2
    folder = str(tmp_path / "notes")
    notes.leave(folder, notes.UPLOADED, UPLOADED)
    (tmp_path / "notes" / "looked.json").write_text("{")
    assert notes.left(folder) == {notes.UPLOADED: UPLOADED}
    notes.leave("", notes.LOOKED, LOOKED)
    assert notes.left("") == {}


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Posts]:
    with webhook() as posts:
        monkeypatch.setenv("HOOK", posts.address)
        yield posts


def test_the_step_succeeds_whatever_becomes_of_the_message(
    hook: Posts, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("MISSING", raising=False)
    run(settings(notify=["slack:MISSING", "nonsense", "slack:HOOK"]), status=Status("FAILED"), pipeline="mine")
    assert [body["text"] for body in hook.bodies] == ["mine failed"]
    run(settings(notify=["slack:HOOK"]), status=object(), pipeline="mine")
    said = capsys.readouterr()
    assert "slack:" not in said.err
    assert "Slack was not told of the end of the run: The environment has no variable MISSING" in said.err
    assert hook.address not in said.out + said.err


def compiled(pipeline: str, *addresses: str, target: type = VertexTarget) -> dict[str, Any]:
    text = target(recipients=Recipients(addresses)).text_of(pipeline, plan("l4:1"))
    return dict(documents_of(text)[0])


def test_the_price_is_that_of_the_runs_region_and_of_a_list_there_is_none() -> None:
    target, l4 = VertexTarget(ProjectSettings(region="us-central1")), plan("l4:1")
    assert price_of(target, l4) == dollars_per_hour(plan("l4:1", region="us-central1")) != dollars_per_hour(l4)
    assert price_of(target, plan("l4:1", region="asia-east1")) == dollars_per_hour(plan("l4:1", region="asia-east1"))
    target.fallbacks = [fallback(["l4:1", "a100:1"])] * 2
    assert price_of(target, l4) is None


def test_a_step_tells_them_whatever_becomes_of_the_others() -> None:
    spec = compiled("scheduled_retraining", f"slack:{SECRET}")
    tasks = spec["root"]["dag"]["tasks"]
    assert set(tasks) == {"exit-handler-1", "send-message"}
    told = tasks["send-message"]
    assert told["triggerPolicy"] == {"strategy": "ALL_UPSTREAM_TASKS_COMPLETED"}
    given = told["inputs"]["parameters"]
    assert given["status"] == {"taskFinalStatus": {"producerTask": "exit-handler-1"}}
    assert given["notify"] == {"componentInputParameter": "notify"}
    assert given["dollars_per_hour"]["runtimeValue"]["constant"] > 0
    form = spec["root"]["inputDefinitions"]["parameters"]
    assert form["notify"]["defaultValue"] == [f"slack:{SECRET}"]
    inside = spec["components"]["comp-exit-handler-1"]["dag"]["tasks"]
    branch = spec["components"]["comp-condition-2"]["dag"]["tasks"]
    where = given["outcome_uri"]
    noted = {**inside, **branch}
    for step in ("check-for-new-data", "train-model", "evaluate-checkpoints", "upload-model"):
        assert noted[step]["inputs"]["parameters"]["outcome_uri"] == where, step


def test_without_recipients_the_files_have_no_such_step() -> None:
    spec = dict(documents_of(VertexTarget().text_of("train_evaluate_upload", plan("l4:1")))[0])
    assert "send-message" not in json.dumps(spec["root"])
    assert set(spec["root"]["outputDefinitions"]["artifacts"]) >= {"model", "evaluation_report"}
    assert "outputDefinitions" not in compiled("train_evaluate_upload", f"slack:{SECRET}")["root"]


@pytest.mark.parametrize(
    ("target", "given", "said"),
    [
        ("vertex", "slack:HOOK", "names the variable HOOK, which is not there where the message is sent"),
        ("vertex", "slack:https://hooks.example.com/very-secret", "names no secret"),
        ("vertex", "team@example.com", "An e-mail needs a server"),
        ("kubeflow", "slack:HOOK", "names the variable HOOK"),
        ("local", "slack:https://hooks.example.com/very-secret", "names no secret"),
    ],
)
def test_wrong_addresses_are_refused_before_anything_is_compiled(
    tmp_path: Path, target: str, given: str, said: str
) -> None:
    accelerator = "cpu:2" if target == "local" else "l4:1"
    placed = ("--target", target, "--accelerator", accelerator, "--notify", given)
    done = command("compile", "train_evaluate_upload", *placed, "-o", "x.yaml", cwd=tmp_path)
    assert done.status == 2
    assert said in done.err
    assert "very-secret" not in done.err
    assert not (tmp_path / "x.yaml").exists()


def test_on_kubeflow_a_variable_of_a_secret_will_do(tmp_path: Path) -> None:
    (tmp_path / "gpu-pipelines.yaml").write_text(
        "secret_env: {HOOK: webhooks/slack}\nkubeflow_host: https://kfp.example.com\n"
        "mail_server: smtp://me@mail.example.com:587\nmail_sender: runs@example.com\n"
        "mail_password: projects/p/secrets/mail/versions/latest\n"
    )
    told = ("--notify", "slack:HOOK,team@example.com", "--notify-nothing-new")
    placed = ("--target", "kubeflow", "--accelerator", "l4:1")
    done = command("compile", "scheduled_retraining", *placed, *told, "-o", "x.yaml", cwd=tmp_path)
    assert done.status == 0, done.err
    spec = next(yaml.safe_load_all((tmp_path / "x.yaml").read_text()))
    given = spec["root"]["dag"]["tasks"]["send-message"]["inputs"]["parameters"]
    constants = {name: each["runtimeValue"]["constant"] for name, each in given.items() if "runtimeValue" in each}
    assert constants["mail_server"] == "smtp://me@mail.example.com:587"
    assert constants["mail_password"] == "projects/p/secrets/mail/versions/latest"
    assert constants["run_page"] == "https://kfp.example.com/#/runs/details/{{$.pipeline_job_uuid}}"
    assert constants["outcome_uri"] == "/mnt/gpu-pipelines/outcomes/${GPU_PIPELINES_RUN}"
    form = spec["root"]["inputDefinitions"]["parameters"]
    assert form["notify"]["defaultValue"] == ["slack:HOOK", "team@example.com"]
    assert form["notify_nothing_new"]["defaultValue"] is True


OWN = """
from kfp import dsl
from gpu_pipelines.components import send_message

@dsl.component(install_kfp_package=False)
def half(number: int) -> int:
    if number % 2:
        raise SystemExit("it is odd")
    return number // 2

@dsl.pipeline(name="small")
def small(number: int = 4):
    half(number=number)

@dsl.pipeline(name="telling")
def telling(number: int = 4):
    with dsl.ExitHandler(send_message(notify=["webhook:HOOK"], pipeline="telling")):
        half(number=number)
"""


def test_a_run_here_is_told_of_by_the_command(hook: Posts, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    told = ("--notify", "webhook:HOOK")
    done = command("run", "own.py:small", *told, cwd=tmp_path)
    assert done.status == 0, done.err
    assert "told the webhook that the run ended: finished" in done.err
    failed = command("run", "own.py:small", "-p", "number=3", *told, cwd=tmp_path)
    assert failed.status == 1
    outcomes = [(body["pipeline"], body["outcome"]) for body in hook.bodies]
    assert outcomes == [("small", "finished"), ("small", "failed")]
    assert hook.bodies[1]["reason"] == "half: it is odd"
    assert Path(hook.bodies[1]["link"]).is_file()
    for path in (tmp_path / "runs").rglob("*.json"):
        assert hook.address not in path.read_text()


def test_a_message_that_fails_changes_nothing(hook: Posts, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    hook.answers += [(403, {})]
    done = command("run", "own.py:small", "--notify", "webhook:HOOK", cwd=tmp_path)
    assert done.status == 0
    assert "warning: the webhook was not told of the end of the run: 127.0.0.1 answered with status 403" in done.err


def test_a_variable_that_is_not_set_is_missed_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "gpu-pipelines.yaml").write_text(
        "mail_server: smtps://me@smtp.example.com:465\nmail_sender: me@example.com\nmail_password: PASSWORD\n"
    )
    monkeypatch.setenv("HOOK", " ")
    told = ("--notify", "webhook:HOOK", "--notify", "team@example.com")
    for more in ((), ("--dry-run",)):
        done = command("run", "own.py:small", *told, *more, cwd=tmp_path)
        assert (done.status, done.out) == (2, "")
        for name in ("HOOK", "PASSWORD"):
            assert f"--notify needs the variable {name} of the environment, which is not set." in done.err
    assert not (tmp_path / "runs").exists()


def test_a_run_here_that_is_refused_is_told_of(hook: Posts, tmp_path: Path) -> None:
    rows = "".join(f"{n % 7},{n % 5}\n" for n in range(40))
    (tmp_path / "prices.csv").write_text(f"a,label\n{rows}")
    (tmp_path / "nightly.yaml").write_text("source: prices.csv\ntask: regression\nepochs: -1\n")
    refused = {
        "gone.csv does not exist": ("-p", "source=gone.csv", "-p", "task=regression"),
        "epochs is -1": ("--params", "nightly.yaml"),
        "no-such-file.yaml": ("--params", "no-such-file.yaml"),
    }
    for given in refused.values():
        run = ("run", "scheduled_retraining", "--notify", "webhook:HOOK", *given)
        assert command(*run, "--dry-run", cwd=tmp_path).status == 2
        assert command(*run, cwd=tmp_path).status == 2
    # A dry run is no run, and whoever asks for one sees what it says.
    assert [(body["pipeline"], body["outcome"]) for body in hook.bodies] == [("scheduled_retraining", "refused")] * 3
    for said, body in zip(refused, hook.bodies, strict=True):
        assert said in body["reason"]
    assert not (tmp_path / "runs").exists()
    assert command("run", "--resume", "latest", "--notify", "webhook:HOOK", cwd=tmp_path).status == 2
    assert hook.bodies[-1]["pipeline"] == "the newest run"


def test_a_pipeline_of_ones_own_tells_by_the_component(hook: Posts, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    failed = command("run", "own.py:telling", "-p", "number=3", cwd=tmp_path)
    assert failed.status == 1, failed.out
    assert [(body["pipeline"], body["outcome"]) for body in hook.bodies] == [("telling", "failed")]
    (tmp_path / "gpu-pipelines.yaml").write_text("project: my-project\nimage: eu.example/steps:1\n")
    placed = ("--target", "vertex", "--accelerator", "l4:1", "--notify", f"slack:{SECRET}", "-o", "x.yaml")
    done = command("compile", "own.py:small", *placed, cwd=tmp_path)
    assert done.status == 2
    assert "dsl.ExitHandler(send_message(" in done.err


@pytest.mark.slow
def test_a_retraining_on_the_emulator_tells_of_each_end(
    vertex_emulator: VertexApi, hook: Posts, tmp_path: Path
) -> None:
    vertex_emulator.state.secrets.put("example-project", "hook", hook.address)
    (tmp_path / "gpu-pipelines.yaml").write_text("pipeline_root: gs://example-bucket/runs\nimage: eu.example/steps:1\n")
    rows = "".join(f"{n % 7},{n % 5},{n % 3}\n" for n in range(200))
    vertex_emulator.storage.put("numbers/all.csv", f"a,b,label\n{rows}".encode())
    given = {
        "task": "regression",
        "source": "gs://example-bucket/numbers/all.csv",
        "model": "mlp-small",
        "model_name": "told",
        "global_batch_size": 16,
        "advanced": json.dumps({"max_steps": 20}),
        "gates": "[]",
    }
    parameters = [part for name, value in given.items() for part in ("-p", f"{name}={value}")]
    placed = ("--target", "vertex", "--accelerator", "l4:1", "--notify", f"webhook:{SECRET}", "--follow")
    whole = ("run", "scheduled_retraining", *placed, "--interval", "0.2", *parameters)
    outcomes = []
    for more, status in (((), 0), ((), 0), (("-p", "source=gs://example-bucket/nothing/*.csv"), 1)):
        if more:
            vertex_emulator.storage.put("nothing/1.csv", b"a,b,label\n1,2,x\n")
        done = command(*whole, *more, cwd=tmp_path, environment=vertex_emulator.environment())
        assert done.status == status, done.out + done.err
        outcomes.append([body["outcome"] for body in hook.bodies])
    assert outcomes == [["promoted"], ["promoted"], ["promoted", "failed"]], "nobody is told that there is nothing new"
    first = hook.bodies[0]
    assert first["model"] == "told@1"
    assert first["cost"].startswith("about $")
    assert first["metrics"]["rmse"]["low"] <= first["metrics"]["rmse"]["value"]
    assert not any(hook.address in line for line in vertex_emulator.state.logs.messages())
