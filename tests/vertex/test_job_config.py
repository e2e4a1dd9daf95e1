"""`job config`: files that the real gcloud takes, and files of the user's own, which flags win over."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from command_line import command
from gcloud_reader_process import read_by_gcloud

from gpu_pipelines.accelerators import load_catalog

if TYPE_CHECKING:
    from gpu_pipelines.emulator.vertex_api import VertexApi

ATTACHMENT = "projects/p/regions/us-central1/networkAttachments/a"
IMAGE = "us-docker.pkg.dev/p/r/trainer:1"
L4 = {"machineType": "g2-standard-24", "acceleratorType": "NVIDIA_L4", "acceleratorCount": 2}


pytestmark = pytest.mark.usefixtures("no_project_settings")


def pool(machine: dict[str, Any] = L4, replicas: int = 1, **more: Any) -> dict[str, Any]:
    return {"machineSpec": machine, "replicaCount": replicas, "containerSpec": {"imageUri": IMAGE}, **more}


def written(path: Path, *pools: dict[str, Any], **spec: Any) -> str:
    path.write_text(yaml.safe_dump({"workerPoolSpecs": list(pools), **spec}))
    return str(path)


def config(*arguments: str) -> dict[str, Any]:
    """The file that `job config` prints."""
    done = command("job", "config", *arguments)
    assert done.status == 0, done.err
    document: dict[str, Any] = yaml.safe_load(done.out)
    return document


def refusal(*arguments: str) -> str:
    done = command("job", "config", *arguments)
    assert done.status == 2
    assert done.out == ""
    return done.err


def test_the_file_that_a_config_starts_from_is_not_written_over(tmp_path: Path) -> None:
    file = written(tmp_path / "job.yaml", pool())
    said = refusal("--config", file, "--region", "us-central1", "-o", file)
    assert f"{file} is the job of --config itself, and would be written over." in said
    assert yaml.safe_load(Path(file).read_text()) == {"workerPoolSpecs": [pool()]}


def make_persistent_resource(vertex_api: VertexApi, key: str) -> None:
    """Makes one with a machine for the job."""
    from google.cloud import aiplatform_v1 as api

    parent = "projects/example-project/locations/us-central1"
    machines = {"resource_pools": [{"machine_spec": api.MachineSpec.from_json(json.dumps(L4)), "replica_count": 1}]}
    request = api.CreatePersistentResourceRequest(
        parent=parent, persistent_resource=machines, persistent_resource_id=key
    )
    vertex_api.state.persistent_resources.create(request)


@pytest.mark.parametrize(
    "options",
    [
        ("--accelerator", "h200:8", "--nodes", "4", "--strategy", "flex-start", "--max-wait", "0"),
        ("--accelerator", "a100:8", "--nodes", "4", "--reduction-server"),
        ("--accelerator", "b200:8", "--reservation", "projects/p/zones/us-central1-b/reservations/r"),
        ("--accelerator", "l4:2", "--persistent-resource", "pool-1", "--network-attachment", ATTACHMENT),
    ],
    ids=lambda options: " ".join(options[1:]),
)
def test_gcloud_takes_the_file_and_sends_what_the_plan_says(
    options: tuple[str, ...], vertex_api: VertexApi, tmp_path: Path
) -> None:
    file = tmp_path / "config.yaml"
    done = command(
        *("job", "config", *options, "--project", "example-project", "--region", "us-central1", "--image", IMAGE),
        *("--label", "team=a", "--env", "A=1", "-o", str(file), "--", "--epochs", "3"),
    )
    assert done.status == 0, done.err
    if "--persistent-resource" in options:
        make_persistent_resource(vertex_api, "pool-1")
    # The command is run as it was printed.
    vertex_api.answer_to(shlex.split(done.out.splitlines()[-1]))
    from google.cloud.aiplatform_v1.types import CustomJobSpec
    from google.protobuf import json_format

    (request,) = vertex_api.state.requests_of("CreateCustomJob")
    wanted = json_format.ParseDict(yaml.safe_load(file.read_text()), CustomJobSpec.pb()())
    assert CustomJobSpec.pb(request.custom_job.job_spec) == wanted
    on_a_resource = "--persistent-resource" in options
    assert request.custom_job.job_spec.persistent_resource_id == ("pool-1" if on_a_resource else "")
    attachment = request.custom_job.job_spec.psc_interface_config.network_attachment
    assert attachment == (ATTACHMENT if on_a_resource else "")
    assert dict(request.custom_job.labels) == {"team": "a"}


def test_a_network_and_a_resource_of_the_file_win_over_those_of_the_project(tmp_path: Path) -> None:
    (tmp_path / "gpu-pipelines.yaml").write_text(f"network_attachment: {ATTACHMENT}\npersistent_resource: pool-1\n")
    of_project = config("--config", written(tmp_path / "job.yaml", pool()), "--region", "us-central1")
    assert of_project["pscInterfaceConfig"] == {"networkAttachment": ATTACHMENT}
    assert of_project["persistentResourceId"] == "pool-1"
    own = {"network": "projects/1/global/networks/n", "persistentResourceId": "mine"}
    of_file = config("--config", written(tmp_path / "job.yaml", pool(), **own), "--region", "us-central1")
    assert "pscInterfaceConfig" not in of_file
    assert of_file["persistentResourceId"] == "mine"


def test_cpus_a_place_without_a_bucket_and_a_variable_without_a_name_are_refused(tmp_path: Path) -> None:
    job = ("--accelerator", "l4:1", "--image", IMAGE)
    assert "'A B' is not the name of a variable" in refusal(*job, "--env", "A B=c")
    assert "--output-dir is 'gs://', which has no name of a bucket" in refusal(*job, "--output-dir", "gs://")
    file = written(tmp_path / "job.yaml", pool())
    for words in (("--image", IMAGE, "--region", "us-central1"), ("--config", file, "--region", "us-central1")):
        said = refusal("--accelerator", "cpu:2", *words)
        assert "cpu:2 is for this machine; Vertex AI has no such machine" in said
        assert "Instead: cpu:2" not in said


def test_the_file_says_what_it_costs_and_how_it_is_submitted() -> None:
    done = command(
        "job", "config", "--accelerator", "h100:8", "--nodes", "2", "--region", "us-central1", "--image", IMAGE
    )
    comments = [line for line in done.out.splitlines() if line.startswith("#")]
    assert comments[0] == "# h100:8 on 2 × a3-highgpu-8g: 16 GPUs, standard"
    assert "USD per hour in us-central1" in comments[1]
    assert "list price of 20" in comments[1]
    assert comments[2].startswith("# gcloud ai custom-jobs create --region=us-central1 --display-name=trainer-h100-8x2")


def test_an_open_region_is_left_to_fill_in_with_those_that_have_it() -> None:
    done = command("job", "config", "--accelerator", "h200:8", "--image", IMAGE)
    assert "--region=REGION" in done.out
    assert "# REGION: one of " in done.out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "--accelerator"),
        (("--accelerator", "l4:2"), "No image is known"),
        (("--accelerator", "h100:3", "--image", IMAGE), "1, 2, 4 or 8"),
        (("--accelerator", "cpu:2", "--image", IMAGE), "Vertex AI has no such machine"),
        (("--accelerator", "l4:2", "--image", IMAGE, "--nodes", "0"), "nodes"),
        (("--accelerator", "l4:2", "--image", IMAGE, "--max-wait", "3"), "Only flex-start waits"),
        (
            ("--accelerator", "l4:2", "--image", IMAGE, "--strategy", "flex-start", "--max-wait", "0.0001"),
            "cannot wait 0.0001 hours; 0 waits for ever",
        ),
        (("--accelerator", "l4:2", "--image", IMAGE, "--boot-disk-gb", "50"), "100 to 64000"),
        (("--accelerator", "l4:2", "--image", IMAGE, "--output-dir", "out"), "gs://"),
        (("--accelerator", "l4:2", "--image", IMAGE, "--env", "A"), "NAME=VALUE"),
        (("--accelerator", "l4:2", "--image", IMAGE, "--env", "A="), "empty"),
        (("--accelerator", "l4:2", "--image", IMAGE, "--name", "x" * 129), "128"),
        (("--accelerator", "l4:2", "--image", IMAGE, "--command", "python 'x"), "cannot be split"),
        (
            ("--accelerator", "l4:2", "--image", IMAGE, "--command", "cd /app && python train.py"),
            "joins commands by &&, and no shell reads it",
        ),
        (("--accelerator", "l4:2", "--image", IMAGE, "--reduction-server"), "one machine"),
        (("--accelerator", "h100:8", "--nodes", "2", "--image", IMAGE, "--reduction-server"), "GPUDirect"),
    ],
    ids=lambda value: " ".join(value)[-40:] if isinstance(value, tuple) else "",
)
def test_what_cannot_be_is_refused_with_its_reason(options: tuple[str, ...], said: str) -> None:
    assert said in refusal(*options)


def test_without_flags_a_file_stays_as_it_is(tmp_path: Path) -> None:
    spec = {
        "workerPoolSpecs": [pool(diskSpec={"bootDiskType": "pd-standard", "bootDiskSizeGb": 500}), pool(replicas=3)],
        "scheduling": {"strategy": "SPOT", "timeout": "3600s", "disableRetries": True},
        "serviceAccount": "me@p.iam.gserviceaccount.com",
        "reservedIpRanges": ["range"],
    }
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(spec))
    assert config("--config", str(file)) == spec


def test_flags_win_over_the_file_and_the_file_over_the_settings(tmp_path: Path) -> None:
    (tmp_path / "gpu-pipelines.yaml").write_text(
        "service_account: settings@p.iam.gserviceaccount.com\nimage: i\nnetwork: projects/1/global/networks/s\n"
    )
    container = {"imageUri": "of-file", "args": ["--old"], "env": [{"name": "A", "value": "1"}, {"name": "B"}]}
    file = written(
        tmp_path / "job.yaml",
        pool(containerSpec=container, diskSpec={"bootDiskType": "pd-ssd", "bootDiskSizeGb": 100}),
        scheduling={"strategy": "FLEX_START", "timeout": "3600s", "maxWaitDuration": "60s"},
        serviceAccount="file@p.iam.gserviceaccount.com",
    )
    plain = config("--config", file)
    assert plain["workerPoolSpecs"][0]["containerSpec"]["imageUri"] == "of-file"
    assert plain["serviceAccount"] == "file@p.iam.gserviceaccount.com"
    assert plain["network"] == "projects/1/global/networks/s", "where the file is silent, the settings speak"
    changed = config(
        *("--config", file, "--accelerator", "h200:8", "--nodes", "3", "--strategy", "spot", "--hours", "2"),
        *("--image", "of-flag", "--env", "B=2", "--env", "C=3", "--service-account", "flag@p.iam.gserviceaccount.com"),
        *("--command", "python -m t", "--", "--new", "x y"),
    )
    rank_0, others = changed["workerPoolSpecs"]
    assert rank_0["machineSpec"] == {
        "machineType": "a3-ultragpu-8g",
        "acceleratorType": "NVIDIA_H200_141GB",
        "acceleratorCount": 8,
    }
    assert rank_0["diskSpec"] == {"bootDiskType": "hyperdisk-balanced", "bootDiskSizeGb": 100}
    assert rank_0["containerSpec"] == {
        "imageUri": "of-flag",
        "command": ["python", "-m", "t"],
        "args": ["--new", "x y"],
        "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}, {"name": "C", "value": "3"}],
    }
    assert others == {**rank_0, "replicaCount": 2}
    assert changed["scheduling"] == {"strategy": "SPOT", "timeout": "7200s"}
    assert changed["serviceAccount"] == "flag@p.iam.gserviceaccount.com"


def test_fewer_nodes_take_the_second_pool_away_and_keep_the_evaluators_in_their_place(tmp_path: Path) -> None:
    server = pool({"machineType": "n1-standard-8"})
    file = written(tmp_path / "job.yaml", pool(), pool(replicas=3), server)
    assert config("--config", file, "--nodes", "1")["workerPoolSpecs"][1:] == [{}, server]
    file = written(tmp_path / "job.yaml", pool(), pool(replicas=3))
    assert len(config("--config", file, "--nodes", "1")["workerPoolSpecs"]) == 1


def test_a_reservation_wins_over_the_strategy_of_the_file_and_goes_with_another(tmp_path: Path) -> None:
    name = "projects/p/zones/us-central1-a/reservations/r"
    file = written(tmp_path / "job.yaml", pool(), scheduling={"strategy": "SPOT"})
    reserved = config("--config", file, "--reservation", name)
    assert reserved["scheduling"]["strategy"] == "STANDARD"
    affinity = reserved["workerPoolSpecs"][0]["machineSpec"]["reservationAffinity"]
    assert affinity["values"] == [name]
    again = written(tmp_path / "reserved.yaml", *reserved["workerPoolSpecs"])
    assert config("--config", again)["workerPoolSpecs"] == reserved["workerPoolSpecs"]
    spot = config("--config", again, "--strategy", "spot")
    assert "reservationAffinity" not in spot["workerPoolSpecs"][0]["machineSpec"]


def test_an_image_takes_the_place_of_a_python_package_and_keeps_its_arguments(tmp_path: Path) -> None:
    package = {"executorImageUri": "e", "packageUris": ["gs://b/p.tar.gz"], "pythonModule": "m", "args": ["--a"]}
    file = written(tmp_path / "job.yaml", {"machineSpec": L4, "replicaCount": 1, "pythonPackageSpec": package})
    assert config("--config", file, "--", "--b")["workerPoolSpecs"][0]["pythonPackageSpec"]["args"] == ["--b"]
    (changed,) = config("--config", file, "--image", IMAGE)["workerPoolSpecs"]
    assert changed["containerSpec"] == {"args": ["--a"], "imageUri": IMAGE}
    assert "pythonPackageSpec" not in changed
    assert "takes no --command" in refusal("--config", file, "--command", "python")


def test_reduction_servers_are_added_to_a_file(tmp_path: Path) -> None:
    a100 = {"machineType": "a2-megagpu-16g", "acceleratorType": "NVIDIA_TESLA_A100", "acceleratorCount": 16}
    file = written(tmp_path / "job.yaml", pool(a100), pool(a100, replicas=7))
    servers = config("--config", file, "--reduction-server")["workerPoolSpecs"][2]
    assert servers["replicaCount"] == 25
    with_servers = written(tmp_path / "with.yaml", *config("--config", file, "--reduction-server")["workerPoolSpecs"])
    assert config("--config", with_servers)["workerPoolSpecs"][2]["replicaCount"] == 25
    assert config("--config", with_servers, "--nodes", "16")["workerPoolSpecs"][2]["replicaCount"] == 50
    assert "there is one machine" in refusal("--config", with_servers, "--nodes", "1")
    assert "the same machine in every pool" in refusal("--config", with_servers, "--strategy", "flex-start")
    other = written(tmp_path / "other.yaml", pool(a100), pool(a100), pool({"machineType": "n1-standard-8"}))
    assert "another third pool" in refusal("--config", other, "--reduction-server")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("a: [", "not YAML"),
        ("just text", "not a mapping"),
        ("jobSpec: {}", "only its jobSpec"),
        ("displayName: d\ntrialJobSpec: {}", "gcloud ai hp-tuning-jobs create --config takes it"),
        ("workerPoolSpecs: []", "has no workerPoolSpecs"),
        ("workerPoolSpec: []", 'no field named "workerPoolSpec"'),
        ("workerPoolSpecs: [{replicaCount: many}]", "replicaCount"),
        ("workerPoolSpecs: [{containerSpec: {args: [--epochs, 3]}}]", 'Write "3"'),
        ("workerPoolSpecs: [{containerSpec: {env: [{name: DEBUG, value: true}]}}]", "value of"),
        ("workerPoolSpecs: [{machineSpec: {acceleratorType: NVIDIA_RTX_4090}}]", "NVIDIA_RTX_4090"),
        (json.dumps({"workerPoolSpecs": [pool(replicas=2)]}), "it holds only rank 0"),
        (json.dumps({"workerPoolSpecs": [{}, pool()]}), "The first pool is empty"),
        (json.dumps({"workerPoolSpecs": [pool(), pool({}, replicas=2)]}), "Pool 1 has no machineSpec.machineType"),
        (json.dumps({"workerPoolSpecs": [pool(), {}, pool(replicas=0)]}), "has 0 replicas"),
        ("workerPoolSpecs: 8", "is '8'.\n  A pool is a mapping"),
        ("workerPoolSpecs: []\nworkerPoolSpecs: {}", "twice, in lines 1 and 2"),
        ("", "not a mapping"),
        (json.dumps({"workerPoolSpecs": [pool({**L4, "acceleratorCount": 3})]}), "g2-standard-24"),
        (json.dumps({"workerPoolSpecs": [pool({**L4, "machineType": "n1-standard-8"})]}), "n1-standard-8"),
        (json.dumps({"workerPoolSpecs": [{"machineSpec": L4}]}), "Give --image"),
        (json.dumps({"workerPoolSpecs": [pool()], "scheduling": {"maxWaitDuration": "9s"}}), "FLEX_START"),
        (
            json.dumps(
                {
                    "workerPoolSpecs": [
                        pool(
                            {
                                "machineType": "a3-ultragpu-8g",
                                "acceleratorType": "NVIDIA_H200_141GB",
                                "acceleratorCount": 8,
                            },
                            diskSpec={"bootDiskType": "pd-ssd"},
                        )
                    ]
                }
            ),
            "starts from hyperdisk-balanced",
        ),
    ],
    ids=lambda value: value[:30],
)
def test_a_file_that_the_service_would_refuse_is_refused_here(content: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(content)
    assert said in refusal("--config", str(file))


def test_pools_of_several_gpus_are_planned_each_and_must_share_a_zone(tmp_path: Path) -> None:
    a100 = {"machineType": "a2-highgpu-1g", "acceleratorType": "NVIDIA_TESLA_A100", "acceleratorCount": 1}
    file = written(tmp_path / "job.yaml", pool(), pool(a100, replicas=2))
    done = command("job", "config", "--config", file, "--region", "us-central1")
    assert "# l4:2 on g2-standard-24" in done.out
    assert "# a100:1 on 2 × a2-highgpu-1g" in done.out
    h100 = {"machineType": "a3-highgpu-8g", "acceleratorType": "NVIDIA_H100_80GB", "acceleratorCount": 8}
    t4 = {"machineType": "n1-standard-8", "acceleratorType": "NVIDIA_TESLA_T4", "acceleratorCount": 1}
    file = written(tmp_path / "job.yaml", pool(h100), pool(t4), scheduling={"strategy": "FLEX_START"})
    assert "flex-start" in refusal("--config", file)


def test_what_the_document_shows_is_what_is_printed(tmp_path: Path) -> None:
    document = (Path(__file__).parents[2] / "docs" / "jobs.md").read_text(encoding="utf-8")
    (file,) = re.findall(r"```yaml\n# job.yaml\n(.*?)```", document, re.DOTALL)
    (tmp_path / "job.yaml").write_text(file)
    shown = re.findall(r"```console\n\$ gpu-pipelines (job config .*?)\n(.*?)```", document, re.DOTALL)
    assert len(shown) == 2
    for line, printed in shown:
        assert command(*shlex.split(line)).out == printed


@pytest.mark.parametrize("accelerators", [2, 4, 8])
def test_a_pool_without_a_list_is_taken_as_gcloud_takes_it(accelerators: int, tmp_path: Path) -> None:
    """The form in which many documents print a config."""
    (tmp_path / "job.yaml").write_text(
        "workerPoolSpecs:\n"
        "  machineSpec:\n"
        "    machineType: n1-standard-16\n"
        "    acceleratorType: NVIDIA_TESLA_V100\n"
        f"    acceleratorCount: {accelerators}\n"
        "  replicaCount: 1\n"
        "  containerSpec:\n"
        f"    imageUri: {IMAGE}\n"
        "    args: --fast\n"
        "    env: {name: A, value: '1'}\n"
    )
    done = command("job", "config", "--config", "job.yaml")
    assert done.status == 0, done.err
    (sent,) = read_by_gcloud([("custom", (tmp_path / "job.yaml").read_text())])
    (read,) = yaml.safe_load(done.out)["workerPoolSpecs"]
    (pool,) = sent["workerPoolSpecs"]
    assert read == {**pool, "replicaCount": 1}
    assert read["machineSpec"]["acceleratorCount"] == accelerators
    assert read["containerSpec"]["args"] == ["--fast"]
    for name in ("workerPoolSpecs", "args", "env"):
        assert f"warning: {name} of job.yaml is not in a list" in done.err
    dry = command("job", "submit", "--config", "job.yaml", "--project=p-123456", "--region=us-central1", "--dry-run")
    assert json.loads(dry.out)["body"]["jobSpec"]["workerPoolSpecs"] == [read]


def test_a_pool_left_out_between_two_others_goes_by_job_submit(tmp_path: Path) -> None:
    server = pool({"machineType": "n1-standard-8"})
    file = written(tmp_path / "job.yaml", pool(), {}, server)
    done = command("job", "config", "--config", file, "--region", "us-central1", "--project", "p-123456")
    assert done.status == 0, done.err
    (line,) = [line for line in done.out.splitlines() if " --config=config.yaml" in line]
    assert line.startswith("# gpu-pipelines job submit --config=config.yaml --name=trainer-l4-2 --project=p-123456")
    assert "gcloud ai custom-jobs create refuses it in a file" in done.err
    assert "Exactly one of fields" in read_by_gcloud([("custom", done.out)])[0]["refused"]


def test_rank_0_without_a_gpu_is_taken_and_a_job_without_any_is_said_not_to_be_checked(tmp_path: Path) -> None:
    rank_0 = pool({"machineType": "n1-standard-8"})
    done = command("job", "config", "--config", written(tmp_path / "job.yaml", rank_0, pool(replicas=3)))
    assert done.status == 0, done.err
    assert "# l4:2 on 3 × g2-standard-24" in done.out
    assert [each["replicaCount"] for each in yaml.safe_load(done.out)["workerPoolSpecs"]] == [1, 3]
    file = written(tmp_path / "cpu.yaml", rank_0)
    done = command("job", "config", "--config", file)
    assert "No pool of" in done.err
    assert yaml.safe_load(done.out) == yaml.safe_load(Path(file).read_text())
    assert "--strategy are for machines with GPUs" in refusal("--config", file, "--strategy", "spot")


@pytest.mark.parametrize(
    ("machine", "told"),
    [
        ({"machineType": "a2-highgpu-2g"}, "acceleratorType: NVIDIA_TESLA_A100 and acceleratorCount: 2"),
        ({"machineType": "g2-standard-8", "acceleratorCount": 1}, "g2-standard-8 has 1 × l4, which the request"),
        ({"machineType": "n1-standard-8", "acceleratorCount": 1}, "acceleratorCount is 1, and there is no"),
    ],
)
def test_gpus_that_are_half_said_are_no_pool_without_gpus(tmp_path: Path, machine: dict[str, Any], told: str) -> None:
    for pools in ([pool(machine)], [pool(), pool(machine)]):
        assert told in refusal("--config", written(tmp_path / "job.yaml", *pools))
    given = command("job", "config", "--config", str(tmp_path / "job.yaml"), "--accelerator", "l4:1")
    assert given.status == 0, given.err


def test_several_pools_have_a_price_in_sum(tmp_path: Path) -> None:
    a100 = {"machineType": "a2-highgpu-1g", "acceleratorType": "NVIDIA_TESLA_A100", "acceleratorCount": 1}
    server = {"machineType": "n1-highmem-8"}
    file = written(tmp_path / "job.yaml", pool(), pool(a100, replicas=2), pool(server, replicas=3))
    done = command("job", "config", "--config", file, "--region", "us-central1", "--hours", "10")
    lines = [line for line in done.out.splitlines() if line.startswith("#")]
    per_hour = [float(re.findall(r"about ([0-9.]+) USD", line)[0]) for line in lines if "USD per hour" in line]
    assert len(per_hour) == 3
    of_servers = per_hour[2] - sum(per_hour[:2])
    # Three n1-highmem-8 (8 vCPUs, 52 GB) by the price list.
    prices = load_catalog().prices
    machine = (
        8 * prices[("n1", "vcpu", "us-central1")].on_demand + 52 * prices[("n1", "memory_gb", "us-central1")].on_demand
    )
    assert of_servers == pytest.approx(3 * machine, abs=0.02)
    (together,) = [line for line in lines if "all pools together" in line]
    (total,) = re.findall(r"([0-9.]+) USD for 10 h", together)
    assert float(total) == pytest.approx(per_hour[2] * 10, abs=0.1)
    shown = command("job", "submit", "--config", file, "--region=us-central1", "--project=p-123456", "--dry-run")
    assert "all pools together: about" in shown.err
    odd = written(tmp_path / "odd.yaml", pool(), pool({"machineType": "e2-standard-8"}))
    assert "all pools together: no price is known" in command("job", "config", "--config", odd).out


def test_an_image_of_pytorch_that_google_no_longer_keeps_is_said_to_be_one() -> None:
    image = "us-docker.pkg.dev/vertex-ai/training/pytorch-gpu.2-{}.py310:latest"
    given = ("job", "config", "--accelerator", "l4:1", "--image")
    told = [command(*given, image.format(minor)).err for minor in (4, 9)]
    assert ["is past the end of its availability" in each for each in told] == [True, False], told


def test_container_registry_is_said_to_be_shut_down(tmp_path: Path) -> None:
    for image, said in (("gcr.io/p/i:1", True), ("eu.gcr.io/p/i:1", True), (IMAGE, False)):
        done = command("job", "config", "--accelerator", "l4:2", "--image", image)
        assert ("shut down on 2025-03-18" in done.err) == said
    package = {"executorImageUri": "gcr.io/e", "packageUris": ["gs://b/p.tar.gz"], "pythonModule": "m"}
    file = written(tmp_path / "job.yaml", {"machineSpec": L4, "replicaCount": 1, "pythonPackageSpec": package})
    assert "shut down on 2025-03-18" in command("job", "config", "--config", file).err
