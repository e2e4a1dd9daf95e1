"""Random old jobs, most of them nearly right: each is migrated to what plans again, or refused; never a traceback."""

from __future__ import annotations

import random
from typing import Any

import pytest
import yaml
from old_jobs import IMAGE, TODAY

from gpu_pipelines.accelerators import load_catalog, plan_request
from gpu_pipelines.accelerators.request import PlanRequest
from gpu_pipelines.accelerators.together import share_zone
from gpu_pipelines.errors import UserError
from gpu_pipelines.migration import Migration, MigrationOptions, migrate
from gpu_pipelines.migration.gcloud_flags import parse_command
from gpu_pipelines.migration.job_fields import ACCELERATORS, ALGORITHMS, GOALS, PARAMETER_TYPES, SCALES, TIERS
from gpu_pipelines.migration.job_file import read_job
from gpu_pipelines.migration.old_machines import LEGACY_MACHINES

CATALOG = load_catalog()
MACHINES = [*LEGACY_MACHINES, *CATALOG.machine_types, "cloud_tpu", "n1-highcpu-8", "e2-standard-8", "n1-standard-3"]
OLD_MACHINES = [name for name in CATALOG.machine_types if name.startswith(("n1-", "a2-highgpu", "a2-mega"))]
ODD: list[Any] = [
    None,
    "",
    "x",
    -1,
    0,
    3.5,
    True,
    [],
    {},
    [1],
    {"a": 1},
    "9" * 30,
    "1e400",
    "äöü",
    "bell \x07 \x85",
    "1\n2",
    2**70,
    "gs://",
    "a b",
]
REGIONS = [*CATALOG.regions, "nowhere1", "US-CENTRAL1"]


