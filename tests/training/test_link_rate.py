"""What is said of the network between nodes; that it is measured is held by test_training_on_nodes."""

from __future__ import annotations

import pytest

from gpu_pipelines.accelerators import plan
from gpu_pipelines.training.machine.link_rate import told


def test_a_rate_is_held_against_the_network_of_the_machine() -> None:
    assert told(100e9, 2, plan("h100:8", nodes=2)) == (
        "all-reduce over 2 nodes: 100 GB/s of 125 GB/s, the network of a3-highgpu-8g"
    )


@pytest.mark.parametrize(
    ("spec", "look"),
    [("h100-mega:8", "whether NCCL uses GPUDirect-TCPXO"), ("l4:1", "whether the nodes are in one zone")],
)
def test_a_network_that_is_far_too_slow_is_a_warning_that_says_where_to_look(spec: str, look: str) -> None:
    planned = plan(spec, nodes=2)
    assert planned.network_gbps
    on_paper = planned.network_gbps / 8 * 1e9
    assert f"warning: that is less than a quarter; look {look}" in told(0.24 * on_paper, 2, planned)
    assert "warning" not in told(0.26 * on_paper, 2, planned)


def test_of_a_machine_that_is_not_known_the_rate_alone_is_said() -> None:
    assert told(1.25e9, 4, None) == "all-reduce over 4 nodes: 1.25 GB/s"
