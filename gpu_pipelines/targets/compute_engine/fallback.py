"""A run on one VM after the other, until one is available: choices are in its request, tries in its bucket.

The process that submitted a run, or follows it, sends the next VM. The earlier VM is deleted, and gone, before the next
is created. Checkpoints are in the bucket, so the next VM continues from them; prepared data is on the disk of the
earlier VM, and is prepared again.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from gpu_pipelines.accelerators.cost import dollars_per_hour
from gpu_pipelines.accelerators.fallback import named
from gpu_pipelines.accelerators.spent import MachineTime
from gpu_pipelines.distributed.signals import Signalled
from gpu_pipelines.errors import NoMachinesError, QuotaExceededError, UserError
from gpu_pipelines.step_environment import TRIES
from gpu_pipelines.targets.compute_engine.boot_image import BootImage
from gpu_pipelines.targets.compute_engine.create import STOCKOUT, CreationError, create_vm
from gpu_pipelines.targets.compute_engine.instance import Instance
from gpu_pipelines.targets.compute_engine.run_folder import STATE, VmRun
from gpu_pipelines.targets.compute_engine.spec import VirtualMachine
from gpu_pipelines.targets.compute_engine.startup import StartupSettings
from gpu_pipelines.targets.container import Container
from gpu_pipelines.targets.fallback.tries import (
    FAILED,
    FOLDER,
    INTERRUPTED,
    PREEMPTED,
    SENT,
    Choice,
    Tries,
    Try,
    tries_at,
)
from gpu_pipelines.targets.fallback.trying import send, take_over

if TYPE_CHECKING:
    from gpu_pipelines.accelerators import AcceleratorPlan

#: Fields of a request: the choices to try, and the price limit.
CHOICES, MAX_PRICE = "choices", "max_price"
_QUOTA = re.compile(r"QUOTA_EXCEEDED|[Qq]uota .{0,200}[Ee]xceeded")
#: gcloud waits for the end of a creation, which takes a minute; with Flex-start it also waits for the machine.
_PATIENCE = 300.0


def choices_of(machines: Sequence[tuple[VirtualMachine, AcceleratorPlan]], max_price: float | None) -> dict[str, Any]:
    """The VMs of a request that are tried in order."""
    choices = [
        Choice(
            told=named(plan),
            region=plan.region or "",
            per_hour=dollars_per_hour(plan),
            hours=plan.hours,
            machines={
                "vm": asdict(vm),
                "strategy": plan.strategy,
                "gpu": plan.gpu.name if plan.gpu else "",
                "gpus": plan.count,
            },
        )
        for vm, plan in machines
    ]
    return {CHOICES: [asdict(each) for each in choices], MAX_PRICE: max_price}


def tries_of(run: VmRun, request: Mapping[str, Any]) -> Tries | None:
    """The tries of a run; None if there is only one VM and no price limit."""
    if not request.get(CHOICES):
        return None
    root = run.uri.removesuffix(f"/runs/{run.name}")
    choices = Choice.each_of(request[CHOICES])
    return tries_at(f"{root}/{FOLDER}/{run.name}", "vm", run.name, choices, request.get(MAX_PRICE))


def machines_tried(tries: Tries, step: str) -> list[MachineTime]:
    """The VMs of a run and how long each existed, for the cost.

    Args:
        tries: what was tried.
        step: name of the step in the account.
    """
    found = []
    for made in tries.made:
        if made.began is not None:
            choice = tries.choice_of(made)
            vm, bought = vm_of(choice), choice.machines
            given = (vm.machine_type, str(bought["gpu"]), int(bought["gpus"]), 1, made.seconds, str(bought["strategy"]))
            found.append(MachineTime(step, f"try {made.number}", *given, choice.region))
    return found


def vm_of(choice: Choice) -> VirtualMachine:
    """The VM of a choice."""
    content = json.loads(json.dumps(choice.machines["vm"]))
    startup = content["startup"]
    container = Container(**startup.pop("container"))
    return VirtualMachine(
        **{
            **content,
            "other_zones": tuple(content["other_zones"]),
            "accelerator": tuple(content["accelerator"]) if content["accelerator"] else None,
            "boot_image": BootImage(**content["boot_image"]),
            "scopes": tuple(content["scopes"]),
            "warnings": tuple(content["warnings"]),
            "startup": StartupSettings(container=container, **startup),
        }
    )


@dataclass
class Vms:
    """The VMs of a run; one exists at a time.

    Attributes:
        run: the run.
        tries: what was tried.
        tell: takes a line.
        before: the VM of the choice before; None if there is none.
    """

    run: VmRun
    tries: Tries
    tell: Callable[[str], None]
    before: Instance | None = None

    def send(self, choice: Choice, made: Try, seconds: float | None) -> str:
        """Starts the VM again if it is of this choice, or creates one; returns `ZONE/NAME`."""
        vm = vm_of(choice)
        if self.before is not None and _is_same(self.tries):
            _require_done(self.before.start())
            return f"{self.before.zone}/{vm.name}"
        if self.before is not None:
            _delete(self.before)
            self.before = None
        if seconds is not None:
            limit = int(seconds) if vm.max_run_seconds is None else min(vm.max_run_seconds, int(seconds))
            vm = replace(vm, max_run_seconds=limit, termination_action=vm.termination_action or "STOP")
        environment = {**vm.startup.environment, TRIES: self.tries.for_report()}
        vm = replace(vm, startup=replace(vm.startup, environment=environment))
        try:
            created = create_vm(vm, self.tell, lambda here: self._write(here, choice)).vm
        except CreationError as error:
            raise _explained(str(error)) from error
        return f"{created.zone}/{created.name}"

    def find(self, choice: Choice, made: Try) -> str | None:
        """The VM of the run, in the zones of a choice."""
        vm = vm_of(choice)
        for zone in (vm.zone, *vm.other_zones):
            instance = Instance(vm.in_zone(zone).place)
            if found := instance.look():
                self._write(vm.in_zone(zone), choice)
                if found.get("status") in ("TERMINATED", "STOPPED"):
                    _require_done(instance.start())
                return f"{zone}/{vm.name}"
        return None

    def cancel(self, choice: Choice, job: str) -> None:
        """Deletes a VM."""
        _delete(Instance(vm_of(choice).in_zone(job.partition("/")[0]).place))

    def _write(self, vm: VirtualMachine, choice: Choice) -> None:
        """Records the VM in the state of the run."""
        state = self.run.read(STATE)
        if state["status"] != "cancelled":
            self.run.write(STATE, {**state, "vm": vm.place, "strategy": choice.machines["strategy"]})


def go_on(run: VmRun, tries: Tries, before: Instance | None, tell: Callable[[str], None]) -> VirtualMachine:
    """Starts the VM of a run again, or creates that of the next choice, until one runs.

    Args:
        run: the run.
        tries: what was tried; its last one was preempted if it is open and has a VM.
        before: the VM that it has, which does not run; None for none.
        tell: takes a line.

    Returns:
        The VM that runs.

    Raises:
        NoMachinesError: no VM is available, or the money is spent; no VM is left.
        UserError: Compute Engine refuses it for another reason.
    """
    vms = Vms(run, tries, tell, before)
    if tries.current and tries.current.job:
        tries.change(state=PREEMPTED, ended=time.time())
    while True:
        made = tries.current
        if made is None:
            try:
                made = tries.begin()
            except NoMachinesError:
                if vms.before is not None:
                    _delete(vms.before)
                raise
            if made is None:
                continue
            tell(f"{made.told}: choice {made.choice + 1} of {len(tries.choices)}")
            send(tries, vms, made, tell)
        elif not made.job:
            longest = vm_of(tries.choice_of(made)).max_wait_seconds or 0
            take_over(tries, vms, made, Signalled(), tell, _PATIENCE + longest)
        current = tries.current
        if current is not None and current.state == SENT:
            if current.began is None:
                tries.change(began=time.time())
            return vm_of(tries.choice_of(current)).in_zone(current.job.partition("/")[0])


def note_end(tries: Tries, status: str) -> None:
    """Records that a run has ended."""
    if tries.current is not None:
        tries.change(state=status if status in ("succeeded", FAILED) else INTERRUPTED, ended=time.time())


def _is_same(tries: Tries) -> bool:
    """Whether the try that is being sent has the same choice as the one before."""
    return len(tries.made) > 1 and tries.made[-1].choice == tries.made[-2].choice


def _require_done(refused: str) -> None:
    if refused:
        raise _explained(refused)


def _explained(said: str) -> UserError:
    """The meaning of Compute Engine's message: no machines, no quota, or something else."""
    if STOCKOUT.search(said):
        return NoMachinesError(said)
    return QuotaExceededError(said) if _QUOTA.search(said) else UserError(said)


def _delete(instance: Instance) -> None:
    """Deletes a VM and checks that it is gone, so that two never cost at once.

    Raises:
        UserError: it is not gone.
    """
    refused = instance.delete()
    if refused or instance.look():
        raise UserError(
            f"The VM {instance.name} was not deleted, so no other is created: {refused or 'it is still there'}",
            "It is billed until it is deleted. Delete it, then follow the run again.",
        )