class Jobs:
    """Makes jobs.

    Args:
        seed: of the generator.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def sometimes(self, probability: float, value: Any) -> dict[str, Any]:
        return value if self.random.random() < probability else {}

    def replica(self, name: str, machine: str, gpu: bool) -> dict[str, Any]:
        pick, config = self.random.choice, {}
        if gpu and machine in CATALOG.machine_types and self.random.random() < 0.9:
            counts = CATALOG.machine_types[machine].gpu_counts
            kind = pick(list(counts)) if counts and self.random.random() < 0.9 else "t4"
            number = pick(list(counts.get(kind, (1,)))) if self.random.random() < 0.9 else self.random.randint(-1, 17)
            config["acceleratorConfig"] = {"type": CATALOG.gpus[kind].enum, "count": number}
        elif self.random.random() < 0.1:
            config["acceleratorConfig"] = {"type": pick(ACCELERATORS), "count": self.random.randint(0, 9)}
        config |= self.sometimes(
            0.1,
            {
                "diskConfig": {
                    "bootDiskSizeGb": pick((10, 100, 500, 1000)),
                    "bootDiskType": pick(("pd-ssd", "pd-standard", "fast")),
                }
            },
        )
        config |= self.sometimes(0.1, {"containerArgs": ["--a", "b"]})
        config |= self.sometimes(0.05, {"tpuTfVersion": "2.1"})
        return {f"{name}Config": config} if config else {}

    def training(self) -> dict[str, Any]:
        pick, chance = self.random.choice, self.random.random
        old = chance() < 0.85
        machine = pick([*OLD_MACHINES, *LEGACY_MACHINES]) if old else pick(MACHINES)
        job: dict[str, Any] = {"scaleTier": "CUSTOM" if chance() < 0.8 else pick(TIERS)}
        is_custom = job["scaleTier"] == "CUSTOM" or chance() < 0.1
        if is_custom:
            job |= {"masterType": machine, **self.replica("master", machine, gpu=chance() < 0.8)}
        for role in ("worker", "parameterServer", "evaluator"):
            if is_custom and chance() < 0.35:
                other = machine if chance() < 0.5 else pick(OLD_MACHINES)
                job |= {f"{role}Type": other, f"{role}Count": pick((0, 1, 2, 9, 19) if chance() < 0.95 else (-1, 5000))}
                job |= self.replica(role, other, gpu=chance() < 0.4)
        if chance() < 0.6:
            job.setdefault("masterConfig", {})["imageUri"] = pick((IMAGE, "gcr.io/p/i"))
        else:
            job |= {"packageUris": ["gs://b/p.tar.gz"], "pythonModule": "trainer.task"}
            job |= {"runtimeVersion": pick(("1.15", "2.11", "2.1", "x")), "pythonVersion": "3.7"}
        job |= self.sometimes(0.9, {"region": "us-central1" if chance() < 0.85 else pick(REGIONS)})
        job |= self.sometimes(0.3, {"jobDir": "gs://bucket/dir"})
        job |= self.sometimes(0.3, {"args": ["--epochs", 3]})
        scheduling = {
            "maxRunningTime": pick(("3600s", "0s", "x", "99999999999s")),
            "maxWaitTime": pick(("1800s", "5s")),
        }
        job |= self.sometimes(0.2, {"scheduling": {**scheduling, "strategy": "LOW_COST", "priority": 3}})
        job |= self.sometimes(0.2, {"hyperparameters": self.hyperparameters()})
        return self.spoilt(job) if chance() < 0.2 else job

    def hyperparameters(self) -> dict[str, Any]:
        pick = self.random.choice
        parameters = [
            {
                "parameterName": pick(("rate", "layers", "units", "depth", "decay", "two words")),
                "type": pick(PARAMETER_TYPES[1:]),
                "minValue": pick((1, 2, 0.1, -5)),
                "maxValue": pick((2, 5, 10, 1e30)),
                "scaleType": pick(SCALES),
                "discreteValues": pick(([1, 2], [0.5, 1, 4], [2, 1])),
                "categoricalValues": ["a", "b"],
            }
            for _ in range(self.random.randint(0, 3))
        ]
        numbers = {"maxTrials": pick((1, 20)), "maxParallelTrials": pick((1, 5)), "maxFailedTrials": pick((0, 2))}
        return {"goal": pick(GOALS), "algorithm": pick(ALGORITHMS), "params": parameters, **numbers}

    def spoilt(self, job: dict[str, Any]) -> dict[str, Any]:
        """A job with one value somewhere that may be anything."""
        place: Any = job
        while True:
            key = self.random.choice(list(place) if isinstance(place, dict) else range(len(place)))
            if not isinstance(place[key], (dict, list)) or not place[key] or self.random.random() < 0.3:
                break
            place = place[key]
        place[key] = self.random.choice(ODD)
        return job

    def flags(self) -> list[str]:
        pick = self.random.choice
        every = [
            f"--region={pick(REGIONS)}",
            f"--scale-tier={pick(('basic-gpu', 'custom', 'basic', 'huge'))}",
            f"--master-accelerator=count={pick((0, 1, 4))},type=nvidia-tesla-{pick(('t4', 'k80', 'v100', 'x'))}",
            f"--worker-count={self.random.randint(-1, 9)}",
            f"--worker-machine-type={pick(MACHINES)}",
            f"--labels={pick(('a=b', 'A=b', 'a', ''))}",
            f"--package-path={pick(('trainer', '/', '.', ''))}",
            f"--kms-key={pick(('k', 'projects/p/locations/l/keyRings/r/cryptoKeys/k'))}",
            "--stream-logs",
            "my_job",
        ]
        return [flag for flag in every if self.random.random() < 0.04]


def try_one(jobs: Jobs) -> Migration | None:
    """Migrates one; checks what comes out."""
    text = yaml.safe_dump({"trainingInput": jobs.training()}, allow_unicode=True)
    words, options = jobs.flags(), MigrationOptions(keep=jobs.random.random() < 0.1, today=TODAY)
    try:
        found = migrate(read_job(text, "config.yaml"), parse_command(words, None), None, options)
    except UserError as error:
        said = str(error)
    else:
        check(found)
        return found
    assert said.strip()
    assert len(said) < 8000
    return None


def check(found: Migration) -> None:
    """Reads the config back, and plans each of its pools again, and all of them together."""
    assert yaml.safe_load(found.config_text("config.yaml", "vertex.yaml")) == found.config
    assert len(set(found.notes)) == len(found.notes), "what holds for several pools is said once"
    spec = found.config["trialJobSpec"] if found.is_tuning else found.config
    scheduling = spec.get("scheduling", {})
    plans = []
    for pool in filter(None, spec["workerPoolSpecs"]):
        machine = pool["machineSpec"]
        assert pool["replicaCount"] >= 1
        if "acceleratorType" not in machine:
            assert machine["machineType"].startswith(("n1-", "e2-"))
            continue
        timeout = scheduling.get("timeout")
        request = PlanRequest(
            spec=f"{machine['acceleratorType']}:{machine['acceleratorCount']}",
            nodes=pool["replicaCount"],
            region=found.region,
            strategy="spot" if scheduling.get("strategy") == "SPOT" else None,
            machine_type=machine["machineType"],
            hours=float(timeout[:-1]) / 3600 if timeout else None,
        )
        plans.append(plan_request(request, catalog=CATALOG, today=TODAY))
    assert len(plans) == len(found.plans)
    share_zone(plans, CATALOG)
    assert spec["workerPoolSpecs"][0]["replicaCount"] == 1
    assert spec["workerPoolSpecs"][-1]


def many(number: int, seed: int) -> None:
    jobs = Jobs(seed)
    accepted = [found for found in (try_one(jobs) for _ in range(number)) if found]
    # Else the generator would make nothing but nonsense.
    assert number * 0.2 < len(accepted) < number * 0.9
    kinds = {
        (found.is_tuning, bool(found.plans), len(found.config.get("workerPoolSpecs", "1234")) > 1) for found in accepted
    }
    assert len(kinds) >= 5


def test_300_random_jobs_are_migrated_or_refused() -> None:
    many(300, seed=1)


@pytest.mark.slow
def test_10000_random_jobs_are_migrated_or_refused() -> None:
    many(10_000, seed=2)
