"""Runs on this machine are recorded: while they go on, when they have ended, and when their process is gone."""

from __future__ import annotations

import cProfile
import json
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from command_line import command
from conftest import GPU_PIPELINES, PIPELINE, Finished, gpu_pipelines, newest_run, write_photos
from forked import Forked
from processes import kill_tree

from gpu_pipelines.console.local_runs import LocalRuns
from gpu_pipelines.driver.runs import readable_runs
from gpu_pipelines.targets.local.local import LocalOptions
from gpu_pipelines.targets.local.outputs.next_commands import next_commands
from gpu_pipelines.targets.local.runner.log import LocalLog
from gpu_pipelines.targets.local.runs import _Recorder
from gpu_pipelines.targets.local.target import adopt_results
from gpu_pipelines.targets.messages import Request
from gpu_pipelines.targets.runs.record import RunRecord
from gpu_pipelines.targets.runs.recorded import (
    checkpoints_of,
    entries_taken,
    recorded_runs,
    remove_runs,
    run_named,
    runs_and_problems,
)
from gpu_pipelines.targets.steps import StepRecord, last_lines

SMALL = Path(__file__).with_name("small.py")
REFRESH = '<meta http-equiv="refresh"'


def run_small(cwd: Path, *arguments: str, **parameters: Any) -> Finished:
    shutil.copy(SMALL, cwd / "small.py")
    given = [part for name, value in parameters.items() for part in ("-p", f"{name}={value}")]
    return gpu_pipelines("run", "small.py", *given, *arguments, cwd=cwd)


@contextmanager
def going_on(cwd: Path, *arguments: str) -> Iterator[Forked]:
    """A run whose first step takes long, as soon as that step has begun."""
    shutil.copy(SMALL, cwd / "small.py")
    command = ["run", "small.py", "-p", "seconds=60", *arguments]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(cwd)
        process = Forked("gpu_pipelines.cli.main", command, os.environ, log=cwd / "stderr.txt")
    try:
        deadline = time.monotonic() + 60
        while not any("Running: double" in page.read_text() for page in cwd.glob("runs/*/report.html")):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield process
    finally:
        if process.poll() is None:
            kill_tree(process.pid)
        process.wait()


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with three runs: two that succeeded, and one that failed."""
    cwd = tmp_path_factory.mktemp("three")
    for value, status in ((2, 0), (4, 0), (60, 1)):
        assert run_small(cwd, value=value).status == status
    return cwd


def ids(cwd: Path) -> list[str]:
    """The ids of the runs, the oldest first."""
    return [run["run_id"] for run in reversed(json.loads(command("runs", "list", "--json", cwd=cwd).out))]


def test_runs_are_listed_with_how_they_went_the_newest_first(three: Path) -> None:
    listed = command("runs", "list", cwd=three)
    assert listed.status == 0, listed.err
    failed, second, first = (line.split() for line in listed.out.splitlines()[1:])
    assert [failed[1], second[1], first[1]] == ["failed", "succeeded", "succeeded"]
    assert "0.8000" in second
    assert "0.4000" in first
    documents = json.loads(command("runs", "list", "--json", cwd=three).out)
    assert [each["metrics"] for each in documents[1:]] == [
        {"quality": 0.8, "Output": 0.8},
        {"quality": 0.4, "Output": 0.4},
    ]
    assert all((three / each["report"]).is_file() for each in documents)


TWO_SCORES = """
@dsl.pipeline(name="scores")
def scores():
    score(value=1000).after(score(value=1))
