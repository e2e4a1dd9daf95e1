"""What the pages show of runs, models and pipelines, and what forms do."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml
from conftest import gpu_pipelines
from console_of_tests import CONSOLE, Page, evaluated, made_run, now, registered

from gpu_pipelines.accelerators import load_catalog
from gpu_pipelines.console.cost import cost_of_jobs
from gpu_pipelines.console.forms import checked, given_in
from gpu_pipelines.console.local_runs import LocalRuns
from gpu_pipelines.console.pipelines import project_pipeline
from gpu_pipelines.console.shown import Task
from gpu_pipelines.dag import PIPELINES

FILE = """
pipelineInfo: {name: small, description: Doubles a number.}
root:
  inputDefinitions:
    parameters:
      number: {parameterType: NUMBER_INTEGER, description: What is doubled., defaultValue: 3.0}
      share: {parameterType: NUMBER_DOUBLE, isOptional: true}
      name: {parameterType: STRING}
      loud: {parameterType: BOOLEAN, defaultValue: false}
      several: {parameterType: LIST, defaultValue: [1, 2]}
      what: {parameterType: STRUCT, defaultValue: {a: 1}}
  dag:
    tasks:
      double: {componentRef: {name: comp-double}, taskInfo: {name: double}}
components:
  comp-double: {executorLabel: exec-double}
