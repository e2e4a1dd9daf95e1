"""The fields of AI Platform Training's `Job` for a training.

Source: the API's messages in the Google Cloud CLI 528, googlecloudsdk/generated_clients/apis/ml/v1/ml_v1_messages.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

TEXT, WHOLE, NUMBER, TRUTH = "text", "a whole number", "a number", "true or false"


@dataclass(frozen=True)
class Choice:
    """One of a few texts.

    Attributes:
        values: the possible texts.
    """

    values: tuple[str, ...]


@dataclass(frozen=True)
class ListOf:
    """A list.

    Attributes:
        item: the kind of its items.
    """

    item: Kind


@dataclass(frozen=True)
class TextByName:
    """A mapping of user-defined names to texts."""


@dataclass(frozen=True)
class Message:
    """A mapping of known fields.

    Attributes:
        fields: the kind of each field, by name.
    """

    fields: Mapping[str, Kind]


@dataclass(frozen=True)
class Unread:
    """A field that may be present and is not read: the service wrote it about a job that ran."""


Kind = str | Choice | ListOf | TextByName | Message | Unread

GPUS = tuple(f"NVIDIA_TESLA_{name}" for name in ("K80", "P100", "V100", "P4", "T4", "A100"))
TPUS = ("TPU_V2", "TPU_V3", "TPU_V2_POD", "TPU_V3_POD", "TPU_V4_POD")
ACCELERATORS = ("ACCELERATOR_TYPE_UNSPECIFIED", *GPUS, *TPUS)
TIERS = ("BASIC", "STANDARD_1", "PREMIUM_1", "BASIC_GPU", "BASIC_TPU", "CUSTOM")
STRATEGIES = ("STRATEGY_UNSPECIFIED", "ON_DEMAND", "LOW_COST")
ALGORITHMS = ("ALGORITHM_UNSPECIFIED", "GRID_SEARCH", "RANDOM_SEARCH", "POPULATION_BASED_TRAINING")
GOALS = ("GOAL_TYPE_UNSPECIFIED", "MAXIMIZE", "MINIMIZE")
PARAMETER_TYPES = ("PARAMETER_TYPE_UNSPECIFIED", "DOUBLE", "INTEGER", "CATEGORICAL", "DISCRETE")
SCALES = ("NONE", "UNIT_LINEAR_SCALE", "UNIT_LOG_SCALE", "UNIT_REVERSE_LOG_SCALE")

_REPLICA = Message(
    {
        "acceleratorConfig": Message({"count": WHOLE, "type": Choice(ACCELERATORS)}),
        "containerArgs": ListOf(TEXT),
        "containerCommand": ListOf(TEXT),
        "diskConfig": Message({"bootDiskSizeGb": WHOLE, "bootDiskType": TEXT}),
        "imageUri": TEXT,
        "tpuTfVersion": TEXT,
    }
)
_PARAMETER = Message(
    {
        "categoricalValues": ListOf(TEXT),
        "discreteValues": ListOf(NUMBER),
        "maxValue": NUMBER,
        "minValue": NUMBER,
        "parameterName": TEXT,
        "scaleType": Choice(SCALES),
        "type": Choice(PARAMETER_TYPES),
    }
)
_HYPERPARAMETERS = Message(
    {
        "algorithm": Choice(ALGORITHMS),
        "enableTrialEarlyStopping": TRUTH,
        "goal": Choice(GOALS),
        "hyperparameterMetricTag": TEXT,
        "maxFailedTrials": WHOLE,
        "maxParallelTrials": WHOLE,
        "maxTrials": WHOLE,
        "params": ListOf(_PARAMETER),
        "resumePreviousJobId": TEXT,
    }
)
TRAINING_INPUT = Message(
    {
        "args": ListOf(TEXT),
        "enableWebAccess": TRUTH,
        "encryptionConfig": Message({"kmsKeyName": TEXT}),
        "evaluatorConfig": _REPLICA,
        "evaluatorCount": WHOLE,
        "evaluatorType": TEXT,
        "hyperparameters": _HYPERPARAMETERS,
        "jobDir": TEXT,
        "masterConfig": _REPLICA,
        "masterType": TEXT,
        "nasJobSpec": Unread(),
        "network": TEXT,
        "packageUris": ListOf(TEXT),
        "parameterServerConfig": _REPLICA,
        "parameterServerCount": WHOLE,
        "parameterServerType": TEXT,
        "pythonModule": TEXT,
        "pythonVersion": TEXT,
        "region": TEXT,
        "runtimeVersion": TEXT,
        "scaleTier": Choice(TIERS),
        "scheduling": Message(
            {
                "maxRunningTime": TEXT,
                "maxWaitTime": TEXT,
                "priority": WHOLE,
                "resilientToWorkerRestart": TRUTH,
                "strategy": Choice(STRATEGIES),
            }
        ),
        "serviceAccount": TEXT,
        "useChiefInTfConfig": TRUTH,
        "workerConfig": _REPLICA,
        "workerCount": WHOLE,
        "workerType": TEXT,
    }
)
#: Fields that `gcloud ai-platform jobs describe` prints besides those of the request.
_OF_THE_SERVICE = ("createTime", "endTime", "errorMessage", "etag", "jobPosition", "startTime", "state")
JOB = Message(
    {
        "jobId": TEXT,
        "labels": TextByName(),
        "trainingInput": TRAINING_INPUT,
        "trainingOutput": Unread(),
        "predictionInput": Unread(),
        **{name: Unread() for name in _OF_THE_SERVICE},
    }
)
