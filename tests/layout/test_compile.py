"""The compiled files: the same bytes every time, compared both ways, and usable without this repository."""

import shutil
from pathlib import Path

import pytest
from command_line import command
from conftest import gpu_pipelines
from google.protobuf import json_format
from kfp import components, dsl
from kfp.pipeline_spec import pipeline_spec_pb2

from gpu_pipelines.component_interface.image import STEPS_IMAGE
from gpu_pipelines.targets.compiled import documents_of

ROOT = Path(__file__).parents[2]


def test_the_compiled_directory_is_up_to_date() -> None:
    done = gpu_pipelines("compile", "--all", "--check", cwd=ROOT)
    assert done.status == 0, done.err


@pytest.mark.slow
def test_files_that_differ_are_named_with_how_and_written_again(tmp_path: Path) -> None:
    folder = tmp_path / "compiled" / "components"
    shutil.copytree(ROOT / "compiled", tmp_path / "compiled")
    edited, missing = folder / "upload_model.yaml", folder / "train_model.yaml"
    edited.write_text(edited.read_text().replace("registry", "register", 1))
    missing.unlink()
    (folder / "other.yaml").write_text("")
    done = gpu_pipelines("compile", "--all", "--check", cwd=tmp_path)
    assert done.status == 1
    assert "components/upload_model.yaml differs:" in done.err
    assert "components/train_model.yaml is missing" in done.err
    assert "components/other.yaml is of no pipeline, target or component" in done.err
    assert "prepare_data" not in done.err
    assert gpu_pipelines("compile", "--all", cwd=tmp_path).status == 0
    for file in (edited, missing):
        assert file.read_bytes() == (ROOT / "compiled" / "components" / file.name).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("image", ["eu.example/mine:1", f"{STEPS_IMAGE}-cuda"])
def test_all_files_are_for_the_image_that_is_given(tmp_path: Path, image: str) -> None:
    done = command("compile", "--all", "--image", image, cwd=tmp_path)
    assert done.status == 0, done.err
    written = list((tmp_path / "compiled").rglob("*.yaml"))
    assert {path.relative_to(tmp_path) for path in written} == {
        path.relative_to(ROOT) for path in (ROOT / "compiled").rglob("*.yaml")
    }
    for path in written:
        text = path.read_text(encoding="utf-8")
        assert image in text, path
        assert STEPS_IMAGE not in text.replace(image, ""), path


def test_every_compiled_file_is_of_kfps_own_types() -> None:
    for path in (ROOT / "compiled").rglob("*.yaml"):
        pipeline, *for_kubernetes = documents_of(path.read_text(encoding="utf-8"))
        assert len(for_kubernetes) == ("kubeflow" in path.parts), path
        spec = json_format.ParseDict(pipeline, pipeline_spec_pb2.PipelineSpec())
        assert spec.pipeline_info.name, path
        for platform in for_kubernetes:
            json_format.ParseDict(platform, pipeline_spec_pb2.PlatformSpec())
        # Vertex AI collects 100 artifacts of a loop at most: one step scores all checkpoints.
        components = [spec.root, *spec.components.values()]
        tasks = [task for component in components for task in component.dag.tasks.values()]
        assert not [task for task in tasks if task.WhichOneof("iterator")], path


def test_compiled_components_can_be_joined_to_a_pipeline_of_ones_own() -> None:
    folder = ROOT / "compiled" / "components"
    prepare = components.load_component_from_file(str(folder / "prepare_data.yaml"))
    train = components.load_component_from_file(str(folder / "train_model.yaml"))

    @dsl.pipeline(name="mine")
    def mine(source: str = "data") -> None:
        train(dataset=prepare(source=source).outputs["dataset"], epochs=1.0)

    assert set(mine.pipeline_spec.root.dag.tasks) == {"prepare-data", "train-model"}


def test_one_pipeline_can_be_compiled_to_a_file(tmp_path: Path) -> None:
    done = command("compile", "train_evaluate_upload", "-o", "mine.yaml", cwd=tmp_path)
    assert done.status == 0
    expected = (ROOT / "compiled/train_evaluate_upload/local/cpu-2.yaml").read_bytes()
    assert (tmp_path / "mine.yaml").read_bytes() == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Give either the name of a pipeline or --all"),
        (["train_evaluate_upload", "--all"], "Give either the name of a pipeline or --all"),
        (["nothing"], "There is no pipeline 'nothing'"),
        (["train_evaluate_upload", "--target", "moon"], "There is no target 'moon'"),
        (["train_evaluate_upload", "--task", "causal"], "There is no task 'causal'. Did you mean 'causal_lm'?"),
        (["--all", "--task", "causal_lm"], "--all writes files of every task"),
        (
            ["--all", "--accelerator", "l4:1", "--target", "vertex"],
            "and --target vertex and --accelerator would be for one of them",
        ),
        (["--all", "-o", "x.yaml"], "--all writes many files, and -o names only one"),
        (["train_evaluate_upload", "--directory", "d"], "--directory is for --all; a pipeline is one file"),
        (["train_evaluate_upload", "--check"], "--check compares all files"),
        (["train_evaluate_upload", "--accelerator", "h100:8"], "The target local has no h100:8"),
        (["train_evaluate_upload", "-o", "/dev/null/file.yaml"], "/dev/null/file.yaml cannot be written"),
    ],
)
def test_a_wrong_request_is_refused(tmp_path: Path, arguments: list[str], message: str) -> None:
    done = command("compile", *arguments, cwd=tmp_path)
    assert done.status == 2
    assert message in done.err
    assert "Traceback" not in done.err


def test_a_file_for_this_machine_is_for_the_image_that_is_given(tmp_path: Path) -> None:
    done = command("compile", "batch_prediction", "--image", "eu.example/mine:1", "-o", "file.yaml", cwd=tmp_path)
    assert done.status == 0, done.err
    text = (tmp_path / "file.yaml").read_text(encoding="utf-8")
    assert "image: eu.example/mine:1" in text
    assert STEPS_IMAGE not in text