"""


def test_a_run_that_has_failed_has_no_figure_that_says_most(tmp_path: Path) -> None:
    (tmp_path / "small.py").write_text(SMALL.read_text() + TWO_SCORES)
    assert command("run", "small.py:scores", cwd=tmp_path).status == 1
    assert newest_run(tmp_path)["metrics"] == {"quality": 0.1}
    assert "quality" not in command("runs", "list", cwd=tmp_path).out


def test_there_may_be_no_runs(tmp_path: Path) -> None:
    assert command("runs", "list", cwd=tmp_path).out.startswith("No runs in runs.")
    shown = command("runs", "show", "latest", cwd=tmp_path)
    assert shown.status == 2
    assert "There are no runs in runs." in shown.err


def test_a_run_whose_record_is_damaged_is_not_passed_over_in_silence(tmp_path: Path) -> None:
    (tmp_path / "runs" / "broken").mkdir(parents=True)
    (tmp_path / "runs" / "broken" / "run.json").write_text("{")
    for given in ((), ("--json",)):
        listed = command("runs", "list", *given, cwd=tmp_path)
        assert listed.status == 0
        assert "warning: a run is not listed: " in listed.err
        assert "broken/run.json" in listed.err
    assert json.loads(listed.out) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"seconds": "long"},
        {"started": 5},
        {"started": "yesterday"},
        {"metrics": {"accuracy": "good"}},
        {"model": {"model_name": "digits"}},
        {"steps": [{"name": "train-model", "seconds": None}]},
        {"dependencies": {"train-model": "prepare-data"}},
    ],
    ids=str,
)
def test_a_record_with_something_else_in_a_field_hides_no_other_run(wrong: dict[str, Any], tmp_path: Path) -> None:
    for name, more in (("broken", wrong), ("whole", {})):
        directory = tmp_path / name
        directory.mkdir()
        RunRecord(name, "small", "2026-11-22T13:07:18+00:00", {}, "", {}, directory, status="failed").save()
        content = json.loads((directory / "run.json").read_text())
        (directory / "run.json").write_text(json.dumps({**content, **more}))
    listed, (told,) = runs_and_problems(tmp_path)
    assert [each.run_id for each in listed] == ["whole"]
    assert "broken/run.json is damaged" in told


@pytest.mark.parametrize("text", ["[" * 100_000, f'{{"format_version": {"9" * 5_000}}}'], ids=["deep", "long"])
def test_a_record_that_python_cannot_read_hides_no_other_run(text: str, tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text(text)
    listed, (told,) = runs_and_problems(tmp_path)
    assert (listed, "broken/run.json is damaged" in told) == ([], True)


def test_of_runs_of_one_second_the_last_is_the_newest(tmp_path: Path) -> None:
    for name in ("small-20261122-130718", *(f"small-20261122-130718-{number}" for number in range(2, 12))):
        (tmp_path / name).mkdir()
        RunRecord(name, "small", "2026-11-22T13:07:18+00:00", {}, "", {}, tmp_path / name, status="failed").save()
    assert run_named(tmp_path, "latest").run_id == "small-20261122-130718-11"
    assert [row.id for row in LocalRuns(tmp_path).rows()] == [each.run_id for each in recorded_runs(tmp_path)]


def test_a_run_leaves_nothing_beside_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    assert run_small(tmp_path).status == 0
    assert not list(temporary.iterdir())


def test_a_copy_of_a_run_is_another_run(tmp_path: Path) -> None:
    directory = tmp_path / "small-20261122-130718"
    directory.mkdir()
    RunRecord(directory.name, "small", "2026-11-22T13:07:18+00:00", {}, "", {}, directory, status="failed").save()
    shutil.copytree(directory, tmp_path / "kept")
    assert [each.run_id for each in recorded_runs(tmp_path)] == [directory.name, "kept"]
    assert run_named(tmp_path, "kept").directory == tmp_path / "kept"
    removed = command("runs", "rm", directory.name, "kept", "--yes", "--runs", str(tmp_path), cwd=tmp_path)
    assert removed.status == 0, removed.err
    assert not recorded_runs(tmp_path)


def test_a_run_is_shown_with_its_steps_and_what_went_wrong(three: Path) -> None:
    shown = command("runs", "show", "latest", cwd=three).out
    assert re.search(r"^small-\d+-\d+(-\d)?: failed, ", shown)
    assert re.search(r"^score +failed +\d+\.\d s +runs/.*/logs/score.log$", shown, re.MULTILINE)
    first = command("runs", "show", ids(three)[0], cwd=three).out
    assert re.search(r"^quality +0.4000$", first, re.MULTILINE)
    assert re.search(r"^value +2$", first, re.MULTILINE)
    assert json.loads(command("runs", "show", ids(three)[0], "--json", cwd=three).out)["outputs"] == {"Output": 0.4}


def test_a_beginning_names_a_run_if_it_is_only_one(three: Path) -> None:
    several = command("runs", "show", "small", cwd=three)
    assert several.status == 2
    assert "3 runs begin with 'small'" in several.err
    unknown = command("runs", "show", "other", cwd=three)
    assert unknown.status == 2
    assert "There is no run 'other'" in unknown.err
    outside = command("runs", "show", "../runs", cwd=three)
    assert outside.status == 2


def test_the_id_of_a_run_that_is_gone_names_no_other_of_the_same_second(tmp_path: Path) -> None:
    for name in ("small-20261122-130718", "small-20261122-130718-2"):
        (tmp_path / name).mkdir()
        RunRecord(name, "small", "2026-11-22T13:07:18+00:00", {}, "", {}, tmp_path / name, status="failed").save()
    remove = ("runs", "rm", "small-20261122-130718", "--yes", "--runs", str(tmp_path))
    assert [command(*remove, cwd=tmp_path).status for _ in range(2)] == [0, 2]
    assert run_named(tmp_path, "small-20261122").run_id == "small-20261122-130718-2"


def test_two_runs_are_compared(three: Path) -> None:
    first, second, failed = ids(three)
    compared = command("runs", "compare", first, second, cwd=three).out
    differing = compared.partition("parameters that differ")[2].partition("metrics")[0]
    assert re.search(r"^value +2 +4$", differing, re.MULTILINE)
    assert "note" not in differing
    assert re.search(r"^quality +0.4000 +0.8000 +\+0.4000$", compared, re.MULTILINE)
    assert re.search(r"^double +\d\.\d s +\d\.\d s$", compared, re.MULTILINE)
    document = json.loads(command("runs", "compare", second, failed, "--json", cwd=three).out)
    assert document["parameters"] == {"value": {"a": 4, "b": 60}}
    assert document["metrics"]["quality"] == {"a": 0.8}
    assert document["steps"]["score"]["b"] == "failed"


def test_counts_are_shown_without_decimals(three: Path, tmp_path: Path) -> None:
    for name, metrics in (
        ("a-1", {"classes": 1, "rows": 90, "accuracy": 1.0}),
        ("b-1", {"classes": 1, "rows": 88, "accuracy": 0.5}),
    ):
        shutil.copytree(three / "runs" / ids(three)[0], tmp_path / "runs" / name)
        record = json.loads((tmp_path / "runs" / name / "run.json").read_text())
        (tmp_path / "runs" / name / "run.json").write_text(json.dumps({**record, "run_id": name, "metrics": metrics}))
    compared = command("runs", "compare", "a-1", "b-1", cwd=tmp_path).out
    assert re.search(r"^classes +1 +1 +\+0$", compared, re.MULTILINE)
    assert re.search(r"^rows +90 +88 +−2$", compared, re.MULTILINE)
    assert re.search(r"^accuracy +1.0000 +0.5000 +−0.5000$", compared, re.MULTILINE)
    assert re.search(r"^classes +1$", command("runs", "show", "a-1", cwd=tmp_path).out, re.MULTILINE)


def test_the_page_of_all_runs_links_their_reports(three: Path) -> None:
    page = (three / "runs" / "index.html").read_text()
    links = re.findall(r'href="([^"]*)"', page)
    assert links == [f"{name}/report.html" for name in reversed(ids(three))]
    assert all((three / "runs" / link).is_file() for link in links)
    assert page.count(">succeeded<") == 2
    assert "Output 0.8000" in page


def test_where_there_is_no_browser_the_path_of_the_report_is_printed(three: Path) -> None:
    opened = command("runs", "open", "latest", cwd=three)
    assert opened.status == 0, opened.err
    assert Path(opened.out.strip()) == three / "runs" / ids(three)[-1] / "report.html"


def test_what_steps_have_left_to_look_at_is_linked(three: Path) -> None:
    report = three / "runs" / ids(three)[0] / "report.html"
    (link,) = re.findall(r'href="(artifacts/[^"]*)"', report.read_text())
    assert (report.parent / link).read_text() == "<p>4</p>"


def test_the_next_commands_can_be_copied(tmp_path: Path) -> None:
    done = run_small(tmp_path, "--runs", "my runs")
    (command,) = done.out.partition("next:\n")[2].splitlines()
    opened = subprocess.run(
        command.replace("gpu-pipelines", str(GPU_PIPELINES), 1),
        shell=True,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert opened.stdout.strip().endswith("report.html"), opened.stderr
    failed = run_small(tmp_path, value=60)
    assert "  gpu-pipelines run small.py -p value=60 --cache" in failed.err.splitlines()
    with_options = run_small(tmp_path, "--accelerator", "cpu:1", "--runs", "my runs", "--no-containers", value=60)
    again = next(line for line in with_options.err.splitlines() if "--cache" in line)
    assert again.endswith("small.py -p value=60 --cache --accelerator cpu:1 --runs 'my runs' --no-containers")


FULL = """
from kfp import dsl


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def fill(out: dsl.Output[dsl.Dataset]):
    with open(out.path, "wb") as file:
        while True:
            file.write(bytes(10_000))


