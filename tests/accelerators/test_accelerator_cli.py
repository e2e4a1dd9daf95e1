"""`gpu-pipelines accelerators`: what it prints where, and its exit status."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import command
from conftest import gpu_pipelines

from gpu_pipelines.accelerators import load_catalog

NONSENSE = ["banana:3", "h100:-1", "h100:9999999999", "", "x" * 10_000, "h100:8:8"]


@pytest.mark.parametrize("spec", NONSENSE, ids=lambda spec: spec[:12] or "empty")
def test_nonsense_exits_2_with_one_short_message(spec: str) -> None:
    done = command("accelerators", "plan", spec)
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith("error: ")
    assert len(done.err) < 300
    assert done.err.count("\n") <= 2


def test_a_process_prints_and_ends_as_the_command_does() -> None:
    for spec in ("banana:3", "cpu:2"):
        done = gpu_pipelines("accelerators", "plan", spec, cwd=Path.cwd())
        assert done == command("accelerators", "plan", spec)


@pytest.mark.parametrize(
    "arguments",
    [
        ["list"],
        ["list", "--region", "us-central1"],
        ["show", "h100"],
        ["show", "NVIDIA_TESLA_K80"],
        ["plan", "h100:8", "--region", "us-central1", "--hours", "24"],
        ["plan", "l4:4", "a100:8", "--region", "us-central1", "--nodes", "1", "--nodes", "2"],
        ["plan", "cpu:2"],
        ["plan", "banana:3"],
        ["show", "rtx-4090"],
        ["advise", "--parameters", "7b", "--tokens", "1b"],
    ],
    ids=" ".join,
)
def test_json_is_one_document_and_nothing_else(arguments: list[str]) -> None:
    result = command("accelerators", *arguments, "--json")
    document = json.loads(result.out)
    assert isinstance(document, dict)
    assert ("error" in document) == (result.status == 2)
    assert result.status in (0, 2)
    assert bool(result.err) == (result.status == 2)


def test_a_plan_is_told_with_its_cost_and_its_warnings() -> None:
    result = command("accelerators", "plan", "h100:4", "--region", "us-central1", "--hours", "10")
    assert result.status == 0
    for text in (
        "a3-highgpu-4g",
        "NVIDIA_H100_80GB",
        "us-central1-a",
        "warning",
        "may be refused",
        "USD",
        "2026-07-30",
    ):
        assert text in result.out
    assert "management fee of Vertex AI" in result.out


def test_all_problems_of_all_pools_are_told_at_once() -> None:
    result = command("accelerators", "plan", "h100:3", "v100:3", "--region", "europe-west2", "--json")
    assert result.status == 2
    problems = json.loads(result.out)["problems"]
    assert [problem["field"] for problem in problems] == ["count", "region", "count", "region"]
    for problem in problems:
        for alternative in problem["alternatives"]:
            assert command("accelerators", "plan", *alternative.split()).status == 0, alternative


def test_pools_that_share_no_zone_exit_2() -> None:
    result = command("accelerators", "plan", "h200:8", "h100:8", "--region", "asia-south1")
    assert result.status == 2
    assert "No zone of asia-south1" in result.err


def test_a_consumer_card_is_answered_side_by_side() -> None:
    result = command("accelerators", "plan", "rtx4090:2")
    assert result.status == 2
    assert "1008 GB/s" in result.err
    assert "Instead: l4:2; a100:2" in result.err


def test_an_empty_region_is_open_also_in_what_is_offered_instead() -> None:
    result = command("accelerators", "plan", "l4:3", "--region", "")
    assert "Instead: l4:4; l4:2; l4:1; l4:8\n" in result.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan", "l4:1", "l4:2", "l4:4", "--nodes", "1", "--nodes", "2"], "--nodes is given 2 times for 3"),
        (["plan", "l4:1", "--nodes", "many"], "valid integer"),
        (["plan"], "SPEC"),
        (["list", "--region", "mars"], "no region 'mars'"),
        (["show", "banana"], "no GPU 'banana'"),
        (["frobnicate"], "frobnicate"),
    ],
)
def test_wrong_arguments_exit_2_with_a_message_on_stderr(arguments: list[str], message: str) -> None:
    result = command("accelerators", *arguments)
    assert result.status == 2
    assert message in result.err
    assert result.out == ""


def test_the_list_names_every_gpu_and_says_what_ended() -> None:
    document = json.loads(command("accelerators", "list", "--json").out)
    gpus = {gpu["name"]: gpu for gpu in document["gpus"]}
    assert [*gpus] == [*load_catalog().gpus]
    assert gpus["p100"]["status"] == "gone"
    assert gpus["k80"]["regions"] == []
    assert gpus["t4"]["replacements"] == ["l4"]
    assert gpus["gb200"]["cheapest_on_demand_per_gpu_hour"] is None
    # Compute Engine does not sell a3-highgpu-1g on demand, so the lowest price is an eighth of a3-highgpu-8g.
    assert gpus["h100"]["cheapest_on_demand_per_gpu_hour"] == pytest.approx(88.490151 / 8, rel=1e-3)
    here = json.loads(command("accelerators", "list", "--region", "me-west1", "--json").out)
    assert {gpu["name"] for gpu in here["gpus"]} - {"t4"} == {"a100"}


def test_what_is_not_verified_is_marked() -> None:
    assert "bf16_tflops" in json.loads(command("accelerators", "show", "h100", "--json").out)["unverified"]
    assert "(unverified)" in command("accelerators", "show", "h100").out


def test_help_and_plan_load_nothing_heavy() -> None:
    program = (
        "import sys\nfrom gpu_pipelines.cli.accelerators import app\n"
        "try:\n    app(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        "heavy = ('rich', 'kfp', 'torch', 'google.auth', 'yaml', 'numpy')\n"
        "print([name for name in heavy if name in sys.modules], file=sys.stderr)"
    )
    for arguments in (["--help"], ["plan", "h100:8"]):
        done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True)
        assert done.stderr.strip() == "[]", arguments
