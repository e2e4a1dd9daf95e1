"""`vm config`: the command, the start-up script and Terraform JSON of a plan, and what is refused."""

from __future__ import annotations

import itertools
import json
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from command_line import command

import gpu_pipelines
from gpu_pipelines.accelerators import AcceleratorPlan, load_catalog, plan
from gpu_pipelines.accelerators.placement import usable_regions, zones_of
from gpu_pipelines.errors import UserError
from gpu_pipelines.project_settings import ProjectSettings
from gpu_pipelines.targets.compute_engine.formats import create_command, literal, shell_text, terraform
from gpu_pipelines.targets.compute_engine.spec import VmOptions, virtual_machine
from gpu_pipelines.targets.compute_engine.startup import StartupSettings, startup_script
from gpu_pipelines.targets.compute_engine.zones import zones_to_try
from gpu_pipelines.targets.container import Container

IMAGE = "us-docker.pkg.dev/p/r/t:1"
HERE = ("--project", "my-project", "--image", IMAGE)
L4 = ("--accelerator", "l4:4", "--zone", "us-central1-a")


pytestmark = pytest.mark.usefixtures("no_project_settings")


def printed(*arguments: str) -> str:
    done = command("vm", "config", *arguments)
    assert done.status == 0, done.err
    return done.out


def flags(*arguments: str) -> list[str]:
    """The words of the command that `vm config` prints."""
    text = printed(*arguments, *HERE).replace("\\\n", "")
    return shlex.split(text, comments=True)


def refusal(*arguments: str, here: tuple[str, ...] = HERE) -> str:
    done = command("vm", "config", *arguments, *here)
    assert done.status == 2
    assert done.out == ""
    return done.err


def test_a_program_gets_the_files_that_the_command_writes(tmp_path: Path) -> None:
    given: dict[str, Any] = {"project": "my-project", "image": IMAGE, "zone": "us-central1-a", "progress": False}
    for name in ("gcloud", "terraform", "script"):
        done = command("vm", "config", *L4, *HERE, "--format", name, "-o", name, "--", "--fast", cwd=tmp_path)
        assert done.status == 0, done.err
        files = gpu_pipelines.vm_config("l4:4", name, arguments=["--fast"], **given)
        assert files.keys() == {path.name for path in (tmp_path / name).iterdir()}
        for file, text in files.items():
            assert text == (tmp_path / name / file).read_text().replace(f"{name}/startup.sh", "startup.sh")
    with pytest.raises(UserError, match=r"^format 'yaml' is not known"):
        gpu_pipelines.vm_config("l4:4", "yaml", **given)


def every_plan() -> Iterator[AcceleratorPlan]:
    """Each machine with each of its GPUs, in each way that it is sold, in a region whose zones are known."""
    catalog = load_catalog()
    for machine in catalog.machine_types.values():
        for name, counts in machine.gpu_counts.items():
            gpu = catalog.gpus[name]
            regions = [r for r in usable_regions(catalog, name, [machine]) if zones_of(catalog, name, r)]
            for count, strategy in itertools.product(counts, ("standard", "spot", "flex-start")):
                sold = machine.offered(strategy) != "no" and (gpu.flex_start or strategy != "flex-start")
                if sold and regions and not gpu.has_ended(date.today()):
                    yield plan(f"{name}:{count}", machine_type=machine.name, strategy=strategy, region=regions[0])


def test_every_machine_that_a_plan_can_have_gets_its_disk_and_its_gpus() -> None:
    settings, seen = ProjectSettings(project="my-project"), set()
    for planned in every_plan():
        assert planned.machine is not None
        assert planned.gpu is not None
        vm = virtual_machine(planned, Container(IMAGE), settings, VmOptions())
        command = create_command(vm, "startup.sh")
        assert {f"--machine-type={planned.machine.name}", "--maintenance-policy=TERMINATE"} <= set(command)
        assert f"--boot-disk-type={planned.machine.boot_disk}" in command
        attached = [word for word in command if word.startswith("--accelerator")]
        one = f"--accelerator=type={planned.gpu.compute_engine_name},count={planned.count}"
        assert attached == ([one] if planned.machine.family == "n1" else [])
        model = [word for word in command if word.startswith("--provisioning-model")]
        sold = {"spot": ["--provisioning-model=SPOT"], "flex-start": ["--provisioning-model=FLEX_START"]}
        assert model == sold.get(planned.strategy, [])
        assert f"readonly gpu_count={planned.count}\n" in vm.script
        assert shlex.split(shell_text(command).replace("\\\n", "")) == command
        seen.add((planned.gpu.name, planned.strategy))
    assert {gpu for gpu, _ in seen} >= {"h200", "h100", "a100", "a100-80gb", "l4", "t4", "v100"}
    assert ("l4", "flex-start") in seen


