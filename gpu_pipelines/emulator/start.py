"""Starts an emulator that runs what it gets: the server, with pipelines, custom jobs and schedules."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from gpu_pipelines.emulator.certificates import Certificates
from gpu_pipelines.emulator.faults import Rate
from gpu_pipelines.emulator.jobs.capacity import Capacity, limits_of, places_of
from gpu_pipelines.emulator.jobs.preemption import PreemptionRule, Preemptions
from gpu_pipelines.emulator.project.permission_file import read_permissions
from gpu_pipelines.emulator.project.permissions import Permissions
from gpu_pipelines.emulator.running.batch_prediction import BatchPredictor
from gpu_pipelines.emulator.running.clock import Clock
from gpu_pipelines.emulator.running.pipelines import PipelineBackend
from gpu_pipelines.emulator.running.tuning import Tuner
from gpu_pipelines.emulator.server import serving
from gpu_pipelines.emulator.vertex_api import VertexApi


@dataclass(frozen=True, kw_only=True)
class EmulatorSettings:
    """The settings of an emulator.

    Attributes:
        host: address to listen at.
        port: port to listen at; 0 for a free one.
        state: folder of its state; None for a temporary one.
        rehearse: CPU processes in place of the GPUs of each machine, such as cpu:1.
        certificates: the server's certificates; None takes those of the state.
        faults: random failures of requests: texts of the form SERVICE:CODE:RATE.
        preempt: preemptions of Spot machines: seconds or a probability, as for `PreemptionRule.of`.
        capacity: the available machines, as for `places_of`.
        quota: accelerators that the project may use, in the same form.
        permissions: file with the permissions of accounts; None for everything.
        seed: the seed of everything random.
        speed: seconds of the schedules per second.
    """

    host: str = "127.0.0.1"
    port: int = 0
    state: Path | None = None
    rehearse: str = "cpu:1"
    certificates: Certificates | None = None
    faults: tuple[str, ...] = ()
    preempt: str = ""
    capacity: tuple[str, ...] = ()
    quota: tuple[str, ...] = ()
    permissions: Path | None = None
    seed: int = 0
    speed: float = 1.0


@contextmanager
def running_emulator(settings: EmulatorSettings | None = None) -> Iterator[VertexApi]:
    """Runs an emulator during the block.

    Args:
        settings: the settings; by default a free port and a temporary state.

    Raises:
        UserError: it cannot be started with these.
    """
    settings = settings or EmulatorSettings()
    rates = [Rate.of(text) for text in settings.faults]
    rule = PreemptionRule.of(settings.preempt) if settings.preempt else None
    capacity, quota = places_of("--capacity", settings.capacity), places_of("--quota", settings.quota)
    grants = read_permissions(settings.permissions) if settings.permissions else None
    with ExitStack() as stack:
        folder = settings.state
        if folder is None:
            made = tempfile.TemporaryDirectory(prefix="gpu-pipelines-emulator-", ignore_cleanup_errors=True)
            folder = Path(stack.enter_context(made))
        folder = folder.expanduser().absolute()
        api = stack.enter_context(serving(folder, settings.certificates, settings.host, settings.port))
        api.faults.by_chance(rates, settings.seed)
        api.state.replicas.preemptions = Preemptions(rule, settings.seed)
        api.state.replicas.capacity = Capacity(capacity)
        api.state.permissions = Permissions(api.state.permissions.caller, grants)
        api.state.project.limits.update(limits_of(quota))
        backend = PipelineBackend(api, settings.rehearse)
        backend.run_jobs()
        stack.callback(backend.close)
        tuner = Tuner(api.state.tuning_jobs, api.state.custom_jobs, api.folder / "work/trials", settings.seed)
        tuner.run_jobs()
        stack.callback(tuner.close)
        predictor = BatchPredictor(api, api.folder / "work/predictions")
        predictor.run_jobs()
        stack.callback(predictor.close)
        clock = Clock(api.state.schedules, api.state.pipeline_jobs, settings.speed)
        clock.start()
        stack.callback(clock.close)
        yield api
