"""Creates a VM with gcloud, in the first zone that has a machine left."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_pipelines.errors import UnavailableError, UserError
from gpu_pipelines.targets.compute_engine.formats import create_command
from gpu_pipelines.targets.compute_engine.spec import VirtualMachine

#: Compute Engine's messages if a zone has no such machine left, or none of this type at all: the catalog knows which
#: GPUs zones have, as of a day.
STOCKOUT = re.compile(
    r"ZONE_RESOURCE_POOL_EXHAUSTED|does not have enough resources|STOCKOUT|is currently unavailable in the"
    r"|Machine type with name '[^']+' does not exist in zone|acceleratorTypes/[^ ]+ was not found"
)
#: The message of a gcloud that is too old for Flex-start VMs.
_UNKNOWN_FLAGS = ("unrecognized arguments: --request-valid-for-duration", "Invalid choice: 'FLEX_START'")


class CreationError(UnavailableError):
    """Compute Engine did not create the VM, although the request passed all checks here."""


@dataclass(frozen=True, repr=False)
class CreatedVm:
    """A VM that was created.

    Attributes:
        vm: the requested VM, with its zone.
        status: its status in Compute Engine, usually `RUNNING`.
    """

    vm: VirtualMachine
    status: str

    def __repr__(self) -> str:
        return f"CreatedVm {self.vm.name} in {self.vm.zone}: {self.status}"


def create_vm(
    vm: VirtualMachine, tell: Callable[[str], None], note: Callable[[VirtualMachine], None] = lambda _: None
) -> CreatedVm:
    """Creates the VM and waits until it starts.

    Args:
        vm: the VM to create; if its zone has no machine left, its other zones are tried in order.
        tell: gets a line for every zone that is tried.
        note: gets the VM before it is requested in a zone, so that others can find it if this process dies meanwhile.

    Raises:
        UserError: there is no gcloud, or it is too old.
        CreationError: Compute Engine refuses, or no zone has a machine left.
    """
    zones = (vm.zone, *vm.other_zones)
    for number, zone in enumerate(zones, 1):
        here = vm.in_zone(zone)
        tell(f"creating {vm.name} in {zone}")
        note(here)
        done = _run(here)
        if done.returncode == 0:
            return CreatedVm(here, _status(done.stdout))
        if any(sign in done.stderr for sign in _UNKNOWN_FLAGS):
            raise UserError(
                "This gcloud does not know Flex-start VMs.",
                "Update it (gcloud components update), or use --strategy spot.",
            )
        if not STOCKOUT.search(done.stderr):
            raise CreationError(f"gcloud did not create {vm.name} in {zone}:\n{done.stderr.strip()}")
        if number == len(zones):
            raise CreationError(
                f"No machine of type {vm.machine_type} is left in {', '.join(zones)}:\n{done.stderr.strip()}\n"
                "  Try again later, in another region, or with --strategy flex-start, which waits for one."
            )
        tell(f"{zone} has none left")
    raise AssertionError("there is at least one zone")


def _run(vm: VirtualMachine) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory(prefix="gpu-pipelines-") as folder:
        script = Path(folder) / "startup.sh"
        script.write_text(vm.script, encoding="utf-8")
        command = [*create_command(vm, str(script)), "--quiet", "--format=json"]
        return run_gcloud(command)


def run_gcloud(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Runs a command of gcloud to its end.

    Raises:
        UserError: there is no gcloud.
    """
    if shutil.which("gcloud") is None:
        raise UserError(
            "There is no gcloud on this machine.",
            "Install it (https://cloud.google.com/sdk/docs/install), or use vm config --format terraform.",
        )
    return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)


def _status(answer: str) -> str:
    try:
        instances: Any = json.loads(answer)
        return str(instances[0]["status"])
    except (ValueError, LookupError, TypeError):
        return "unknown"


def ways_to_it(vm: VirtualMachine) -> dict[str, list[str]]:
    """The commands that show, enter, continue and remove a VM, by purpose."""
    place = [vm.name, f"--zone={vm.zone}", f"--project={vm.project}"]
    tunnel = [] if vm.external_ip else ["--tunnel-through-iap"]
    return {
        "follow": ["gcloud", "compute", "instances", "tail-serial-port-output", *place],
        "ssh": ["gcloud", "compute", "ssh", *place, *tunnel],
        "start again": ["gcloud", "compute", "instances", "start", *place],
        "delete": ["gcloud", "compute", "instances", "delete", *place],
    }
