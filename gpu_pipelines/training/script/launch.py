"""Starts a user's script on every replica of a job without a pipeline: once per GPU with torchrun, or otherwise.

    python -m gpu_pipelines.training.script.launch [--launcher NAME] [--processes N] -- SCRIPT [ARGUMENT…]

It is what `run_training_script` does to run a script, without its inputs and outputs: the nodes are read from
CLUSTER_SPEC and its like, the script keeps all variables that the platform has set, and SIGTERM on one
node reaches the script on all.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from gpu_pipelines.component_interface.step import own_process
from gpu_pipelines.distributed.members import Cluster
from gpu_pipelines.errors import UserError
from gpu_pipelines.training.machine.nccl_settings import adopt_nccl_settings
from gpu_pipelines.training.script.run import devices_for, run_with
from gpu_pipelines.training.script.settings import LAUNCHERS, ScriptSettings


def main(words: Sequence[str] | None = None) -> None:
    """Runs the script and waits for the end on all nodes.

    Args:
        words: of the command line; None takes those of this process.
    """
    parser = argparse.ArgumentParser(
        prog="python -m gpu_pipelines.training.script.launch",
        description="Starts a training script on this node, together with the other replicas of the job.",
    )
    parser.add_argument("--launcher", choices=LAUNCHERS, default="torchrun")
    parser.add_argument("--processes", type=int, default=0, metavar="N", help="on each node; one per GPU if not given")
    parser.add_argument(
        "script", nargs=argparse.REMAINDER, metavar="-- SCRIPT", help="a .py file or -m and a module, and its arguments"
    )
    options = parser.parse_args(words)
    if options.script[:1] == ["--"]:
        options.script.pop(0)
    if not options.script:
        parser.error("there is no script")
    with own_process():
        _launch(options.launcher, options.processes, options.script)


def _launch(launcher: str, processes: int, words: list[str]) -> None:
    module = words[0] == "-m" and len(words) > 1
    target, arguments = (words[:2], words[2:]) if module else (words[:1], words[1:])
    settings = ScriptSettings(
        script=" ".join(target), arguments=arguments, launcher=launcher, processes_per_node=processes
    )
    if problems := settings.problems():
        raise UserError.of_all(problems)
    if not module and not Path(target[0]).is_file():
        raise UserError(f"There is no script {target[0]} in {Path.cwd()}.")
    cluster = Cluster.from_environment(os.environ)
    if cluster.nodes > 1:
        adopt_nccl_settings()
    devices = devices_for(launcher, processes)
    print(f"running {settings.script} with {launcher}: {devices.processes} × {devices.kind}", flush=True)
    run_with(launcher, [*target, *arguments], {}, devices, cluster)


if __name__ == "__main__":
    main()
