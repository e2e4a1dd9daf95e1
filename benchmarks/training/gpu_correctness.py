"""Whether the engine trains correctly on GPUs: each way of training beside one process on the CPU, and a resume.

Run by `make bench-gpu`. The models are tiny, so all trainings run at once, as far as there are cores. Then an
interrupted training is compared with an undisturbed one, and a training is watched for operations that make the host
wait for the GPU. `--device cpu` tries it without a GPU. Ends with status 1 if a training was wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import host_waits
import two_nodes
from contest import HERE, Machine, conclude
from workloads import write_dataset

from gpu_pipelines.artifacts.checkpoint import METRICS
from gpu_pipelines.artifacts.checkpoint_store import read_metrics
from gpu_pipelines.training.settings import TrainingSettings

sys.path.insert(0, str(HERE.parents[1] / "tests"))
sys.path.insert(0, str(HERE.parents[1] / "tests" / "training"))
from started_training import run_training, tensors, weights_digest

STEPS, EVERY, TOKENS, VOCABULARY, DOCUMENTS, SIDE = 40, 10, 128, 400, 3, 32
#: Largest relative difference of a loss from the CPU's: another order of the sums; the bits of bf16 and fp16.
TOLERANCES = {"fp32": 0.005, "bf16": 0.05, "fp16": 0.05}
TEXT = TrainingSettings(
    model="llama-micro",
    max_steps=STEPS,
    global_batch_size=32,
    checkpoint_every_steps=EVERY,
    precision="fp32",
    warmup_steps=4,
    learning_rate=1e-3,
)
IMAGES = replace(TEXT, model="convnext-micro")
#: Settings that say how a training computes, not what.
_HOW = (
    "precision",
    "parallelism",
    "activation_checkpointing",
    "recompute",
    "compile_model",
    "micro_batch_size",
    "recipe",
)
_EACH_PROCESS_CORES = 2


@dataclass(frozen=True)
class Curve:
    """The losses of a training, step by step.

    Attributes:
        losses: the losses; empty if it failed.
        said: its last lines if it failed; else its warnings.
    """

    losses: list[float]
    said: list[str]


def main() -> None:
    """Runs all parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--ways", default="", help="a part of their names; left out, all")
    asked = parser.parse_args()
    machine = Machine.of(asked.device)
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        write_dataset(scratch / "causal_lm", "causal_lm", (TOKENS,), 512, VOCABULARY, DOCUMENTS)
        write_dataset(scratch / "image_classification", "image_classification", (3, SIDE, SIDE), 512)
        at_once = max(1, (os.cpu_count() or 1) // (_EACH_PROCESS_CORES * machine.processes))
        with ThreadPoolExecutor(at_once) as pool:
            resume = pool.submit(compare_resumed, machine, scratch)
            waits = pool.submit(count_waits, machine, scratch) if machine.device == "cuda" else None
            ways = {name: settings for name, settings in ways_of(machine).items() if asked.ways in name}
            curves = compare_ways(ways, machine, scratch, pool)
        results: dict[str, Any] = {"curves": curves, "resume": resume.result()}
    print(f"killed and continued: {results['resume']['said']}")
    if waits is not None:
        results["waits"] = waits.result()
        host_waits.show(results["waits"])
    right = results["resume"]["same"] and all(way["right"] for way in curves.values())
    conclude("training_gpu_correctness", machine, results, {"right": float(right)})
    sys.exit(0 if right else 1)


def ways_of(machine: Machine) -> dict[str, TrainingSettings]:
    """The ways of training to compare with the CPU."""
    bf16 = replace(TEXT, precision="bf16")
    ways = {
        "ddp, fp32": TEXT,
        "fsdp, fp32": replace(TEXT, parallelism="fsdp"),
        "ddp, bf16": bf16,
        "fsdp, bf16, recomputed": replace(bf16, parallelism="fsdp", activation_checkpointing=True),
        "ddp, bf16, recomputed selectively": replace(bf16, activation_checkpointing=True, recompute="selective"),
        "ddp, fp32, micro-batches": replace(TEXT, micro_batch_size=32 // machine.processes // 2),
        "images, fp32": IMAGES,
        "images, bf16": replace(IMAGES, precision="bf16"),
        "images, changed and averaged": replace(
            IMAGES, model="vit-micro", augmentation="randaugment", mixup_alpha=0.2, cutmix_alpha=1.0, ema_decay=0.99
        ),
    }
    ways |= {name: replace(TEXT, optimizer=name) for name in ("adamw_8bit", "adafactor", "muon", "sgd")}
    if machine.processes == 1:  # each process has batch statistics of its own
        ways["images, BatchNorm"] = replace(IMAGES, model="resnet-micro")
    if machine.device == "cpu" or machine.processes % (2 * two_nodes.NODES) == 0:
        ways["hsdp, fp32, micro-batches"] = replace(
            TEXT, parallelism="hsdp", micro_batch_size=2, recipe=two_nodes.RECIPE
        )
    if machine.device == "cuda":
        ways["ddp, bf16, compiled"] = replace(bf16, compile_model="on")
        ways["fsdp, bf16, compiled"] = replace(bf16, compile_model="on", parallelism="fsdp")
        ways["images, bf16, compiled"] = replace(IMAGES, precision="bf16", compile_model="on")
        ways["ddp, fp16"] = replace(TEXT, precision="fp16")
        ways["ddp, bf16, profiled"] = replace(bf16, profile_steps="20-22")
    return ways


def compare_ways(
    ways: dict[str, TrainingSettings], machine: Machine, scratch: Path, pool: ThreadPoolExecutor
) -> dict[str, dict[str, Any]]:
    """The loss curve of each way beside that of one process on the CPU."""
    plain = {name: replace(settings, **_without_how()) for name, settings in ways.items()}
    on_one = {settings: pool.submit(train, settings, scratch, "cpu:1") for settings in dict.fromkeys(plain.values())}
    curves = {name: pool.submit(train, settings, scratch, _here(machine, settings)) for name, settings in ways.items()}
    print(f"{'way':34} {'largest difference':>18} {'tolerance':>10}")
    found: dict[str, dict[str, Any]] = {}
    for name, settings in ways.items():
        curve, expected = curves[name].result(), on_one[plain[name]].result()
        found[name] = {"right": False, "tolerance": TOLERANCES[settings.precision], "said": curve.said}
        if not (curve.losses and expected.losses):
            print(
                "\n    ".join([f"{name:34} FAILED", *(curve.said if not curve.losses else expected.said)]), flush=True
            )
            continue
        largest = max(abs(a - b) / b for a, b in zip(curve.losses, expected.losses, strict=True))
        right = largest <= TOLERANCES[settings.precision]
        found[name] |= {"largest_difference": largest, "right": right}
        print(
            f"{name:34} {largest:18.5f} {TOLERANCES[settings.precision]:10.3f}{'' if right else '   WRONG'}", flush=True
        )
    for line in dict.fromkeys(line for way in found.values() if way["right"] for line in way["said"]):
        print(f"said on the way: {line}")
    return found


def _here(machine: Machine, settings: TrainingSettings) -> str:
    """The devices to try a way on; empty for all GPUs."""
    if machine.device == "cuda":
        return ""
    return f"cpu:{2 * two_nodes.NODES if settings.recipe else machine.processes}"


def _without_how() -> dict[str, Any]:
    return {name: getattr(TEXT, name) for name in _HOW}


def train(
    settings: TrainingSettings, scratch: Path, devices: str, environment: Mapping[str, str] | None = None
) -> Curve:
    """Trains on these devices; empty for all GPUs."""
    task = "causal_lm" if settings.model == TEXT.model else "image_classification"
    directory = Path(tempfile.mkdtemp(dir=scratch))
    surroundings = {"GPU_PIPELINES_ACCELERATOR": devices, "OMP_NUM_THREADS": str(_EACH_PROCESS_CORES)}
    if settings.precision == "fp32":
        surroundings["NVIDIA_TF32_OVERRIDE"] = "0"  # convolutions have 10 bits of mantissa by default
    if settings.recipe:
        surroundings["PYTHONPATH"] = str(HERE)
    surroundings |= environment or {}
    ended = run_training(settings, scratch / task, str(directory), environment=surroundings)
    if ended.status:
        return Curve([], ended.lines[-25:])
    losses = [entry["loss"] for entry in read_metrics(directory / METRICS) if "loss" in entry]
    return Curve(losses, [line for line in ended.lines if "arning" in line])


def compare_resumed(machine: Machine, scratch: Path) -> dict[str, Any]:
    """A training that was killed and started again, beside an undisturbed one."""
    last, settings = f"step-{STEPS:08d}", replace(TEXT, parallelism="fsdp")
    devices = {"GPU_PIPELINES_ACCELERATOR": "" if machine.device == "cuda" else "cpu:2"}
    alone, killed = scratch / "alone", scratch / "killed"
    begin = partial(run_training, settings, scratch / "causal_lm", environment=devices)
    begin(str(alone))
    first = begin(
        str(killed),
        stop_when=lambda line: line.startswith(f"step {2 * EVERY}/") and "val" in line,
        by=signal.SIGKILL,
    )
    again = begin(str(killed))
    if first.status == 0:
        return {"same": False, "said": "the training that was to be killed had ended before"}
    if not (alone / last).is_dir() or not (killed / last).is_dir():
        return {"same": False, "said": "\n    ".join(["FAILED", *first.lines[-25:], *again.lines[-25:]])}
    if weights_digest(alone / last) == weights_digest(killed / last):
        return {"same": True, "said": "the same bits"}
    theirs = tensors(killed / last)
    difference = max(
        float((tensor.double() - theirs[name].double()).abs().max()) for name, tensor in tensors(alone / last).items()
    )
    return {"same": False, "said": f"up to {difference:.2e} apart", "largest_difference": difference}


def count_waits(machine: Machine, scratch: Path) -> dict[str, Any]:
    """Where the host waited for the GPU in the steps of a training, and how often."""
    told = scratch / "waits.json"
    settings = replace(TEXT, precision="bf16", recipe=host_waits.RECIPE)
    curve = train(settings, scratch, "", {host_waits.VARIABLE: str(told)})
    if not told.exists():
        return {"failed": curve.said}
    waits: dict[str, Any] = json.loads(told.read_text(encoding="utf-8"))
    return waits


if __name__ == "__main__":
    main()
