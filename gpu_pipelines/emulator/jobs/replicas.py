"""Runs a custom job as processes of this machine, one for each replica, with Vertex AI's environment.

The image is ignored: `command` and `args` run as they are, with this Python first on the path. Replicas share the
loopback address and have separate ports.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from gpu_pipelines.emulator.jobs.bill import Bill
from gpu_pipelines.emulator.jobs.capacity import Capacity, accelerators_of, longest_wait, waits
from gpu_pipelines.emulator.jobs.custom_jobs import CustomJobs
from gpu_pipelines.emulator.jobs.preemption import MOST_RESTARTS, Preemptions, stockout
from gpu_pipelines.emulator.json_server import free_port
from gpu_pipelines.emulator.names import Names, region_of
from gpu_pipelines.emulator.project.logs import Logs
from gpu_pipelines.emulator.transcoding import as_json

#: This machine's variables that a container gets.
_KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH")
#: Part of the image's address of a pool for which this server has only a stand-in.
_REDUCTION_SERVER = "reductionserver"
#: Seconds for replicas to end after SIGTERM; also for the other ones after the primary has ended.
_GRACE_S = 30.0
_RESOURCE_EXHAUSTED = 8
_LOOK_S = 0.02
#: Gets the output lines of a process, each with its severity.
Say = Callable[[str, str], None]
#: A process, and the threads that read its output.
Process = tuple[subprocess.Popen[bytes], list[threading.Thread]]


@dataclass
class Replica:
    """One process of a job.

    Attributes:
        pool: the number of its worker pool.
        index: its number in the pool.
        address: its address for the others.
        process: the process; None before it is started.
        restarts: how often it was started again.
        readers: threads that read its output.
    """

    pool: int
    index: int
    address: str
    process: subprocess.Popen[bytes] | None = None
    restarts: int = 0
    readers: list[threading.Thread] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Its name in messages and logs."""
        return f"workerpool{self.pool}-{self.index}"

    @property
    def code(self) -> int | None:
        """Its exit status; None while it runs."""
        return self.process.poll() if self.process else None

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to its first process; SIGKILL goes to all its child processes too."""
        if self.process is None:
            return
        with suppress(ProcessLookupError):
            if number == signal.SIGKILL:
                os.killpg(self.process.pid, number)
            elif self.process.poll() is None:
                self.process.send_signal(number)


class Replicas:
    """Runs jobs; see `run_jobs`.

    Attributes:
        environment: further variables of every replica, such as those for a rehearsal without GPUs.
        prefix: the prefix of every replica's command.
        restarts: how often a failed replica is started again before the job fails.
        folder: working directory of the replicas.
        preemptions: the preemptions of Spot machines.
        capacity: the available machines.
        bill: the costs of jobs.
        identity: variables that make a replica a service account.
        grace_s: seconds of a replica after SIGTERM.
    """

    def __init__(self, jobs: CustomJobs, logs: Logs, names: Names) -> None:
        self.environment: dict[str, str] = {}
        self.prefix: list[str] = []
        self.restarts = 0
        self.folder: Path | None = None
        self.preemptions = Preemptions()
        self.capacity = Capacity()
        self.bill = Bill()
        self.identity: Callable[[str], dict[str, str]] = lambda account: {}
        self.grace_s = _GRACE_S
        self._jobs, self._logs, self._names = jobs, logs, names
        self._runs: dict[str, _Run] = {}

    def run_jobs(self, rehearse: str = "", **environment: str) -> None:
        """Makes new jobs run.

        Args:
            rehearse: the devices of the training step in place of GPUs, such as cpu:1.
            environment: further variables of every replica.
        """
        self.environment.update(environment)
        if rehearse:
            self.environment["GPU_PIPELINES_REHEARSE"] = rehearse
        self._jobs.start, self._jobs.stop = self._start, self._stop

    def close(self) -> None:
        """Ends all running jobs."""
        for run in self._runs.values():
            run.kill()

    def preempt(self, name: str, replica: int = 0) -> None:
        """Takes the machine of a replica away now, counted from 0 over all pools of a running job."""
        self._runs[name].ordered = replica

    def start_process(self, command: Sequence[str], variables: Mapping[str, str], say: Say) -> Process:
        """Starts a command, whose output lines go to `say`.

        Raises:
            OSError: it cannot be started.
        """
        process = subprocess.Popen(
            [*self.prefix, *command],
            env=variables,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        streams = ((process.stdout, "INFO"), (process.stderr, "ERROR"))
        readers = [threading.Thread(target=_read, args=(*each, say), daemon=True) for each in streams]
        for reader in readers:
            reader.start()
        return process, readers

    def _start(self, job: Any) -> None:
        self._runs[job.name] = _Run(self, job, self._jobs, self._logs, self._names.project(job.name))
        self._runs[job.name].thread.start()

    def _stop(self, name: str) -> bool:
        run = self._runs.get(name)
        if run is None or not run.thread.is_alive():
            return False
        run.cancelled.set()
        return True


class _Run:
    """One running job, watched by a thread."""

    def __init__(self, settings: Replicas, job: Any, jobs: CustomJobs, logs: Logs, project: str) -> None:
        self._settings, self._job, self._jobs, self._logs, self._project = settings, job, jobs, logs, project
        self.replicas = [
            Replica(pool, index, f"127.0.0.1:{free_port()}")
            for pool, spec in enumerate(job.job_spec.worker_pool_specs)
            for index in range(spec.replica_count)
        ]
        self.cancelled = threading.Event()
        self.ordered: int | None = None
        self._next_preemption = settings.preemptions.of_job(job, len(self.replicas))
        self._preempted = 0
        self._killed = False
        self.thread = threading.Thread(target=self._run, daemon=True, name=f"job {job.name}")

    def kill(self) -> None:
        self._killed = True
        self.cancelled.set()
        for replica in self.replicas:
            replica.signal(signal.SIGKILL)
        if self.thread.ident is not None:
            self.thread.join(_GRACE_S)

    def _run(self) -> None:
        error = ""
        try:
            if self._has_machines():
                self._settings.bill.begin(self._job)
                self._jobs.set_state(self._job.name, "JOB_STATE_RUNNING")
                for replica in self.replicas:
                    self._launch(replica)
                error = self._wait()
            elif not self.cancelled.is_set():
                error = stockout(region_of(self._job.name))
        except OSError as problem:
            error = f"The replica could not be started: {problem}"
        self._end(error)
        self._settings.bill.end(self._job.name)
        self._settings.capacity.free(self._job.name)
        if self.cancelled.is_set():
            state, error = "JOB_STATE_CANCELLED", ""
        else:
            state = "JOB_STATE_FAILED" if error else "JOB_STATE_SUCCEEDED"
        self._say("service", error or f"Job {'cancelled' if self.cancelled.is_set() else 'completed successfully'}.")
        self._jobs.set_state(self._job.name, state, error, _RESOURCE_EXHAUSTED if "STOCKOUT" in error else 3)

    def _has_machines(self) -> bool:
        """Takes the machines of the job, or queues for them if its strategy says so."""
        name, capacity = self._job.name, self._settings.capacity
        place = (name, region_of(name), accelerators_of(self._job.job_spec))
        if not waits(self._job):
            return capacity.take(*place)
        if capacity.wait(*place, 0.0, self.cancelled.is_set):
            return True
        self._jobs.set_state(name, "JOB_STATE_QUEUED")
        return capacity.wait(*place, longest_wait(self._job), self.cancelled.is_set)

    def _wait(self) -> str:
        """Waits for the primary replica; returns the error, or an empty text."""
        due = self._due()
        while not self.cancelled.wait(_LOOK_S):
            lost = self._lost(due)
            if lost is not None:
                if error := self._preempt(lost):
                    return error
                due = self._due()
                continue
            for replica in self.replicas:
                code = replica.code
                if not code:
                    continue
                if self._may_restart(replica):
                    self._restart(replica)
                    continue
                return (
                    f"The replica {replica.name} exited with a non-zero status of {code if code > 0 else 128 - code}. "
                    "To find out more about why your job exited please check the logs."
                )
            if self.replicas[0].code == 0:
                return ""
        return ""

    def _due(self) -> tuple[float, int] | None:
        """The time of the next preemption, and its replica."""
        found = self._next_preemption()
        return (time.monotonic() + found.seconds, found.replica) if found else None

    def _lost(self, due: tuple[float, int] | None) -> Replica | None:
        """The replica whose machine is taken away now, if any."""
        number, self.ordered = self.ordered, None
        if number is None and due and time.monotonic() >= due[0] and self._settings.preemptions.take():
            number = due[1]
        return None if number is None else self.replicas[number]

    def _preempt(self, lost: Replica) -> str:
        """Takes the machine of a replica away, and starts it on another; returns an error that ends the job, or ""."""
        self._preempted += 1
        self._say("service", f"The machine of the replica {lost.name} was preempted.", "WARNING")
        scheduling = self._job.job_spec.scheduling
        stopped = self.replicas if scheduling.restart_job_on_worker_restart else [lost]
        self._stop_within_grace(stopped)
        capacity, region = self._settings.capacity, region_of(self._job.name)
        capacity.free(self._job.name)
        again = capacity.take(self._job.name, region, accelerators_of(self._job.job_spec))
        if scheduling.disable_retries or self._preempted > MOST_RESTARTS or not again:
            return stockout(region_of(self._job.name))
        if not self.cancelled.is_set():
            for replica in stopped:
                replica.restarts += 1
                self._launch(replica)
        return ""

    def _stop_within_grace(self, replicas: list[Replica]) -> None:
        """Sends SIGTERM, and SIGKILL to the processes left after the grace period."""
        for replica in replicas:
            replica.signal(signal.SIGTERM)
        until = time.monotonic() + self._settings.grace_s
        while any(replica.code is None for replica in replicas) and time.monotonic() < until and not self._killed:
            time.sleep(_LOOK_S)
        for replica in replicas:
            replica.signal(signal.SIGKILL)
            if replica.process:
                replica.process.wait()

    def _may_restart(self, replica: Replica) -> bool:
        return replica.restarts < self._settings.restarts and not self._job.job_spec.scheduling.disable_retries

    def _restart(self, failed: Replica) -> None:
        restarted = [failed]
        if self._job.job_spec.scheduling.restart_job_on_worker_restart:
            restarted = self.replicas
        for replica in restarted:
            replica.signal(signal.SIGKILL)
            if replica.process:
                replica.process.wait()
        for replica in restarted:
            replica.restarts += 1
            self._launch(replica)

    def _end(self, error: str) -> None:
        """Waits for the other replicas, and ends those that do not end by themselves."""
        if error or self.cancelled.is_set():
            for replica in self.replicas:
                replica.signal(signal.SIGKILL if self._killed else signal.SIGTERM)
        until = time.monotonic() + self._settings.grace_s
        while any(replica.process and replica.code is None for replica in self.replicas):
            stands_in = [r for r in self.replicas if r.code is None and self._is_reduction_server(r)]
            if time.monotonic() > until or len(stands_in) == sum(r.code is None for r in self.replicas):
                for replica in self.replicas:
                    replica.signal(signal.SIGKILL)
            time.sleep(_LOOK_S)
        for replica in self.replicas:
            # Its child processes would keep its output open.
            replica.signal(signal.SIGKILL)
            for reader in replica.readers:
                reader.join(_GRACE_S)

    def _launch(self, replica: Replica) -> None:
        container = self._job.job_spec.worker_pool_specs[replica.pool].container_spec
        command = [*container.command, *container.args]
        if self._is_reduction_server(replica):
            command = [sys.executable, "-c", "import signal; signal.pause()"]
        if not command:
            raise OSError(f"{replica.name} has no command, and this server runs no images.")
        say = partial(self._say, replica.name)
        replica.process, readers = self._settings.start_process(command, self._environment(replica), say)
        replica.readers += readers

    def _is_reduction_server(self, replica: Replica) -> bool:
        container = self._job.job_spec.worker_pool_specs[replica.pool].container_spec
        return _REDUCTION_SERVER in container.image_uri and not container.command

    def _say(self, task: str, line: str, severity: str = "INFO") -> None:
        labels = {"job_id": self._job.name.rpartition("/")[2], "task_name": task}
        self._logs.write(self._project, "ml_job", labels, line, severity)

    def _environment(self, replica: Replica) -> dict[str, str]:
        own = container_variables()
        spec, job_id = self._job.job_spec, self._job.name.rpartition("/")[2]
        _, number, _, region, *_ = self._job.name.split("/")
        own |= {"CLOUD_ML_JOB_ID": job_id, "CLOUD_ML_PROJECT_ID": number, "CLOUD_ML_REGION": region}
        if prefix := spec.base_output_directory.output_uri_prefix:
            folders = {"MODEL_DIR": "model", "CHECKPOINT_DIR": "checkpoints", "TENSORBOARD_LOG_DIR": "logs"}
            own |= {f"AIP_{name}": f"{prefix.rstrip('/')}/{folder}/" for name, folder in folders.items()}
        named = {variable.name: variable.value for variable in spec.worker_pool_specs[replica.pool].container_spec.env}
        own |= cluster_variables(self.replicas, replica, as_json(spec), named.get("CLOUD_ML_TRIAL_ID", ""))
        account = spec.service_account or f"service-{number}@gcp-sa-aiplatform-cc.iam.gserviceaccount.com"
        own |= {"OMP_NUM_THREADS": "1"} | self._settings.environment | self._settings.identity(account)
        return own | named


def _read(stream: Any, severity: str, say: Say) -> None:
    for line in stream:
        say(line.decode("utf-8", "replace").rstrip("\n"), severity)


def container_variables() -> dict[str, str]:
    """The environment that a container gets from this machine: few variables, and this Python first on the path."""
    # Steps that install packages use the same index as pip here.
    kept = {name: value for name, value in os.environ.items() if name in _KEPT or name.startswith("PIP_")}
    return {**kept, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', '')}"}


def cluster_variables(
    replicas: list[Replica], own: Replica, spec: Mapping[str, Any], trial: str = ""
) -> dict[str, str]:
    """`CLUSTER_SPEC` of a replica, and `TF_CONFIG` if there are several.

    https://cloud.google.com/vertex-ai/docs/training/distributed-training.
    """
    pools: dict[int, list[str]] = {}
    for replica in replicas:
        pools.setdefault(replica.pool, []).append(replica.address)
    cluster = {
        "cluster": {f"workerpool{pool}": addresses for pool, addresses in pools.items()},
        "environment": "cloud",
        "task": {"type": f"workerpool{own.pool}", "index": own.index, "trial": trial},
        "job": spec,
    }
    variables = {"CLUSTER_SPEC": json.dumps(cluster)}
    if len(replicas) > 1:
        roles = ("chief", "worker", "ps", "evaluator")
        config = {
            "cluster": {roles[pool]: addresses for pool, addresses in pools.items() if roles[pool] != "evaluator"},
            "environment": "cloud",
            "task": {"type": roles[own.pool], "index": own.index},
        }
        variables["TF_CONFIG"] = json.dumps(config)
    return variables
