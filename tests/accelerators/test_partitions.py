"""Partitions of GPUs: what can be asked for, what of the GPU the job has, and what is paid."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import command
from google.cloud import aiplatform_v1
from google.protobuf import json_format

from gpu_pipelines.accelerators import load_catalog, plan
from gpu_pipelines.accelerators.advice import advise
from gpu_pipelines.accelerators.cost import dollars_per_hour
from gpu_pipelines.accelerators.one_gpu import evaluation_plan
from gpu_pipelines.accelerators.option import Wishes
from gpu_pipelines.accelerators.plan import PlanError
from gpu_pipelines.accelerators.workload import Workload
from gpu_pipelines.emulator.jobs.rules import check_machine
from gpu_pipelines.google_cloud.machine_spec import machine_spec
from gpu_pipelines.project_settings import ProjectSettings
from gpu_pipelines.targets.compiled import documents_of
from gpu_pipelines.targets.kubeflow.placement.pods import pod_needs
from gpu_pipelines.targets.vertex.placement.machines import machines_of
from gpu_pipelines.targets.vertex.target import VertexTarget

SPEC = "a100/1g.5gb:1"


def test_a_job_has_the_memory_of_its_partition_and_pays_for_the_gpu() -> None:
    part, whole = plan(SPEC, region="us-central1"), plan("a100:1", region="us-central1")
    assert (part.spec, part.partition, part.machine_type, part.processes) == (SPEC, "1g.5gb", "a2-highgpu-1g", 1)
    assert part.gpu is not None
    assert whole.gpu is not None
    assert (part.gpu.memory_gb, whole.gpu.memory_gb) == (5, 40)
    assert part.gpu.bf16_tflops is not None
    assert whole.gpu.bf16_tflops is not None
    assert part.gpu.bf16_tflops == pytest.approx(whole.gpu.bf16_tflops / 7, rel=1e-3)
    assert "mfu" in part.gpu.unverified
    assert dollars_per_hour(part) == dollars_per_hour(whole)
    assert [warning.code for warning in part.warnings if warning.code == "partition"]
    assert plan("NVIDIA_TESLA_A100/1G.5GB:1") == plan(SPEC)
    assert plan(part.spec, region="us-central1") == part, "a step reads it from its environment"


def test_no_partition_is_larger_than_what_it_is_cut_from() -> None:
    catalog = load_catalog()
    assert catalog.partitions
    for (name, size), row in catalog.partitions.items():
        gpu = catalog.gpus[name]
        slices, memory = size.split("g.")
        assert row.memory_gb == int(memory.removesuffix("gb"))
        assert row.memory_gb * row.partitions <= gpu.memory_gb
        assert row.share * row.partitions <= 1.001
        assert 1 in catalog.counts(name), "a job has one GPU of which it takes a part"
        assert row.share == pytest.approx(int(slices) / (4 if name == "rtx-pro-6000" else 7), abs=1e-3)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("a100/1g.6gb:1", "a100 has no partition '1g.6gb'. Did you mean '1g.5gb'?"),
        ("a100/1g.5gb:2", "A job has one partition of one GPU on each machine, not 2."),
        (
            "l4/1g.5gb:1",
            "l4 is not available in partitions; training takes those of a100, a100-80gb, h100 or rtx-pro-6000",
        ),
        ("h200/1g.18gb:8", "h200 is not available in partitions"),
    ],
)
def test_what_cannot_be_had_is_refused(spec: str, said: str) -> None:
    with pytest.raises(PlanError) as refused:
        plan(spec)
    assert said in str(refused.value)


def test_advice_reckons_with_its_memory() -> None:
    fitting = Workload(parameters=1e8, samples=1e6, batch=1)
    large = Workload(parameters=1e9, samples=1e6, batch=1)
    asked = Wishes(accelerator=SPEC, max_nodes=1)
    (option,) = advise(fitting, asked).options
    assert (option.plan.spec, option.usable_gb) == (SPEC, pytest.approx(4.5, abs=0.5))
    assert option.is_speed_unverified
    assert not advise(large, asked).options
    (rejected,) = advise(large, asked).rejected
    assert "can be used" in rejected.reasons[0]
    assert advise(large, Wishes(accelerator="a100:1", max_nodes=1)).options


def test_the_command_advises_on_it(tmp_path: Path) -> None:
    job = ("--parameters", "100m", "--samples", "1m", "--batch", "1", "--accelerator", SPEC, "--json")
    done = command("accelerators", "advise", *job, cwd=tmp_path)
    assert done.status == 0, done.err
    assert {each["spec"] for each in json.loads(done.out)["options"]} == {SPEC}
    planned = command("accelerators", "plan", SPEC, "--json", cwd=tmp_path)
    assert json.loads(planned.out)["plans"][0]["gpu_partition_size"] == "1g.5gb"


def test_a_pipeline_trains_and_evaluates_on_partitions_and_is_read_again() -> None:
    planned = plan("a100-80gb/3g.40gb:1")
    assert evaluation_plan(planned, 1e8).spec == planned.spec
    assert evaluation_plan(planned, 9e9).partition == ""
    spec = dict(documents_of(VertexTarget().text_of("train_evaluate_upload", planned))[0])
    assert next(each.plan for each in machines_of(spec, None)).spec == planned.spec


def test_a_job_is_sent_with_the_field_of_the_api(tmp_path: Path) -> None:
    job = ("job", "config", "--image", "eu.example/trainer:1", "--accelerator")
    done = command(*job, SPEC, "-o", "job.yaml", cwd=tmp_path)
    assert done.status == 0, done.err
    written = yaml.safe_load((tmp_path / "job.yaml").read_text())
    read: Any = json_format.ParseDict(written, aiplatform_v1.CustomJobSpec.pb()())
    assert read.worker_pool_specs[0].machine_spec.gpu_partition_size == "1g.5gb"
    again = command("job", "config", "--config", "job.yaml", "--nodes", "1", cwd=tmp_path)
    assert yaml.safe_load(again.out)["workerPoolSpecs"] == written["workerPoolSpecs"], again.err
    other = command("job", "config", "--config", "job.yaml", "--accelerator", "l4:1", cwd=tmp_path)
    assert "gpuPartitionSize" not in other.out


def test_the_emulator_refuses_what_the_reference_rules_out() -> None:
    def found(**changed: Any) -> list[str]:
        machine = aiplatform_v1.MachineSpec({**machine_spec(plan(SPEC)), **changed})
        return [field for field, _ in check_machine("machine", machine, "us-central1")]

    assert found() == []
    assert found(gpu_partition_size="1g.6gb") == ["machine.gpu_partition_size"]
    two = {"machine_type": "a2-highgpu-2g", "accelerator_count": 2}
    assert found(**two) == ["machine.accelerator_count"]


def test_other_targets_refuse_it(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="a partition of a GPU, which jobs of Vertex AI can have"):
        pod_needs(plan(SPEC), ProjectSettings())
    done = command("vm", "create", "--accelerator", SPEC, "--image", "i", "--project", "my-project", cwd=tmp_path)
    assert done.status == 2
    assert "A VM has whole GPUs." in done.err
