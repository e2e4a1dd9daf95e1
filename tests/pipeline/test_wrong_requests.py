"""What is wrong ends with one message that says what to do: status 2 before anything runs, 1 from a step."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from command_line import command
from conftest import PIPELINE, newest_run, run_pipeline, write_photos


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-p", "source=nowhere"], "The source nowhere does not exist. Give files"),
        (["-p", "source=empty"], "The folder empty is empty. Put the images of each class into a sub-folder"),
        (["-p", "source=."], "Runs write to runs, which lies in the data .: it would"),
        (["-p", "source=.", "--runs", ".runs"], "Runs write to ./registry, which lies in the data .: it would"),
        (["-p", "source=notes.txt"], "neither a folder nor a table"),
        (["-p", "source=sample:digit"], "Samples: sample:digits"),
        (["-p", "source=photos/*.jpg"], "No file matches photos/*.jpg"),
        (["-p", "source=one"], "a single class, 'red'; a classifier needs at least two"),
        (["-p", "source=table.csv"], "no column 'label'; it has image, class"),
        (["-p", "qqq=x"], "There is no parameter 'qqq'. gpu-pipelines parameters PIPELINE lists them."),
        (["-p", "sorce=x"], "There is no parameter 'sorce'. Did you mean 'source'?"),
        (["-p", "epochs=many"], "epochs takes a number; got 'many'"),
        (["-p", "max_steps=1.5"], "max_steps takes a whole number (at most 2^53); got '1.5'"),
        (["-p", "learning_rate=-1"], "learning_rate is -1.0; give more than 0"),
        (["-p", "epochs"], "-p epochs is not of the form key=value"),
        (["-p", "gates=acuracy>=0.9"], "no metric 'acuracy' to gate on. Did you mean 'accuracy'?"),
        (["-p", "gates=accuracy"], "one of >=, <=, > and < is missing here.\n      accuracy\n              ^"),
        (["-p", "select_by=f1"], "select_by is 'f1', which is not a metric"),
        (["-p", "model=resnet"], "There is no model 'resnet'"),
        (
            ["-p", "model=./no/where"],
            "model is ./no/where, and there is no such directory. A model is a directory in Hugging",
        ),
        (["-p", "model=./empty"], "./empty has no config.json."),
        (["-p", "model=./one"], "./one has adapters alone. Save the model that they are for with them in it"),
        (
            ["-p", "recipe=no_such_module:Recipe"],
            "The recipe no_such_module:Recipe cannot be imported: ModuleNotFoundError",
        ),
        (
            ["-p", "recipe=json:JSONDecoder"],
            "json:JSONDecoder is not a subclass of gpu_pipelines.tasks.recipe.Recipe",
        ),
        (["-p", "model_name=../up"], "model_name is '../up'"),
        (["-p", "val_fraction=0.6", "-p", "test_fraction=0.6"], "less than 1 must be left for training"),
        (["-p", "registry=notes.txt/models"], "cannot be written: Not a directory. Give another"),
        (["--params", "broken.yaml"], "broken.yaml is not YAML"),
        (["--params", "missing.yaml"], "missing.yaml cannot be read"),
        (["--accelerator", "cpu:3"], "global_batch_size is 64, which 3 processes cannot share equally. Give 63 or 66."),
        (["--accelerator", "h100:8"], "The target local has no h100:8"),
        (["--accelerator", "cpu:0"], "cpu:0 asks for 0 processes"),
        (["--target", "moon"], "There is no target 'moon'"),
    ],
)
def test_a_wrong_request_is_refused_before_anything_runs(tmp_path: Path, arguments: list[str], message: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("")
    write_photos(tmp_path / "one", per_class=1, classes=("red",))
    (tmp_path / "one/adapter_config.json").write_text("{}")
    (tmp_path / "table.csv").write_text("image,class\none/red/000.png,red\n")
    (tmp_path / "broken.yaml").write_text("epochs: [1\n")
    done = command("run", PIPELINE, *arguments, cwd=tmp_path)
    assert done.status == 2
    assert done.err.startswith("error: ")
    assert message in done.err
    assert "Traceback" not in done.err + done.out
    assert not (tmp_path / "runs").exists()


def test_names_that_are_not_utf8_are_no_traceback(tmp_path: Path) -> None:
    source = write_photos(tmp_path / "data", per_class=3)
    (source / "red" / "000.png").rename(os.fsdecode(os.fsencode(source / "red") + b"/caf\xe9.png"))
    done = command("run", PIPELINE, "--dry-run", "-p", "source=data", cwd=tmp_path)
    assert (done.status, done.err) == (0, "")
    source.rename(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    done = run_pipeline(tmp_path, "--dry-run", source=os.fsdecode(b"caf\xe9"))
    assert done.status == 2
    assert "is not UTF-8" in done.err
    assert "Traceback" not in done.err


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("epochs: many\nsorce: x\n")
    done = command("run", PIPELINE, "--params", "p.yaml", "-p", "gates=x>=1", cwd=tmp_path)
    assert done.status == 2
    assert "2 things are wrong" in done.err
    assert "sorce" in done.err
    # As a process, for all of them.
    done = run_pipeline(tmp_path, learning_rate=-1, gates="x>=1", image_size=3)
    assert done.status == 2
    assert done.err.startswith("error: ")
    assert "Traceback" not in done.err + done.out
    assert "3 things are wrong" in done.err


def test_an_unknown_pipeline_is_refused_with_the_valid_ones(tmp_path: Path) -> None:
    done = command("run", "train_evaluate", cwd=tmp_path)
    assert (done.status, done.err) == (
        2,
        "error: There is no pipeline 'train_evaluate'.\n  Did you mean 'train_evaluate_upload'?\n",
    )


def test_a_dry_run_shows_the_request_and_runs_nothing(tmp_path: Path) -> None:
    done = command("run", PIPELINE, "--dry-run", "-p", "epochs=3", cwd=tmp_path)
    assert done.status == 0
    assert "check-request → prepare-data → train-model → evaluate-checkpoints → upload-model" in done.out
    assert "Nothing was run." in done.out
    assert not (tmp_path / "runs").exists()


# Every reason is held by tests/data/test_prepare_data.py.
@pytest.mark.parametrize(
    "case",
    [
        pytest.param("no image", marks=pytest.mark.slow),
        pytest.param("too few", marks=pytest.mark.slow),
        "all of a class missing",
    ],
)
def test_data_that_cannot_be_used_fails_the_step_with_the_reason(tmp_path: Path, case: str) -> None:
    if case == "no image":
        for name in ("a", "b"):
            (tmp_path / "data" / name).mkdir(parents=True)
            (tmp_path / "data" / name / "x.jpg").write_text("no")
        message = "None of the 2 files of data is an image"
    elif case == "too few":
        write_photos(tmp_path / "data", per_class=2)
        message = "is empty: 4 of the 4 rows of data are left, too few to give val_fraction=0.1 and"
    else:
        write_photos(tmp_path / "data")
        for number, file in enumerate((tmp_path / "data" / "red").iterdir()):
            file.write_text("no") if number < 4 else file.unlink()
        message = "Only 1 of the 2 classes of data has usable training rows"
    done = run_pipeline(tmp_path, source="data")
    assert done.status == 1
    assert done.err.startswith("error: prepare-data failed: ")
    assert message in done.err
    assert "Traceback" not in done.err + done.out
    assert not list(tmp_path.glob("registry/*"))
    record = newest_run(tmp_path)
    assert record["status"] == "failed"
    assert message in (record["directory"] / "report.html").read_text().replace("&#39;", "'")


@pytest.mark.slow
def test_a_diverging_training_fails_the_step_with_what_to_do(tmp_path: Path) -> None:
    done = run_pipeline(tmp_path, learning_rate=1e30, gradient_clip=0, max_steps=20)
    assert done.status == 1
    assert done.err.startswith("error: train-model failed: The gradients of step 2 were no numbers")
    assert "with a lower learning_rate" in done.err
    assert "Traceback" not in done.err
    page = (newest_run(tmp_path)["directory"] / "report.html").read_text()
    assert "<h2>Data</h2>" in page, "the step that ended has its report"
    assert not list(tmp_path.glob("registry/*"))