@dsl.pipeline(name="full")
def full():
    fill()
"""
#: Runs that pipeline on a small disk of its own, and looks at the run there, before and after there is room again.
ON_A_SMALL_DISK = """
mount -t tmpfs -o size=2m none "$0" || exit 9
"$1" run full.py --runs "$0"
"$1" runs list --runs "$0"
"$1" runs show latest --runs "$0"
cat "$0/full-outcome.json"
rm -r "$0"/*/artifacts
"$1" runs open latest --runs "$0"
"""


@pytest.mark.slow
def test_a_run_that_has_filled_its_disk_is_one_that_has_failed(tmp_path: Path) -> None:
    (tmp_path / "full.py").write_text(FULL)
    disk = tmp_path / "disk"
    disk.mkdir()
    inside = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", ON_A_SMALL_DISK, disk, GPU_PIPELINES)
    done = subprocess.run(inside, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "No space left on device" in done.stderr
    assert re.search(r"^full-\S+ +failed ", done.stdout, re.MULTILINE), done.stdout + done.stderr
    assert re.search(r"^fill failed: .*No space left on device", done.stdout, re.MULTILINE)
    assert '"outcome": "failed",\n  "reason": "[Errno 28] No space left on device' in done.stdout
    assert done.stdout.rstrip().endswith("report.html")


DAMAGED = """
from kfp import dsl


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def evaluate_checkpoints(best_checkpoint: dsl.Output[dsl.Model]):
    from pathlib import Path

    Path(best_checkpoint.path).mkdir()
    Path(best_checkpoint.path, "evaluation.json").write_text("{")


@dsl.pipeline(name="damaged")
def damaged():
    evaluate_checkpoints()
"""


def test_a_best_checkpoint_of_ones_own_needs_no_evaluation(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(DAMAGED.replace('"evaluation.json").write', '"weights").write'))
    done = command("run", "own.py", cwd=tmp_path)
    assert (done.status, newest_run(tmp_path)["status"]) == (0, "succeeded"), done.err


def test_a_run_that_no_step_has_failed_ends_with_its_error(tmp_path: Path) -> None:
    (tmp_path / "damaged.py").write_text(DAMAGED)
    assert command("run", "damaged.py", cwd=tmp_path).status == 1
    run = newest_run(tmp_path)
    assert (run["status"], [step["status"] for step in run["steps"]]) == ("failed", ["succeeded"])
    outcome = json.loads((tmp_path / "runs/damaged-outcome.json").read_text())
    assert (outcome["outcome"], outcome["reason"]) == ("failed", run["reason"])
    assert "evaluation.json" in run["reason"]
    for shown in (command("runs", "show", "latest", cwd=tmp_path).out, (run["directory"] / "report.html").read_text()):
        assert run["reason"] in shown
        assert "evaluate-checkpoints failed" not in shown


def test_a_training_that_may_not_go_on_is_begun_anew(digits_run: Path) -> None:
    run = RunRecord.load(newest_run(digits_run)["directory"])
    training = next(step for step in run.steps if step.task == "train-model")
    run.status, run.resumes, run.steps = "failed", "earlier", [*run.steps, training]
    request = Request("my.py", given={"source": "photos"})
    again = "my.py -p source=photos --cache"
    for kind, goes_on in (("user_error", f"my.py --resume {run.run_id}"), ("invalid_request", again)):
        training.status, training.kind = "failed", kind
        assert f"  gpu-pipelines run {goes_on}" in next_commands(run, request, LocalOptions())
    run.status = training.status = "interrupted"
    for pipeline, named in (("my.py", "my.py "), ("train_evaluate_upload", "")):
        _, _, _, goes_on = next_commands(run, replace(request, pipeline=pipeline), LocalOptions(runs=Path("elsewhere")))
        assert goes_on == f"  gpu-pipelines run {named}--resume {run.run_id} --runs elsewhere"


def test_checkpoints_are_found_where_the_runs_have_been_moved_to(digits_run: Path, tmp_path: Path) -> None:
    shutil.copytree(digits_run / "runs", tmp_path / "moved")
    record = RunRecord.load(tmp_path / "moved" / newest_run(digits_run)["run_id"])
    before = checkpoints_of(RunRecord.load(newest_run(digits_run)["directory"]))
    assert Path(before).is_relative_to(digits_run)
    for noted in (before, str(Path(before).parent)):
        record.checkpoints = noted
        assert checkpoints_of(record) == before.replace(str(digits_run / "runs"), str(tmp_path / "moved"))


def test_a_training_on_a_gpu_is_offered_with_what_can_be_read_there(
    digits_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my photos").mkdir()
    run = RunRecord.load(newest_run(digits_run)["directory"])
    (tmp_path / "photos").mkdir()
    given = {"source": "./my photos", "test_source": "gs://b/test", "model_name": "photos", "model": "vit-micro"}
    local = {"registry": "./models", "tracking": "mlflow", "template": "x" * 5000}
    *_, copy, command = next_commands(run, Request("train_evaluate_upload", given={**given, **local}), LocalOptions())
    assert shlex.split(copy) == ["gcloud", "storage", "cp", "--recursive", "./my photos", "gs://BUCKET/"]
    words = shlex.split(command)
    assert "source=gs://BUCKET/my photos" in words
    assert "test_source=gs://b/test" in words
    assert "model_name=photos" in words, "that a folder has this name is chance"
    assert not any(word.startswith(("registry=", "tracking=")) for word in words)
    for source in ("photos/*.csv", "s3://b/photos"):
        request = Request("train_evaluate_upload", given={**given, "test_source": source})
        assert not any("BUCKET" in each or "vertex" in each for each in next_commands(run, request, LocalOptions()))


def test_the_images_of_a_table_are_copied_with_it(
    digits_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = RunRecord.load(newest_run(digits_run)["directory"])
    for folder in (tmp_path, tmp_path / "flowers"):
        write_photos(folder / "images", per_class=1)
        (folder / "table.csv").write_text("image,label\nimages/red/000.png,red\nimages/blue/000.png,blue\n")
    (tmp_path / "windows.csv").write_text("image,label\nimages\\red\\000.png,red\n")
    for source, copied, place in (
        ("windows.csv", ["windows.csv", "images"], "windows.csv"),
        ("flowers/table.csv", ["flowers"], "flowers/table.csv"),
        ("table.csv", ["table.csv", "images"], "table.csv"),
        ("./table.csv", ["./table.csv", "images"], "table.csv"),
    ):
        request = Request("train_evaluate_upload", given={"source": source})
        *_, copy, command = next_commands(run, request, LocalOptions())
        assert shlex.split(copy) == ["gcloud", "storage", "cp", "--recursive", *copied, "gs://BUCKET/"]
        assert f"source=gs://BUCKET/{place}" in shlex.split(command)
    (tmp_path / "table.csv").write_text("image,label\nnone.png,red\n")
    *_, copy, _ = next_commands(run, request, LocalOptions())
    assert shlex.split(copy)[4:] == ["./table.csv", "gs://BUCKET/"]


@pytest.mark.parametrize("file", ["score.py", "./my functions/score.py"])
def test_the_file_of_a_function_is_copied_to_where_a_step_imports_it(
    digits_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("def score(): ...\n")
    run, given = RunRecord.load(newest_run(digits_run)["directory"]), {"scoring_function": f"{file}:score"}
    run.parameters.update(given)
    *_, copy, command = next_commands(run, Request("train_evaluate_upload", given=given), LocalOptions())
    assert shlex.split(copy) == ["gcloud", "storage", "cp", "--recursive", file, "gs://BUCKET/"]
    # On Vertex AI, whose containers have the bucket there; gs:// is no path of a program.
    assert "scoring_function=/gcs/BUCKET/score.py:score" in shlex.split(command)


@pytest.mark.parametrize("given", ["exact_match, one.py:f,two.py:g", ["exact_match", "one.py:f", "two.py:g"]])
def test_the_files_of_several_functions_are_copied(
    digits_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str | list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("one.py", "two.py"):
        (tmp_path / name).write_text("def f(): ...\n")
    run = RunRecord.load(newest_run(digits_run)["directory"])
    run.parameters["generate"] = ["exact_match", "one.py:f", "two.py:g"]
    *_, copy, command = next_commands(
        run, Request("train_evaluate_upload", given={"generate": given, "seed": 1}), LocalOptions()
    )
    assert shlex.split(copy)[4:] == ["one.py", "two.py", "gs://BUCKET/"]
    assert "generate=exact_match,/gcs/BUCKET/one.py:f,/gcs/BUCKET/two.py:g" in shlex.split(command)


def test_a_model_that_no_server_of_this_project_serves_is_not_offered_to_be_served(
    digits_run: Path, tmp_path: Path
) -> None:
    run, request = RunRecord.load(newest_run(digits_run)["directory"]), Request("train_evaluate_upload", given={})
    version = shutil.copytree(run.artifacts["model"], tmp_path / "registry/digits/versions/1")
    run.artifacts["model"] = str(version)
    assert any("gpu-pipelines serve digits@1" in each for each in next_commands(run, request, LocalOptions()))
    evaluation = json.loads((version / "evaluation.json").read_text())
    (version / "evaluation.json").write_text(json.dumps({**evaluation, "scoring_function": "mine.py:score"}))
    assert not any("gpu-pipelines serve" in each for each in next_commands(run, request, LocalOptions()))


def test_a_script_that_has_saved_files_alone_is_gone_on_with_after_a_failure(tmp_path: Path) -> None:
    request = Request("train_script_evaluate_upload", given={"script": "train.py"})
    run = RunRecord("a-run", request.pipeline, "2026-11-22T04:43:14+00:00", {}, "", {}, tmp_path, status="failed")
    run.steps = [StepRecord(name, "failed") for name in ("prepare-data", "run-training-script")]
    place = tmp_path / "artifacts/checkpoints/a-run"
    place.mkdir(parents=True)
    (place / "metrics.jsonl").touch()
    assert next_commands(run, request, LocalOptions())[-1].endswith("script=train.py --cache")
    (place / "epoch_3.pt").touch()
    assert next_commands(run, request, LocalOptions())[-1].strip() == "gpu-pipelines run --resume a-run"


def test_a_training_that_is_done_is_not_repeated_for_a_changed_script(tmp_path: Path) -> None:
    request = Request("train_script_evaluate_upload", given={"script": "train.py"})
    run = RunRecord("a-run", request.pipeline, "2026-11-22T04:43:14+00:00", {}, "", {}, tmp_path, status="failed")
    run.steps = [StepRecord("run-training-script", "succeeded"), StepRecord("evaluate-checkpoints", "failed")]
    assert next_commands(run, request, LocalOptions())[-1].strip() == "gpu-pipelines run --resume a-run"


def test_json_is_one_document_whose_progress_is_on_stderr(tmp_path: Path) -> None:
    done = run_small(tmp_path, "--json", value=3)
    assert done.status == 0, done.err
    document = json.loads(done.out)
    assert (document["status"], document["outputs"]) == ("succeeded", {"Output": 0.6})
    assert (tmp_path / document["report"]).is_file()
    assert "double: doubling 3" in done.err
    failed = run_small(tmp_path, "--json", value=60)
    assert failed.status == 1
    assert json.loads(failed.out)["steps"][-1]["status"] == "failed"


def test_a_run_goes_on_when_nobody_reads_what_it_prints_any_more(tmp_path: Path) -> None:
    shutil.copy(SMALL, tmp_path / "small.py")
    process = subprocess.Popen(
        [str(GPU_PIPELINES), "run", "small.py"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout
    assert process.stderr
    assert process.stdout.readline() == "double: started\n"
    process.stdout.close()
    assert process.stderr.read() == ""
    process.wait()
    (run,) = recorded_runs(tmp_path / "runs")
    assert (run.status, [step.status for step in run.steps]) == ("succeeded", ["succeeded"] * 2)


def test_a_report_reads_itself_again_until_the_run_has_ended(tmp_path: Path) -> None:
    with going_on(tmp_path) as process:
        report = newest_run(tmp_path)["directory"] / "report.html"
        page = report.read_text()
        assert REFRESH in page
        assert "<script" not in page
        assert ">running<" in (tmp_path / "runs/index.html").read_text()
        assert command("runs", "list", cwd=tmp_path).out.splitlines()[1].split()[1] == "running"
        removed = command("runs", "rm", "latest", "--yes", cwd=tmp_path)
        assert removed.status == 2
        assert f"is still running, as process {process.pid}" in removed.err
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    page = report.read_text()
    assert REFRESH not in page
    assert "The run was interrupted" in page
    assert ">interrupted<" in (tmp_path / "runs/index.html").read_text()


def test_a_run_whose_process_is_gone_has_died(tmp_path: Path) -> None:
    with going_on(tmp_path) as process:
        children = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.wait()
        for child in children:
            kill_tree(child.pid)
    assert newest_run(tmp_path)["status"] == "running"
    assert command("runs", "list", cwd=tmp_path).out.splitlines()[1].split()[1] == "died"
    report = Path(command("runs", "open", "latest", cwd=tmp_path).out.strip())
    assert REFRESH not in report.read_text()
    assert "The run has died" in report.read_text()
    record = report.with_name("run.json")
    whole = record.read_text()
    record.write_text(whole[:100])
    assert list(report.parent.glob(".cache*")), "what it left has to be looked at"
    assert run_small(tmp_path, "--cache").status == 0, "a damaged record stops no other run"
    assert command("runs", "rm", "latest", "--yes", cwd=tmp_path).status == 0
    record.write_text(whole)
    assert command("runs", "rm", "latest", "--yes", cwd=tmp_path).status == 0
    assert not report.parent.exists()


@pytest.mark.slow
def test_a_folder_that_is_removed_while_its_run_goes_on_is_no_traceback(tmp_path: Path) -> None:
    with going_on(tmp_path) as process:
        directory = newest_run(tmp_path)["directory"]
        while directory.exists():  # files are being written there
            shutil.rmtree(directory, ignore_errors=True)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 1
    told = (tmp_path / "stderr.txt").read_text()
    assert f"runs/{directory.name}, the folder of the run, was removed while it ran.\n  Run it again." in told
    assert "Traceback" not in told


@pytest.mark.parametrize("ticks", [1, 0])
def test_a_later_process_of_the_same_number_is_not_taken_for_the_run(ticks: int, tmp_path: Path) -> None:
    assert run_small(tmp_path).status == 0
    record = newest_run(tmp_path)
    path = record.pop("directory") / "run.json"
    # This test's own process began after 2020, and not with the machine.
    content = {
        **record,
        "status": "running",
        "process_id": psutil.Process().pid,
        "process_ticks": ticks,
        "started": "2020-01-01T00:00:00+00:00",
    }
    path.write_text(json.dumps(content))
    assert command("runs", "list", cwd=tmp_path).out.splitlines()[1].split()[1] == "died"
    # What runs on another machine cannot be seen from here.
    path.write_text(json.dumps({**content, "machine": "another"}))
    assert command("runs", "list", cwd=tmp_path).out.splitlines()[1].split()[1] == "running"


@pytest.mark.slow
def test_a_run_lives_on_when_the_clock_is_set(tmp_path: Path) -> None:
    with going_on(tmp_path):
        record = newest_run(tmp_path)
        directory = record.pop("directory")
        # By a clock that was set forward since, the process began after the run.
        moved = {**record, "run_id": "moved", "started": "2020-01-01T00:00:00+00:00"}
        (tmp_path / "runs/moved").mkdir()
        (tmp_path / "runs/moved/run.json").write_text(json.dumps(moved))
        found = {each.run_id: each.status for each in recorded_runs(tmp_path / "runs")}
        assert found == {directory.name: "running", "moved": "running"}


def test_a_run_is_removed_when_that_is_wanted_with_what_the_cache_would_take_from_it(tmp_path: Path) -> None:
    def statuses() -> list[str]:
        assert run_small(tmp_path, "--cache", value=2).status == 0
        return [step["status"] for step in newest_run(tmp_path)["steps"]]

    assert statuses() == ["succeeded", "succeeded"]
    unasked = command("runs", "rm", "latest", cwd=tmp_path)
    assert unasked.status == 2
    assert "--yes" in unasked.err
    assert len(ids(tmp_path)) == 1
    removed = command("runs", "rm", "latest", "--yes", cwd=tmp_path)
    assert removed.status == 0, removed.err
    assert ids(tmp_path) == []
    assert "There are no runs" in (tmp_path / "runs/index.html").read_text()
    # What had no files is as good as before.
    assert statuses() == ["reused", "succeeded"]
    assert statuses() == ["reused", "reused"]
    assert newest_run(tmp_path)["metrics"] == {"quality": 0.4, "Output": 0.4}
    first, last = ids(tmp_path)
    assert command("runs", "rm", first, "--yes", cwd=tmp_path).status == 2
    assert ids(tmp_path) == [first, last]


def test_several_may_remove_the_same_runs(three: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    for number in range(12):
        shutil.copytree(three / "runs" / ids(three)[0], runs / f"small-{number}")
    given = [RunRecord.load(each) for each in sorted(runs.iterdir())]
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda _: remove_runs(runs, given), range(4)))
    assert list(runs.iterdir()) == []


def test_runs_that_begin_at_once_may_adopt_the_results_of_the_same_killed_one(tmp_path: Path) -> None:
    killed = tmp_path / "small-20261122-130718"
    (killed / ".cache").mkdir(parents=True)
    RunRecord(killed.name, "small", "2026-11-22T13:07:18+00:00", {}, "", {}, killed, process_ticks=1).save()
    for number in range(200):
        (killed / ".cache" / f"{number}.json").write_text("{}")
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda _: adopt_results(tmp_path, tmp_path / ".cache"), range(4)))
    assert len(list((tmp_path / ".cache").iterdir())) == 200


def test_a_run_whose_results_another_has_taken_is_not_removed_alone(digits_run: Path, tmp_path: Path) -> None:
    shutil.copytree(digits_run / "runs", tmp_path / "runs")
    first = newest_run(tmp_path)["run_id"]
    source, second = tmp_path / "runs" / first, tmp_path / "runs" / "second-20261122-000000"
    text = (source / "run.json").read_text().replace(str(digits_run), str(tmp_path))
    (source / "run.json").write_text(text)
    second.mkdir()
    # As a run has it whose steps were all reused.
    (second / "run.json").write_text(text.replace(f'"run_id": "{first}"', f'"run_id": "{second.name}"'))
    refused = command("runs", "rm", first, "--yes", cwd=tmp_path)
    assert refused.status == 2
    assert f"{second.name} use results of {first}" in refused.err
    assert source.is_dir()
    assert command("runs", "rm", first, second.name, "--yes", cwd=tmp_path).status == 0
    assert not source.exists()


def test_a_run_whose_checkpoints_another_goes_on_with_is_not_removed_alone(tmp_path: Path) -> None:
    first, second = "first-20261122-000000", "second-20261122-000000"
    for name, given in ((first, {}), (second, {"checkpoint_uri": f"runs/{first}/artifacts/checkpoints/{first}"})):
        directory = tmp_path / "runs" / name
        directory.mkdir(parents=True)
        RunRecord(name, PIPELINE, "2026-11-22T00:00:00+00:00", given, "", {}, directory, status="failed").save()
    refused = command("runs", "rm", first, "--yes", cwd=tmp_path)
    assert (refused.status, f"{second} use results of {first}" in refused.err) == (2, True), refused.err
    assert (tmp_path / "runs" / first).is_dir()
    assert command("runs", "rm", second, "--yes", cwd=tmp_path).status == 0
    assert command("runs", "rm", first, "--yes", cwd=tmp_path).status == 0


def test_what_a_run_names_is_read_once_however_many_others_are_removed(tmp_path: Path) -> None:
    names = [f"run-20261122-{number:06d}" for number in range(40)]
    for name in names:
        (tmp_path / name).mkdir()
        RunRecord(name, PIPELINE, "2026-11-22T00:00:00+00:00", {}, "", {}, tmp_path / name, status="failed").save()
    profile = cProfile.Profile()
    profile.runcall(remove_runs, tmp_path, [RunRecord.load(tmp_path / name) for name in names[:20]])
    assert sorted(each.name for each in tmp_path.iterdir()) == names[20:]
    read = sum(each.callcount for each in profile.getstats() if getattr(each.code, "co_name", "") == "read_text")
    assert 20 <= read <= 60
    # Nothing is done for each pair of a run that stays and one that goes: a year has thousands of both.
    calls = [
        each.callcount
        for each in profile.getstats()
        if getattr(each.code, "co_filename", "").endswith("runs/recorded.py")
    ]
    assert max(calls) <= 60


def test_of_a_log_of_any_length_the_end_is_read(tmp_path: Path) -> None:
    log = tmp_path / "train-model.log"
    assert last_lines(log, 2) == []
    log.write_bytes(b"\xff first\n" * 10_000 + b"last but one\n\nlast\n \n")
    assert last_lines(log, 2) == ["last but one", "last"]
    with log.open("r+b") as file:
        file.truncate(1 << 36)  # of which no disk and no memory has the bytes
        file.seek(-7, 2)
        file.write(b"\nfailed")
    assert last_lines(log, 1) == ["failed"]


def test_a_list_of_runs_reads_each_record_once_and_no_parameter_for_its_type(tmp_path: Path) -> None:
    given = {f"name{number}": number for number in range(100)}
    for number in range(10):
        directory = tmp_path / f"run-20261122-{number:06d}"
        directory.mkdir()
        started = "2026-11-22T00:00:00+00:00"
        RunRecord(directory.name, PIPELINE, started, given, "", {}, directory, status="failed").save()
    profile = cProfile.Profile()
    assert len(profile.runcall(readable_runs, tmp_path)) == 10
    calls = {getattr(each.code, "co_name", ""): each.callcount for each in profile.getstats()}
    assert calls["read_document"] == 10
    assert calls["_is_of"] < 1000


def test_a_record_of_a_later_version_is_read_without_what_is_new_in_it(tmp_path: Path) -> None:
    record = RunRecord("run", PIPELINE, "2026-11-22T00:00:00+00:00", {}, "", {}, tmp_path, status="failed")
    record.steps.append(StepRecord("a-step", status="failed"))
    record.save()
    content = json.loads((tmp_path / "run.json").read_text())
    content["steps"][0]["new"] = content["new"] = "of a later version"
    (tmp_path / "run.json").write_text(json.dumps(content))
    assert RunRecord.load(tmp_path).steps == record.steps


def test_a_step_costs_no_more_the_more_there_were_before_it(tmp_path: Path) -> None:
    (tmp_path / ".cache").mkdir()
    record = RunRecord("run", PIPELINE, "2026-11-22T00:00:00+00:00", {}, "", {}, tmp_path / "run")
    record.directory.mkdir()
    request: Any = SimpleNamespace(compiled_spec={})
    observer: Any = SimpleNamespace(step_ended=lambda step: None)
    recorder = _Recorder(record, request, tmp_path, observer)
    profile = cProfile.Profile()
    for number in range(40):
        key = f"{number:060x}{'9' * 4}"
        (tmp_path / ".cache" / f"{key}.json").write_text("{}")
        record.steps.append(StepRecord(f"step-{number}", status="reused", taken=key[:60]))
        profile.runcall(recorder.step_ended, record.steps[-1])
    taken = [(entry.stem[:60], step.taken) for entry, step in entries_taken(record.steps[::-6], tmp_path / ".cache")]
    calls = {str(getattr(each.code, "co_name", each.code)): each.callcount for each in profile.getstats()}
    assert len(taken) == 7
    assert all(entry == step for entry, step in taken)
    assert calls["write_run_report"] < 10
    assert calls["<built-in method posix.scandir>"] < 80
    assert RunRecord.load(record.directory).steps[-1].name == "step-39"


def test_a_run_with_a_training_says_what_shows_its_curves_and_what_to_do_with_the_model(digits_run: Path) -> None:
    record = newest_run(digits_run)
    following = (digits_run / "printed.txt").read_text().partition("next:\n")[2].splitlines()
    assert following == [
        f"  gpu-pipelines runs open {record['run_id']}",
        f"  tensorboard --logdir runs/{record['run_id']}/artifacts/checkpoints",
        "  gpu-pipelines models show digits",
        "  gpu-pipelines serve digits@1",
        "  gpu-pipelines run train_evaluate_upload --target vertex --accelerator l4:1",
    ]
    assert "tensorboard --logdir" in (record["directory"] / "report.html").read_text()
    assert record["key_metric"] == "test_accuracy"
    assert record["metrics"]["rows_read"] == 1797
    assert re.search(r"^rows_read +1,797$", command("runs", "show", "latest", cwd=digits_run).out, re.MULTILINE)
    listed = command("runs", "list", cwd=digits_run).out.splitlines()[1].split()
    assert listed[2:4] == ["digits@1", "test_accuracy"]


NO_REPORT = """
from kfp import dsl


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def block(runs: str):
    from pathlib import Path

    for run in Path.cwd().glob(runs):
        (run / ".report.html").mkdir()


@dsl.pipeline(name="no-report")
def no_report(runs: str):
    block(runs=runs)
"""


def test_a_run_whose_report_cannot_be_written_has_come_to_what_it_has(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(NO_REPORT)
    done = command("run", "own.py", "-p", "runs=runs/*-*", cwd=tmp_path)
    assert (done.status, newest_run(tmp_path)["status"]) == (0, "succeeded"), done.err
    assert json.loads((tmp_path / "runs/no-report-outcome.json").read_text())["outcome"] == "finished"
    assert "warning: the report could not be written: [Errno 21] Is a directory" in done.err
    next(tmp_path.glob("runs/*/.report.html")).rmdir()
    opened = command("runs", "open", "latest", cwd=tmp_path, environment={"BROWSER": "", "DISPLAY": ""})
    assert "no-report has finished" in Path(opened.out.strip()).read_text()


