"""`gpu-pipelines migrate` as a command: what it prints, what it writes, how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from conftest import gpu_pipelines
from old_jobs import IMAGE, LEGACY_TYPES, USER_ARGS

from gpu_pipelines import migrate_job
from gpu_pipelines.errors import UserError


@pytest.fixture
def folder(tmp_path: Path, no_project_settings: None) -> Path:
    """A folder with an old job and with settings of its own."""
    (tmp_path / "config.yaml").write_text(LEGACY_TYPES)
    (tmp_path / "gpu-pipelines.yaml").write_text("project: my-project\nregion: us-central1\n")
    return tmp_path


def test_json_is_one_document_with_config_notes_and_commands(folder: Path) -> None:
    words = ("--image", IMAGE, "--json", "config.yaml", "--module-name", "trainer.task", "-o", "out/vertex.yaml")
    done = gpu_pipelines("migrate", *words, "--", *USER_ARGS, "--json", cwd=folder)
    assert (done.status, done.err) == (0, "")
    document = json.loads(done.out)
    assert document["kind"] == "CustomJob"
    assert document["config"] == yaml.safe_load((folder / "out" / "vertex.yaml").read_text())
    args = document["config"]["workerPoolSpecs"][0]["containerSpec"]["args"]
    assert args == [*USER_ARGS, "--json"], "what stands behind the dashes is the application's"
    assert set(document["plans"]) == {"master", "worker"}
    assert document["plans"]["worker"]["nodes"] == 9
    assert {note["kind"] for note in document["notes"]} == {"changed"}
    assert document["commands"]["gpu_pipelines"].startswith("gpu-pipelines job submit --config=out/vertex.yaml")
    assert document["commands"]["gcloud"].startswith("gcloud ai custom-jobs create --project=my-project")


def test_stdout_is_the_config_and_stderr_the_notes(folder: Path) -> None:
    done = gpu_pipelines("migrate", "config.yaml", "--image", IMAGE, cwd=folder)
    assert done.status == 0
    assert len(yaml.safe_load(done.out)["workerPoolSpecs"]) == 3
    assert done.err.startswith("changed:  region: None is given; us-central1 is that of gpu-pipelines.yaml.")
    assert "submit it, with one of:\n  gpu-pipelines job submit --config=vertex.yaml" in done.err


def test_a_program_migrates_as_the_command_does(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("--image", IMAGE, "--json", "config.yaml", "--worker-count", "3")
    told = json.loads(gpu_pipelines("migrate", *words, "--", *USER_ARGS, cwd=folder).out)
    monkeypatch.chdir(folder)
    for file, flags in ((folder / "config.yaml", []), (None, ["--config=config.yaml"])):
        migrated = migrate_job(file, [*flags, "--worker-count=3"], arguments=USER_ARGS, image=IMAGE)
        assert migrated.to_json("vertex.yaml") == told
    in_one_line = "gcloud ai-platform jobs submit training --config=config.yaml --worker-count 3"
    assert migrate_job(flags=in_one_line, arguments=USER_ARGS, image=IMAGE).to_json("vertex.yaml") == told
    with pytest.raises(UserError, match="k80"):
        migrate_job("config.yaml", keep=True)


def test_a_wrong_request_ends_with_2_and_no_traceback(folder: Path) -> None:
    for words, said in (
        (("config.yaml", "--keep"), "k80"),
        (("config.yaml", "-o", "config.yaml"), "config.yaml is the old job itself"),
        (("missing.yaml", "--worker-cuont", "3"), "--worker-count"),
        (("gcloud", "ai", "custom-jobs", "create", "--display-name=a"), "on Vertex AI already"),
    ):
        done = gpu_pipelines("migrate", *words, cwd=folder)
        assert done.status == 2
        assert done.out == ""
        assert done.err.startswith("error: ")
        assert said in done.err
        assert "Traceback" not in done.err
    assert (folder / "config.yaml").read_text() == LEGACY_TYPES
