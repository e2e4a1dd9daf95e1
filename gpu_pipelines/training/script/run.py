"""Runs a user's training script with the launcher of its framework."""

from __future__ import annotations

import math
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from gpu_pipelines.artifacts.checkpoint import CHECKPOINT_NAME, METRICS
from gpu_pipelines.artifacts.checkpoint_store import CheckpointStore
from gpu_pipelines.artifacts.remote_files import is_remote
from gpu_pipelines.distributed.launch import launch, run_program
from gpu_pipelines.distributed.members import TF_CONFIG, Cluster
from gpu_pipelines.errors import UserError
from gpu_pipelines.step_environment import environment_with
from gpu_pipelines.training.checkpoints.store_lock import lock_of
from gpu_pipelines.training.machine.local_devices import Devices, local_devices, require_devices_work
from gpu_pipelines.training.machine.nccl_dumps import dumps_kept
from gpu_pipelines.training.machine.nccl_settings import adopt_nccl_settings
from gpu_pipelines.training.machine.utilization import idleness_of
from gpu_pipelines.training.script.code import fetch
from gpu_pipelines.training.script.metrics import add_logged, read_metrics
from gpu_pipelines.training.script.mirrored_folder import MirroredFolder
from gpu_pipelines.training.script.processes import trains_alone
from gpu_pipelines.training.script.settings import ONE_PROCESS, ScriptSettings
from gpu_pipelines.training.script.variables import (
    mounted,
    require_not_taken_for_path,
    script_variables,
    tf_config,
    with_places,
)

#: What `accelerate launch --cpu` sets.
USE_CPU = "ACCELERATE_USE_CPU"
#: How often tqdm draws a bar, in seconds: its default would make ten lines of a log each second.
BAR_INTERVAL = "TQDM_MININTERVAL"


@dataclass(frozen=True)
class ScriptSummary:
    """How a script ran.

    Attributes:
        settings: what was run.
        devices: the processes on each node, and their devices.
        nodes: number of machines.
        seconds: duration of this launch.
        checkpoints: names of the checkpoints in this project's format; if there are none, of what is named as one.
        metrics: entries of the script's metrics file, by step.
    """

    settings: ScriptSettings
    devices: Devices
    nodes: int
    seconds: float
    checkpoints: list[str]
    metrics: list[dict[str, float]]

    def series(self) -> dict[str, list[tuple[float, float]]]:
        """Steps and finite values of each metric, in the order of their first appearance."""
        found: dict[str, list[tuple[float, float]]] = {}
        for entry in self.metrics:
            for name, value in entry.items():
                if name != "step" and math.isfinite(value):
                    found.setdefault(name, []).append((entry["step"], value))
        return found

    def figures(self) -> dict[str, float]:
        """The numbers to show beside the run: the last value of each metric, if it is finite.

        KFP fails a task for a metric that is not finite.
        """
        ends = {name: value for entry in self.metrics for name, value in entry.items() if name != "step"}
        last = {f"final_{name}": value for name, value in sorted(ends.items()) if math.isfinite(value)}
        steps = {"steps": self.metrics[-1]["step"]} if self.metrics else {}
        processes = self.nodes * self.devices.processes
        # A model right in the folder has no such name, and 0 would say that nothing was saved.
        saved = {"checkpoints": len(self.checkpoints)} if self.checkpoints else {}
        return {**steps, **last, "seconds": round(self.seconds, 1), "processes": processes, **saved}


def run_script(
    settings: ScriptSettings, dataset: Path, checkpoint_uri: str, follow: Callable[[Path], None] | None = None
) -> ScriptSummary | None:
    """Runs the script on this node, together with the other nodes of its cluster.

    Args:
        settings: what to run and how.
        dataset: the dataset artifact.
        checkpoint_uri: where the script's output goes, a directory or `gs://…`.
        follow: is called on rank 0 with the folder of the metrics, before the script begins.

    Returns:
        The summary; None on a node that is not rank 0, for which there is nothing to report.

    Raises:
        UserError: a setting is wrong, the script cannot be found, or it failed.
        Interrupted: it was interrupted.
    """
    if problems := settings.problems():
        raise UserError.of_all(problems)
    cluster = Cluster.from_environment(os.environ)
    if cluster.nodes > 1:
        adopt_nccl_settings()
    devices = devices_for(settings.launcher, settings.processes_per_node)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="script-") as folder:
        target, imports = fetch(settings, Path(folder))
        store = CheckpointStore(checkpoint_uri.rstrip("/"), Path(folder) / "staging")
        place = mounted(store.uri)
        is_mirrored = is_remote(place)
        checkpoints = str(store.directory) if is_mirrored else place
        Path(checkpoints).mkdir(parents=True, exist_ok=True)  # where a bucket is mounted, nobody has
        own = script_variables(dataset, store.uri, checkpoints, store.directory / METRICS, os.environ)
        own |= settings.variables
        if imports:
            own["PYTHONPATH"] = os.pathsep.join(filter(None, [str(imports), os.environ.get("PYTHONPATH", "")]))
        arguments = [*target, *with_places(settings.words, own)]
        print(f"running {settings.script} with {settings.launcher}: {devices.processes} × {devices.kind}", flush=True)
        _warn_of_processes(settings, Path(target[0]), devices.processes * cluster.nodes, devices.kind)
        mirror = MirroredFolder(store.uri, store.directory, cluster.node_rank) if is_mirrored else nullcontext()
        if not cluster.is_rank_0:
            with dumps_kept(store), mirror:
                run_with(settings.launcher, arguments, own, devices, cluster, settings.idle_stop)
            return None
        with lock_of(store) as lock:
            store.fetch_log()
            if follow:
                follow(store.directory)
            with dumps_kept(store), mirror:
                run_with(settings.launcher, arguments, own, devices, cluster, settings.idle_stop)
            lock.require_held()
            require_not_taken_for_path(store.uri)
            add_logged(Path(checkpoints), store.directory / METRICS)
            store.publish_log()
        names = [checkpoint.name for checkpoint in store.complete()] or sorted(
            path.name for path in Path(checkpoints).iterdir() if CHECKPOINT_NAME.fullmatch(path.name)
        )
        metrics = read_metrics(store.directory / METRICS)
    return ScriptSummary(settings, devices, cluster.nodes, time.monotonic() - started, names, metrics)


