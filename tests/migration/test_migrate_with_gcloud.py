"""The old jobs of Google's page, migrated by the command line, and what the real gcloud makes of them."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from answering_posts import answering_posts
from conftest import Finished, gpu_pipelines
from old_jobs import COMPUTE_ENGINE_TYPES, IMAGE, LEGACY_TYPES, USER_ARGS, WITH_A_FILE, WITHOUT_A_FILE, migrated, texts

from gpu_pipelines.migration.gcloud_flags import merged, parse_command
from gpu_pipelines.migration.job_file import read_job
from gpu_pipelines.project_settings import ProjectSettings

if TYPE_CHECKING:
    from gpu_pipelines.emulator.vertex_api import VertexApi


pytestmark = pytest.mark.usefixtures("no_project_settings")


def migrate(cwd: Path, *words: str, user_args: list[str] | None = None) -> Finished:
    done = gpu_pipelines("migrate", *words, *(["--", *user_args] if user_args else []), cwd=cwd)
    assert done.status == 0, done.err
    return done


def submitted(api: VertexApi, printed: str, cwd: Path) -> None:
    """Runs the gcloud command that migrate printed, as it was printed."""
    line = next(line for line in reversed(printed.splitlines()) if line.strip().startswith("gcloud "))
    api.answer_to(shlex.split(line), cwd)


T4S = {"machineType": "n1-highcpu-16", "acceleratorType": "NVIDIA_TESLA_T4", "acceleratorCount": 4}
L4S = {"machineType": "g2-standard-48", "acceleratorType": "NVIDIA_L4", "acceleratorCount": 4}


@pytest.mark.parametrize(
    ("text", "words", "gpus"),
    [(COMPUTE_ENGINE_TYPES, WITH_A_FILE, T4S), (LEGACY_TYPES, WITH_A_FILE, L4S), (None, WITHOUT_A_FILE, T4S)],
    ids=["compute-engine-types", "legacy-types", "flags-alone"],
)
def test_gcloud_takes_the_jobs_of_the_page(
    text: str | None, words: list[str], gpus: dict[str, Any], vertex_api: VertexApi, tmp_path: Path
) -> None:
    if text is not None:
        (tmp_path / "config.yaml").write_text(text)
    done = migrate(tmp_path, "-o", "vertex.yaml", "--image", IMAGE, *words, user_args=USER_ARGS)
    program = {"imageUri": IMAGE, "command": ["python3", "-m", "trainer.task"], "args": USER_ARGS}
    config = yaml.safe_load((tmp_path / "vertex.yaml").read_text())
    assert config == {
        "workerPoolSpecs": [
            {"machineSpec": gpus, "replicaCount": 1, "containerSpec": program},
            {"machineSpec": gpus, "replicaCount": 9, "containerSpec": program},
            {"machineSpec": {"machineType": "n1-highmem-8"}, "replicaCount": 3, "containerSpec": program},
        ],
        "baseOutputDirectory": {"outputUriPrefix": "gs://my-bucket/out"},
    }
    assert "--job-dir is no longer passed" in done.err
    submitted(vertex_api, done.err, tmp_path)
    from google.cloud.aiplatform_v1.types import CustomJobSpec
    from google.protobuf import json_format

    (request,) = vertex_api.state.requests_of("CreateCustomJob")
    assert CustomJobSpec.pb(request.custom_job.job_spec) == json_format.ParseDict(config, CustomJobSpec.pb()())
    assert request.custom_job.display_name == "my_job"
    # gpu-pipelines job submit takes the same file.
    from gpu_pipelines.targets.vertex.jobs.file import prepare_job
    from gpu_pipelines.targets.vertex.options import JobFlags

    prepared = prepare_job(JobFlags(), ProjectSettings(region="us-central1"), tmp_path / "vertex.yaml")
    assert [pool["replica_count"] for pool in prepared.spec["worker_pool_specs"]] == [1, 9, 3]
    assert [plan.total_gpus for plan in prepared.plans] == [40]


@pytest.mark.parametrize("text", [COMPUTE_ENGINE_TYPES, LEGACY_TYPES], ids=["compute-engine-types", "legacy-types"])
def test_a_file_of_the_page_alone_migrates_and_says_what_is_missing(text: str) -> None:
    found = migrated(text)
    assert [pool["replicaCount"] for pool in found.config["workerPoolSpecs"]] == [1, 9, 3]
    assert "None is given" in texts(found, "to do", "region")
    assert "says nothing of a program" in texts(found, "to do", "trainingInput")
    assert "# To do: region:" in found.config_text("config.yaml", "vertex.yaml"), "the file on its own says it too"


def test_gcloud_takes_a_tuning_job_with_key_and_labels_and_pools_in_their_places(
    vertex_api: VertexApi, tmp_path: Path
) -> None:
    training = {
        "scaleTier": "CUSTOM",
        "masterType": "standard_v100",
        "masterConfig": {"imageUri": IMAGE},
        "evaluatorType": "standard",
        "evaluatorCount": 1,
        "jobDir": "gs://my-bucket/out",
        "hyperparameters": {
            "goal": "MINIMIZE",
            "hyperparameterMetricTag": "loss",
            "maxTrials": 20,
            "maxParallelTrials": 2,
            "enableTrialEarlyStopping": True,
            "algorithm": "RANDOM_SEARCH",
            "params": [
                {
                    "parameterName": "rate",
                    "type": "DOUBLE",
                    "minValue": 1e-5,
                    "maxValue": 0.1,
                    "scaleType": "UNIT_LOG_SCALE",
                },
                {"parameterName": "layers", "type": "INTEGER", "minValue": 1, "maxValue": 8},
                {"parameterName": "optimizer", "type": "CATEGORICAL", "categoricalValues": ["adam", "sgd"]},
                {"parameterName": "batch", "type": "DISCRETE", "discreteValues": [16, 32, 64]},
            ],
        },
    }
    key = "projects/example-project/locations/us-central1/keyRings/r/cryptoKeys/k"
    (tmp_path / "config.json").write_text(json.dumps({"trainingInput": training, "labels": {"team": "b"}}))
    flags = ("--region", "us-central1", "--labels", "team=a", "--kms-key", key, "my_search", "-o", "vertex.yaml")
    done = migrate(tmp_path, "config.json", *flags)
    assert "gpu-pipelines job submit" not in done.err
    submitted(vertex_api, done.err, tmp_path)
    (request,) = vertex_api.state.requests_of("CreateHyperparameterTuningJob")
    job = request.hyperparameter_tuning_job
    pools = job.trial_job_spec.worker_pool_specs
    assert [pool.replica_count for pool in pools] == [1, 0, 0, 1]
    assert (job.max_trial_count, job.parallel_trial_count) == (20, 2)
    assert [parameter.parameter_id for parameter in job.study_spec.parameters] == [
        "rate",
        "layers",
        "optimizer",
        "batch",
    ]
    assert job.study_spec.parameters[0].scale_type.name == "UNIT_LOG_SCALE"
    assert job.study_spec.parameters[1].integer_value_spec.max_value == 8
    assert (job.study_spec.algorithm.name, job.study_spec.metrics[0].goal.name) == ("RANDOM_SEARCH", "MINIMIZE")
    assert "median_automated_stopping_spec" in job.study_spec
    assert dict(job.labels) == {"team": "a"}
    assert job.encryption_spec.kms_key_name == key


def old_service() -> AbstractContextManager[tuple[str, list[dict[str, Any]]]]:
    """AI Platform Training's API as far as a job is created; gives its address and the jobs that it was sent."""
    return answering_posts(lambda job: {"jobId": job["jobId"], "state": "QUEUED"})