def test_the_printed_command_is_one_that_can_be_pasted_and_its_script_is_printed_too(tmp_path: Path) -> None:
    words = flags(*L4)
    assert words[:5] == ["gcloud", "compute", "instances", "create", "train-l4-4"]
    assert "--metadata-from-file=startup-script=startup.sh" in words
    done = command("vm", "config", *L4, *HERE, "-o", "vm files", "--", "it's", "$(id)")
    assert done.out.splitlines() == ["wrote vm files/create.sh", "wrote vm files/startup.sh"]
    created = shlex.split((tmp_path / "vm files" / "create.sh").read_text().replace("\\\n", ""))
    assert "--metadata-from-file=startup-script=vm files/startup.sh" in created
    script = (tmp_path / "vm files" / "startup.sh").read_text()
    assert script == printed(*L4, *HERE, "--format", "script", "--", "it's", "$(id)")
    assert "readonly words=(" + shlex.join(["it's", "$(id)"]) + ")\n" in script


@pytest.mark.parametrize(
    ("spec", "family"),
    [
        ("v100:2", "common-cu128-ubuntu-2204-nvidia-570"),
        ("p4:1", "common-cu128-ubuntu-2204-nvidia-570"),
        ("t4:1", "common-cu129-ubuntu-2204-nvidia-580"),
        ("b200:8", "common-cu129-ubuntu-2204-nvidia-580"),
    ],
)
def test_the_boot_image_is_of_a_cuda_generation_that_knows_the_gpu(spec: str, family: str) -> None:
    planned = plan(spec)
    region = next(r for r in planned.regions if load_catalog().availability[spec.partition(":")[0], r].zones)
    done = command("vm", "config", "--accelerator", spec, "--region", region, *HERE)
    assert f"--image-family={family}" in done.out
    assert "--image-project=deeplearning-platform-release" in done.out
    assert ("not verified: NVIDIA's open kernel modules" in done.err) is ("cu128" in family)


def test_an_arm_machine_needs_an_image_of_the_users_own() -> None:
    machine = ("--accelerator", "gb200:4", "--reservation", "projects/my-project/zones/us-central1-a/reservations/r")
    assert "Give --image-family and --image-project" in refusal(*machine)
    words = flags(*machine, "--image-family", "f", "--image-project", "p")
    assert {"--image-family=f", "--image-project=p", "--reservation=r"} <= set(words)


