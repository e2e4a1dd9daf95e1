"""Where project, region, bucket and the like are found, which source wins, and what is refused."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from gpu_pipelines.errors import UserError
from gpu_pipelines.project_settings import FILE, VARIABLES, ProjectSettings, load_project_settings

ALL = {
    "project": "my-project",
    "region": "us-central1",
    "pipeline_root": "gs://my-bucket/runs",
    "image": "us-central1-docker.pkg.dev/my-project/r/steps:0.1.0",
    "serving_image": "us-central1-docker.pkg.dev/my-project/r/serving@sha256:aa",
    "repository": "https://us-central1-kfp.pkg.dev/my-project/pipelines",
    "service_account": "me@my-project.iam.gserviceaccount.com",
    "network": "projects/123/global/networks/default",
    "persistent_resource": "pool-1",
    "failure_policy": "fast",
    "encryption_key": "projects/p/locations/l/keyRings/r/cryptoKeys/k",
    "tensorboard": "projects/p/locations/l/tensorboards/1",
}


pytestmark = pytest.mark.usefixtures("no_project_settings")


def gcloud_configuration(folder: Path, name: str, text: str, *, active: bool = True) -> None:
    """A configuration as `gcloud config set` writes it."""
    (folder / "gcloud" / "configurations").mkdir(parents=True, exist_ok=True)
    (folder / "gcloud" / "configurations" / f"config_{name}").write_text(text)
    if active:
        (folder / "gcloud" / "active_config").write_text(name)


def test_without_any_source_nothing_is_known() -> None:
    assert load_project_settings() == ProjectSettings()


def test_every_setting_is_read_from_the_file(tmp_path: Path) -> None:
    lines = [f"{name}: {value}" for name, value in ALL.items()]
    (tmp_path / FILE).write_text("\n".join([*lines, "labels: {team: a, cost-center: '7'}"]))
    settings = load_project_settings()
    assert {name: getattr(settings, name) for name in ALL} == ALL
    assert settings.labels == {"team": "a", "cost-center": "7"}
    assert set(settings.origins.values()) == {FILE}


@pytest.mark.parametrize("variable", VARIABLES["project"])
def test_each_variable_of_the_project_counts(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "of-variable")
    settings = load_project_settings()
    assert (settings.project, settings.origins["project"]) == ("of-variable", variable)


@pytest.mark.parametrize("variable", VARIABLES["region"])
def test_each_variable_of_the_region_counts(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "europe-west4")
    assert load_project_settings().region == "europe-west4"


def test_a_flag_wins_over_the_file_over_variables_over_gcloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gcloud_configuration(tmp_path, "default", "[core]\nproject = of-gcloud\n[compute]\nregion = us-east1\n")
    settings = load_project_settings()
    assert (settings.project, settings.region) == ("of-gcloud", "us-east1")
    assert settings.origins == {
        "project": "gcloud config (core/project)",
        "region": "gcloud config (compute/region)",
    }
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "of-variable-2")
    assert load_project_settings().project == "of-variable-2"
    monkeypatch.setenv("CLOUDSDK_CORE_PROJECT", "of-variable-1")
    assert load_project_settings().project == "of-variable-1"
    (tmp_path / FILE).write_text("project: of-file\n")
    assert load_project_settings().project == "of-file"
    settings = load_project_settings({"project": "of-flag", "region": None})
    assert (settings.project, settings.region) == ("of-flag", "us-east1")
    assert settings.origins["project"] == "--project"


def test_the_region_of_vertex_ai_wins_over_that_of_compute_engine(tmp_path: Path) -> None:
    gcloud_configuration(tmp_path, "default", "[compute]\nregion = us-east1\n[ai]\nregion = us-west1\n")
    assert load_project_settings().region == "us-west1"


def test_the_active_configuration_of_gcloud_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gcloud_configuration(tmp_path, "one", "[core]\nproject = project-one\n")
    gcloud_configuration(tmp_path, "two", "[core]\nproject = project-two\n", active=False)
    assert load_project_settings().project == "project-one"
    monkeypatch.setenv("CLOUDSDK_ACTIVE_CONFIG_NAME", "two")
    assert load_project_settings().project == "project-two"


@pytest.mark.parametrize("text", ["no section", "[core\nproject = x", "[core]\nproject = a%(b)s-project\n"])
def test_a_configuration_of_gcloud_that_cannot_be_read_is_passed_over(text: str, tmp_path: Path) -> None:
    gcloud_configuration(tmp_path, "default", text)
    if "%" in text:
        with pytest.raises(UserError, match="gcloud config"):
            load_project_settings()
    else:
        assert load_project_settings().project is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("project", "My Project"),
        ("region", "us-central1-a"),
        ("region", "here"),
        ("pipeline_root", "/tmp/runs"),
        ("pipeline_root", "gs://"),
        ("image", "Bad Image"),
        ("repository", "us-central1-kfp.pkg.dev/p/r"),
        ("service_account", "me"),
        ("network", "default"),
        ("network_attachment", "default"),
        ("persistent_resource", "Pool 1"),
        ("failure_policy", "never"),
        ("encryption_key", "k"),
        ("tensorboard", "1"),
        ("labels", "team"),
        ("labels", {"Team": "a"}),
        ("labels", {"team": 7}),
    ],
)
def test_a_value_that_is_not_of_its_form_is_told_with_its_origin(name: str, value: object, tmp_path: Path) -> None:
    import yaml

    (tmp_path / FILE).write_text(yaml.safe_dump({name: value}))
    with pytest.raises(UserError) as caught:
        load_project_settings()
    assert FILE in str(caught.value)
    assert ("label" if name == "labels" else name) in str(caught.value)


@pytest.mark.parametrize("label", ["cost-center: 4711", "since: 2026-01-01", "nightly: yes", "4711: a", "empty: "])
def test_a_label_that_yaml_does_not_take_for_text_is_to_be_quoted(label: str, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(f"labels: {{{label}}}")
    with pytest.raises(UserError, match=f"{label[:4]}.* is not a text.*write it in quotes"):
        load_project_settings()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [", "is not YAML"),
        ("- a", "not a mapping"),
        ("projct: p", "Did you mean 'project'?"),
        ("1: p", "has a setting '1'"),
        ("!!python/object:os.system {}", "is not YAML"),
    ],
)
def test_a_file_that_is_wrong_is_told(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(UserError, match=r".") as caught:
        load_project_settings()
    assert said in str(caught.value)


def test_one_way_into_a_network_is_taken_from_whatever_source(tmp_path: Path) -> None:
    attachment = "projects/p/regions/us-central1/networkAttachments/a"
    (tmp_path / FILE).write_text(f"network_attachment: {attachment}\n")
    assert load_project_settings().network_attachment == attachment
    with pytest.raises(UserError) as caught:
        load_project_settings({"network": "projects/1/global/networks/n"})
    assert "network (from --network) and network_attachment (from gpu-pipelines.yaml)" in str(caught.value)


def test_an_empty_file_and_empty_values_count_for_nothing(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("")
    assert load_project_settings() == ProjectSettings()
    (tmp_path / FILE).write_text("project:\n")
    assert load_project_settings({"region": ""}) == ProjectSettings()


def test_all_that_is_missing_is_told_at_once_with_the_ways_to_give_it() -> None:
    with pytest.raises(UserError) as caught:
        ProjectSettings().require("project", "pipeline_root")
    said = str(caught.value)
    assert "Give --project, write project into gpu-pipelines.yaml, or set CLOUDSDK_CORE_PROJECT." in said
    assert "--pipeline-root" in said


def test_the_document_lists_all_settings() -> None:
    text = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text(encoding="utf-8")
    table = text.partition("| settings | what for |")[2].partition("\n\n")[0]
    listed = [name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.partition(" | ")[0])]
    assert sorted(listed) == sorted(each.name for each in fields(ProjectSettings) if each.name != "origins")
