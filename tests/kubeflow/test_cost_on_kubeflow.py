"""What a run on Kubeflow has cost: the nodes that its steps ask for, while their pods ran."""

from __future__ import annotations

import json
from pathlib import Path

import command_line
import pytest
import yaml
from kfp_api.server import KfpApi

from gpu_pipelines.accelerators import load_catalog, plan
from gpu_pipelines.targets.kubeflow.runs.machine_times import nodes_of

COMPILED = Path(__file__).parents[2] / "compiled/train_evaluate_upload/kubeflow/image_classification"


@pytest.fixture
def folder(kfp_api: KfpApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "gcloud"))
    (tmp_path / "gpu-pipelines.yaml").write_text(f"kubeflow_host: {kfp_api.url}\nimage: example.com/steps:1\n")
    return tmp_path


def price(machine: str, kind: str = "on_demand") -> float:
    return float(getattr(load_catalog().prices[(machine, "machine", "us-central1")], kind))


def test_pods_of_steps_with_gpus_are_priced_for_as_long_as_they_ran(kfp_api: KfpApi, folder: Path) -> None:
    where = ("--target", "kubeflow", "-p", "source=sample:digits", "-p", "registry=vertex://p/us-central1")
    done = command_line.command("run", str(COMPILED / "l4-4.yaml"), *where, "--json", cwd=folder)
    assert done.status == 0, done.err
    run = json.loads(done.out)["run_id"]
    followed = command_line.command("follow", run, "--target", "kubeflow", "--interval", "0.1", cwd=folder)
    assert followed.status == 0, followed.err
    assert "cost: not known for 0.03 machine hours" in followed.out
    assert "give --region to see prices" in followed.out
    shown = ("runs", "show", run, "--target", "kubeflow", "--region", "us-central1")
    done = command_line.command(*shown, "--json", cwd=folder)
    assert done.status == 0, done.err
    cost = json.loads(done.out)["cost"]
    machines = [(each["step"], each["machine"], each["gpu"], each["gpus"]) for each in cost["machines"]]
    assert machines == [
        ("train-model", "g2-standard-48", "l4", 4),
        ("evaluate-checkpoints", "g2-standard-8", "l4", 1),
    ]
    # The stand-in lets each pod run for a minute.
    assert cost["usd"] == pytest.approx((price("g2-standard-48") + price("g2-standard-8")) / 60, abs=0.0002)
    assert "the nodes while no pod of the run is on them" in cost["left_out"]
    # Of a run of an uploaded version, as schedules start them, the service tells the version alone.
    uploaded = command_line.command("upload", str(COMPILED / "l4-4.yaml"), "--target", "kubeflow", "--json", cwd=folder)
    version = json.loads(uploaded.out)
    del kfp_api.state.runs[run]["pipeline_spec"]
    kfp_api.state.runs[run]["pipeline_version_reference"] = {
        "pipeline_id": version["pipeline_id"],
        "pipeline_version_id": version["version_id"],
    }
    assert json.loads(command_line.command(*shown, "--json", cwd=folder).out)["cost"] == cost
    # A version may be deleted; what its runs are of is kept with them.
    kept = kfp_api.state.versions.copy()
    kfp_api.state.versions.clear()
    without = command_line.command(*shown, "--json", cwd=folder)
    assert without.status == 0, without.err
    assert json.loads(without.out)["cost"] == cost
    kfp_api.state.versions.extend(kept)
    # Where the workflow may not be read, what the service says of the steps has to do.
    kfp_api.state.hides = True
    again = json.loads(command_line.command(*shown, "--json", cwd=folder).out)["cost"]
    assert [each["step"] for each in again["machines"]] == ["train-model", "evaluate-checkpoints"]
    assert again["usd"] > 0


@pytest.mark.parametrize(
    ("file", "spec", "nodes", "strategy"),
    [
        ("h100-2-spot", "h100:2", 1, "spot"),
        ("h100-8-4-nodes", "h100:8", 4, "standard"),
        ("t4-4", "t4:4", 1, "standard"),
        ("a100-80gb-8", "a100-80gb:8", 1, "standard"),
    ],
)
def test_the_machine_is_found_again_from_what_the_pods_ask_for(file: str, spec: str, nodes: int, strategy: str) -> None:
    pipeline, platform = yaml.safe_load_all((COMPILED / f"{file}.yaml").read_text())
    found = nodes_of({"pipeline_spec": pipeline, "platform_spec": platform})["train-model"]
    planned = plan(spec)
    assert (found.machine, found.gpu, found.gpus) == (
        planned.machine_type,
        planned.gpu and planned.gpu.name,
        planned.count,
    )
    assert (found.nodes, found.strategy) == (nodes, strategy)
