"""Old jobs for tests: those of Google's page on GPUs for AI Platform Training, its table, and short ways to migrate."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

from gpu_pipelines.errors import UserError
from gpu_pipelines.migration import Migration, MigrationOptions, migrate
from gpu_pipelines.migration.gcloud_flags import parse_command
from gpu_pipelines.migration.job_file import read_job
from gpu_pipelines.project_settings import ProjectSettings

#: The day that tests judge by; K80 and P100 are gone, T4 and P4 are not.
TODAY = date(2026, 11, 21)
DATA = Path(__file__).parents[1] / "accelerators" / "data" / "n1_and_a2_table.txt"
IMAGE = "us-docker.pkg.dev/my-project/training/trainer:1"

COMPUTE_ENGINE_TYPES = """\
trainingInput:
  scaleTier: CUSTOM
  # Configure a master worker with 4 T4 GPUs
  masterType: n1-highcpu-16
  masterConfig:
    acceleratorConfig:
      count: 4
      type: NVIDIA_TESLA_T4
  # Configure 9 workers, each with 4 T4 GPUs
  workerCount: 9
  workerType: n1-highcpu-16
  workerConfig:
    acceleratorConfig:
      count: 4
      type: NVIDIA_TESLA_T4
  # Configure 3 parameter servers with no GPUs
  parameterServerCount: 3
  parameterServerType: n1-highmem-8
"""

LEGACY_TYPES = """\
trainingInput:
  scaleTier: CUSTOM
  # Configure a master worker with 4 K80 GPUs
  masterType: complex_model_m_gpu
  # Configure 9 workers, each with 4 K80 GPUs
  workerCount: 9
  workerType: complex_model_m_gpu
  # Configure 3 parameter servers with no GPUs
  parameterServerCount: 3
  parameterServerType: large_model
"""

WITH_A_FILE = [
    *("gcloud", "ai-platform", "jobs", "submit", "training", "my_job"),
    *("--package-path", "./trainer", "--module-name", "trainer.task", "--job-dir", "gs://my-bucket/out"),
    *("--region", "us-central1", "--config", "config.yaml"),
]
WITHOUT_A_FILE = [
    *("gcloud", "ai-platform", "jobs", "submit", "training", "my_job"),
    *("--package-path", "./trainer", "--module-name", "trainer.task", "--job-dir", "gs://my-bucket/out"),
    *("--region", "us-central1", "--scale-tier", "custom"),
    *("--master-machine-type", "n1-highcpu-16", "--master-accelerator", "count=4,type=nvidia-tesla-t4"),
    *("--worker-count", "9", "--worker-machine-type", "n1-highcpu-16"),
    *("--worker-accelerator", "count=4,type=nvidia-tesla-t4"),
    *("--parameter-server-count", "3", "--parameter-server-machine-type", "n1-highmem-8"),
]
USER_ARGS = ["--user_arg_1", "value_1", "--user_arg_n", "value_n"]

#: The machines of Google's page that brought GPUs, and what they brought.
LEGACY_GPUS = {
    "standard_gpu": ("K80", 1),
    "complex_model_m_gpu": ("K80", 4),
    "complex_model_l_gpu": ("K80", 8),
    "standard_p100": ("P100", 1),
    "complex_model_m_p100": ("P100", 4),
    "standard_v100": ("V100", 1),
    "large_model_v100": ("V100", 1),
    "complex_model_m_v100": ("V100", 4),
    "complex_model_l_v100": ("V100", 8),
}


def old_table() -> dict[tuple[str, str], tuple[int, ...]]:
    """The numbers of a GPU that a machine took, by machine type and GPU (`K80`)."""
    header, *rows = [line.split() for line in DATA.read_text().splitlines() if not line.startswith("#")]
    return {
        (row[0], gpu): tuple(int(count) for count in cell.split(",")) if cell != "-" else ()
        for row in rows
        for gpu, cell in zip(header[1:], row[1:], strict=True)
    }


def migrated(
    training: dict[str, Any] | str,
    *words: str,
    user_args: list[str] | None = None,
    settings: ProjectSettings | None = None,
    **options: Any,
) -> Migration:
    """A migration of a trainingInput or of a file's text, with gcloud's flags."""
    text = training if isinstance(training, str) else json.dumps({"trainingInput": training})
    command = parse_command(words, user_args)
    return migrate(read_job(text, "config.yaml"), command, settings, MigrationOptions(**{"today": TODAY, **options}))


def refusal(training: dict[str, Any] | str, *words: str, **options: Any) -> str:
    """What a migration that must fail says."""
    try:
        found = migrated(training, *words, **options)
    except UserError as error:
        return str(error)
    raise AssertionError(f"not refused: {found.config}")


def custom(machine: str = "n1-standard-8", gpu: str = "T4", count: int = 1, **more: Any) -> dict[str, Any]:
    """A trainingInput with one machine, in a region that has every GPU in use."""
    return {
        "scaleTier": "CUSTOM",
        "masterType": machine,
        "masterConfig": {
            "imageUri": IMAGE,
            **({"acceleratorConfig": {"type": f"NVIDIA_TESLA_{gpu}", "count": count}} if gpu else {}),
        },
        "region": "us-central1",
        **more,
    }


def texts(migration: Migration, kind: str, field: str = "") -> str:
    """The notes of a kind about a field."""
    return "\n".join(note.text for note in migration.notes if note.kind == kind and field in note.field)
