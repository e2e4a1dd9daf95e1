"""`gpu-pipelines init`: what it writes is checked by the tools of its readers, and what it refuses is told."""

from __future__ import annotations

import ast
import json
import os
import pty
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from command_line import command
from conftest import GPU_PIPELINES, gpu_pipelines
from packaging.requirements import Requirement

from gpu_pipelines.new_project.installed import packages_of, pins, requirement
from gpu_pipelines.new_project.request import names_of_tasks
from gpu_pipelines.tasks.tasks import task_named

PROGRAMS = Path(sys.executable).parent
LONGEST = "a-name-that-is-as-long-as-it-can-be-4012"


def init(*arguments: str, cwd: Path) -> str:
    """What the command printed; it has written a project."""
    done = command("init", *arguments, cwd=cwd)
    assert done.status == 0, done.err
    return done.out


@pytest.fixture(scope="module")
def projects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project of each task for Vertex AI, and one for each other target."""
    folder = tmp_path_factory.mktemp("projects")
    for task in names_of_tasks():
        init(f"{task}-project", "--task", task, cwd=folder)
    for target in ("local", "kubeflow", "compute_engine"):
        init(target, "--target", target, "--name", LONGEST, cwd=folder)
    return folder


@pytest.mark.slow
def test_there_is_a_project_for_each_task_of_this_program(projects: Path) -> None:
    assert len(names_of_tasks()) == 7
    assert len(list(projects.glob("*/pipeline.py"))) == 10


def test_the_code_is_linted_and_formatted(projects: Path) -> None:
    for arguments in (["check"], ["format", "--check", "--diff"]):
        done = subprocess.run([PROGRAMS / "ruff", *arguments, projects], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_what_a_run_has_left_is_not_linted(tmp_path: Path) -> None:
    init("mine", "--task", "regression", "--target", "local", cwd=tmp_path)
    program = tmp_path / "mine" / "runs" / "mine-20261126-210814" / ".program-EIfrkk" / "ephemeral_component.py"
    program.parent.mkdir(parents=True)
    program.write_text("from typing import *\nimport kfp\n")
    for arguments in (["check"], ["format", "--check"]):
        done = subprocess.run(
            [PROGRAMS / "ruff", *arguments, "."], cwd=tmp_path / "mine", capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("schema", "files"), [("github-workflows", "*/.github/workflows/*.yaml"), ("cloudbuild", "*/cloudbuild.yaml")]
)
def test_what_is_for_continuous_integration_is_of_its_schema(projects: Path, schema: str, files: str) -> None:
    places = sorted(projects.glob(files))
    assert len(places) >= 7
    check = [PROGRAMS / "check-jsonschema", "--builtin-schema", f"vendor.{schema}", *places]
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_scripts_of_continuous_integration_are_sound(projects: Path, tmp_path: Path) -> None:
    for number, file in enumerate(sorted(projects.glob("*/.github/workflows/*.yaml"))):
        (job,) = yaml.safe_load(file.read_text())["jobs"].values()
        script = "\n".join(step["run"] for step in job["steps"] if "run" in step)
        (tmp_path / f"{number}.sh").write_text(f"#!/bin/bash\n{script}\n")
    for number, file in enumerate(sorted(projects.glob("*/cloudbuild.yaml"))):
        steps = yaml.safe_load(file.read_text())["steps"]
        # Cloud Build puts its own values in place of one $, and writes $ for two.
        script = "\n".join(step["args"][1].replace("$$", "$") for step in steps if step.get("entrypoint") == "bash")
        (tmp_path / f"cloud-{number}.sh").write_text(f"#!/bin/bash\n{script}\n")
    scripts = sorted(tmp_path.glob("*.sh"))
    assert len(scripts) == 10 + 8 + 8
    # Values of Cloud Build are variables that nobody sets.
    check = [PROGRAMS / "shellcheck", "--exclude", "SC2154", *scripts]
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_only_a_target_with_a_store_is_delivered_to(projects: Path) -> None:
    delivering = {path.parents[2].name for path in projects.glob("*/.github/workflows/deliver.yaml")}
    assert delivering == {f"{task}-project" for task in names_of_tasks()} | {"kubeflow"}
    workflow = (projects / "kubeflow/.github/workflows/deliver.yaml").read_text()
    assert "KUBEFLOW_TOKEN" in workflow
    # Nobody has a key.
    assert "credentials_json" not in workflow
    assert yaml.safe_load(workflow)["permissions"] == {"contents": "read", "id-token": "write"}


def test_a_project_for_elsewhere_builds_an_image_with_its_package(projects: Path) -> None:
    with_images = {path.parent.name for path in projects.glob("*/Dockerfile")}
    assert {path.parent.name for path in projects.glob("*/pipeline.py")} - with_images == {"local"}
    project = projects / "compute_engine"
    assert "make push" in (project / "README.md").read_text()
    pushed = subprocess.run(
        ["make", "--no-print-directory", "-n", "push", "REVISION=abc"],
        cwd=project,
        capture_output=True,
        text=True,
        check=True,
    )
    assert pushed.stdout.endswith(
        f"docker push us-central1-docker.pkg.dev/my-project/gpu-pipelines-images/{LONGEST}:abc\n"
    )


def test_an_image_is_named_after_the_commit_and_there_has_to_be_one(projects: Path, tmp_path: Path) -> None:
    project = shutil.copytree(projects / "regression-project", tmp_path / "mine")
    outside = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tmp_path)}
    for target in ("push", "upload"):
        done = subprocess.run(
            ["make", "--no-print-directory", "-n", target],
            cwd=project,
            env=outside,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stdout) == (2, "")
        assert "The image is named after the commit: commit first" in done.stderr


def test_the_compiled_file_is_that_of_the_pipeline(projects: Path) -> None:
    project = projects / "regression-project"
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(project)
        done = command("compile", "pipeline.py", "--target", "vertex", "-o", "again.yaml", cwd=project)
    assert done.status == 0, done.err
    text = (project / "compiled/vertex.yaml").read_text()
    assert (project / "again.yaml").read_text() == text
    assert "regression_project.task:RegressionProject" in text
    assert "NVIDIA_L4" in text


def test_what_was_changed_is_not_overwritten_unless_it_is_said(tmp_path: Path) -> None:
    init("mine", "--target", "local", cwd=tmp_path)
    assert set(re.findall(r"^(\w+) ", init("mine", "--target", "local", cwd=tmp_path), re.MULTILINE)) >= {"kept"}
    pipeline = tmp_path / "mine/pipeline.py"
    pipeline.write_text("# mine\n")
    (tmp_path / "mine/README.md").unlink()
    done = command("init", "mine", "--target", "local", cwd=tmp_path)
    assert done.status == 2
    assert "mine has other files of these names: pipeline.py." in done.err
    assert pipeline.read_text() == "# mine\n"
    assert not (tmp_path / "mine/README.md").exists()
    said = init("mine", "--target", "local", "--force", cwd=tmp_path)
    assert "overwrote mine/pipeline.py" in said
    assert "wrote     mine/README.md" in said
    assert "kept      mine/Makefile" in said
    assert "@dsl.pipeline" in pipeline.read_text()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["9lives"], "The name of the project is '9lives'"),
        (["mine", "--name", "x" * 41], "at most 40"),
        (["mine", "--task", "image_clasification"], "Did you mean 'image_classification'?"),
        (["mine", "--target", "vertexx"], "There is no target 'vertexx'. Did you mean 'vertex'?"),
        (["mine", "--accelerator", "l4:3"], "No machine has 3 × l4"),
        (["mine", "--data", "photos"], "The data photos does not exist."),
        (["mine", "--data", "gs:/photos"], "The data gs:/photos does not exist."),
        (["mine", "-p", "epoch=3"], "There is no parameter 'epoch'. Did you mean 'epochs'?"),
        (["mine", "-p", "epochs=many"], "epochs takes a number"),
        (["mine", "-p", "task=causal_lm"], "See --data, --task, --name"),
        (["mine", "-p", "tracking=mlflow"], "tracking is not a parameter that init takes with -p."),
        (["mine", "-p", "learning_rate=-1"], "learning_rate"),
        (["mine", "--project", "X"], "project (from --project) is 'X'"),
    ],
)
def test_a_wrong_request_is_refused_and_leaves_nothing(arguments: list[str], problem: str, tmp_path: Path) -> None:
    done = command("init", *arguments, cwd=tmp_path)
    assert (done.status, done.out) == (2, "")
    assert problem in done.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--task", "text_classification", "-p", "text_column=txt"], "table.csv has no column 'txt'"),
        (["--task", "multi_label_classification"], "model is 'convnext-micro', and table.csv is learned from"),
    ],
)
def test_data_that_the_project_could_not_learn_from_are_refused(
    arguments: list[str], problem: str, tmp_path: Path
) -> None:
    (tmp_path / "table.csv").write_text("text,label\ngood,a\nbad,b\n")
    done = command("init", "mine", "--data", "table.csv", *arguments, cwd=tmp_path)
    assert (done.status, done.out) == (2, "")
    assert problem in done.err
    assert not (tmp_path / "mine").exists()


def test_data_columns_and_settings_become_defaults(tmp_path: Path) -> None:
    rows = [{"review": "good", "stars": "5", "shop": "a"}, {"review": "bad", "stars": "1", "shop": "b"}]
    (tmp_path / "reviews.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    given = ("-p", "text_column=review", "-p", "label_column=stars", "-p", "sequence_length=64", "-p", "slice_by=shop")
    place = ("--project", "my-project-1", "--region", "europe-west4", "--pipeline-root", "gs://mine/runs")
    task = ("--task", "text_classification", "--data", "reviews.jsonl")
    init("of/reviews", *task, "--accelerator", "a100:2", *given, *place, cwd=tmp_path)
    project = tmp_path / "of/reviews"
    text = (project / "pipeline.py").read_text()
    for line in (
        'source: str = "../../reviews.jsonl"',
        'text_column: str = "review"',
        'label_column: str = "stars"',
        "sequence_length: int = 64",
        "sequence_length=sequence_length",
        'slice_by: str = "shop"',
        'accelerate(trained, "a100:2")',
    ):
        assert line in text
    # The evaluation scores the slices that the preparation keeps.
    assert text.count("slice_by=slice_by") == 2
    settings = yaml.safe_load((project / "gpu-pipelines.yaml").read_text())
    assert settings == {"project": "my-project-1", "region": "europe-west4", "pipeline_root": "gs://mine/runs"}
    assert "europe-west4-docker.pkg.dev/my-project-1/gpu-pipelines-images" in (project / "Makefile").read_text()
    # The sample has the columns of the sample.
    sample = '"source": "sample:docstrings", "text_column": "text", "text_pair_column": "", "label_column": "label"'
    assert sample in (project / "tests/test_pipeline.py").read_text().replace("\n    ", " ").replace("{ ", "{")


def test_what_comes_next_can_be_pasted_where_the_folder_has_a_blank(tmp_path: Path) -> None:
    said = init("my flowers", "--target", "local", cwd=tmp_path)
    assert "next:\n  cd 'my flowers'\n" in said


def test_a_package_does_not_hide_one_that_is_installed(tmp_path: Path) -> None:
    init("torch", "--target", "local", cwd=tmp_path)
    assert (tmp_path / "torch/torch_project/task.py").is_file()
    assert not (tmp_path / "torch/torch").exists()


def test_a_package_is_in_no_folder_that_git_ignores(tmp_path: Path) -> None:
    init("runs", "--task", "regression", "--target", "local", cwd=tmp_path)
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path / "runs", check=True)
    shown = ("git", "ls-files", "--others", "--exclude-standard", "*task.py")
    done = subprocess.run(shown, cwd=tmp_path / "runs", capture_output=True, text=True, check=True)
    assert done.stdout == "runs_project/task.py\n"


@pytest.mark.parametrize(("name", "function"), [("class", "class_pipeline"), ("train-model", "train_model_pipeline")])
def test_a_name_may_be_a_word_of_python_or_a_step(name: str, function: str, tmp_path: Path) -> None:
    init(name, "--task", "regression", "--target", "local", cwd=tmp_path)
    assert f"def {function}(" in (tmp_path / name / "pipeline.py").read_text()


def test_on_a_terminal_it_asks(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [GPU_PIPELINES, "init"], cwd=tmp_path, stdin=theirs, stdout=theirs, stderr=theirs, close_fds=True
    ) as process:
        os.close(theirs)
        # Folder, task by its number, data, target, accelerator.
        os.write(ours, b"asked\n4\n\nkubeflow\nh100:8\n")
        said = b""
        while True:
            try:
                said += os.read(ours, 4096)
            except OSError:  # what Linux says at the end
                break
    assert process.returncode == 0, said
    assert "1  image_classification" in said.decode()
    text = (tmp_path / "asked/pipeline.py").read_text()
    assert '"sample:diabetes"' in text
    assert 'accelerate(trained, "h100:8")' in text
    assert (tmp_path / "asked/compiled/kubeflow.yaml").is_file()


@pytest.mark.parametrize(
    ("origin", "wanted"),
    [
        ("", "gpu-pipelines[project]==7.8"),
        (
            '{"url": "https://x.org/p.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}}',
            "gpu-pipelines[project] @ git+https://x.org/p.git@abc",
        ),
        ('{"url": "file:///home/me/p", "dir_info": {}}', "gpu-pipelines[project] @ file:///home/me/p"),
    ],
)
def test_a_project_installs_what_wrote_it(
    origin: str, wanted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "gpu_pipelines-7.8.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: gpu-pipelines\nVersion: 7.8\n")
    if origin:
        (folder / "direct_url.json").write_text(origin)
    monkeypatch.syspath_prepend(tmp_path)
    assert requirement() == wanted
    assert Requirement(wanted).extras == {"project"}


def test_a_project_installs_what_brings_its_task_and_its_target(tmp_path: Path) -> None:
    site = tmp_path / "site"
    information = site / "brought_task-2.3.dist-info"
    information.mkdir(parents=True)
    (site / "brought").mkdir()
    (site / "brought/task.py").write_text(
        "from gpu_pipelines.tasks.regression.task import RegressionTask\n\nclass Brought(RegressionTask):\n    pass\n"
    )
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: brought-task\nVersion: 2.3\n")
    (information / "entry_points.txt").write_text("[gpu_pipelines.tasks]\nbrought = brought.task:Brought\n")
    (information / "top_level.txt").write_text("brought\n")
    done = subprocess.run(
        [str(GPU_PIPELINES), "init", "mine", "--task", "brought"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "mine/requirements.txt").read_text().splitlines()[-1] == "brought-task==2.3"
    # The image's own user may install nothing.
    assert (
        "USER root\nRUN pip install --constraint /opt/gpu-pipelines/constraints.txt 'brought-task==2.3'\nUSER 10001\n"
        in (tmp_path / "mine/Dockerfile").read_text()
    )


def test_what_is_of_this_program_brings_no_package() -> None:
    assert packages_of([type(task_named("regression"))]) == ()
    assert packages_of([Requirement]) == ("packaging",)


def test_all_versions_are_those_that_are_installed() -> None:
    index, *lines = pins()
    found = dict(line.split("==") for line in lines)
    assert found["torch"] == metadata.version("torch")
    # PyTorch's builds without CUDA are of its own index.
    assert index.startswith("--extra-index-url") == found["torch"].endswith("+cpu")
    assert {"kfp", "pytest", "ruff", "grpcio", "transformers"} <= found.keys()
    # Needed by what others need, and by none of our own.
    assert "gpu-pipelines" not in found
    assert "playwright" not in found
    assert all(metadata.version(name) == version for name, version in found.items())


@pytest.mark.parametrize("data", [(), ("--data", "notes.jsonl")])
def test_a_sample_is_trained_on_without_what_was_given_for_other_data(data: tuple[str, ...], tmp_path: Path) -> None:
    rows = [{"note": f"note {number}", "score": number, "author": number % 2} for number in range(40)]
    (tmp_path / "notes.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    of_data = ("-p", "text_column=note", "-p", "label_column=score", "-p", "model=bert-micro", "-p", "group_by=author")
    given = of_data if data else ("-p", "model=linear")
    init("mine", "--task", "regression", *data, *given, "-p", "max_steps=9", "--target", "local", cwd=tmp_path)
    text = (tmp_path / "mine/tests/test_pipeline.py").read_text()
    sample = ast.literal_eval(text.partition("SAMPLE = ")[2].partition("\n}\n")[0] + "}")
    wanted = {"source": "sample:diabetes", "label_column": "label"}
    if data:
        wanted |= {"text_column": "text", "model": "mlp-small", "group_by": ""}
    assert sample == wanted
    for arguments in (["check"], ["format", "--check", "--diff"]):
        done = subprocess.run([PROGRAMS / "ruff", *arguments, tmp_path], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_registry_that_is_compared_with_is_the_one_that_is_uploaded_to(tmp_path: Path) -> None:
    init("mine", "--task", "regression", "--target", "local", "-p", "registry=models", cwd=tmp_path)
    text = (tmp_path / "mine/pipeline.py").read_text()
    for call in ("evaluated = evaluate_checkpoints(", "    upload_model("):
        assert "registry=registry," in text.partition(call)[2].partition("\n    )\n")[0]


def test_what_follows_a_pretrained_model_and_places_are_seen_from_the_project(tmp_path: Path) -> None:
    folder = tmp_path / "base"
    folder.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (folder / name).write_text('{"architectures": ["BertForMaskedLM"]}' if name == "config.json" else "{}")
    (tmp_path / "table.csv").write_text("text,label\ngood,a\nbad,b\n")
    (tmp_path / "test.csv").write_text("text,label\nfine,a\npoor,b\n")
    given = ("--data", "table.csv", "-p", "model=base", "-p", "test_source=test.csv", "--target", "local")
    init("of/mine", "--task", "text_classification", *given, cwd=tmp_path)
    text = (tmp_path / "of/mine/pipeline.py").read_text()
    for line in (
        'model: str = "../../base"',
        'test_source: str = "../../test.csv"',
        'tokenizer=looked.outputs["tokenizer"],',
    ):
        assert line in text
    assert "image_processor" not in text
    init("photos", "-p", "model=google/vit-base-patch16-224", "--target", "local", cwd=tmp_path)
    assert 'image_processor=looked.outputs["image_processor"],' in (tmp_path / "photos/pipeline.py").read_text()


def test_a_tokenizer_that_is_given_goes_the_same_way_and_an_image_processor_past_it(tmp_path: Path) -> None:
    init(
        "mine", "--task", "text_classification", "--target", "local", "-p", "tokenizer=bert-base-uncased", cwd=tmp_path
    )
    text = (tmp_path / "mine/pipeline.py").read_text()
    assert 'tokenizer: str = "bert-base-uncased"' in text
    assert "tokenizer=tokenizer," in text.partition("check_for_new_data(\n")[2].partition("\n    )\n")[0]
    assert text.count("tokenizer=tokenizer,") == 1
    init("photos", "--target", "local", "-p", "image_processor=google/vit-base-patch16-224", cwd=tmp_path)
    text = (tmp_path / "photos/pipeline.py").read_text()
    assert "image_processor=image_processor," in text
    assert "check_for_new_data" not in text


@pytest.mark.slow
def test_texts_are_prepared_with_the_tokens_of_the_champion_when_there_are_more(tmp_path: Path) -> None:
    """The evaluation refused the new model, after its training, since the champion knows other tokens."""
    rows = [
        f"{word} number {number},{label}" for number in range(150) for word, label in (("good", "a"), ("poor", "b"))
    ]
    init("mine", "--task", "text_classification", "--target", "local", "-p", "max_steps=2", cwd=tmp_path)
    for count, version in ((200, 1), (300, 2)):
        (tmp_path / "rows.csv").write_text("\n".join(["text,label", *rows[:count], ""]))
        run = ("run", "pipeline.py", "--accelerator", "cpu:1", "-p", "source=../rows.csv")
        done = gpu_pipelines(*run, cwd=tmp_path / "mine", apart=True)
        assert done.status == 0, done.out + done.err
        assert f"registered mine version {version}" in done.out
