"""The pipeline as a user runs it: the installed command, KFP's own local runner, real data, real processes."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from command_line import command
from conftest import GPU_PIPELINES, PIPELINE, gpu_pipelines, newest_run, run_pipeline, write_photos
from processes import InTerminal

from gpu_pipelines.targets.local.outputs.result_lines import shown_result
from gpu_pipelines.targets.local.telling import message_of
from gpu_pipelines.targets.runs.record import RunRecord

STEPS = ["check-request", "prepare-data", "train-model", "evaluate-checkpoints", "upload-model"]


def aliases(cwd: Path, name: str = "digits") -> dict[str, int]:
    return json.loads((cwd / "registry" / name / "model.json").read_text())["aliases"]


@pytest.fixture
def after_digits(digits_run: Path, tmp_path: Path) -> Path:
    """A copy of the directory in which the pipeline ran once, to go on from. Artifacts are found where they were."""
    shutil.copytree(digits_run / "registry", tmp_path / "registry")
    shutil.copytree(digits_run / "runs" / ".cache", tmp_path / "runs" / ".cache")
    return tmp_path


def test_the_defaults_reach_the_accuracy_that_is_promised(digits_run: Path) -> None:
    record = newest_run(digits_run)
    evaluation = json.loads(Path(record["artifacts"]["best_checkpoint"], "evaluation.json").read_text())
    assert evaluation["test"]["metrics"]["accuracy"]["value"] >= 0.97
    assert evaluation["passed"]
    assert len(evaluation["checkpoints"]) == 8
    assert evaluation["champion"] is None


def test_the_run_is_recorded(digits_run: Path) -> None:
    record = newest_run(digits_run)
    assert record["status"] == "succeeded"
    assert [step["name"] for step in record["steps"]] == STEPS
    assert all(step["status"] == "succeeded" and step["seconds"] > 0 for step in record["steps"])
    for step in record["steps"]:
        assert (record["directory"] / step["log"]).stat().st_size > 0
    assert record["parameters"]["source"] == "sample:digits"
    assert record["versions"]["torch"].startswith("2.")
    assert record["dependencies"]["evaluate-checkpoints"] == ["prepare-data", "train-model"]
    assert all(Path(path).exists() for path in record["artifacts"].values())
    assert not list(digits_run.glob("runs/*/.cache")), "only the cache of all runs is kept"


def test_checkpoints_lie_in_a_place_of_the_run_not_of_an_attempt(digits_run: Path) -> None:
    directory = newest_run(digits_run)["directory"]
    found = sorted(path.name for path in directory.glob("artifacts/checkpoints/*/step-*"))
    assert found[-1] == "step-00000336"


def test_what_is_printed_tells_progress_result_and_report(digits_run: Path) -> None:
    printed = (digits_run / "printed.txt").read_text()
    assert re.search(r"train-model: step \d+/336  epoch [\d.]+  loss [\d.]+  lr \S+  [\d,]+ samples/s", printed)
    assert "prepare-data: kept 1,797 of 1,797 rows" in printed
    assert "✓ accuracy>=0.9: accuracy is" in printed
    assert "upload-model: smoke test: 4 examples served as evaluated" in printed
    assert "registered digits version 1 as challenger and champion in ./registry" in printed
    report = re.search(r"^report: (.*)$", printed, re.MULTILINE)
    assert report
    assert (digits_run / report[1]).is_file()
    assert "Traceback" not in printed
    assert "executor_input" not in printed, "KFP's own chatter belongs into the log"


def test_the_report_is_one_page_with_everything_and_nothing_from_elsewhere(digits_run: Path) -> None:
    page = (newest_run(digits_run)["directory"] / "report.html").read_text()
    for part in ("<h2>Pipeline</h2>", "<h2>Data</h2>", "<h2>Training</h2>", "<h2>Checkpoints</h2>", "<h2>Test</h2>"):
        assert page.count(part) == 1
    assert "<h2>Confusion matrix</h2>" in page
    assert "<h2>Mistakes</h2>" in page
    assert "digits version 1 is the champion" in page
    assert "<script" not in page
    outside = re.findall(r"""(?:src|href)=["'](?!data:|#|logs/)([^"']*)""", page)
    assert not [link for link in outside if not link.startswith("http://www.w3.org")]


def test_the_registered_model_opens_in_transformers_and_predicts_as_evaluated(digits_run: Path) -> None:
    import numpy as np
    from PIL import Image
    from transformers import pipeline

    from gpu_pipelines.artifacts.dataset import Dataset

    version = digits_run / "registry/digits/versions/1"
    classify = pipeline("image-classification", model=str(version), device="cpu")
    dataset = next(digits_run.glob("runs/*/artifacts/*/prepare-data/dataset"))
    test = Dataset(dataset).split("test")
    rows = test.take(np.arange(len(test)))
    evaluation = json.loads((version / "evaluation.json").read_text())
    for mode in ("L", "RGB"):
        images = [Image.fromarray(image[0]).convert(mode) for image in rows["image"]]
        found = np.array([int(scores[0]["label"]) for scores in classify(images, batch_size=64)])
        accuracy = float((found == rows["label"]).mean())
        assert accuracy == pytest.approx(evaluation["test"]["metrics"]["accuracy"]["value"])
    assert classify.model.config.id2label == {index: str(index) for index in range(10)}


@pytest.mark.slow
def test_a_worse_model_is_added_but_the_champion_stays(after_digits: Path) -> None:
    done = run_pipeline(after_digits, "--reuse", "--accelerator", "cpu:1", epochs=1)
    assert done.status == 0, done.err
    assert aliases(after_digits) == {"champion": 1, "challenger": 2}
    assert "✗ better than the champion: accuracy is" in done.out
    assert "the champion stays" in done.out


@pytest.mark.slow
def test_the_same_model_again_is_no_version_and_unchanged_steps_are_not_run_again(after_digits: Path) -> None:
    done = run_pipeline(after_digits, "--cache")
    assert done.status == 0, done.err
    assert aliases(after_digits) == {"champion": 1, "challenger": 1}
    assert "nothing was registered: the same model is digits version 1 as challenger and champion" in done.out
    assert "digits version 1 is the same model; nothing was added" in newest_run(after_digits)["directory"].joinpath(
        "report.html"
    ).read_text(encoding="utf-8")
    outcome = json.loads((after_digits / f"runs/{PIPELINE}-outcome.json").read_text())
    assert (outcome["outcome"], outcome["version"]) == ("unchanged", 1)
    statuses = {step["name"]: step["status"] for step in newest_run(after_digits)["steps"]}
    # The champion has changed from none to version 1, so the comparison has to be made again.
    assert statuses == {
        "check-request": "succeeded",
        "prepare-data": "reused",
        "train-model": "reused",
        "evaluate-checkpoints": "succeeded",
        "upload-model": "succeeded",
    }


def test_a_model_that_misses_a_gate_does_not_become_champion(digits_run: Path, tmp_path: Path) -> None:
    shutil.copytree(digits_run / "runs" / ".cache", tmp_path / "runs" / ".cache")
    done = run_pipeline(tmp_path, "--cache", gates="accuracy>=0.9,log_loss<=0.0001")
    assert done.status == 0, done.err
    assert aliases(tmp_path) == {"challenger": 1}
    reused = [step["name"] for step in newest_run(tmp_path)["steps"] if step["status"] == "reused"]
    assert reused == ["prepare-data", "train-model"]
    assert "✗ log_loss<=0.0001" in done.out
    assert "there is still no champion" in done.out
    page = (newest_run(tmp_path)["directory"] / "report.html").read_text()
    assert "digits version 1 was added; there is still no champion" in page


def test_a_model_that_another_one_has_overtaken_is_not_said_to_have_missed_a_gate(digits_run: Path) -> None:
    record = RunRecord.load(newest_run(digits_run)["directory"])
    # As where another first run has registered its model between the evaluation and the upload of this one.
    record.model = {**record.model, "version": 2, "aliases": ["challenger"], "promoted": False}
    said = "\n".join(map(str, shown_result(record)))
    assert "another version was registered meanwhile and is the champion; run again to compare with it" in said
    assert "gates say why" not in said
    assert "still no champion" not in said
    # A user's own pipeline may give its steps two names, and running it again would change nothing.
    record.model["model_name"] = "figures"
    assert record.instead.startswith("it was evaluated as digits, so it was not compared with the champion of figures;")
    record.model["model_name"] = "digits"
    # A retraining finds nothing new in data that a version is of already.
    record.reason = "training: there was no champion of digits"
    assert "run train_evaluate_upload with the same parameters to compare with it" in record.instead
    assert message_of(record).reason == record.why == f"{record.reason}; {record.instead}"


@pytest.mark.slow
def test_a_champion_of_other_classes_is_not_compared_with(digits_run: Path, tmp_path: Path) -> None:
    write_photos(tmp_path / "data")
    done = run_pipeline(
        tmp_path, source="data", model_name="digits", max_steps=2, registry=digits_run / "registry", global_batch_size=8
    )
    assert done.status == 1
    assert "knows none of the classes of this dataset: it has 0, 1, 2, 3, 4 and 5 more, the dataset " in done.err
    assert [path.name for path in (digits_run / "registry/digits/versions").iterdir()] == ["1"]


@pytest.fixture(scope="module")
def photos_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pipeline on a user's own folder, with unreadable files among the good ones."""
    cwd = tmp_path_factory.mktemp("photos")
    folder = write_photos(cwd / "My Photos")
    (folder / "red" / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 nothing like a picture")
    (folder / "red" / "empty.png").write_bytes(b"")
    (folder / "blue" / "<b>notes.txt").write_text("not a picture")
    (cwd / "params.yaml").write_text("source: My Photos\nepochs: 50\nglobal_batch_size: 16\n")
    done = run_pipeline(cwd, "--params", "params.yaml", "--accelerator", "cpu:1", epochs=2)
    assert done.status == 0, done.out + done.err
    return cwd


@pytest.mark.slow
def test_a_folder_of_own_images_works_and_is_named_after_it(photos_run: Path) -> None:
    record = newest_run(photos_run)
    assert record["parameters"]["epochs"] == 2, "-p wins over the file"
    assert record["parameters"]["global_batch_size"] == 16
    assert aliases(photos_run, "my-photos")["challenger"] == 1


@pytest.mark.slow
def test_unreadable_files_are_kept_counted_and_shown(photos_run: Path) -> None:
    directory = newest_run(photos_run)["directory"]
    dataset = next(directory.glob("artifacts/*/prepare-data/dataset"))
    rejected = [json.loads(line) for line in (dataset / "rejected.jsonl").read_text().splitlines()]
    names = {"blue/<b>notes.txt", "red/broken.jpg", "red/empty.png"}
    assert {row["source"] for row in rejected} == names
    manifest = json.loads((dataset / "dataset.json").read_text())
    assert (manifest["rows_read"], manifest["rows_kept"], manifest["rows_rejected"]) == (83, 80, 3)
    page = (directory / "report.html").read_text()
    assert "red/broken.jpg" in page
    assert "blue/&lt;b&gt;notes.txt" in page
    assert "<b>notes" not in page


def test_models_can_be_listed_shown_and_promoted_by_hand(after_digits: Path) -> None:
    listed = json.loads(command("models", "list", "--json", cwd=after_digits).out)
    assert listed == [{"name": "digits", "versions": 1, "aliases": {"challenger": 1, "champion": 1}}]
    shown = json.loads(command("models", "show", "digits", "--json", cwd=after_digits).out)
    assert shown["versions"][0]["metrics"]["accuracy"] >= 0.97
    assert "champion" in command("models", "show", "digits", cwd=after_digits).out
    assert command("models", "alias", "digits", "production", "1", cwd=after_digits).status == 0
    assert aliases(after_digits)["production"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_no_process_and_no_version(tmp_path: Path, sign: signal.Signals) -> None:
    with subprocess.Popen(
        [str(GPU_PIPELINES), "run", PIPELINE, "--accelerator=cpu:2", "-p", "task=regression", "-p", "max_steps=20000"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as command:
        assert command.stdout
        for line in command.stdout:
            if line.startswith("train-model: step"):
                break
        below = psutil.Process(command.pid).children(recursive=True)
        assert len(below) >= 4, "the shell, the step, and two training processes"
        command.send_signal(sign)
        started = time.monotonic()
        _, err = command.communicate(timeout=60)
    assert command.returncode == 130
    assert time.monotonic() - started < 20
    assert err.startswith("interrupted: train-model writes a checkpoint and ends, within 35 s. Ctrl-C again ends it")
    assert "Traceback" not in err
    assert not [process for process in below if process.is_running()]
    assert not list(tmp_path.glob("registry/*/versions/*"))
    record = newest_run(tmp_path)
    assert (record["status"], record["steps"][-1]["status"]) == ("interrupted", "interrupted")
    assert (record["directory"] / "report.html").is_file()


@pytest.mark.slow
def test_a_training_whose_terminal_is_closed_keeps_its_newest_state(tmp_path: Path) -> None:
    given = ("task=regression", "max_steps=200000", "checkpoint_every_steps=100000")
    request = [str(GPU_PIPELINES), "run", PIPELINE, "--accelerator=cpu:2", *(w for each in given for w in ("-p", each))]
    started = InTerminal(request, tmp_path)
    started.await_file("runs/*/logs/train-model.log", "step ", tmp_path)
    below = psutil.Process(started.process.pid).children(recursive=True)
    started.close()
    assert started.process.wait(60) == 130
    assert not [process for process in below if process.is_running()]
    (kept,) = newest_run(tmp_path)["directory"].glob("artifacts/checkpoints/*/step-*/checkpoint.json")
    assert "step-00000000" not in str(kept)


@pytest.mark.slow
def test_an_interrupted_run_continues_where_it_was(tmp_path: Path) -> None:
    write_photos(tmp_path / "photos")
    given = ("source=photos", "max_steps=150", "gates=accuracy>=0", "smoke_test=false")
    request = ["run", PIPELINE, *(part for parameter in given for part in ("-p", parameter))]
    refused = gpu_pipelines(*request, "--resume", cwd=tmp_path)
    assert refused.status == 2
    assert "no run of train_evaluate_upload with these parameters" in refused.err
    with subprocess.Popen([str(GPU_PIPELINES), *request], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as command:
        assert command.stdout
        for line in command.stdout:
            if line.startswith("train-model: step"):
                break
        command.terminate()
        command.communicate(timeout=60)
    assert command.returncode == 130
    first = newest_run(tmp_path)["directory"]
    assert list(first.glob("artifacts/checkpoints/*/step-*/checkpoint.json"))
    assert gpu_pipelines(*request, "-p", "seed=1", "--resume", cwd=tmp_path).status == 2
    resumed = gpu_pipelines(*request, "--resume", cwd=tmp_path)
    assert resumed.status == 0, resumed.err
    assert "train-model: continuing from step-" in resumed.out
    again = gpu_pipelines(*request, "--resume", cwd=tmp_path)
    assert again.status == 2
    assert f"{newest_run(tmp_path)['run_id']} continued it to the end." in again.err
    record = newest_run(tmp_path)
    assert record["directory"] != first
    assert [step["status"] for step in record["steps"]][:3] == ["succeeded", "reused", "succeeded"]
    assert aliases(tmp_path, "photos")["champion"] == 1
    cached = gpu_pipelines(*request, "--cache", cwd=tmp_path)
    assert cached.status == 0, cached.err
    statuses = {step["name"]: step["status"] for step in newest_run(tmp_path)["steps"]}
    assert statuses["train-model"] == "reused", "a training that was continued is the same"


@pytest.mark.slow
def test_an_interrupted_preparation_is_continued_by_the_same_command(tmp_path: Path) -> None:
    # Of 1.2 MB each, so that the first unit of work is done after 219 of them.
    write_photos(tmp_path / "photos", per_class=300)
    request = [str(GPU_PIPELINES), "run", PIPELINE, "-p", "source=photos", "-p", "image_size=640"]
    with subprocess.Popen(request, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as command:
        while not list(tmp_path.glob("runs/**/units/*-*/dataset.json")):
            assert command.poll() is None
            time.sleep(0.05)
        command.terminate()
        _, err = command.communicate(timeout=60)
    assert command.returncode == 130
    assert "run the same command again to continue" in err
    with subprocess.Popen(request, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as command:
        assert command.stdout
        lines = []
        for line in command.stdout:
            lines.append(line)
            if "kept 600 of 600 rows" in line:
                break
        command.terminate()
        command.communicate(timeout=60)
    assert any("units of work were done before" in line for line in lines), "".join(lines)
