"""A training of a second: real steps, real checkpoints, the same weights on any number of GPUs; nothing but Python.

`stand_in_training.py FOLDER STEPS SECONDS [FAIL_AT]`. Each GPU sums up its share of a step's rows; the sums are of
whole numbers, so that their order does not matter. It goes on from the newest checkpoint of the folder, saves one after
each second step and on SIGTERM, and does `SECONDS` of work for each step.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

FOLDER, STEPS, SECONDS = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
FAIL_AT = int(sys.argv[4]) if len(sys.argv) > 4 else -1
PRIME, WEIGHTS, ROWS, EVERY = (1 << 61) - 1, 16, 48, 2
stopped = []


def save(step, weights):
    whole = FOLDER / f"step-{step:08d}.json"
    part = FOLDER / f".{os.getpid()}"
    part.write_text(json.dumps({"step": step, "weights": weights, "gpus": gpus()}))
    part.replace(whole)


def gpus():
    return int(os.environ.get("GPU_PIPELINES_ACCELERATOR", "cpu:1").rpartition(":")[2])


def train():
    FOLDER.mkdir(parents=True, exist_ok=True)
    found = sorted(FOLDER.glob("step-*.json"))
    state = json.loads(found[-1].read_text()) if found else {"step": 0, "weights": list(range(1, WEIGHTS + 1))}
    step, weights = state["step"], state["weights"]
    print(f"going on from step {step} on {gpus()} GPUs", flush=True)
    while step < STEPS:
        sums = [0] * WEIGHTS
        for rank in range(gpus()):
            for row in range(rank, ROWS, gpus()):
                for number in range(WEIGHTS):
                    sums[number] += (row + 1) * (step + 7) * weights[number] % PRIME
        weights = [(weight + each) % PRIME for weight, each in zip(weights, sums, strict=True)]
        step += 1
        time.sleep(SECONDS)
        if step == FAIL_AT:
            sys.exit("the data is not what it should be")
        if stopped or step % EVERY == 0 or step == STEPS:
            save(step, weights)
        if stopped:
            sys.exit(75)
    (FOLDER / "weights.json").write_text(json.dumps(weights))


signal.signal(signal.SIGTERM, lambda number, frame: stopped.append(number))
train()