def test_flags_win_over_the_file_as_the_old_gcloud_had_it(tmp_path: Path) -> None:
    """The old command still exists: what it sends is what is read here."""
    file = tmp_path / "config.yaml"
    file.write_text(
        "labels: {team: b, kept: not}\n"
        "trainingInput:\n  scaleTier: BASIC\n  region: europe-west1\n  masterType: n1-standard-4\n"
        "  runtimeVersion: '2.10'\n  pythonVersion: '3.7'\n  jobDir: gs://old/dir\n  args: [--old, '1']\n"
        "  masterConfig: {diskConfig: {bootDiskSizeGb: 200}, acceleratorConfig: {count: 1, type: NVIDIA_TESLA_K80}}\n"
        "  workerConfig: {imageUri: gcr.io/p/old}\n  packageUris: ['gs://old/p.tar.gz']\n"
        "  scheduling: {maxRunningTime: 7200s}\n"
    )
    words = [
        *("my_job", "--config", str(file), "--scale-tier", "custom", "--region=us-central1"),
        *("--master-machine-type", "n1-standard-8", "--master-accelerator", "type=nvidia-tesla-t4,count=2"),
        *("--worker-count", "3", "--worker-machine-type", "n1-standard-16", "--worker-image-uri", "gcr.io/p/new"),
        *("--worker-accelerator", "count=1,type=nvidia-tesla-t4", "--parameter-server-count", "1"),
        *("--parameter-server-machine-type", "n1-standard-4", "--parameter-server-image-uri", "gcr.io/p/ps"),
        *("--parameter-server-accelerator", "count=1,type=nvidia-tesla-p4", "--job-dir", "gs://new/dir"),
        *("--module-name", "trainer.task", "--packages", "gs://new/a.tar.gz,gs://new/b.whl"),
        *("--labels", "team=a", "--service-account", "me@p.iam.gserviceaccount.com", "--enable-web-access"),
        *("--use-chief-in-tf-config", "true", "--python-version", "3.7", "--runtime-version", "2.11"),
        *("--kms-key", "k", "--kms-keyring", "r", "--kms-location", "l", "--kms-project", "p"),
    ]
    user_args = ["--user_arg_1", "value 1", "-x"]
    with old_service() as (url, jobs):
        environment = {
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_ML": url,
            "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "true",
            "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
            "CLOUDSDK_CORE_PROJECT": "example-project",
        }
        command = ["gcloud", "ai-platform", "jobs", "submit", "training", *words, "--", *user_args]
        done = subprocess.run(
            command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=120, check=False
        )
    assert jobs, done.stderr
    sent = read_job(json.dumps(jobs[0]), "sent")
    parsed = parse_command(words, user_args)
    ours = merged(read_job(file.read_text(), "config.yaml"), parsed.job)
    # Key and packages are put together later, as they need more than the flags.
    assert parsed.key_parts["--kms-key"] == "k"
    assert sent["trainingInput"].pop("encryptionConfig") == {
        "kmsKeyName": "projects/p/locations/l/keyRings/r/cryptoKeys/k"
    }
    assert sent["trainingInput"].pop("packageUris") == list(parsed.packages)
    assert ours["trainingInput"].pop("packageUris") == ["gs://old/p.tar.gz"]
    assert ours == sent


#: Of flags that do not take any text.
_VALUES = {
    "--labels": "a=b",
    "--scale-tier": "basic",
    "--worker-count": "1",
    "--parameter-server-count": "1",
    "--use-chief-in-tf-config": "true",
    **dict.fromkeys(
        ("--master-accelerator", "--worker-accelerator", "--parameter-server-accelerator"),
        "count=1,type=nvidia-tesla-t4",
    ),
}


@pytest.mark.slow
def test_every_flag_of_the_old_gcloud_is_known() -> None:
    shown = subprocess.run(
        ["gcloud", "ai-platform", "jobs", "submit", "training", "--help"], capture_output=True, text=True, timeout=120
    )
    # Bold is written as escapes or by overstriking, wherever the help does not go to a terminal.
    plain = re.sub(r"\x1b\[[0-9;]*m|.\x08", "", shown.stdout)
    synopsis = plain.partition("SYNOPSIS")[2].partition("DESCRIPTION")[0]
    flags = set(re.findall(r"--[a-z-]+", synopsis))
    assert len(flags) > 20
    switches = {"--async", "--enable-web-access", "--stream-logs"}
    for flag in flags:
        parse_command([flag if flag in switches else f"{flag}={_VALUES.get(flag, 'x')}"], None)