def test_settings_of_the_project_are_taken_and_flags_win(tmp_path: Path) -> None:
    (tmp_path / "gpu-pipelines.yaml").write_text(
        "project: file-project\nregion: europe-west4\nimage: file-image\nservice_account: a@b\n"
        "network: projects/1/global/networks/n\nlabels: {team: vision}\n"
    )
    words = shlex.split(printed("--accelerator", "l4:1").replace("\\\n", ""), comments=True)
    assert {"--project=file-project", "--service-account=a@b"} <= set(words)
    assert "--labels=created-by=gpu-pipelines,team=vision" in words
    assert "--network-interface=network=projects/1/global/networks/n" in words
    assert any(word.startswith("--zone=europe-west4-") for word in words)
    words = shlex.split(
        printed(*L4, "--network", "other", "--project", "flag-project").replace("\\\n", ""), comments=True
    )
    assert {"--zone=us-central1-a", "--network-interface=network=other", "--project=flag-project"} <= set(words)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ("--accelerator", "h100:8", "--region", "us-central1", "--nodes", "4"),
            "job submit --accelerator h100:8 --nodes 4",
        ),
        (("--accelerator", "l4:1", "--zone", "us-central1-z"), "Zones of us-central1 that do: us-central1-a"),
        (("--accelerator", "l4:1", "--zone", "nowhere"), "A zone is a region and a letter"),
        (("--accelerator", "l4:1", "--zone", "us-central1-a", "--region", "us-east1"), "not in --region us-east1"),
        (
            (*L4, "--reservation", "projects/p/zones/us-central1-b/reservations/r"),
            "The reservation is in us-central1-b, not in --zone us-central1-a",
        ),
        (("--accelerator", "l4:1"), "or give --zone"),
        (("--accelerator", "cpu:2"), "Choose a GPU"),
        (("--accelerator", "rtx-4090:1", "--region", "us-central1"), "Instead"),
        ((), "Give --accelerator"),
        ((*L4, "--at-end", "stopp"), "Did you mean 'stop'?"),
        ((*L4, "--format", "json"), "gcloud, terraform, script"),
        ((*L4, "--name", "Train_1"), "begins with a lower-case letter"),
        ((*L4, "--env", "A B=c"), "'A B' is not the name of a variable"),
        ((*L4, "--env", "A"), "NAME=VALUE"),
        ((*L4, "--env", "A=1", "--env", "A=2"), "--env A is given twice, with '1' and '2'"),
        ((*L4, "--label", "Team=x"), "lower-case"),
        ((*L4, "--label", "team=x", "--label", "team=y"), "--label team is given twice, with 'x' and 'y'"),
        ((*L4, "--output-dir", "s3://bucket"), "gs://BUCKET/FOLDER"),
        ((*L4, "--sync-dir", "/checkpoints"), "Give --output-dir"),
        ((*L4, "--sync-dir", "checkpoints", "--output-dir", "gs://bucket"), "the full path of a directory"),
        ((*L4, "--max-wait", "1"), "Only flex-start waits"),
        ((*L4, "--strategy", "flex-start", "--max-wait", "3"), "2 at most"),
        ((*L4, "--strategy", "flex-start", "--max-wait", "0.0001"), "a second at least"),
        ((*L4, "--boot-disk-gb", "10"), "cannot have 10 GB"),
        ((*L4, "--hours", "2881"), "cannot be limited to 2881 hours; give 30 seconds to 2,880 hours"),
        ((*L4, "--hours", "0.008"), "cannot be limited to 0.008 hours"),
        (
            (*L4, "--encryption-key", "projects/p/locations/europe-west4/keyRings/r/cryptoKeys/k"),
            "The key is in europe-west4, and the disk to encrypt would be in us-central1",
        ),
        (
            (*L4, "--subnet", "projects/p/regions/europe-west4/subnetworks/s"),
            "subnetworks/s is in europe-west4, and the VM would be in us-central1",
        ),
        ((*L4, "--network", "a,b"), "neither a name nor a full name"),
        ((*L4, "--image-project", "p"), "without --image-family"),
        ((*L4, "--command", "it's"), "cannot be split into words"),
        ((*L4, "--strategy", "flex-start", "--max-wait", "1", "--format", "terraform"), "create the VM with gcloud"),
    ],
)
def test_a_wrong_request_is_refused_with_what_to_do(arguments: tuple[str, ...], told: str) -> None:
    assert told in refusal(*arguments)


def test_all_that_is_wrong_is_told_at_once() -> None:
    told = refusal(*L4, "--name", "X", "--at-end", "burn", "--boot-disk-gb", "1")
    assert all(word in told for word in ("3 things are wrong", "'X'", "'burn'", "1 GB"))
    assert "project" in refusal(*L4, here=())
    assert "image" in refusal(*L4, here=())


def test_zones_that_are_not_known_have_to_be_given() -> None:
    unknown = next(row for row in load_catalog().availability.values() if row.machine_families and not row.zones)
    planned = plan("l4:1", region="us-central1")
    nowhere = replace(planned, region=unknown.region, zones=())
    with pytest.raises(UserError, match="Give --zone"):
        zones_to_try(nowhere, None)
    assert zones_to_try(nowhere, f"{unknown.region}-b") == (f"{unknown.region}-b",)


def instance(*arguments: str) -> dict[str, Any]:
    """The `google_compute_instance` that `vm config --format terraform` prints."""
    document = json.loads(printed(*arguments, *HERE, "--format", "terraform"))
    ((_, found),) = document["resource"]["google_compute_instance"].items()
    assert isinstance(found, dict)
    return found


