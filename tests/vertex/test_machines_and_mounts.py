"""Machines of one's own, file systems and networks of jobs: what is sent, and what is refused before."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from google.cloud import aiplatform_v1
from google.protobuf import json_format
from vertex_commands import command, put_persistent_resource

from gpu_pipelines.accelerators import plan
from gpu_pipelines.errors import UserError
from gpu_pipelines.project_settings import ProjectSettings
from gpu_pipelines.targets.compiled import documents_of
from gpu_pipelines.targets.vertex.placement.job_spec import JobOptions
from gpu_pipelines.targets.vertex.placement.mounts import dns_peerings, lustre_mounts
from gpu_pipelines.targets.vertex.target import VertexTarget

if TYPE_CHECKING:
    from gpu_pipelines.emulator.vertex_api import VertexApi

ATTACHMENT = "projects/example-project/regions/us-central1/networkAttachments/to-data"
VOLUME = "projects/example-project/locations/us-central1-a/instances/fast"
LUSTRE = f"ip=10.1.2.3,filesystem=scratch,volume={VOLUME},mount=data"
MOUNT = {"instance_ip": "10.1.2.3", "filesystem": "scratch", "volume_handle": VOLUME, "mount_point": "data"}
DNS = "corp.example.com.=example-project/shared-vpc"
PEERING = {"domain": "corp.example.com.", "target_project": "example-project", "target_network": "shared-vpc"}
JOB = ("--accelerator", "l4:1", "--image", "eu.example/trainer:1", "--region", "us-central1")


def spec_of(api: VertexApi, folder: Path, *flags: str) -> Any:
    """The `CustomJobSpec` that a file for gcloud is, read by the API's own types."""
    done = command(api, folder, "job", "config", *flags)
    assert done.status == 0, done.err
    return json_format.ParseDict(yaml.safe_load(done.out), aiplatform_v1.CustomJobSpec.pb()())


def test_a_job_mounts_lustre_and_resolves_names(vertex_api: VertexApi, tmp_path: Path) -> None:
    network = ("--network-attachment", ATTACHMENT, "--dns-peering", DNS)
    spec = spec_of(vertex_api, tmp_path, *JOB, "--nodes", "2", *network, "--lustre", LUSTRE)
    for pool in spec.worker_pool_specs:
        (mount,) = pool.lustre_mounts
        assert {name: getattr(mount, name) for name in MOUNT} == MOUNT
    (peering,) = spec.psc_interface_config.dns_peering_configs
    assert {name: getattr(peering, name) for name in PEERING} == PEERING
    assert spec.psc_interface_config.network_attachment == ATTACHMENT


def test_flags_add_them_to_a_file(vertex_api: VertexApi, tmp_path: Path) -> None:
    machine = {"machineType": "g2-standard-12", "acceleratorType": "NVIDIA_L4", "acceleratorCount": 1}
    pool = {"machineSpec": machine, "replicaCount": 1, "containerSpec": {"imageUri": "eu.example/trainer:1"}}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump({"workerPoolSpecs": [pool]}))
    given = ("--config", "job.yaml", "--network-attachment", ATTACHMENT, "--lustre", LUSTRE, "--dns-peering", DNS)
    spec = spec_of(vertex_api, tmp_path, *given)
    assert spec.worker_pool_specs[0].lustre_mounts[0].mount_point == "data"
    assert spec.psc_interface_config.dns_peering_configs[0].target_network == "shared-vpc"


