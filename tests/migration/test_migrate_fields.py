"""Each field of a trainingInput: what becomes of it, what is said about it, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from old_jobs import IMAGE, custom, migrated, refusal, texts

from gpu_pipelines.errors import UserError
from gpu_pipelines.migration.gcloud_flags import parse_command
from gpu_pipelines.migration.job_file import read_job, read_job_file
from gpu_pipelines.migration.old_machines import SCALE_TIERS
from gpu_pipelines.project_settings import ProjectSettings

KEY = "projects/p/locations/l/keyRings/r/cryptoKeys/k"


def test_a_program_is_told_from_a_file_that_is_not_yaml(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is a program, not the config of a job.\n.*gpu-pipelines run .*\.py"):
        read_job_file(tmp_path / "pipeline.py")


def test_scale_tiers_are_expanded_and_what_is_from_memory_is_said() -> None:
    def pools(tier: str) -> list[tuple[Any, ...]]:
        found = migrated({"scaleTier": tier, "masterConfig": {"imageUri": IMAGE}, "region": "us-central1"})
        assert tier in texts(found, "changed", "scaleTier")
        assert "general knowledge" in texts(found, "changed", "scaleTier")
        return [
            (pool["machineSpec"]["machineType"], pool["replicaCount"]) if pool else ()
            for pool in found.config["workerPoolSpecs"]
        ]

    assert pools("BASIC") == [("n1-standard-4", 1)]
    assert pools("BASIC_GPU") == [("g2-standard-8", 1)]
    assert pools("STANDARD_1") == [("n1-standard-8", 1), ("n1-standard-8", 4), ("n1-standard-4", 3)]
    assert pools("PREMIUM_1") == [("n1-highcpu-16", 1), ("n1-highcpu-16", 19), ("n1-highmem-8", 11)]
    assert set(SCALE_TIERS) == {"BASIC", "BASIC_GPU", "STANDARD_1", "PREMIUM_1"}


def test_a_pool_that_is_not_used_keeps_the_place_of_the_next() -> None:
    found = migrated(custom(evaluatorType="n1-standard-4", evaluatorCount=1, workerType="n1-standard-8", workerCount=0))
    pools = found.config["workerPoolSpecs"]
    assert pools[1:3] == [{}, {}]
    assert pools[3]["machineSpec"] == {"machineType": "n1-standard-4"}
    assert "no such pool" in texts(found, "dropped", "workerType")
    assert len(migrated(custom()).config["workerPoolSpecs"]) == 1


@pytest.mark.parametrize("gpu", ["T4", ""])
def test_a_job_with_an_unused_pool_is_submitted_by_what_takes_it(gpu: str) -> None:
    found = migrated(custom(gpu=gpu, evaluatorType="n1-standard-8", evaluatorCount=1))
    assert [bool(pool) for pool in found.config["workerPoolSpecs"]] == [True, False, False, True]
    assert found.gcloud_command("vertex.yaml") is None
    assert "gcloud ai custom-jobs create refuses it in a file" in texts(found, "changed", "trainingInput")
    own = "gpu-pipelines job submit --config=vertex.yaml --name=migrated --region=us-central1"
    assert found.own_command("vertex.yaml") == own
    assert f"# {own}\n" in found.config_text("old.yaml", "vertex.yaml")
    assert found.to_json("vertex.yaml")["commands"] == {"gpu_pipelines": own, "gcloud": None}


def test_the_config_of_machines_that_a_job_does_not_have_is_dropped_and_said() -> None:
    gpu = {"acceleratorConfig": {"type": "NVIDIA_TESLA_T4", "count": 1}}
    found = migrated(custom(workerConfig=gpu, evaluatorConfig={"diskConfig": {"bootDiskSizeGb": 300}}))
    assert len(found.config["workerPoolSpecs"]) == 1
    for field in ("workerConfig", "evaluatorConfig"):
        assert "no such pool" in texts(found, "dropped", field)


def test_the_python_of_a_container_is_that_of_its_image() -> None:
    assert "its own Python" in texts(migrated(custom(pythonVersion="3.7")), "dropped", "pythonVersion")


def test_scheduling_becomes_timeout_spot_and_restart() -> None:
    found = migrated(
        custom(
            scheduling={
                "maxRunningTime": "7200.5s",
                "maxWaitTime": "3600s",
                "priority": 7,
                "strategy": "LOW_COST",
                "resilientToWorkerRestart": True,
            }
        )
    )
    assert found.config["scheduling"] == {"timeout": "7200.5s", "strategy": "SPOT", "restartJobOnWorkerRestart": True}
    assert found.plans["master"].strategy == "spot"
    assert {note.field for note in found.notes if note.kind == "dropped"} == {
        "scheduling.maxWaitTime",
        "scheduling.priority",
    }
    assert "scheduling" not in migrated(custom()).config, "both services end a job after seven days"


def test_the_rest_of_the_job_keeps_its_meaning() -> None:
    found = migrated(
        custom(
            serviceAccount="me@p.iam.gserviceaccount.com",
            network="projects/1/global/networks/n",
            enableWebAccess=True,
            jobDir="gs://bucket/out",
            encryptionConfig={"kmsKeyName": KEY},
            useChiefInTfConfig=True,
            masterConfig={"imageUri": IMAGE, "diskConfig": {"bootDiskSizeGb": 300, "bootDiskType": "pd-standard"}},
        ),
        "--stream-logs",
    )
    config = found.config
    assert config["serviceAccount"] == "me@p.iam.gserviceaccount.com"
    assert config["network"] == "projects/1/global/networks/n"
    assert config["enableWebAccess"] is True
    assert config["baseOutputDirectory"] == {"outputUriPrefix": "gs://bucket/out"}
    assert config["workerPoolSpecs"][0]["diskSpec"] == {"bootDiskType": "pd-standard", "bootDiskSizeGb": 300}
    assert "--job-dir is no longer passed" in texts(found, "changed", "jobDir")
    assert f"--kms-key={KEY}" in found.gcloud_command("f")
    assert texts(found, "dropped", "useChiefInTfConfig")
    assert "--follow" in texts(found, "dropped", "--stream-logs")


def test_a_disk_fits_the_machine_that_replaces_the_old_one() -> None:
    job = custom("n1-standard-8", "K80", region="us-south1")
    job["masterConfig"]["diskConfig"] = {"bootDiskSizeGb": 200}
    found = migrated(job)
    (pool,) = found.config["workerPoolSpecs"]
    assert pool["machineSpec"]["machineType"].startswith("g4-")
    assert "starts from hyperdisk-balanced alone" in texts(found, "changed", "diskConfig")
    assert pool["diskSpec"] == {"bootDiskType": "hyperdisk-balanced", "bootDiskSizeGb": 200}


def test_region_and_project_of_the_settings_fill_what_the_job_leaves_open() -> None:
    settings = ProjectSettings("my-project", "europe-west4", origins={"region": "gpu-pipelines.yaml"})
    job = custom()
    assert migrated(job, settings=settings).region == "us-central1"
    del job["region"]
    found = migrated(job, settings=settings)
    assert "europe-west4 is that of gpu-pipelines.yaml" in texts(found, "changed", "region")
    assert found.gcloud_command("f").startswith(
        "gcloud ai custom-jobs create --project=my-project --region=europe-west4 "
    )
    assert "--project=other-project" in migrated(job, "--project", "other-project", settings=settings).gcloud_command(
        "f"
    )
    nowhere = migrated(job)
    assert "--region=REGION" in nowhere.gcloud_command("f")
    assert "us-central1" in nowhere.regions


def test_the_commands_carry_name_labels_and_key() -> None:
    text = (
        "jobId: my_job\nlabels: {team: a}\ntrainingInput: {scaleTier: CUSTOM, masterType: standard_v100, "
        f"region: us-central1, masterConfig: {{imageUri: {IMAGE}}}, encryptionConfig: {{kmsKeyName: {KEY}}}}}"
    )
    found = migrated(text)
    assert found.own_command("v.yaml") == (
        "gpu-pipelines job submit --config=v.yaml --name=my_job --region=us-central1 --label=team=a "
        f"--encryption-key={KEY}"
    )
    assert found.gcloud_command("v.yaml").endswith(
        f"--display-name=my_job --config=v.yaml --labels=team=a --kms-key={KEY}"
    )
    assert migrated(custom("n1-standard-8", "")).own_command("f"), "job submit takes jobs without GPUs, too"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"scaleTier": "BASIC_TPU"}, "TPU"),
        ({"masterType": "cloud_tpu"}, "TPU"),
        ({"masterConfig": {"acceleratorConfig": {"type": "TPU_V3", "count": 8}}}, "TPU"),
        ({"masterConfig": {"acceleratorConfig": {"count": 1}}}, "needs a type and a count"),
        ({"masterConfig": {"acceleratorConfig": {"type": "NVIDIA_TESLA_T4"}}}, "needs a type and a count"),
        ({"scaleTier": "BASIC"}, "can be given with CUSTOM alone"),
        ({"scaleTier": None}, "There is no scaleTier, and masterType"),
        ({"masterType": None}, "needs masterType"),
        ({"workerCount": 2}, "workerCount is 2, which needs workerType"),
        ({"workerCount": -1}, "workerCount is -1"),
        ({"workerCount": "many"}, "takes a whole number, not 'many'"),
        ({"workerCounts": 1}, "Did you mean 'workerCount'"),
        ({"masterConfig": "x"}, "takes fields with values"),
        ({"args": "x"}, "takes a list"),
        ({"enableWebAccess": "perhaps"}, "takes true or false"),
        ({"scaleTier": "COSTUM"}, "Did you mean 'CUSTOM'"),
        ({"nasJobSpec": {"a": 1}}, "NasJob"),
        ({"region": "here"}, "written like us-central1"),
        ({"region": "europe-west10"}, "does not run in europe-west10"),
        ({"jobDir": "out"}, "gs://BUCKET/FOLDER"),
        ({"network": "default"}, "projects/NUMBER/global/networks/NAME"),
        ({"encryptionConfig": {"kmsKeyName": "k"}}, "cryptoKeys/K"),
        ({"scheduling": {"maxRunningTime": "2h"}}, "written in seconds"),
        ({"scheduling": {"maxRunningTime": "0s"}}, "more than 0"),
        ({"scheduling": {"maxRunningTime": "99999999s"}}, "at most 8784 hours"),
        ({"scheduling": {"maxWaitTime": "60s"}}, "at least 1800s"),
        ({"masterConfig": {"diskConfig": {"bootDiskSizeGb": 50}}}, "100 to 64000"),
        ({"masterConfig": {"diskConfig": {"bootDiskType": "pd-sdd"}}}, "Did you mean 'pd-ssd'"),
    ],
)
def test_what_the_old_service_refused_is_refused(more: dict[str, Any], said: str) -> None:
    assert said in refusal({**custom(), **more})


def test_all_that_is_wrong_is_said_at_once() -> None:
    job = custom(
        "n1-standard-8",
        "T4",
        3,
        workerCount=1,
        region="here",
        network="default",
        scheduling={"maxWaitTime": "1s"},
        hyperparameters={"params": []},
    )
    said = refusal(job, "--kms-keyring", "r", "--labels", "A=b", "--packages", "gs://b/a")
    assert said.startswith("9 things are wrong:")
    wrong = (
        *("refused 3 × t4", "needs workerType", "like us-central1", "network", "at least 1800s", "nothing to tune"),
        *("--kms-key", "'A'", "not both"),
    )
    for each in wrong:
        assert each in said, each


def test_versions_stay_as_they_are_written() -> None:
    job = read_job("trainingInput: {runtimeVersion: 2.10, pythonVersion: 3.7, args: [1e-3, 010, yes, 12:30]}", "f")
    assert job["trainingInput"] == {
        "runtimeVersion": "2.10",
        "pythonVersion": "3.7",
        "args": ["1e-3", "010", "yes", "12:30"],
    }


def test_texts_stay_as_they_are_whatever_yaml_would_make_of_them() -> None:
    words = ["--x", "null", "  y ", "~", "", "NULL", "1e-4"]
    assert migrated(custom(), user_args=words).config["workerPoolSpecs"][0]["containerSpec"]["args"] == words
    quoted = "trainingInput: {args: ['null', \"~\", '', ' y ', 1e-4], jobDir: ~, region: }"
    assert read_job(quoted, "f")["trainingInput"] == {"args": ["null", "~", "", " y ", "1e-4"]}


def test_merge_keys_are_resolved_as_gcloud_does() -> None:
    text = "trainingInput: &t {workerType: a, workerConfig: &w {imageUri: i}}\n"
    assert read_job(text.replace("&t {", "{masterConfig: {<<: &m {imageUri: x}, imageUri: y}, "), "f")["trainingInput"][
        "masterConfig"
    ] == {"imageUri": "y"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("# nothing", "is empty"),
        ("trainingInput: {args: [--x, null]}", "args[1] is a null"),
        ("trainingInput: {args: [--x, ~]}", "args[1] is a null"),
        ("trainingInput: {args: [--x, ]}\ntrainingInput: {}", "'trainingInput' twice, in lines 1 and 2"),
        ("trainingInput: {region: a, region: b}", "'region' twice"),
        ("labels: {a: }", "takes names with texts"),
        ("trainingInput: {workerCount: ''}", "takes a whole number"),
        ("a: [", "not YAML"),
        ("- a", "not a mapping"),
        ("scaleTier: BASIC", "Put them below trainingInput"),
        ("workerPoolSpecs: []", "of Vertex AI already.\n  Submit it with gpu-pipelines job submit --config"),
        (
            "displayName: d\njobSpec: {}",
            "of Vertex AI already.\n  Submit it with gpu-pipelines job submit --config",
        ),
        ("trialJobSpec: {}", "of Vertex AI already.\n  Submit it with gcloud ai hp-tuning-jobs create --config"),
        ("predictionInput: {region: x}", "batch prediction"),
        ("trainingInputs: {}", "Did you mean 'trainingInput'"),
        ("trainingInput: {scaleTier: [CUSTOM]}", "takes one value"),
        ("labels: [a]", "takes names with texts"),
        ("&a [*a]", "recursive"),
        ("trainingInput: &a {masterConfig: *a}", "recursive"),
        ("[" * 1000, "nested too deeply"),
        ("\0", "not YAML"),
    ],
)
def test_a_file_that_is_no_job_is_refused(text: str, said: str) -> None:
    with pytest.raises(UserError) as refused:
        read_job(text, "config.yaml")
    assert said in str(refused.value)


def test_a_described_job_migrates_and_an_empty_one_does_not(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("state: SUCCEEDED\ncreateTime: now\ntrainingOutput: {consumedMLUnits: 1}\njobId: j\n")
    assert read_job_file(file)["jobId"] == "j"
    assert "There is no training" in refusal("trainingInput: {}")
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="not UTF-8"):
        read_job_file(file)
    with pytest.raises(UserError, match="cannot be read: Is a directory"):
        read_job_file(tmp_path)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--worker-cuont", "3"], "no flag --worker-cuont. Did you mean '--worker-count'"),
        (["--epochs", "3"], "come after --"),
        (["--master-accelerator", "4,nvidia-tesla-t4"], "count=COUNT,type=TYPE"),
        (["--master-accelerator", "count=x,type=nvidia-tesla-t4"], "takes a whole number"),
        (["--master-accelerator", "count=1,type=nvidia-tesla-t44"], "Did you mean"),
        (["--labels", "a"], "key=KEY,value=VALUE"),
        (["--labels", "A=b"], "label"),
        (["--region"], "expected one argument"),
        (["a.yaml", "--config", "b.yaml"], "There are 2 files"),
        (["job_1", "job_2"], "A job has one name"),
        (["--kms-keyring", "r"], "need --kms-key"),
        (["--kms-key", "k"], "Give --kms-project"),
        (["--kms-key", "k", "--kms-project", "p"], "cryptoKeys/K"),
        (["x" * 129], "1 to 128"),
        (["x" * 5000], "1 to 128"),
        (["--module-name", "\udcff"], "is not UTF-8"),
    ],
)
def test_flags_that_gcloud_refuses_are_refused(words: list[str], said: str) -> None:
    assert said in refusal(custom(), *words)


def test_a_whole_command_can_be_given_as_it_was() -> None:
    for prefix in ("gcloud ai-platform jobs submit training", "gcloud beta ml-engine jobs submit training"):
        command = parse_command([*prefix.split(), "my_job", "--async", "-q", "--config", "c.yaml"], None)
        assert command.job["jobId"] == "my_job"
        assert command.file == Path("c.yaml")


def test_flags_change_a_job_field_by_field() -> None:
    found = migrated(custom("n1-standard-8", "T4", 4), "--master-accelerator", "count=2,type=nvidia-tesla-v100")
    assert found.plans["master"].spec == "v100:2"
    assert found.config["workerPoolSpecs"][0]["containerSpec"]["imageUri"] == IMAGE, "the rest of masterConfig stays"


def test_the_comments_of_the_config_are_comments_whatever_the_job_has_in_them() -> None:
    job = custom(
        pythonModule="a\nworkerPoolSpecs: []", runtimeVersion="\u0085x: [\u2028", packageUris=["gs://b/\u2029p-"]
    )
    del job["masterConfig"]["imageUri"]
    found = migrated(job, "--runtime-version", "\x07\n1")
    text = found.config_text("config\n.yaml", "vertex.yaml")
    assert yaml.safe_load(text) == found.config
    assert text.startswith("# Migrated from config .yaml by")
