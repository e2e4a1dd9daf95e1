"""A VM of Compute Engine as a target: it runs the whole pipeline, leaves it in a bucket, and stops itself."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from gpu_pipelines.accelerators.fallback import Fallback, named
from gpu_pipelines.errors import UserError, as_data
from gpu_pipelines.notifications.recipients import recipients_of
from gpu_pipelines.project_settings import ProjectSettings
from gpu_pipelines.registry import VERTEX
from gpu_pipelines.step_environment import preemption_variables
from gpu_pipelines.targets.cloud import told_left_out
from gpu_pipelines.targets.compiled import compiled, documents_of
from gpu_pipelines.targets.local.cluster_parts import require_no_cluster
from gpu_pipelines.targets.local.own import require_no_container
from gpu_pipelines.targets.local.target import LocalTarget
from gpu_pipelines.targets.messages import Compiled, Done, Outcome, Request, Submission, Values
from gpu_pipelines.targets.options import (
    CONTAINER,
    DOCTOR,
    LOOKING,
    MACHINES,
    PROJECT,
    STARTED,
    CloudOptions,
    accelerators,
    command_of_container,
    fixed,
    option,
    setting,
    words_of,
)
from gpu_pipelines.targets.own.pipeline import own_pipeline
from gpu_pipelines.targets.runs.account import RunAccount, with_cost
from gpu_pipelines.targets.runs.names import NAMED_HERE, new_run_name
from gpu_pipelines.targets.target import Target

if TYPE_CHECKING:
    from gpu_pipelines.accelerators import AcceleratorPlan
    from gpu_pipelines.targets.compute_engine.run_folder import VmRun
    from gpu_pipelines.targets.compute_engine.spec import VirtualMachine
    from gpu_pipelines.targets.container import Container
    from gpu_pipelines.targets.messages import Watch

    Machine = tuple[VirtualMachine, AcceleratorPlan]

#: The roles of the service account limit what a pipeline may use, such as its registry and BigQuery.
_SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)
#: Characters of a pipeline's name in that of a run, which is also the VM's name and may have 63 in all.
_LONGEST_STEM = 40
#: Label of a run's VM, with the name of the run.
RUN_LABEL = "gpu_pipelines_run"

_VM = ("vm",)
#: Commands that create a VM: for the user's own container, and for a whole pipeline.
_MADE = ("vm", "run")


@dataclass(frozen=True, kw_only=True)
class MachineOptions(CloudOptions):
    """The options of a VM, whatever it runs."""

    evaluation_accelerator: str | None = None
    zone: str | None = option(None, "Zone; by default one of the region that has the GPU.", _MADE, group=MACHINES)
    boot_disk_gb: int = option(200, "Boot disk of each machine.", _MADE, group=MACHINES, metavar="GB")
    at_end: str = option(
        "stop",
        "What happens to the VM at the end: stop, delete or keep.",
        _MADE,
        group=MACHINES,
        words=fixed("stop", "delete", "keep"),
    )
    service_account: str | None = setting(
        "Service account that jobs, or the VM, run as.", _MADE, "service_account", metavar="EMAIL"
    )
    subnet: str | None = option(None, "Subnet, by name or full name.", _MADE, group=PROJECT, metavar="NAME")
    external_ip: bool = option(True, "Give the VM a public IP address.", _MADE, group=PROJECT)
    encryption_key: str | None = setting("Cloud KMS key, by its full name.", _MADE, "encryption_key", metavar="NAME")
    image_family: str | None = option(
        None, "Boot from this image family instead.", _MADE, group=CONTAINER, metavar="NAME"
    )
    image_project: str | None = option(None, "Project of --image-family.", _MADE, group=CONTAINER, metavar="ID")
    label: list[str] | None = option(
        None, "A label of the jobs, or of the VM. Repeatable.", _MADE, group=PROJECT, metavar="KEY=VALUE"
    )

    def machine_for(self, container: Container, settings: ProjectSettings, **more: Any) -> Machine:
        """The VM that runs a container, and its plan; `more` are further fields of `VmOptions`.

        Raises:
            UserError: lists what is wrong or missing.
        """
        from gpu_pipelines.accelerators import plan
        from gpu_pipelines.accelerators.request import require_gpu

        require_gpu(self.accelerator, "Compute Engine")
        self.require_one_choice("A VM")
        planned = plan(self.accelerator, region=self.region_to_plan(settings), **self.bought)
        return self.machine_on(planned, container, settings, **more)

    def region_to_plan(self, settings: ProjectSettings) -> str | None:
        """The region of the zone, or the given one, or that of the settings; None if none is known."""
        from gpu_pipelines.targets.compute_engine.zones import region_to_plan

        # A reservation has its own zone.
        return region_to_plan(self.zone, self.region, None if self.reservation else settings.region)

    def machine_on(
        self, planned: AcceleratorPlan, container: Container, settings: ProjectSettings, **more: Any
    ) -> Machine:
        """As `machine_for`, on a plan."""
        from gpu_pipelines.targets.compute_engine.spec import VmOptions, virtual_machine

        same = ("zone", "boot_disk_gb", "at_end", "subnet", "external_ip", "image_family", "image_project")
        given = {name: getattr(self, name) for name in same}
        variables = {**preemption_variables(planned.strategy), **self.environment}
        wanted = VmOptions(**given, environment=variables, **more)
        return virtual_machine(planned, container, settings, wanted), planned


@dataclass(frozen=True, kw_only=True)
class VmFlags(MachineOptions):
    """The options of a VM that runs a container."""

    accelerator: str = option("", "GPUs of the VM, NAME:COUNT, such as l4:4.", _VM, metavar="SPEC", words=accelerators)
    nodes: int = option(1, "Always 1; use job submit for several machines.", _VM, hidden=True)
    max_wait: float | None = option(
        None, "With flex-start: longest wait for a machine, 2 at most.", _VM, group=MACHINES, metavar="HOURS"
    )
    image: str | None = setting("Container image to run.", _VM, "image", group=CONTAINER)
    command: str | None = command_of_container(_VM)
    output_dir: str | None = option(
        None,
        "gs://… that AIP_CHECKPOINT_DIR and the like are derived from.",
        _VM,
        group=CONTAINER,
        metavar="URI",
    )
    sync_dir: str | None = option(
        None,
        "Directory in the container to copy to checkpoints/ of --output-dir.",
        _VM,
        group=CONTAINER,
        metavar="DIR",
    )
    name: str | None = option(None, "Name of the VM; by default made from the accelerator.", _VM)
    network: str | None = option(None, "VPC network, by name or full name.", _VM, group=PROJECT, metavar="NAME")

    def machine(self, arguments: Sequence[str]) -> Machine:
        """The VM and its plan; `arguments` are the application's own.

        Raises:
            UserError: lists what is wrong or missing.
        """
        from gpu_pipelines.targets.container import Container

        if not self.accelerator:
            raise UserError(
                "A VM needs GPUs.", "Give --accelerator, such as l4:1; gpu-pipelines accelerators list shows them."
            )
        settings = self.project_settings()
        settings.require("project", "image")
        return self.machine_for(
            Container(settings.image or "", words_of("--command", self.command), arguments),
            settings,
            name=self.name,
            network=self.network,
            max_wait_hours=self.max_wait,
            output_directory=self.output_dir,
            sync_directory=self.sync_dir,
        )


@dataclass(frozen=True, kw_only=True)
class ComputeEngineOptions(MachineOptions):
    """The options of a VM that runs a pipeline."""

    pipeline_root: str | None = setting(
        "Where runs leave artifacts, gs://….", STARTED | LOOKING | DOCTOR, "pipeline_root", metavar="URI"
    )


class ComputeEngine(LocalTarget, Target):
    """A VM of Compute Engine."""

    name = "compute_engine"
    title = readers = "Compute Engine"
    Options = ComputeEngineOptions
    options: ComputeEngineOptions
    registry = VERTEX
    other_registries = "registry=vertex://PROJECT/REGION for Vertex AI Model Registry"

    def __init__(self, options: ComputeEngineOptions | None = None, settings: ProjectSettings | None = None) -> None:
        Target.__init__(self, options, settings)
        LocalTarget.__init__(self)
        told = self.options.notify_nothing_new
        # The VM sends the messages: it runs the pipeline as this machine would.
        self._told = recipients_of(self.options.notify, told, self.settings, variables=())

    def defaults(self) -> dict[str, Any]:
        """The image that serves models, of the project."""
        return {"serving_image": self.settings.serving_image}

    def compile(self, pipeline: str, task: str = "") -> Compiled:
        """Refuses: a VM gets the name of a pipeline and its parameters, and builds it."""
        raise UserError(
            "A VM runs a pipeline by its name, so there is no file to compile.",
            f"Run it: gpu-pipelines run {pipeline} --target {self.name} --accelerator l4:1",
        )

    def load(self, request: Request) -> Compiled:
        """The pipeline with a name, with the plan of the VM, its cost and warnings."""
        from gpu_pipelines.accelerators.cost import dollars_per_hour
        from gpu_pipelines.dag import load_pipeline
        from gpu_pipelines.dag.parameters import other_defaults
        from gpu_pipelines.targets.fallback.places import told_of_data
        from gpu_pipelines.targets.plan_lines import told_cost, told_plan

        if not (request.is_name or request.is_own):
            raise UserError(f"{request.pipeline} is not a pipeline.", "Give a name, or a file.")
        if request.is_own:
            own = own_pipeline(request.pipeline)
            require_no_container(own.steps)
            require_no_cluster(own.steps, own.documents)
            name, spec, built = own.name, own.spec, None
        else:
            own, name, built, pipeline = None, request.pipeline, None, load_pipeline(request.pipeline)
        request.require(self, "project", "pipeline_root", "image")
        machines, asked = self._machines("gs://bucket/run")
        (vm, plan), *others = machines
        if own is None:
            # On the VM it is a pipeline for its own machine, which has no price.
            with other_defaults({"dollars_per_hour": dollars_per_hour(plan) or 0.0}):
                built = pipeline.build(self, None)
            spec = documents_of(compiled(built))[0]
        told = [told_plan(plan), told_cost(plan), *(f"warning: {message}" for message in vm.warnings)]
        told = [*told_left_out(asked), *told]
        told += told_of_data(asked.plans, self.settings)
        told += [f"else {named(each)}: {told_cost(each).strip()}" for _, each in others]
        items, known = own.item_types if own else {}, {"processes": plan.count}
        return Compiled(name, spec=spec, built=built, known=known, origin=own, told=told, item_types=items)

    def submission(self, compiled: Compiled, request: Request, values: Values) -> Submission:
        """The VM with a new name, and what it runs."""
        from gpu_pipelines.accelerators.cost import dollars_per_hour
        from gpu_pipelines.targets.compute_engine.fallback import choices_of
        from gpu_pipelines.targets.compute_engine.formats import create_command, shell_text
        from gpu_pipelines.targets.compute_engine.run_folder import REQUEST, VmRun
        from gpu_pipelines.targets.compute_engine.runs import SETTINGS

        run = VmRun.of(new_run_name(compiled.name, _LONGEST_STEM), self.settings)
        machines, asked = self._machines(run.uri)
        vm, plan = machines[0]
        several = {} if asked.is_plain else choices_of(machines, asked.limits.total)
        price = {"dollars_per_hour": dollars_per_hour(plan) or 0.0}
        told = {"told": asdict(self._told), **price} if self._told else {}
        content = {
            **several,
            "pipeline": compiled.name,
            **({"spec": compiled.spec} if compiled.origin else {}),
            "arguments": dict(values.arguments),
            "taken": dict(values.taken),
            "cache": bool(request.cache),
            **told,
            "settings": {name: value for name in SETTINGS if (value := getattr(self.settings, name))},
        }
        sent = (run, vm, plan, content)
        return Submission(
            sent,
            lambda: [shell_text(create_command(vm, "startup.sh")), *_shown(run.uri, REQUEST, content)],
            lambda: {"command": create_command(vm, "startup.sh"), "folder": run.uri, "request": content},
        )

    def submit(self, submission: Submission) -> Done:
        """Writes the request of the run into the bucket, and creates the VM."""
        from gpu_pipelines.targets.compute_engine.create import create_vm
        from gpu_pipelines.targets.compute_engine.fallback import go_on, tries_of
        from gpu_pipelines.targets.compute_engine.run_folder import REQUEST, STATE, VmRun
        from gpu_pipelines.targets.compute_engine.runs import restart

        if isinstance(submission.content, VmRun):
            restart(found := submission.content)
            told = {"run": found.name, "folder": found.uri}
            return Done(found.name, told, [f"goes on: {found.name}", f"folder: {found.uri}"])
        run, vm, plan, content = submission.content
        tried: list[str] = []
        state: dict[str, Any] = {"run": run.name, "pipeline": content["pipeline"], "status": "starting"}
        machine = {"machine": vm.machine_type, "gpu": plan.gpu.name, "gpus": plan.count, "strategy": plan.strategy}
        state |= {"strategy": plan.strategy, "machine": machine}
        run.write(REQUEST, content)
        run.write(STATE, {**state, "vm": vm.place})
        try:
            if tries := tries_of(run, content):
                return self._done(run, go_on(run, tries, None, tried.append), tried)
            made = create_vm(vm, tried.append, lambda here: run.write(STATE, {**run.read(STATE), "vm": here.place}))
        except UserError as error:
            run.end("failed", error=as_data(error))
            raise
        return self._done(run, made.vm, tried)

    @staticmethod
    def _done(run: VmRun, vm: VirtualMachine, tried: Sequence[str]) -> Done:
        from gpu_pipelines.targets.compute_engine.create import ways_to_it

        lines = [*tried, f"submitted {run.name}", f"folder: {run.uri}", f"ssh: {shlex.join(ways_to_it(vm)['ssh'])}"]
        return Done(run.name, {"run": run.name, "folder": run.uri, "vm": vm.place}, lines)

    def is_run(self, run: str) -> bool:
        """Whether a name has the form of this target's runs."""
        return bool(NAMED_HERE.fullmatch(run))

    def retried(self, run: str) -> Submission:
        """A run that failed and whose VM was stopped: it continues where it was, with the contents of its disk."""
        from gpu_pipelines.targets.compute_engine.runs import VmRun, require_restartable

        found = VmRun.of(run, self.settings)
        vm = require_restartable(found)
        start = ["gcloud", "compute", "instances", "start", vm["name"], f"--zone={vm['zone']}"]
        words = [*start, f"--project={vm['project']}"]
        return Submission(found, lambda: [shlex.join(words)], lambda: {"command": words})

    def follow(self, run: str, watch: Watch, every: float) -> Outcome:
        """Waits for the end of a run; a Spot VM that was preempted is started again."""
        from gpu_pipelines.targets.compute_engine.run_folder import VmRun
        from gpu_pipelines.targets.compute_engine.runs import follow

        outcome = follow(VmRun.of(run, self.settings), watch, every)
        return with_cost(outcome, lambda: self.account(run), watch.warn)

    def account(self, run: str) -> RunAccount:
        """The state of a run, and the cost of its VM."""
        from gpu_pipelines.targets.compute_engine.runs import VmRun, account

        return account(VmRun.of(run, self.settings)).with_bill(RUN_LABEL, run.rpartition("/")[2], self.settings)

    def cancel(self, run: str) -> str:
        """Marks a run as cancelled, and deletes its VM."""
        from gpu_pipelines.targets.compute_engine.run_folder import VmRun
        from gpu_pipelines.targets.compute_engine.runs import cancel

        return cancel(VmRun.of(run, self.settings))

    def _machines(self, uri: str) -> tuple[list[Machine], Fallback]:
        """The VMs to try for a run, in order, from the run's folder; and the request."""
        from gpu_pipelines.targets.compute_engine.run_folder import WORK
        from gpu_pipelines.targets.container import Container

        module = "gpu_pipelines.targets.compute_engine.runs"
        container = Container(self.settings.image or "", ("python3", "-m", module), (uri, WORK))
        more = {"name": uri.rpartition("/")[2], "output_directory": uri, "work_directory": WORK}
        asked = self.options.fallback(self.options.region_to_plan(self.settings), "Compute Engine", self.settings)
        found = []
        for each in asked.plans:
            vm, plan = self.options.machine_on(each, container, self.settings, **more)
            # A Spot VM that was preempted continues, also one that deletes itself at the end.
            keeps = "STOP" if plan.strategy == "spot" else vm.termination_action
            labels = {**vm.labels, RUN_LABEL: vm.name}
            found.append((replace(vm, scopes=_SCOPES, termination_action=keeps, labels=labels), plan))
        return found, asked


def _shown(uri: str, file: str, content: Mapping[str, Any]) -> list[str]:
    return [f"# {uri}/{file}", json.dumps(content, indent=2, ensure_ascii=False)]