deploymentSpec: {executors: {exec-double: {container: {image: i, command: [no-such-program]}}}}
schemaVersion: 2.1.0
"""


def test_without_runs_and_models_the_pages_say_how_to_get_some(tmp_path: Path) -> None:
    page = Page(tmp_path)
    assert "There are no runs yet" in page.text("/runs")
    assert "There are no models yet" in page.text("/models")
    assert "There is no emulator" in page.text("/schedules")
    assert "There is no other run" in page.text("/compare")
    assert "train_evaluate_upload" in page.text("/pipelines")
    assert not (tmp_path / "runs").exists(), "looking makes nothing"


def test_runs_are_listed_the_newest_first_and_found(tmp_path: Path) -> None:
    made_run(tmp_path, "old", started="2026-11-20T10:00:00+00:00", pipeline="other", status="failed")
    made_run(tmp_path, "new", model={"model_name": "digits", "version": 2, "aliases": []})
    page = Page(tmp_path)
    text = page.text("/runs")
    assert text.index('href="/runs/local/new"') < text.index('href="/runs/local/old"')
    assert "digits@2" in text
    assert "test_accuracy 0.9000" in text
    assert 'href="/runs/local/new"' not in page.text("/runs?status=failed")
    assert 'href="/runs/local/old"' not in page.text("/runs?q=DIGITS")
    assert "No run is like that" in page.text("/runs?q=nothing")


def test_a_damaged_run_is_said_and_hides_no_other(tmp_path: Path) -> None:
    made_run(tmp_path, "good")
    for name, content in (("cut", '{"run_id": '), ("strange", '{"format_version": 1}'), ("list", "[]")):
        (tmp_path / "runs" / name).mkdir()
        (tmp_path / "runs" / name / "run.json").write_text(content)
    page = Page(tmp_path)
    text = page.text("/runs")
    assert 'href="/runs/local/good"' in text
    assert len(re.findall(r'class="status bad">damaged', text)) == 3
    assert "run.json" in text
    answer = page.get("/runs/local/cut")
    assert answer.status_code == 422
    assert "Traceback" not in answer.text


def test_what_a_run_has_lost_is_said_and_the_rest_is_shown(tmp_path: Path) -> None:
    model = {"model_name": "digits", "version": 2, "aliases": ["champion"]}
    record = made_run(tmp_path, "one", model=model, artifacts={"best_checkpoint": str(tmp_path / "gone")})
    made_run(tmp_path, "two")
    (record.directory / "report.html").unlink()
    (record.directory / "logs" / "train-model.log").unlink()
    page = Page(tmp_path)
    text = page.text("/runs/local/one")
    assert "its evaluation no longer exists" in text
    assert "sample:digits" in text
    assert "It may have been removed" in page.text("/runs/local/one/log?task=train-model", 404)
    assert "It may have been removed" in page.text("/runs/local/one/page/report", 404)
    assert "Two runs compared" in page.text("/compare?run=local/one&run=local/two")
    model = tmp_path / "registry" / "digits" / "versions" / "1"
    registered(tmp_path, "digits", 0.95)
    (model / "evaluation.json").write_text("{")
    assert "evaluation.json" in page.text("/models/local/digits")
    (model / "version.json").write_text("{")
    assert "version.json" in page.text("/models/local/digits")
    assert "digits" in page.text("/models")


def test_a_run_that_has_changed_is_read_again(tmp_path: Path) -> None:
    record = made_run(tmp_path, "one", status="running", started=now())
    runs = LocalRuns(tmp_path / "runs")
    assert [row.status for row in runs.rows()] == ["running"]
    record.end("failed")
    record.save()
    assert [row.status for row in runs.rows()] == ["failed"]
    record.seconds = 1234.0
    record.save()
    assert [row.seconds for row in runs.rows()] == [1234.0]


def test_the_page_of_a_run_has_its_tasks_inputs_outputs_and_cost(tmp_path: Path) -> None:
    made_run(tmp_path, "one", outputs={"Output": 6})
    page = Page(tmp_path)
    text = page.text("/runs/local/one")
    for part in ("It has succeeded.", "sample:digits", "Output", 'class="dag across"', "report of the run", "0.9000"):
        assert part in text
    # Two minutes of training and three of evaluating on one L4.
    per_hour = float(re.findall(r'data-label="USD an hour">([\d.]+)', text)[0])
    total = float(re.findall(r"<b>([\d.]+)</b>", text)[0])
    assert total == pytest.approx(per_hour * 5 / 60, abs=0.006)
    assert "h100:8" in page.text("/runs/local/one?accelerator=h100:8")
    assert 'role="alert"' in page.text("/runs/local/one?accelerator=nonsense:1")
    assert "<h1>report</h1>" in page.text("/runs/local/one/page/report")
    assert page.text("/runs/local/one/page/logs/train-model.log") == "train-model says hello\n"


@pytest.mark.parametrize("strategy", ["SPOT", "STANDARD"])
def test_a_job_costs_as_the_machines_of_its_steps_are_bought(strategy: str) -> None:
    compiled = Path(__file__).parents[2] / "compiled" / "train_evaluate_upload" / "vertex"
    spec = yaml.safe_load((compiled / "text_classification" / "l4-1.yaml").read_text())
    for name in ("train-model", "evaluate-checkpoints"):
        declared = spec["components"][f"comp-{name}"]["inputDefinitions"]["parameters"]
        declared["strategy"]["defaultValue"] = strategy
        # Without a parameter for the image, the machines are those of the component alone.
        given = spec["root"]["dag"]["tasks"][name]["inputs"]["parameters"].pop("worker_pool_specs")
        declared["worker_pool_specs"]["defaultValue"] = given["runtimeValue"]["constant"]
    took = {"prepare-data": 60.0, "train-model": 3600.0, "evaluate-checkpoints": 1800.0}
    cost = cost_of_jobs(spec, [Task(name, name, "succeeded", seconds) for name, seconds in took.items()], "us-central1")
    assert cost is not None
    price = load_catalog().prices[("g2-standard-8", "machine", "us-central1")]
    an_hour = price.spot if strategy == "SPOT" else price.on_demand
    assert [line.task for line in cost.lines] == ["train-model", "evaluate-checkpoints"]
    assert cost.usd == pytest.approx(1.5 * (an_hour or 0))
    assert cost.lines[0].machine.endswith("spot") == (strategy == "SPOT")


def test_a_log_comes_as_it_is_written_in_whole_lines(tmp_path: Path) -> None:
    record = made_run(tmp_path, "one", status="running", started=now())
    record.steps[1].status = "running"
    record.save()
    log = tmp_path / "runs" / "one" / "logs" / "train-model.log"
    log.write_bytes("erste Zeile\nzweite Zeilé".encode()[:-1])
    page = Page(tmp_path)
    path = "/runs/local/one/log?task=train-model"
    first = page.get(path).json()
    assert first == {"text": "erste Zeile\n", "next": 12, "whole": False}
    log.write_bytes("erste Zeile\nzweite Zeilé\ndritte".encode())
    assert page.get(f"{path}&start={first['next']}").json()["text"] == "zweite Zeilé\n"
    record.end("succeeded")
    record.save()
    last = page.get(f"{path}&start=26").json()
    assert last == {"text": "dritte", "next": 32, "whole": True}
    log.write_bytes(b"x" * 99 + b"\n" + b"y" * (300 * 1024))
    cut = page.get(path).json()
    assert cut["text"].startswith("… the first ")
    assert cut["whole"]


def test_a_training_that_runs_says_how_far_it_is(tmp_path: Path) -> None:
    record = made_run(tmp_path, "one", status="running", started=now())
    record.steps[1].status = "running"
    record.save()
    text = Page(tmp_path).text("/runs/local/one/live")
    assert "train-model: step 8" in text
    assert "loss 0.2500" in text
    assert 'data-going-on="yes"' in text
    record.end("succeeded")
    record.save()
    assert "step 8" not in Page(tmp_path).text("/runs/local/one/live")


def test_a_folder_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    page = Page(tmp_path)
    form = page.drop(FILE.encode()).headers["location"]
    file = next((tmp_path / "runs" / ".console" / "pipelines").iterdir())
    file.unlink()
    file.symlink_to(file)
    assert page.get("/pipelines").status_code == 500
    assert "cannot be used" in page.text("/pipelines", 500)
    assert page.get(form).status_code == 404
    assert "has an invalid value" in page.text("/runs?page=x", 422)


def test_a_run_is_stopped_as_ctrl_c_does(tmp_path: Path) -> None:
    program = """
