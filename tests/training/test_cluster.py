"""Which node of how many this is, from what each platform sets."""

import json

import pytest

from gpu_pipelines.distributed.members import Cluster
from gpu_pipelines.errors import UserError

POOLS = {
    "workerpool0": ["cmle-training-workerpool0-ab-0:2222"],
    "workerpool1": ["cmle-training-workerpool1-ab-0:2222", "cmle-training-workerpool1-ab-1:2222"],
    "workerpool2": ["cmle-training-workerpool2-ab-0:2222"],
    "workerpool3": ["cmle-training-workerpool3-ab-0:2222"],
}
TF_CLUSTER = {"chief": ["a:2222"], "worker": ["b:2222", "c:2222"], "ps": ["d:2222"]}


def spec(kind: str, index: int = 0, pools: object = None) -> dict[str, str]:
    content = {"cluster": pools or POOLS, "environment": "cloud", "task": {"type": kind, "index": index, "trial": "1"}}
    return {"CLUSTER_SPEC": json.dumps(content)}


def tf_config(kind: str, index: int = 0, cluster: object = None) -> dict[str, str]:
    return {"TF_CONFIG": json.dumps({"cluster": cluster or TF_CLUSTER, "task": {"type": kind, "index": index}})}


def torchrun(nodes: str = "2", rank: str = "1", prefix: str = "", **more: str) -> dict[str, str]:
    values = {"NNODES": nodes, "NODE_RANK": rank, "MASTER_ADDR": "chief", "MASTER_PORT": "1234"}
    return {prefix + name: value for name, value in values.items()} | more


@pytest.mark.parametrize(
    ("environment", "nodes", "rank", "first"),
    [
        ({}, 1, 0, "localhost:29500"),
        ({"MASTER_ADDR": "left-over", "MASTER_PORT": "1"}, 1, 0, "localhost:29500"),
        (spec("workerpool0"), 3, 0, "cmle-training-workerpool0-ab-0:2222"),
        (spec("workerpool1", 0), 3, 1, "cmle-training-workerpool0-ab-0:2222"),
        (spec("workerpool1", 1), 3, 2, "cmle-training-workerpool0-ab-0:2222"),
        (spec("workerpool0", 0, {"workerpool0": ["[fd00::1]:2222"], "workerpool1": {}}), 1, 0, "fd00::1:2222"),
        (tf_config("chief"), 3, 0, "a:2222"),
        (tf_config("worker", 1), 3, 2, "a:2222"),
        (tf_config("master", 0, {"master": ["m:1"], "worker": ["n:1"]}), 2, 0, "m:1"),
        (tf_config("worker", 0, {"worker": ["v:1", "w:1"]}), 2, 0, "v:1"),
        ({"TF_CONFIG": "{}"}, 1, 0, "localhost:29500"),
        (torchrun(), 2, 1, "chief:1234"),
        (torchrun(prefix="PET_"), 2, 1, "chief:1234"),
        (torchrun("4:4", "3"), 4, 3, "chief:1234"),
        ({"NNODES": "2", "GROUP_RANK": "1", "MASTER_ADDR": "chief"}, 2, 1, "chief:29500"),
        (torchrun("1", "0"), 1, 0, "localhost:29500"),
        (spec("workerpool1", 1) | tf_config("worker", 1), 3, 2, "cmle-training-workerpool0-ab-0:2222"),
    ],
)
def test_the_cluster_is_read(environment: dict[str, str], nodes: int, rank: int, first: str) -> None:
    cluster = Cluster.from_environment(environment)
    assert (cluster.nodes, cluster.node_rank) == (nodes, rank)
    assert f"{cluster.rank_0_address}:{cluster.rank_0_port}" == first
    assert cluster.is_rank_0 == (rank == 0)


def test_only_the_pools_that_train_have_addresses() -> None:
    cluster = Cluster.from_environment(spec("workerpool1", 1))
    assert cluster.addresses == (*POOLS["workerpool0"], *POOLS["workerpool1"])
    assert cluster.name_of(2) == "node 2 (cmle-training-workerpool1-ab-1)"


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"CLUSTER_SPEC": "{"}, "CLUSTER_SPEC is not JSON"),
        ({"CLUSTER_SPEC": "[]"}, "CLUSTER_SPEC is not understood"),
        ({"CLUSTER_SPEC": '{"cluster": {"workerpool0": ["a:1"]}}'}, "CLUSTER_SPEC is not understood"),
        (spec("workerpool0", 0, {"workerpool0": ["a"]}), "'a' is not an address of the form host:port"),
        (spec("workerpool2"), "in workerpool2, which is for parameter servers or the Reduction Server"),
        (spec("workerpool3"), "in workerpool3, which is for evaluators"),
        (spec("workerpool1", 7), "says that this is workerpool1 7, which is not in its cluster"),
        ({"TF_CONFIG": "null and void"}, "TF_CONFIG is not JSON"),
        (tf_config("ps"), "is a parameter server"),
        (tf_config("evaluator"), "is an evaluator"),
        (torchrun("two"), "NNODES is 'two'"),
        (torchrun("1:4"), "NNODES is '1:4'"),
        (torchrun("2", "2"), "NODE_RANK is 2, but there are 2 nodes"),
        ({"NNODES": "2", "NODE_RANK": "1"}, "NNODES is 2, but MASTER_ADDR is not set"),
        ({"NNODES": "2", "MASTER_ADDR": "a"}, "NNODES is 2, but NODE_RANK is not set"),
        ({"NODE_RANK": "1", "MASTER_ADDR": "a"}, "NODE_RANK is '1', but NNODES is not set"),
        (torchrun(MASTER_PORT="http"), "MASTER_PORT is 'http'"),
        (spec("workerpool1", 1) | torchrun(), "CLUSTER_SPEC says node 2 of 3, but torchrun's variables node 1 of 2"),
        ({"LOCAL_WORLD_SIZE": "8", "LOCAL_RANK": "3"}, "was started by torchrun"),
        ({"GPU_PIPELINES_JOIN_TIMEOUT": "soon"}, "GPU_PIPELINES_JOIN_TIMEOUT is 'soon'"),
    ],
)
def test_what_cannot_be_is_refused(environment: dict[str, str], message: str) -> None:
    with pytest.raises(UserError) as caught:
        Cluster.from_environment(environment)
    assert message in str(caught.value)
