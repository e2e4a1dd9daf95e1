"""The console of an emulator: what it runs, its schedules and its models, over the same REST as any other client."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import yaml
from console_of_tests import Page, evaluated

from gpu_pipelines.console.emulator_client import EmulatorClient
from gpu_pipelines.console.emulator_link import EmulatorLink
from gpu_pipelines.console.emulator_runs import EmulatorRuns
from gpu_pipelines.emulator.start import EmulatorSettings, running_emulator
from gpu_pipelines.targets.vertex.runs.machine_times import RUN_LABEL

#: Two tasks, one of which names machines as a custom job does.
FILE = """
pipelineInfo: {name: greeting}
root:
  inputDefinitions:
    parameters:
      number: {parameterType: NUMBER_INTEGER, defaultValue: 3.0, description: "What is told."}
  dag:
    tasks:
      tell:
        componentRef: {name: comp-tell}
        taskInfo: {name: tell}
        inputs:
          parameters:
            number: {componentInputParameter: number}
            worker_pool_specs:
              runtimeValue:
                constant:
                - {machine_spec: {machine_type: g2-standard-4, accelerator_type: NVIDIA_L4, accelerator_count: 1.0},
                   replica_count: 2.0}
      fail:
        componentRef: {name: comp-fail}
        dependentTasks: [tell]
        taskInfo: {name: fail}
components:
  comp-tell:
    executorLabel: exec-tell
    inputDefinitions:
      parameters:
        number: {parameterType: NUMBER_INTEGER}
        worker_pool_specs: {parameterType: LIST}
  comp-fail: {executorLabel: exec-fail}
deploymentSpec:
  executors:
    exec-tell:
      container:
        image: i
        command: [sh, -c, 'echo "it is $0"; sleep 1; echo "<b>done</b>"', "{{$.inputs.parameters['number']}}"]
    exec-fail: {container: {image: i, command: [sh, -c, "echo no good; exit 3"]}}
schemaVersion: 2.1.0
"""
#: A task that leaves what a training and its evaluation leave.
LEAVES = """
pipelineInfo: {name: leaving}
root:
  inputDefinitions:
    parameters:
      source: {parameterType: STRING}
  dag:
    tasks:
      leave:
        componentRef: {name: comp-leave}
        taskInfo: {name: leave}
        inputs: {parameters: {source: {componentInputParameter: source}}}
components:
  comp-leave:
    executorLabel: exec-leave
    inputDefinitions: {parameters: {source: {parameterType: STRING}}}
    outputDefinitions:
      artifacts:
        best: {artifactType: {schemaTitle: system.Model, schemaVersion: 0.0.1}}
        checkpoints: {artifactType: {schemaTitle: system.Artifact, schemaVersion: 0.0.1}}
        page: {artifactType: {schemaTitle: system.HTML, schemaVersion: 0.0.1}}
deploymentSpec:
  executors:
    exec-leave:
      container:
        image: i
        command:
        - sh
        - -c
        - 'mkdir -p "$1" "$2"; cp "$0/evaluation.json" "$1"; cp "$0/metrics.jsonl" "$2";
          printf "<script>alert(1)</script>" > "$3"'
        - "{{$.inputs.parameters['source']}}"
        - "{{$.outputs.artifacts['best'].path}}"
        - "{{$.outputs.artifacts['checkpoints'].path}}"
        - "{{$.outputs.artifacts['page'].path}}"