import time
try:
    print("up", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    raise SystemExit(7)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        started = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(time.time() + 1))
        made_run(tmp_path, "one", status="running", process_id=process.pid, started=started)
        page = Page(tmp_path)
        assert "Stop it" in page.text("/runs/local/one")
        assert page.submit("/runs/local/one/stop").status_code == 303
        assert process.wait(20) == 7
    assert "is not running on this machine" in page.submit("/runs/local/one/stop").text


def test_two_runs_are_compared(tmp_path: Path) -> None:
    best = {
        f"{name}": str(evaluated(tmp_path / "runs" / f"model-{name}", value))
        for name, value in (("a", 0.5), ("b", 0.9))
    }
    made_run(tmp_path, "a", artifacts={"best_checkpoint": best["a"]})
    parameters = {"source": "sample:digits", "learning_rate": 0.1, "extra": ""}
    made_run(tmp_path, "b", artifacts={"best_checkpoint": best["b"]}, parameters=parameters)
    page = Page(tmp_path)
    text = page.text("/compare?run=local/a&run=local/b")
    differing = text[text.index("Parameters that differ") : text.index('id="metrics-title"')]
    assert re.findall(r'<th scope="row">(\w+)</th>', differing) == ["learning_rate", "seed", "extra"]
    assert "1 others are equal" in differing or "1 other is equal" in differing
    assert "+0.4000" in text
    assert "0.8800 to 0.9200" in text
    assert "the intervals do not meet" in text
    curves = text[text.index('id="curves-title"') : text.index('id="durations-title"')]
    assert curves.count("<svg") == 2, "loss and val_loss"
    assert "<style" not in curves
    choice = page.text("/compare?run=local/a")
    assert "Run A" in choice
    assert re.findall(r"<option[^>]*>([^<]*)</option>", choice) == ["b, test_accuracy 0.9000, succeeded"], (
        "runs of one minute are told apart"
    )
    assert "Tick two" in page.text("/compare?run=local/a&run=local/b&run=local/a", 422)


def test_a_dropped_file_makes_its_form(tmp_path: Path) -> None:
    page = Page(tmp_path)
    answer = page.drop(FILE.encode())
    assert answer.status_code == 303
    text = page.text(answer.headers["location"])
    assert "Doubles a number." in text
    assert "What is doubled." in text
    assert re.search(r'name="p\.number"[^>]*value="3"', text)
    assert re.search(r'name="p\.name"[^>]* required', text)
    assert not re.search(r'name="p\.share"[^>]* required', text)
    assert re.search(r'<select id="p\.loud"', text)
    # Each field has a label, and its description is told with it.
    assert set(re.findall(r' name="(p\.\w+)"', text)) == set(re.findall(r'<label for="(p\.\w+)"', text))
    assert 'aria-describedby="p.number-text"' in text
    assert 'href="/pipelines/file%3Asmall-' in page.text("/pipelines")


def test_what_stands_in_a_form_gets_its_type(tmp_path: Path) -> None:
    page = Page(tmp_path)
    key = page.drop(FILE.encode()).headers["location"].removeprefix("/pipelines/").replace("%3A", ":")
    pipeline = page.console.pipelines.pipeline(key)
    sent = {
        "p.number": "5",
        "p.share": "",
        "p.name": "Ann,\r\nBob = 1",
        "p.loud": "false",
        "p.several": '[1, "x"]',
        "p.what": '{"a": 1}',
    }
    given = given_in(pipeline, sent)
    assert given == {"number": "5", "name": "Ann,\nBob = 1", "several": '[1, "x"]'}
    values = checked(pipeline, given)
    assert values == {
        "number": 5,
        "share": None,
        "name": "Ann,\nBob = 1",
        "loud": False,
        "several": [1, "x"],
        "what": {"a": 1},
    }


def test_wrong_inputs_are_all_said_and_stay_in_the_form(tmp_path: Path) -> None:
    page = Page(tmp_path)
    form = page.drop(FILE.encode()).headers["location"]
    answer = page.submit(form, **{"p.number": "many", "p.what": "{", "where": "local"})
    assert answer.status_code == 422
    for part in (
        'role="alert"',
        "number takes a whole number",
        "what takes a mapping",
        "name must be given",
        'value="many"',
    ):
        assert part in answer.text
    assert not list((tmp_path / "runs" / ".console").glob("starts/*"))


