"""A request: `h100:8` and the choices beside it, as the user wrote them, and how a name finds its GPU."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from functools import lru_cache

from gpu_pipelines.accelerators.catalog import Catalog, ElsewhereGpu, Gpu
from gpu_pipelines.errors import UserError

STRATEGIES = ("standard", "spot", "flex-start", "reservation")
CPU = "cpu"
#: Far beyond any real job: it keeps typing errors from becoming bills. A limit of this project.
MAX_NODES = 1024
#: As many CPU processes as a rehearsal on one machine can need. A limit of this project.
MAX_CPU_PROCESSES = 256

_SPEC = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9_ ./-]{0,63}?)\s*:\s*([0-9]{1,18})\s*")
_SHOWN = 40


@dataclass(frozen=True)
class PlanRequest:
    """A choice of accelerator before it is checked.

    Attributes:
        spec: `NAME:COUNT`, GPUs per machine, `NAME/PARTITION:1`, a part of a GPU, or `cpu:PROCESSES`.
        nodes: number of machines.
        region: Google Cloud region; None leaves it open.
        strategy: one of `STRATEGIES`; None means `reservation` where one is named and `standard` otherwise.
        machine_type: machine type; None takes the smallest that fits.
        reservation: `projects/P/zones/Z/reservations/R`; None with the strategy `reservation` takes any that matches.
        hours: the longest the job may run; None leaves it open.
        memory_gb: main memory that each machine must have, GB; None asks for as much as its GPUs have.
    """

    spec: str
    nodes: int = 1
    region: str | None = None
    strategy: str | None = None
    machine_type: str | None = None
    reservation: str | None = None
    hours: float | None = None
    memory_gb: float | None = None

    @property
    def chosen_strategy(self) -> str:
        """The strategy, with the default filled in."""
        return self.strategy or ("reservation" if self.reservation else "standard")

    def command(self) -> str:
        """The request as arguments of `gpu-pipelines accelerators plan`, for a shell."""
        flags = {
            "nodes": None if self.nodes == 1 else self.nodes,
            "region": self.region,
            "strategy": self.strategy,
            "machine-type": self.machine_type,
            "reservation": self.reservation,
            "hours": None if self.hours is None else f"{self.hours:g}",
            "memory": None if self.memory_gb is None else f"{self.memory_gb:g}",
        }
        return " ".join(
            [shlex.quote(self.spec), *(f"--{name} {value}" for name, value in flags.items() if value not in (None, ""))]
        )


def split_spec(spec: str) -> tuple[str, int] | None:
    """`NAME:COUNT` as name and number; None if it does not have that form."""
    match = _SPEC.fullmatch(spec)
    return (match[1], int(match[2])) if match else None


def split_partition(name: str) -> tuple[str, str]:
    """The GPU and the size of a partition of it, `a100` and `1g.5gb` of `a100/1g.5gb`; the size is empty for none."""
    gpu, _, size = name.partition("/")
    return gpu.strip(), size.strip().lower()


def require_gpu(spec: str, where: str) -> None:
    """Checks that a specification is not for CPU processes of this machine.

    Args:
        spec: `NAME:COUNT`.
        where: where it is to run, such as "Vertex AI".

    Raises:
        UserError: it is `cpu:N`.
    """
    parts = split_spec(spec)
    if parts is not None and canonical(parts[0]) == CPU:
        raise UserError(
            f"{spec.strip()} is for this machine; {where} has no such machine.", "Choose a GPU, such as l4:1."
        )


def canonical(text: str) -> str:
    """A name without what people write differently: case, `_` or a space for `-`."""
    return re.sub(r"[_\s]+", "-", text.strip().lower())


def find_gpu(catalog: Catalog, name: str) -> Gpu | ElsewhereGpu | None:
    """The GPU of that name: short name, accelerator type (`NVIDIA_L4`), Compute Engine name, or alias."""
    return _names(catalog).get(canonical(name))


def known_names(catalog: Catalog) -> list[str]:
    """Every name that `find_gpu` knows."""
    return list(_names(catalog))


@lru_cache(maxsize=4)
def _names(catalog: Catalog) -> dict[str, Gpu | ElsewhereGpu]:
    names: dict[str, Gpu | ElsewhereGpu] = {}
    for other in catalog.elsewhere.values():
        for name in (other.name, *other.aliases):
            names[name] = names[f"nvidia-{name}"] = names[f"geforce-{name}"] = other
    for gpu in catalog.gpus.values():
        for name in (gpu.name, canonical(gpu.enum), gpu.compute_engine_name, *gpu.aliases):
            names[name] = names[f"nvidia-{name.removeprefix('nvidia-')}"] = gpu
            names[name.removeprefix("nvidia-")] = gpu
    return names


def shown(text: str) -> str:
    """The user's text as an error may show it: quoted, on one line, short."""
    if len(text) <= _SHOWN:
        return repr(text)
    return f"{text[:_SHOWN]!r}… ({len(text)} characters)"
