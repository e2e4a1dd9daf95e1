"""What replicas run: containers, Python packages in Google's images as long as there are any, and packages' places."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pytest
from old_jobs import IMAGE, TODAY, custom, migrated, refusal, texts

from gpu_pipelines.migration import Migration

PREBUILT = "us-docker.pkg.dev/vertex-ai/training/tf-gpu.2-17.py310:latest"
#: A day on which Google still had images with TensorFlow.
BEFORE = date(2026, 6, 1)


def of_packages(**more: Any) -> dict[str, Any]:
    """A job of packages on one T4."""
    job = custom(
        packageUris=["gs://b/p.tar.gz"], pythonModule="trainer.task", runtimeVersion="2.11", pythonVersion="3.7"
    )
    del job["masterConfig"]["imageUri"]
    return {**job, "args": ["--epochs", "3"], **more}


def program(found: Migration, pool: int = 0) -> dict[str, Any]:
    spec = found.config["workerPoolSpecs"][pool]
    return dict(spec.get("containerSpec") or spec["pythonPackageSpec"])


def test_packages_run_in_the_oldest_image_that_is_new_enough_and_still_there() -> None:
    found = migrated(of_packages(), today=BEFORE)
    assert program(found) == {
        "executorImageUri": "us-docker.pkg.dev/vertex-ai/training/tf-gpu.2-16.py310:latest",
        "packageUris": ["gs://b/p.tar.gz"],
        "pythonModule": "trainer.task",
        "args": ["--epochs", "3"],
    }
    assert "TensorFlow 2.16 and Python 3.10, which is there until 2026-06-28" in texts(
        found, "changed", "runtimeVersion"
    )
    newer = migrated(of_packages(), today=date(2026, 7, 1))
    assert program(newer)["executorImageUri"] == PREBUILT
    in_europe = migrated(of_packages(region="europe-west4"), today=BEFORE)
    assert program(in_europe)["executorImageUri"].startswith("europe-docker.pkg.dev/")


def test_machines_without_gpus_get_the_image_without_them() -> None:
    job = of_packages(parameterServerType="n1-standard-4", parameterServerCount=1)
    found = migrated(job, today=BEFORE)
    assert "tf-gpu" in program(found)["executorImageUri"]
    assert found.config["workerPoolSpecs"][1] == {}
    assert "tf-cpu" in program(found, 2)["executorImageUri"]


@pytest.mark.parametrize(
    ("runtime", "today"),
    [("2.11", TODAY), ("1.15", BEFORE), (None, BEFORE), ("latest", BEFORE), ("2.18", BEFORE)],
)
def test_where_no_image_is_left_it_is_said_and_the_place_of_ones_own_is_marked(
    runtime: str | None, today: date
) -> None:
    job = of_packages()
    job.pop("runtimeVersion")
    found = migrated(job | ({"runtimeVersion": runtime} if runtime else {}), today=today)
    assert program(found) == {
        "imageUri": "IMAGE",
        "command": ["python3", "-m", "trainer.task"],
        "args": ["--epochs", "3"],
    }
    said = texts(found, "to do", "runtimeVersion")
    assert f"none of Google's images is left for runtime version {runtime or 'not given'} with Python 3.7" in said
    assert ("was there" if today == TODAY else "is there") + " until 2026-07-11" in said
    assert "gs://b/p.tar.gz" in texts(found, "to do", "packageUris")


def test_an_image_of_ones_own_is_a_container_and_one_of_googles_an_executor() -> None:
    own = migrated(of_packages(), image=IMAGE)
    assert program(own)["imageUri"] == IMAGE
    assert "must have installed: gs://b/p.tar.gz" in texts(own, "to do")
    googles = migrated(of_packages(), image=PREBUILT)
    assert program(googles)["executorImageUri"] == PREBUILT
    assert not texts(googles, "to do")
    assert "--image is for jobs with Python packages" in refusal(custom(), image=IMAGE)


def test_packages_on_this_machine_are_brought_where_gcloud_put_them() -> None:
    job = of_packages(jobDir="gs://bucket/out/")
    words = ("my_job", "--package-path", "src/trainer/", "--packages", "dist/a.whl,gs://other/b.whl")
    found = migrated(job, *words, image=PREBUILT)
    assert program(found)["packageUris"] == [
        "gs://bucket/out/packages/trainer.tar.gz",
        "gs://bucket/out/packages/a.whl",
        "gs://other/b.whl",
    ], "the flags win over packageUris"
    assert found.upload == (
        "python3 -m build --sdist --outdir migrated-package src",
        "gcloud storage cp migrated-package/*.tar.gz gs://bucket/out/packages/trainer.tar.gz",
        "gcloud storage cp dist/a.whl gs://bucket/out/packages/a.whl",
    )
    staged = migrated(job, *words, "--staging-bucket", "gs://staging", image=PREBUILT)
    assert program(staged)["packageUris"][0] == "gs://staging/my_job/trainer.tar.gz"
    assert not migrated(job, *words, image=IMAGE).upload, "an own image has them in it"


def test_the_folder_of_now_may_be_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trainer").mkdir()
    monkeypatch.chdir(tmp_path / "trainer")
    found = migrated(of_packages(), "my_job", "--package-path", ".", "--staging-bucket", "staging", image=PREBUILT)
    assert program(found)["packageUris"] == ["gs://staging/my_job/trainer.tar.gz"]
    assert found.upload[0] == "python3 -m build --sdist --outdir migrated-package .."


def test_a_package_needs_the_setup_that_gcloud_wrote_by_itself(tmp_path: Path) -> None:
    words = ("my_job", "--package-path", f"{tmp_path}/trainer", "--staging-bucket", "staging")
    said = texts(migrated(of_packages(), *words, image=PREBUILT), "to do", "packageUris")
    assert f"There is no {tmp_path}/setup.py" in said
    assert "packages=find_packages(include=['trainer'])" in said
    assert "setup.py" not in texts(migrated(of_packages(), *words, image=IMAGE), "to do"), "it is in the image"
    (tmp_path / "pyproject.toml").write_text("")
    assert not texts(migrated(of_packages(), *words, image=PREBUILT), "to do")


@pytest.mark.parametrize(
    ("more", "words", "said"),
    [
        ({}, ["--package-path", "trainer"], "need a place in Cloud Storage"),
        ({"packageUris": ["p.tar.gz"]}, [], "is not in Cloud Storage"),
        ({"packageUris": [f"gs://b/{number}" for number in range(101)]}, [], "at most 100 packages, not 101"),
        ({}, ["--packages", "gs://b/a,gs://b/a"], "Two packages have one name"),
        ({"masterConfig": {"containerArgs": ["a"]}}, [], "masterConfig.containerArgs needs masterConfig.imageUri"),
        ({"workerConfig": {"imageUri": "i"}}, [], "workerConfig.imageUri needs masterConfig.imageUri"),
        ({"masterConfig": {"imageUri": "i"}}, [], "Only one of masterConfig.imageUri and runtimeVersion"),
        ({"masterConfig": {"imageUri": "i"}}, [], "or Python packages with a module, not both"),
    ],
)
def test_what_does_not_go_together_is_refused(more: dict[str, Any], words: list[str], said: str) -> None:
    assert said in refusal(of_packages(**more), *words)


def test_containers_keep_command_and_arguments_and_lend_the_masters_image() -> None:
    job = custom(workerType="n1-standard-8", workerCount=2, parameterServerType="n1-standard-4", parameterServerCount=1)
    job["masterConfig"] |= {"containerCommand": ["python", "a.py"], "containerArgs": ["--x"]}
    job["parameterServerConfig"] = {"imageUri": "gcr.io/p/ps"}
    found = migrated(job)
    assert program(found) == {"imageUri": IMAGE, "command": ["python", "a.py"], "args": ["--x"]}
    assert program(found, 1) == {"imageUri": IMAGE}, "neither command nor arguments are the master's"
    assert program(found, 2) == {"imageUri": "gcr.io/p/ps"}
    assert "that was the master's" in texts(found, "changed", "workerConfig")
    assert "Container Registry" in texts(found, "warning", "parameterServerConfig")
    assert "cannot be given together" in refusal({**job, "args": ["--y"]})


def test_user_arguments_behind_the_dashes_win_over_args_and_may_be_none() -> None:
    assert program(migrated(custom(args=["--old"])))["args"] == ["--old"]
    assert program(migrated(custom(args=["--old"]), user_args=["--new", "a b"]))["args"] == ["--new", "a b"]
    assert "args" not in program(migrated(custom(args=["--old"]), user_args=[]))


def test_a_module_or_packages_that_are_missing_are_left_to_do() -> None:
    job = of_packages()
    del job["pythonModule"]
    found = migrated(job, image=PREBUILT)
    assert program(found)["pythonModule"] == "MODULE"
    assert "MODULE" in texts(found, "to do", "pythonModule")
    job = of_packages(packageUris=[])
    assert program(migrated(job, image=PREBUILT))["packageUris"] == ["gs://BUCKET/PACKAGE.tar.gz"]
