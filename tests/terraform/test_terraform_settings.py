"""What Terraform prints for gpu-pipelines.yaml: `make test-terraform`. Needs terraform, but no provider."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from gpu_pipelines import __version__
from gpu_pipelines.project_settings import FILE, ProjectSettings, load_project_settings

pytestmark = [pytest.mark.slow, pytest.mark.terraform]

MODULE = Path(__file__).parents[2] / "terraform"


def terraform(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs terraform on the files that need no provider."""
    for name in ("variables.tf", "settings.tf"):
        shutil.copy(MODULE / name, place)
    return subprocess.run(["terraform", *arguments], cwd=place, capture_output=True, text=True, check=False, timeout=60)


def test_the_settings_are_those_of_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "gcloud"))
    applied = terraform(tmp_path, "apply", "-auto-approve", "-no-color", "-var=project=p-123456")
    assert applied.returncode == 0, applied.stderr
    (tmp_path / FILE).write_text(terraform(tmp_path, "output", "-raw", "settings").stdout)
    assert load_project_settings(directory=tmp_path) == ProjectSettings(
        project="p-123456",
        region="us-central1",
        pipeline_root="gs://p-123456-gpu-pipelines/pipelines",
        image=f"us-central1-docker.pkg.dev/p-123456/gpu-pipelines-images/steps:{__version__}-cu126",
        serving_image=f"us-central1-docker.pkg.dev/p-123456/gpu-pipelines-images/serving:{__version__}-cpu",
        repository="https://us-central1-kfp.pkg.dev/p-123456/gpu-pipelines-pipelines",
        service_account="gpu-pipelines-runs@p-123456.iam.gserviceaccount.com",
    )


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ("name=GPU", "5 to 20 lower-case"),
        ("artifact_days=1.5", "whole number of days"),
        ("soft_delete_days=3", "7 to 90, or 0"),
        ("monthly_budget=0", "at least 1"),
    ],
)
def test_a_wrong_setting_is_refused(tmp_path: Path, wrong: str, told: str) -> None:
    planned = terraform(tmp_path, "plan", "-no-color", "-var=project=p-123456", f"-var={wrong}")
    assert planned.returncode == 1
    assert told in " ".join(planned.stderr.replace("│", "").split())
