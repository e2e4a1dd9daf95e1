"""The time of `compile`: one file as a whole process, and each further file of `compile --all`.

Run with `python benchmarks/compile.py [--runs N]`. The peer is a direct call of the kfp compiler with GCPC's wrapper
for the same steps and machine, as in a user's script; the processes take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

COMMAND = str(Path(sys.executable).with_name("gpu-pipelines"))
ONE = "compile, one accelerator"
ALL = "compile --all"
PEER = "kfp and GCPC directly, one accelerator"
GOAL_ONE_S, GOAL_EACH_S = 2.5, 0.2

#: The same DAG with the wrapper called for each GPU step; without checks, settings and sizes of the other steps.
_DIRECTLY = """
import sys
from google_cloud_pipeline_components.v1.custom_job import create_custom_training_job_from_component as job
from kfp import compiler
from gpu_pipelines.pipelines.train_evaluate_upload.pipeline import build
class Target:
    checkpoint_uri, registry, pipeline_job, notification = None, "vertex://", "", None
    def place(self, component, plan):
        if plan is None:
            return component
        return job(component, machine_type="a3-highgpu-8g", accelerator_type="NVIDIA_H100_80GB", accelerator_count=8)
class Plan:
    is_local, gpu = True, None
compiler.Compiler().compile(build(Target(), Plan()), sys.argv[1])
"""


def seconds(command: list[str]) -> float:
    """Wall time of one process, seconds."""
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> None:
    """Times the commands in turns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=9)
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as folder:
        one = [COMMAND, "compile", "train_evaluate_upload", "--target", "vertex", "--accelerator", "h100:8"]
        commands = {
            ONE: [*one, "-o", f"{folder}/one.yaml"],
            ALL: [COMMAND, "compile", "--all", "--directory", f"{folder}/all"],
            PEER: [sys.executable, "-c", _DIRECTLY, f"{folder}/peer.yaml"],
        }
        times: dict[str, list[float]] = {name: [] for name in commands}
        for counted in range(runs + 1):
            for name, command in commands.items():
                took = seconds(command)
                if counted:
                    times[name].append(took)
        files = len(list(Path(folder, "all").rglob("*.yaml")))
    median = {name: statistics.median(values) for name, values in times.items()}
    each = (median[ALL] - median[ONE]) / (files - 1)
    for name, values in times.items():
        print(f"{name:<40} {median[name]:6.3f} s   ({min(values):.3f} to {max(values):.3f})")
    print(f"{'goal for one accelerator':<40} {GOAL_ONE_S:6.3f} s")
    print(f"{f'each file of {files} beyond the first':<40} {each:6.3f} s   goal at most {GOAL_EACH_S}")
    results = {**{name: round(value, 3) for name, value in median.items()}, "each_further_file": round(each, 3)}
    ratios = {f"{PEER} / {ONE}": round(median[PEER] / median[ONE], 3)}
    machine = {"cpus": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()}
    print(json.dumps({"benchmark": "compile", "machine": machine, "results": results, "ratios": ratios}))


if __name__ == "__main__":
    main()
