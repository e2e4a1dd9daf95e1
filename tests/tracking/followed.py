"""A training that is only its log, so that it can be killed often."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from processes import start_python

STEPS = 60
#: Of one that is killed: it comes to its end only where it is left alone, and then in no time. Twenty kills take
#: minutes on a busy machine, and no training may end before the last of them.
MANY_STEPS = 3000
#: The steps of its checkpoints: from the last one it goes on when it was killed.
CHECKPOINT = 7

#: Writes its log as the engine does: what is after the newest checkpoint is cut off, and written again.
_TRAINING = """
import json, sys, time
from pathlib import Path
from gpu_pipelines.tracking.facts import Facts
from gpu_pipelines.tracking.tracked import Tracked, run_at

tracking, folder, steps, checkpoint, seconds = json.loads(sys.argv[1])
log = Path(folder) / "metrics.jsonl"
log.parent.mkdir(parents=True, exist_ok=True)
lines = [line for line in log.read_text().splitlines() if line.endswith("}")] if log.exists() else []
written = max((json.loads(line)["step"] for line in lines), default=0)
step = written // checkpoint * checkpoint
log.write_text("".join(line + "\\n" for line in lines if json.loads(line)["step"] <= step))
with Tracked(tracking, run_at(folder)) as tracked:
    tracked.add(Facts({"model": "vit-micro", "seed": "0"}))
    tracked.follow(Path(folder))
    print("begins", flush=True)
    while step < steps:
        step += 1
        time.sleep(seconds)
        entry = {"step": step, "loss": 1 / step, "learning_rate": 0.1, "time": time.time()}
        with log.open("a") as file:
            file.write(json.dumps(entry) + "\\n")
            if step % checkpoint == 0:
                file.write(json.dumps({"step": step, "val_loss": 2 / step, "time": time.time()}) + "\\n")
    tracked.add(Facts(figures={"test_accuracy": 0.75, "test_accuracy_low": 0.5}))
print("finished", flush=True)
"""


def training(tracking: str, folder: Path, seconds: float = 0.0, steps: int = STEPS) -> list[str]:
    """The arguments of Python that begin, or go on with, a training.

    Args:
        tracking: the tracker.
        folder: of its log.
        seconds: that a step takes.
        steps: in all.
    """
    return ["-c", _TRAINING, json.dumps([tracking, str(folder), steps, CHECKPOINT, seconds])]


def trained(tracking: str, folder: Path, **more: Any) -> str:
    """Trains to the end; gives what was printed."""
    done = subprocess.run([sys.executable, *training(tracking, folder, **more)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("finished\n")
    return done.stdout


def killed(times: int, tracking: str, folder: Path, has: Any) -> None:
    """Trains `MANY_STEPS`, with a SIGKILL so many times, and then to the end.

    Args:
        times: kills, each while points are being sent.
        tracking: the tracker.
        folder: of its log.
        has: gives how many points the tracker has.
    """
    generator = random.Random(0)
    for number in range(times):
        before = has()
        started = start_python(training(tracking, folder, 0.2, MANY_STEPS), folder.with_suffix(f".{number}.log"))
        # On a busy machine most of a minute: what sends lets all others have the processors first.
        deadline = time.monotonic() + 300
        while has() == before and started.process.poll() is None:
            assert time.monotonic() < deadline, started.output
            time.sleep(0.05)
        time.sleep(generator.random() * 0.3)
        started.process.kill()
        assert started.process.wait() == -signal.SIGKILL, started.output
    trained(tracking, folder, steps=MANY_STEPS)


def require_whole(curves: Mapping[str, list[tuple[int, float]]], steps: int = STEPS) -> None:
    """Requires that every step is there, once, and with its own value."""
    assert curves["loss"] == [(step, 1 / step) for step in range(1, steps + 1)]
    checkpoints = range(CHECKPOINT, steps + 1, CHECKPOINT)
    assert curves["val_loss"] == [(step, 2 / step) for step in checkpoints]