schemaVersion: 2.1.0
"""


@pytest.fixture(scope="module")
def api() -> Iterator[Any]:
    with running_emulator(EmulatorSettings()) as running:
        yield running


@pytest.fixture
def page(api: Any, tmp_path: Path) -> Page:
    link = EmulatorLink()
    link.connect(api.url)
    return Page(tmp_path, link)


def ended(page: Page, place: str) -> str:
    """The page of a run when it has ended."""
    for _ in range(200):
        text = page.text(f"{place}/live")
        if 'data-going-on="no"' in text:
            return text
        time.sleep(0.1)
    raise AssertionError(text)


def parent_of(page: Page) -> str:
    """Where the resources of the emulator are that a console shows."""
    return page.console.link.require().parent


def test_the_log_of_a_task_is_that_of_its_custom_job_while_it_runs(page: Page) -> None:
    spec = yaml.safe_load(FILE)
    tell, step = spec["root"]["dag"]["tasks"]["tell"], spec["deploymentSpec"]["executors"]["exec-tell"]
    tell["inputs"]["parameters"]["display_name"] = {"runtimeValue": {"constant": "training"}}
    spec["components"]["comp-tell"]["inputDefinitions"]["parameters"]["display_name"] = {"parameterType": "STRING"}
    step["container"]["command"] = ["sh", "-c", "sleep 60"]
    client = page.console.link.require()
    runs = EmulatorRuns(client)
    run = runs.submit(spec, {}, "launches")
    machine = {"machineSpec": {"machineType": "e2-standard-4"}, "replicaCount": 1}
    container = {"imageUri": "i", "command": ["sh", "-c", "echo epoch 1; sleep 60"]}
    body = {
        "displayName": "training",
        "labels": {RUN_LABEL: runs.job(run)["labels"][RUN_LABEL]},
        "jobSpec": {"workerPoolSpecs": [{**machine, "containerSpec": container}]},
    }
    made = client.ask("POST", f"v1/{client.parent}/customJobs", body)
    try:
        texts = (time.sleep(0.1) or runs.log(run, "tell", 0).text for _ in range(100))
        assert next(filter(None, texts), "") == "epoch 1\n"
        assert runs.run(run).can_stop
    finally:
        runs.stop(run)
        client.ask("POST", f"v1/{made['name']}:cancel", {})


def test_a_dropped_file_runs_on_the_emulator(page: Page) -> None:
    form = page.drop(FILE.encode()).headers["location"]
    assert re.search(r'value="emulator" checked', page.text(form))
    answer = page.submit(form, **{"p.number": "5", "where": "emulator"})
    assert answer.status_code == 303, answer.text
    place = answer.headers["location"]
    text = ended(page, place)
    assert "fail failed." in text
    log = page.get(f"{place}/log?task=tell").json()
    assert log == {"text": "it is 5\n<b>done</b>\n", "next": 2, "whole": True}
    assert page.get(f"{place}/log?task=tell&start=1").json()["text"] == "<b>done</b>\n"
    whole = page.text(place)
    assert re.search(r'number</th><td class="mono">5<', whole)
    # Two machines for more than a second.
    assert "2 × g2-standard-4 with l4:1" in whole
    assert f'href="{place}"' in page.text("/runs?place=emulator")
    assert f'href="{place}"' in page.text("/runs?status=failed&q=greeting")
    listed = page.console.link.require().every(f"v1/{parent_of(page)}/pipelineJobs", "pipelineJobs", mask="name,state")
    assert all(set(job) == {"name", "state"} for job in listed)
    assert "Cannot cancel" in page.submit(f"{place}/stop").text
    assert "Two runs compared" in page.text(
        f"/compare?run={place.removeprefix('/runs/')}&run={place.removeprefix('/runs/')}"
    )


def test_what_a_job_has_left_is_compared(page: Page, tmp_path: Path) -> None:
    form = page.drop(LEAVES.encode()).headers["location"]
    names = []
    for accuracy in (0.5, 0.9):
        source = evaluated(tmp_path / f"of-{accuracy}", accuracy)
        lines = [f'{{"step": {step}, "loss": {accuracy / step}}}' for step in range(1, 5)]
        (source / "metrics.jsonl").write_text("\n".join(lines))
        place = page.submit(form, **{"p.source": str(source), "where": "emulator"}).headers["location"]
        assert "It has succeeded." in ended(page, place)
        names.append(f"run={place.removeprefix('/runs/')}")
        assert f'href="{place}/report?key=leave/page"' in page.text(f"{place}/left")
        answer = page.get(f"{place}/page/leave/page")
        assert answer.text == "<script>alert(1)</script>"
        assert "script-src" not in answer.headers["content-security-policy"]
        assert page.get(f"{place}/page/leave/nothing").status_code == 404
    text = page.text(f"/compare?{'&'.join(names)}")
    assert "0.8800 to 0.9200" in text
    assert "the intervals do not meet" in text
    curves = text[text.index('id="curves-title"') : text.index('id="durations-title"')]
    assert curves.count("<svg") == 1


def test_what_the_emulator_refuses_is_said_in_the_form(page: Page) -> None:
    broken = FILE.replace('image: i, command: [sh, -c, "echo no good; exit 3"]', "image: i, command: [no-such-program]")
    form = page.drop(broken.encode()).headers["location"]
    answer = page.submit(form, **{"p.number": "5", "where": "emulator"})
    assert answer.status_code == 422
    assert "no-such-program" in answer.text[answer.text.index('role="alert"') :]
    assert page.submit(form, **{"p.number": "five", "where": "emulator"}).status_code == 422
    named = page.submit("/pipelines/project:train_evaluate_upload", where="emulator", accelerator="nonsense:1")
    assert named.status_code == 422
    assert "nonsense" in named.text[named.text.index('role="alert"') :]


def test_a_pipeline_of_this_project_is_compiled_for_the_emulator(page: Page, api: Any) -> None:
    sent = {"p.task": "regression", "p.source": "sample:diabetes", "p.max_steps": "3", "p.model": "mlp-small"}
    answer = page.submit("/pipelines/project:train_evaluate_upload", where="emulator", accelerator="l4:2", **sent)
    assert answer.status_code == 303, answer.text
    place = answer.headers["location"]
    page.submit(f"{place}/stop")
    client = EmulatorClient(api.url)
    job = client.ask("GET", f"v1/{client.parent}/pipelineJobs/{place.rpartition('/')[2]}")
    given = job["runtimeConfig"]["parameterValues"]
    assert (given["source"], given["model"], given["advanced"]) == ("sample:diabetes", "mlp-small", {"max_steps": 3.0})
    assert "NVIDIA_L4" in json.dumps(job["pipelineSpec"])
    assert "train-evaluate-upload" in place
    again = re.findall(r'href="(/pipelines/project[^"]*)"', page.text(place))[0]
    form = page.text(again.replace("&amp;", "&"))
    assert re.search(r'name="p\.max_steps"[^>]*value="3"', form)
    assert re.search(r'name="p\.source"[^>]*value="sample:diabetes"', form)
    assert "cancelled" in ended(page, place)


def test_schedules_are_paused_and_resumed(page: Page, api: Any) -> None:
    client = EmulatorClient(api.url)
    assert f"emulator env --port {api.url.rpartition(':')[2]})" in page.text("/schedules")
    job = {
        "displayName": "nightly",
        "pipelineSpec": yaml.safe_load(FILE),
        "runtimeConfig": {"gcsOutputDirectory": "gs://example-bucket/runs"},
    }
    for name in ("nightly", "<i>weekly</i>", "monthly"):
        request = {"parent": client.parent, "pipelineJob": job}
        schedule = {"displayName": name, "cron": "0 3 1 1 *", "maxConcurrentRunCount": 1}
        if name == "monthly":
            schedule["endTime"] = (datetime.now(timezone.utc) + timedelta(minutes=5)).isoformat()
        client.ask("POST", f"v1/{client.parent}/schedules", {**schedule, "createPipelineJobRequest": request})
    text = page.text("/schedules")
    assert "&lt;i&gt;weekly" in text
    assert len(re.findall(r"20\d\d-01-01 03:00", text)) == 2, "the third ends before"
    action = re.findall(r'action="(/schedules/\d+/pause)"', text)
    assert len(action) == 3, "the emulator of a test has pages of two"
    assert page.submit(action[0]).status_code == 303
    after = page.text("/schedules")
    assert len(re.findall(r'action="/schedules/\d+/resume"', after)) == 1
    assert page.submit(action[0].replace("pause", "resume")).status_code == 303
    assert "resume" not in re.findall(r'action="(.*?)"', page.text("/schedules"))
    assert page.submit("/schedules/..%2f..%2fx/pause").status_code in (404, 422)
    assert page.submit(action[0].replace("pause", "delete")).status_code == 404


def test_models_of_the_emulator_are_compared_and_promoted(page: Page, api: Any) -> None:
    client = EmulatorClient(api.url)
    schema = "gs://google-cloud-aiplatform/schema/modelevaluation/classification_metrics_1.0.0.yaml"
    for number in (1, 2):
        model = {
            "displayName": "digits",
            "artifactUri": "gs://example-bucket/model",
            "containerSpec": {"imageUri": "i"},
            "versionAliases": ["challenger"],
        }
        parent = {"parentModel": f"{client.parent}/models/digits"} if number > 1 else {"modelId": "digits"}
        client.ask("POST", f"v1/{client.parent}/models:upload", {"model": model, **parent})
        evaluation = {"modelEvaluation": {"metricsSchemaUri": schema, "metrics": {"auPrc": number / 4}}}
        client.ask("POST", f"v1/{client.parent}/models/digits@{number}/evaluations:import", evaluation)
    assert 'href="/models/emulator/digits"' in page.text("/models")
    text = page.text("/models/emulator/digits")
    assert "0.2500" in text
    assert "0.5000" in text
    assert "names no version" in text
    promote = "/models/emulator/digits/promote"
    assert "was not evaluated" in page.submit(promote, version="2", seen="").text
    assert page.submit(promote, version="2", seen="", anyway="yes").status_code == 303
    assert "names version 2" in page.text("/models/emulator/digits")
    assert sorted(client.ask("GET", f"v1/{client.parent}/models/digits@2")["versionAliases"]) == [
        "challenger",
        "champion",
        "default",
    ]


def test_an_emulator_that_has_gone_is_said_and_the_rest_is_shown(tmp_path: Path) -> None:
    with running_emulator(EmulatorSettings()) as gone:
        link = EmulatorLink()
        link.connect(gone.url)
    page = Page(tmp_path, link)
    for path in ("/runs", "/pipelines", "/models", "/schedules"):
        text = page.text(path)
        assert 'role="alert"' in text, path
        assert "No emulator answers" in text, path
    assert page.get("/runs/emulator/one").status_code == 422