NO_LOGS = """
from kfp import dsl


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def first(logs: str) -> str:
    import shutil
    from pathlib import Path

    (place,) = Path.cwd().glob(logs)
    shutil.rmtree(place)
    place.touch()
    return "ended"


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def second(text: str) -> str:
    raise SystemExit(text)


@dsl.pipeline(name="no-logs")
def no_logs(logs: str):
    second(text=first(logs=logs).output)
"""


def test_a_log_that_cannot_be_made_is_missing_alone(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(NO_LOGS)
    done = command("run", "own.py", "-p", "logs=runs/*/logs", cwd=tmp_path)
    assert [step["status"] for step in newest_run(tmp_path)["steps"]] == ["succeeded", "failed"]
    assert done.status == 1
    assert "second failed" in done.err
    assert "Traceback" not in done.err


def test_a_log_that_cannot_be_written_ends_no_step(tmp_path: Path) -> None:
    said: list[str] = []

    class Observing:
        def step_began(self, step: str) -> None: ...

        def step_said(self, step: str, line: str) -> None:
            said.append(line)

        def step_ended(self, step: StepRecord) -> None: ...

    log = LocalLog(tmp_path, tmp_path / "error.json", Observing())
    most, most_ever = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, most_ever))
    try:
        log.write("Executing task 'train-model'\n")
        for number in range(2):
            log.print(f"step {number}")
        log.write("Task 'train-model' finished with status SUCCESS\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most_ever))
    assert said == ["step 0", "step 1"]
    assert [step.status for step in log.steps] == ["succeeded"]
