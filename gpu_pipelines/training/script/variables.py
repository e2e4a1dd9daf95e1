"""The environment variables that tell a training script where things are, declared in one place.

Those that begin with `AIP_` are Vertex AI's, and mean what they mean there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from gpu_pipelines.distributed.members import CLUSTER_SPEC, TF_CONFIG, Cluster
from gpu_pipelines.errors import UserError
from gpu_pipelines.step_environment import MOUNTED

DATASET = "GPU_PIPELINES_DATASET"
CHECKPOINTS = "GPU_PIPELINES_CHECKPOINTS"
METRICS_FILE = "GPU_PIPELINES_METRICS"
MODEL_DIR = "AIP_MODEL_DIR"
CHECKPOINT_DIR = "AIP_CHECKPOINT_DIR"
TENSORBOARD_LOG_DIR = "AIP_TENSORBOARD_LOG_DIR"
DATA_URIS = {"AIP_TRAINING_DATA_URI": "train", "AIP_VALIDATION_DATA_URI": "val", "AIP_TEST_DATA_URI": "test"}

_OF_LAUNCHERS = ("RANK", "LOCAL_RANK", "GROUP_RANK", "NODE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NNODES")
_OF_CLUSTERS = (CLUSTER_SPEC, TF_CONFIG, "MASTER_ADDR", "MASTER_PORT")
_OF_PLACES = (DATASET, CHECKPOINTS, METRICS_FILE, MODEL_DIR, CHECKPOINT_DIR, TENSORBOARD_LOG_DIR, *DATA_URIS)
SET_BY_THE_STEP = frozenset((*_OF_PLACES, *_OF_CLUSTERS, *_OF_LAUNCHERS))

#: What stands in the arguments of a script for a place that is known when the step runs, and whose variable has it.
PLACES_IN_ARGUMENTS = {"{dataset}": DATASET, "{checkpoints}": CHECKPOINTS, "{metrics}": METRICS_FILE}

# The Vertex TensorBoard that a job may have streams from the directory that the job has named.
_KEPT_IF_SET = (TENSORBOARD_LOG_DIR,)


def script_variables(
    dataset: Path, checkpoint_uri: str, checkpoints: str, metrics_file: Path, platform: Mapping[str, str]
) -> dict[str, str]:
    """The environment variables for the script.

    If the platform has set the same variable to another value, this step's wins, so that the next step finds what
    the script writes; apart from the TensorBoard directory. The variables that are Vertex AI's have URIs, as there.

    Args:
        dataset: the dataset artifact.
        checkpoint_uri: the checkpoint directory or `gs://…`, which becomes the artifact.
        checkpoints: the path at which this machine has it.
        metrics_file: local file for metrics.
        platform: the environment of the step.
    """
    own = {
        DATASET: str(dataset),
        CHECKPOINTS: checkpoints,
        METRICS_FILE: str(metrics_file),
        MODEL_DIR: f"{checkpoint_uri}/model/",
        CHECKPOINT_DIR: f"{checkpoint_uri}/",
        TENSORBOARD_LOG_DIR: f"{checkpoint_uri}/tensorboard/",
        **{name: str(dataset / split / "part-*.arrow") for name, split in DATA_URIS.items()},
    }
    return {name: platform.get(name) or value if name in _KEPT_IF_SET else value for name, value in own.items()}


def mounted(uri: str) -> str:
    """The path of a place in Cloud Storage on this machine; the place itself if no bucket is mounted.

    Args:
        uri: a directory, or `gs://…`.
    """
    scheme, _, place = uri.partition("://")
    is_mounted = scheme == "gs" and Path(MOUNTED, place.partition("/")[0]).is_dir()
    return str(Path(MOUNTED, place)) if is_mounted else uri


def require_not_taken_for_path(uri: str) -> None:
    """Checks that a script has not written into a local folder named like a URI.

    Args:
        uri: where its checkpoints go.

    Raises:
        UserError: it has.
    """
    if "://" in uri and Path(uri).exists():
        raise UserError(
            f"The script used {uri} as a local path: what it wrote is in {Path(uri)} on its machine, and lost.",
            f"Let it write to the path in {CHECKPOINTS}, or to the URI with fsspec.",
        )


def with_places(arguments: Iterable[str], variables: Mapping[str, str]) -> list[str]:
    """Arguments with their placeholders filled in, such as `--output_dir={checkpoints}`.

    Args:
        arguments: as the user gave them.
        variables: from `script_variables`.
    """
    found = list(arguments)
    for name, variable in PLACES_IN_ARGUMENTS.items():
        found = [each.replace(name, variables[variable]) for each in found]
    return found


def tf_config(cluster: Cluster) -> dict[str, str]:
    """`TF_CONFIG` for this node: the first is the chief, the others are workers. Nothing for a single node.

    Raises:
        UserError: the addresses of the nodes are not known.
    """
    if cluster.nodes == 1:
        return {}
    if not cluster.addresses:
        raise UserError(
            "TensorFlow has to know the address of every node, and torchrun's variables hold only that of rank 0.",
            "Set TF_CONFIG or CLUSTER_SPEC.",
        )
    task = {"type": "chief", "index": 0} if cluster.is_rank_0 else {"type": "worker", "index": cluster.node_rank - 1}
    groups = {"chief": [cluster.addresses[0]], "worker": list(cluster.addresses[1:])}
    return {TF_CONFIG: json.dumps({"cluster": groups, "task": task})}