def _warn_of_processes(settings: ScriptSettings, script: Path, processes: int, kind: str) -> None:
    """Says so if each process of a script would be a training by itself."""
    if settings.launcher != "torchrun" or settings.module or processes == 1:
        return
    if framework := trains_alone(script, kind):
        print(
            f"warning: {settings.script} imports {framework} and reads no variable of torchrun: each of {processes} "
            "processes trains by itself and overwrites what the others save. Give launcher=plain, or let the script "
            "join them (docs/training-scripts.md).",
            flush=True,
        )


def devices_for(launcher: str, processes: int) -> Devices:
    """The processes that a launcher starts on this node, and their devices.

    Args:
        launcher: one of `LAUNCHERS`.
        processes: number of processes; 0 for one per GPU.

    Raises:
        UserError: the GPUs do not work.
    """
    import torch

    here = local_devices(torch.cuda.device_count())
    require_devices_work(here)
    return replace(here, processes=1 if launcher in ONE_PROCESS else processes or here.processes)


def run_with(
    launcher: str,
    arguments: list[str],
    own: dict[str, str],
    devices: Devices,
    cluster: Cluster,
    idle_stop: float = 0.0,
) -> None:
    """Runs Python with a launcher on this node, together with the others, and waits for the end of all.

    Args:
        launcher: one of `LAUNCHERS`.
        arguments: of the Python interpreter.
        own: variables of the script, besides those of this process.
        devices: processes of this node.
        cluster: the nodes.
        idle_stop: minutes after which it is ended if its devices do nothing; 0 for never.

    Raises:
        UserError: it failed, here or on another node.
        Interrupted: it was interrupted.
    """
    idleness = idleness_of(idle_stop, devices, cluster, _gpus() if launcher in ONE_PROCESS else 0)
    own = {BAR_INTERVAL: os.environ.get(BAR_INTERVAL, "15"), **own}
    if launcher == "torchrun":
        if devices.kind == "cpu" and devices.processes * cluster.nodes > 1:
            # Without it each process of Accelerate, and so of transformers' Trainer, is a training by itself on CPUs,
            # and all of them write to the same place.
            own = {USE_CPU: os.environ.get(USE_CPU, "true"), **own}
        with environment_with(own):  # torchrun's launcher gives it to its workers
            launch(arguments, processes=devices.processes, cluster=cluster, idleness=idleness)
        return
    python = [sys.executable, "-u", *arguments]
    environment = {**os.environ, **own}
    if launcher == "horovod":
        run_program([*horovodrun(devices.processes, cluster), *python], environment, cluster=cluster, idleness=idleness)
    elif launcher == "tensorflow":
        environment.pop(TF_CONFIG, None)
        environment |= tf_config(cluster)
        # TensorFlow's own server listens on the port of its address; the launchers meet beside it.
        beside = replace(cluster, rank_0_port=cluster.rank_0_port + 1)
        run_program(python, environment, cluster=beside, idleness=idleness)
    else:
        beside = replace(cluster, rank_0_port=cluster.rank_0_port + 1)
        run_program(python, environment, cluster=beside, idleness=idleness)


def _gpus() -> int:
    import torch

    return torch.cuda.device_count()


def horovodrun(processes: int, cluster: Cluster) -> list[str]:
    """The command line of Horovod's launcher, up to the program.

    Raises:
        UserError: Horovod is not installed, or there are several nodes.
    """
    if cluster.nodes > 1:
        raise UserError(
            f"Horovod on {cluster.nodes} nodes starts its processes by ssh, which replicas of a job do not offer.",
            "Use one node, or the launcher torchrun or tensorflow; or an image that starts sshd on every replica and "
            "calls horovodrun on rank 0 itself, with the launcher plain.",
        )
    program = shutil.which("horovodrun")
    if not program:
        raise UserError("horovodrun is not installed.", "Use an image with Horovod.")
    return [program, "-np", str(processes), "-H", f"localhost:{processes}"]