def test_a_run_that_cannot_start_says_why(tmp_path: Path) -> None:
    page = Page(tmp_path)
    form = page.drop(FILE.encode()).headers["location"]
    sent = {"p.name": "x", "where": "local", "containers": "no"}
    answer = page.submit(form, **sent)
    assert answer.status_code == 303
    place = answer.headers["location"]
    assert "The run is starting" in page.text(place)
    start = page.console.starter.start(place.rpartition("/")[2])
    assert start.process.wait(60) == 2
    text = page.text(f"{place}/live")
    assert "The run was not started" in text
    assert "no-such-program, which is not installed here" in text.replace("&#39;", "'")


def test_the_forms_of_this_project_have_choices_and_further_inputs(tmp_path: Path) -> None:
    record = made_run(tmp_path, "one")
    page = Page(tmp_path)
    text = page.text("/pipelines/project:train_evaluate_upload")
    assert "further inputs" in text
    assert re.search(r'<select id="p\.optimizer"', text)
    assert "There is no pipeline" in page.text("/pipelines/project:nothing", 422)
    again = page.text("/runs/local/one")
    assert "Start it again" in again
    link = re.findall(r'href="(/pipelines/[^"]*like=[^"]*)"', again)[0]
    assert re.search(r'name="p\.learning_rate"[^>]*value="0.004"', page.text(link.replace("&amp;", "&")))
    assert record.parameters["learning_rate"] == 0.004


def test_several_forms_are_opened_at_the_same_time() -> None:
    # KFP builds one pipeline at a time. The threads change often, so that two would be built at once.
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor() as threads:
            forms = list(threads.map(project_pipeline, PIPELINES))
    finally:
        sys.setswitchinterval(usual)
    assert [form.listed.name for form in forms] == list(PIPELINES)


def test_versions_stand_beside_each_other_and_one_is_promoted(tmp_path: Path) -> None:
    registry = registered(tmp_path, "digits", 0.91, 0.95, 0.5)
    page = Page(tmp_path)
    assert ">3<" in page.text("/models")
    text = page.text("/models/local/digits")
    assert "0.9300 to 0.9700" in text
    assert "<svg" in text
    assert "version 1" in text
    promote = "/models/local/digits/promote"
    assert page.submit(promote, version="2", seen="1").status_code == 303
    assert registry.aliases("digits")["champion"] == 2
    old = page.submit(promote, version="1", seen="1")
    assert "has changed since the page was loaded" in old.text
    failed = page.submit(promote, version="3", seen="2")
    assert failed.status_code == 422
    assert "has not passed its gates" in failed.text
    assert registry.aliases("digits")["champion"] == 2
    assert page.submit(promote, version="3", seen="2", anyway="yes").status_code == 303
    assert registry.aliases("digits")["champion"] == 3
    assert page.submit(promote, version="9", seen="3").status_code == 422
    assert "no model" in page.text("/models/local/nothing", 404)


def test_a_damaged_version_does_not_become_the_champion(tmp_path: Path) -> None:
    registry = registered(tmp_path, "digits", 0.91, 0.95)
    (Path(registry.version("digits", "2").place) / "config.json").write_text("{}")
    answer = Page(tmp_path).submit("/models/local/digits/promote", version="2", seen="1")
    assert answer.status_code == 422
    assert "is damaged" in answer.text
    assert registry.aliases("digits")["champion"] == 1


def test_the_command_serves_until_it_is_asked_to_end(tmp_path: Path) -> None:
    with subprocess.Popen(CONSOLE, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        address = re.findall(r"http://\S+", process.stdout.readline())[0]
        port = address.split(":")[2].split("/")[0]
        taken = gpu_pipelines("console", "--port", port, "--no-open", cwd=tmp_path, apart=True)
        assert taken.status == 2
        assert f"Port {port} of 127.0.0.1 is taken." in taken.err
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        assert process.stderr
        assert process.stderr.read() == ""


def test_an_emulator_that_is_not_there_is_said_at_once(tmp_path: Path) -> None:
    done = gpu_pipelines("console", "--emulator", "http://127.0.0.1:9", "--no-open", "--port", "0", cwd=tmp_path)
    assert done.status == 2
    assert "No emulator answers at http://127.0.0.1:9" in done.err
    both = gpu_pipelines("console", "--emulator", "http://x", "--state", "s", "--no-open", cwd=tmp_path)
    assert "Give one of them" in both.err


def test_the_command_line_does_not_import_the_server() -> None:
    program = "import sys, gpu_pipelines.cli.main; print(json.dumps([*({'fastapi', 'uvicorn'} & {*sys.modules})]))"
    done = subprocess.run([sys.executable, "-c", f"import json; {program}"], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []
