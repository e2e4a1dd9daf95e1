"""A model, a version or an alias that is not there: the error names what is."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from command_line import command

from gpu_pipelines.cli.serve import place_of_model
from gpu_pipelines.errors import UserError
from gpu_pipelines.registry import DirectoryRegistry
from gpu_pipelines.registry.named import directory_named, existing_registry


@pytest.fixture
def registry(tmp_path: Path) -> DirectoryRegistry:
    """Two models, one of two versions with aliases."""
    for name, versions, aliases in (("digits", 2, {"champion": 1, "challenger": 2}), ("flowers", 1, {})):
        for number in range(1, versions + 1):
            folder = tmp_path / name / "versions" / str(number)
            folder.mkdir(parents=True)
            (folder / "version.json").write_text(json.dumps({"format_version": 1, "created": "2026-11-22"}))
        (tmp_path / name / "model.json").write_text(json.dumps({"format_version": 1, "aliases": aliases}))
    return DirectoryRegistry(tmp_path)


@pytest.mark.parametrize(
    ("name", "reference", "said"),
    [
        ("digits", "champin", ["Did you mean 'champion'?", "challenger (version 2), champion (version 1)", "1, 2"]),
        ("digits", "7", ["It has the aliases challenger (version 2)", "the versions 1, 2."]),
        ("flowers", "champion", ["It has no aliases, and the version 1."]),
        ("digit", "champion", ["There is no model 'digit'", "Did you mean 'digits'? It has digits, flowers."]),
        ("moon", "champion", ["There is no model 'moon'", "It has digits, flowers."]),
    ],
)
def test_alternatives_are_named(registry: DirectoryRegistry, name: str, reference: str, said: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        registry.version(name, reference)
    assert all(part in str(caught.value) for part in said), str(caught.value)
    with pytest.raises(UserError) as caught:
        place_of_model(f"{name}@{reference}", str(registry.root))
    assert said[-1] in str(caught.value)


@pytest.mark.parametrize("reference", ["champion", "1"])
def test_an_alias_whose_version_was_deleted_is_not_said_to_be_unknown(
    registry: DirectoryRegistry, reference: str
) -> None:
    shutil.rmtree(registry.root / "digits/versions/1")
    with pytest.raises(
        UserError, match=r"Version 1 of the model 'digits' in .* is not there, but champion names it"
    ) as e:
        registry.version("digits", reference)
    assert e.value.remedy.startswith(
        "Put its files back, or point the alias at another: gpu-pipelines models alias dig"
    )
    assert "Did you mean" not in str(e.value)


def test_a_model_whose_only_version_was_deleted_is_not_said_to_be_unknown(registry: DirectoryRegistry) -> None:
    shutil.rmtree(registry.root / "digits/versions")
    with pytest.raises(UserError, match="is not there, but champion names it") as e:
        registry.champion("digits")
    assert e.value.remedy.startswith("Put its files back, or give another model_name. It has the aliases challenger")
    assert e.value.remedy.endswith("and no version.")


def test_an_alias_is_given_to_no_version_that_is_not_there(registry: DirectoryRegistry) -> None:
    with pytest.raises(UserError, match="the versions 1, 2"):
        registry.set_alias("digits", "production", 3)


def test_a_number_with_zeros_before_it_is_that_version(registry: DirectoryRegistry) -> None:
    done = command("models", "alias", "digits", "champion", "02", "--registry", str(registry.root))
    assert (done.status, done.out) == (0, "champion of digits is now version 2\n")


def test_a_registry_that_does_not_exist_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # where nothing was run yet
    for given, message in ((str(tmp_path / "nosuch"), "does not exist"), (__file__, "is not a directory")):
        with pytest.raises(UserError, match=message):
            existing_registry(given)
    # Before the first run the default is not there, which is no mistake.
    assert existing_registry("./registry").names() == []


def test_a_folder_of_data_beside_the_registry_does_not_hide_the_model_that_is_called_after_it(
    registry: DirectoryRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = str(registry.root)
    monkeypatch.chdir(registry.root)  # in which digits and flowers are folders without a config.json
    assert directory_named("flowers", uri) is None
    assert directory_named("flowers", "no registry") == Path("flowers")
    assert directory_named("flowers/versions", uri) == Path("flowers/versions")
    assert directory_named("digits@champion", uri) is None
    Path("flowers/config.json").touch()
    assert directory_named("flowers", uri) == Path("flowers")


def test_the_settings_of_the_project_name_the_registry_and_what_is_given_wins(
    registry: DirectoryRegistry, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("project")
    (folder / "gpu-pipelines.yaml").write_text(f"registry: {registry.root}\n")
    listed = json.loads(command("models", "list", "--json", cwd=folder).out)
    assert [each["name"] for each in listed] == ["digits", "flowers"]
    assert command("models", "alias", "flowers", "mine", "1", cwd=folder).status == 0
    for asked in (
        ("serve", "moon"),
        ("models", "show", "moon"),
        ("models", "predict", "moon", "--source", "x", "--output", "y"),
    ):
        assert f"{registry.root}" in command(*asked, cwd=folder).err
    dry = ("run", "train_evaluate_upload", "--accelerator", "cpu:1", "--dry-run", "--json")
    assert json.loads(command(*dry, cwd=folder).out)["parameters"]["registry"] == str(registry.root)
    given = command(*dry, "-p", "registry=./other", cwd=folder)
    assert json.loads(given.out)["parameters"]["registry"] == "./other"
    elsewhere = (
        "run",
        "train_evaluate_upload",
        "--target",
        "vertex",
        "--accelerator",
        "l4:1",
        "--project",
        "my-project-1",
    )
    where = ("--region", "us-central1", "--pipeline-root", "gs://bucket/root", "--image", "a/b/c:1", "--dry-run")
    refused = command(*elsewhere, *where, cwd=folder)
    assert refused.status == 2
    assert "would be a directory of the container" in refused.err
    (folder / "gpu-pipelines.yaml").write_text("registry: mlflow:http://me:hunter2@host\n")
    wrong = command("models", "list", cwd=folder)
    assert wrong.status == 2
    assert "without a password" in wrong.err
    assert "hunter2" not in wrong.err