def test_steps_with_gpus_have_them_in_a_pipeline() -> None:
    options = JobOptions(lustre_mounts=lustre_mounts([LUSTRE]), dns_peerings=dns_peerings([DNS]))
    target = VertexTarget(ProjectSettings(network_attachment=ATTACHMENT), options)
    spec = dict(documents_of(target.text_of("train_evaluate_upload", plan("l4:1")))[0])
    for step in ("train-model", "evaluate-checkpoints"):
        inputs = spec["components"][f"comp-{step}"]["inputDefinitions"]["parameters"]
        assert [pool["lustre_mounts"] for pool in inputs["worker_pool_specs"]["defaultValue"]] == [[MOUNT]]
        assert inputs["psc_interface_config"]["defaultValue"]["dns_peering_configs"] == [PEERING]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--lustre", LUSTRE), "A Lustre file system is in a VPC network, and the job reaches none."),
        (("--dns-peering", DNS), "through a network attachment"),
        (("--lustre", "10.1.2.3:/scratch"), "is not of the form ip=10.0.0.2,filesystem=NAME"),
        (("--lustre", LUSTRE.replace("10.1.2.3", "host")), "--lustre has ip=host, which is not an IP address."),
        (("--lustre", LUSTRE.replace("=data", "=/data/x")), "--lustre has mount=/data/x"),
        (("--lustre", LUSTRE, "--lustre", LUSTRE), "Two file systems are to be mounted at data."),
        (("--dns-peering", "corp.example.com=p/n"), "is not of the form DOMAIN.=PROJECT/NETWORK"),
    ],
)
def test_what_cannot_be_mounted_is_refused(
    vertex_api: VertexApi, tmp_path: Path, given: tuple[str, ...], said: str
) -> None:
    done = command(vertex_api, tmp_path, "job", "config", *JOB, *given)
    assert done.status == 2
    assert said in done.err


@pytest.mark.parametrize("target", ["kubeflow", "compute_engine", "local"])
def test_they_are_vertex_ai_s_alone(vertex_api: VertexApi, tmp_path: Path, target: str) -> None:
    for flag in (("--lustre", LUSTRE), ("--dns-peering", DNS), ("--persistent-resource", "pool-1")):
        done = command(vertex_api, tmp_path, "run", "train_evaluate_upload", "--target", target, *flag)
        assert done.status == 2
        assert f"The target {target} has no {flag[0]}.\n  It belongs to vertex." in done.err


def test_a_resource_is_looked_at_before_a_job_is_sent(vertex_api: VertexApi, tmp_path: Path) -> None:
    wanted = ("job", "submit", *JOB, "--persistent-resource", "pool-1")
    missing = command(vertex_api, tmp_path, *wanted)
    assert missing.status == 2
    assert "There is no persistent resource pool-1 of example-project in us-central1." in missing.err
    put_persistent_resource(vertex_api, "g2-standard-48", 4)
    other = command(vertex_api, tmp_path, *wanted)
    assert other.status == 2
    told = (
        "runs on 1 × g2-standard-8 with 1 × NVIDIA_L4, and the persistent resource pool-1 has 1 × g2-standard-48 with"
    )
    assert told in other.err
    near = command(vertex_api, tmp_path, *wanted[:-1], "pool-2")
    assert "Did you mean 'pool-1'?" in near.err
    assert not vertex_api.state.custom_jobs.jobs
    vertex_api.state.persistent_resources.held.clear()
    put_persistent_resource(vertex_api, "g2-standard-8", 1)
    done = command(vertex_api, tmp_path, *wanted)
    assert done.status == 0, done.err
    assert "pool-1: 1 × g2-standard-8 with 1 × NVIDIA_L4; paid for as long as it exists" in done.err
    two = command(vertex_api, tmp_path, *wanted, "--nodes", "2")
    assert two.status == 2
    assert "runs on 2 × g2-standard-8" in two.err
    (resource,) = vertex_api.state.persistent_resources.held.values()
    resource.state = aiplatform_v1.PersistentResource.State.STOPPING
    stopping = command(vertex_api, tmp_path, *wanted)
    assert "The persistent resource pool-1 is stopping, and takes no jobs." in stopping.err
    assert len(vertex_api.state.custom_jobs.jobs) == 1


def test_a_pipeline_is_not_sent_to_a_resource_that_is_not_there(vertex_api: VertexApi, tmp_path: Path) -> None:
    vertex_api.storage.put("texts/1.jsonl", b'{"text": "one", "label": "a"}\n{"text": "two", "label": "b"}\n')
    given = ("-p", "task=text_classification", "-p", "source=gs://example-bucket/texts")
    placed = ("--target", "vertex", "--accelerator", "l4:1", "--persistent-resource", "pool-1")
    done = command(vertex_api, tmp_path, "run", "train_evaluate_upload", *placed, *given)
    assert done.status == 2
    assert "There is no persistent resource pool-1" in done.err
    assert not vertex_api.state.pipeline_jobs.jobs


def test_a_wrong_text_lists_all_that_is_wrong() -> None:
    with pytest.raises(UserError, match=r"2 things are wrong(.|\n)*mount=/x(.|\n)*ip=host"):
        lustre_mounts([LUSTRE.replace("10.1.2.3", "host").replace("=data", "=/x")])