def test_terraform_has_what_the_command_has() -> None:
    spot = instance(
        *("--accelerator", "t4:2", "--zone", "us-central1-a", "--strategy", "spot", "--hours", "2", "--no-external-ip"),
        *("--at-end", "delete", "--subnet", "s"),
    )
    assert spot["guest_accelerator"] == [{"type": "nvidia-tesla-t4", "count": 2}]
    assert spot["scheduling"] == {
        "on_host_maintenance": "TERMINATE",
        "provisioning_model": "SPOT",
        "preemptible": True,
        "automatic_restart": False,
        "instance_termination_action": "DELETE",
        "max_run_duration": {"seconds": 7200},
    }
    assert spot["network_interface"] == {"subnetwork": "s"}
    assert spot["boot_disk"]["initialize_params"]["image"].endswith("/family/common-cu129-ubuntu-2204-nvidia-580")
    reserved = instance("--accelerator", "h100:8", "--reservation", "projects/o/zones/us-central1-a/reservations/r")
    assert reserved["reservation_affinity"]["specific_reservation"]["values"] == ["projects/o/reservations/r"]
    assert reserved["network_interface"] == {"network": "default", "nic_type": "GVNIC", "access_config": {}}
    assert "guest_accelerator" not in reserved


@pytest.mark.slow
@pytest.mark.terraform
def test_terraform_reads_the_file_and_the_script_in_it_as_it_is(tmp_path: Path) -> None:
    """The real terraform, without the provider, which checks the arguments and which cannot be had offline."""
    odd = ["${HOME}", "$${x}", "$$${x}", "%{ if true }", "%%{x}", "$", "100%", "\\", "é\n"]
    settings = StartupSettings("a", "us-central1-a", 1, Container(IMAGE, (), odd))
    script = startup_script(settings)
    (tmp_path / "locals.tf.json").write_text(json.dumps({"locals": {"script": literal(script)}}))
    done = subprocess.run(
        ["terraform", "console"], input="jsonencode(local.script)\n", capture_output=True, text=True, check=True
    )
    assert json.loads(json.loads(done.stdout.strip().splitlines()[-1])) == script
    planned = plan("l4:4", region="us-central1")
    vm = virtual_machine(planned, Container(IMAGE), ProjectSettings(project="my-project"), VmOptions())
    (tmp_path / "main.tf.json").write_text(json.dumps(terraform(vm)))
    done = subprocess.run(["terraform", "providers"], capture_output=True, text=True, check=True)
    assert "hashicorp/google" in done.stdout


def test_a_vm_is_told_nothing_of_vertex_ais_quotas_and_regions() -> None:
    """The name of a quota metric of Vertex AI is none of Compute Engine's business."""
    for made in every_plan():
        of_vertex = [caution.message for caution in made.warnings if caution.of_vertex]
        if any("quota metric" in message for message in of_vertex):
            break
    assert made.machine is not None
    done = command(
        "vm",
        *("config", *HERE, "--accelerator", made.spec, "--machine-type", made.machine.name),
        *("--region", str(made.region), "--strategy", made.strategy),
    )
    assert done.status == 0, done.err
    assert "quota metric" not in done.err
    assert "for training" not in done.err


def test_a_vm_is_told_of_a_contested_machine_what_compute_engine_says_alone() -> None:
    done = command("vm", "config", *HERE, "--accelerator", "h100:1", "--region", "us-central1")
    assert done.status == 0, done.err
    assert "may be refused: Compute Engine sells this shape as Spot or Flex-start only. Spot is safer." in done.err
    assert "Vertex AI" not in done.err


@pytest.mark.parametrize("place", ["us-central1", "us", "global"])
def test_the_boot_disk_takes_a_key_of_ones_own(place: str, tmp_path: Path) -> None:
    key = f"projects/p/locations/{place}/keyRings/r/cryptoKeys/k"
    assert f"--boot-disk-kms-key={key}" in flags("--encryption-key", key, *L4)
    assert not any("kms" in word for word in flags(*L4))
    document = json.loads(printed("--encryption-key", key, "--format", "terraform", *L4, *HERE))
    (instance,) = document["resource"]["google_compute_instance"].values()
    assert instance["boot_disk"]["kms_key_self_link"] == key
    (tmp_path / "gpu-pipelines.yaml").write_text(f"encryption_key: {key}\n")
    assert f"--boot-disk-kms-key={key}" in flags(*L4)


def test_an_image_of_container_registry_is_said_to_be_shut_down() -> None:
    done = command("vm", "config", "--project", "my-project", "--image", "gcr.io/p/i:1", *L4)
    assert "shut down on 2025-03-18" in done.err
