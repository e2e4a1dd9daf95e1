"""From the words of a command line to a compiled pipeline and checked parameters for Vertex AI."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_pipelines.cli import job_options as options
from gpu_pipelines.cli.arguments import all_arguments, as_taken, compiled_in, fields_of, parameters_of_spec
from gpu_pipelines.errors import UserError

if TYPE_CHECKING:
    from gpu_pipelines.accelerators import AcceleratorPlan
    from gpu_pipelines.project_settings import ProjectSettings
    from gpu_pipelines.targets.vertex.machines import StepMachines

FILE_SUFFIXES = (".yaml", ".yml", ".json")


@dataclass(frozen=True)
class JobFlags:
    """What the command line says of accelerators and jobs: what goes into a compiled file and stays in it.

    Attributes:
        accelerator: `NAME:COUNT`; empty if not given.

    The others are the flags of the same name.
    """

    accelerator: str = ""
    nodes: int = 1
    strategy: str | None = None
    machine_type: str | None = None
    reservation: str | None = None
    hours: float | None = None
    max_wait: float | None = None
    boot_disk_gb: int = options.BOOT_DISK_GB
    reduction_server: bool = False
    web_access: bool = False
    env: Sequence[str] | None = None
    data_nodes: int = 1
    data_machine_type: str | None = None
    tensorboard: str | None = None
    network_attachment: str | None = None
    persistent_resource: str | None = None
    evaluation_accelerator: str | None = None

    @property
    def given(self) -> list[str]:
        """The flags that were given."""
        names = [flag.name for flag in fields(self) if getattr(self, flag.name) != flag.default]
        return [f"--{name.replace('_', '-')}" for name in names]

    def planned(self, settings: ProjectSettings, target: str) -> AcceleratorPlan:
        """The plan of the accelerators.

        Args:
            settings: the region.
            target: its name, for people.

        Raises:
            UserError: no accelerator was given, or the plan does not hold.
        """
        from gpu_pipelines.accelerators import plan
        from gpu_pipelines.accelerators.request import require_gpu

        if not self.accelerator:
            raise UserError(no_accelerator(target))
        require_gpu(self.accelerator, target)
        return plan(
            self.accelerator,
            nodes=self.nodes,
            region=settings.region,
            strategy=self.strategy,
            machine_type=self.machine_type,
            reservation=self.reservation,
            hours=self.hours,
        )

    def evaluation(self, planned: AcceleratorPlan) -> AcceleratorPlan | None:
        """The plan of the evaluation; None if no accelerator was named for it.

        Args:
            planned: the plan of the training.

        Raises:
            PlanError: it cannot be had.
        """
        from gpu_pipelines.accelerators.one_gpu import named_evaluation_plan

        return named_evaluation_plan(self.evaluation_accelerator, planned) if self.evaluation_accelerator else None


@dataclass(frozen=True)
class CompiledPipeline:
    """A pipeline that is ready for Vertex AI.

    Attributes:
        text: the compiled file.
        spec: what it holds.
        machines: the GPUs of its steps, checked for the region.
        settings: where it runs.
        template: address of the uploaded version that it is; None if it is none.
    """

    text: str
    spec: dict[str, Any]
    machines: Sequence[StepMachines]
    settings: ProjectSettings
    template: str | None = None


def no_accelerator(target: str) -> str:
    """That no accelerator was given, and how to give one; `target` begins the sentence."""
    return (
        f"{target} needs to know what to train on. Give --accelerator, l4:1 say; gpu-pipelines accelerators list shows "
        "them all."
    )


def require_settings(
    what: str, flags: JobFlags, settings: ProjectSettings, *names: str, target: str = "Vertex AI"
) -> None:
    """Checks that all is given that a command needs, so that nobody is sent from one missing setting to the next.

    Args:
        what: name of a pipeline, which is compiled and needs an image and an accelerator; a file; or an address.
        flags: the accelerator.
        settings: those of the project.
        names: of the settings that the command itself needs.
        target: its name, for people.

    Raises:
        UserError: lists all that is missing.
    """
    from gpu_pipelines.project_settings import how_to_give

    is_name = "://" not in what and not what.endswith(FILE_SUFFIXES)
    needed = [*names, "image"] if is_name else names
    missing = [how_to_give(name) for name in needed if not getattr(settings, name)]
    if is_name and not flags.accelerator:
        missing.append(no_accelerator(target))
    if missing:
        raise UserError.of_all(missing)


def compiled_pipeline(
    what: str,
    flags: JobFlags,
    settings: ProjectSettings,
    given: Mapping[str, Any] | None = None,
    training_hours: float | None = None,
) -> CompiledPipeline:
    """The pipeline that a name, a file or an address stands for.

    Args:
        what: name of a pipeline, which is compiled; a compiled file; or the address of an uploaded version.
        flags: accelerators and jobs.
        settings: project, region, image and so on.
        given: values of the parameters that are known already, which say how large the model is.
        training_hours: the longest that the training may run where --hours does not say so.

    Raises:
        UserError: there is no such pipeline or file, or its machines cannot be had.
    """
    from gpu_pipelines.targets.vertex.machines import machines_of, trainings_without_gpus
    from gpu_pipelines.targets.vertex.pipelines import parsed_spec

    template = None
    if "://" in what:
        template, text = _uploaded(what, flags, settings)
    elif what.endswith(FILE_SUFFIXES):
        text = _file_text(what, flags, settings)
    else:
        text = _compiled(what, flags, settings, given or {}, training_hours)
    spec = parsed_spec(text, what)
    if steps := trainings_without_gpus(spec):
        raise UserError(
            f"{what} has no GPU for {', '.join(steps)}: Vertex AI would train on the CPUs of a small machine.",
            "Compile it for Vertex AI: gpu-pipelines compile PIPELINE --target vertex --accelerator l4:1, say. In a "
            "pipeline of your own, place the step: VertexTarget().place(train_model, plan('l4:1')).",
        )
    return CompiledPipeline(text, spec, machines_of(spec, settings.region), settings, template)


def _compiled(
    name: str, flags: JobFlags, settings: ProjectSettings, given: Mapping[str, Any], training_hours: float | None
) -> str:
    from gpu_pipelines.targets.vertex.compiled import compiled_for_vertex, evaluation_for
    from gpu_pipelines.targets.vertex.data_nodes import DataNodes
    from gpu_pipelines.tasks.model_sizes import LARGEST_BUILT_IN, parameters_of_model

    planned = flags.planned(settings, "Vertex AI")
    settings.require("image")
    job = options.job_options(flags.max_wait, flags.boot_disk_gb, flags.reduction_server, flags.web_access, flags.env)
    data = DataNodes(flags.data_nodes, flags.data_machine_type or "")
    model, recipe = str(given.get("model") or ""), str(given.get("recipe") or "")
    # The default of the parameter `model` is built from its name.
    size = parameters_of_model(model, recipe) if model or recipe else LARGEST_BUILT_IN
    evaluation = flags.evaluation(planned) or evaluation_for(planned, settings, size)
    planned = replace(planned, hours=planned.hours or training_hours)
    return compiled_for_vertex(name, planned, settings, job, data, evaluation)


def _file_text(name: str, flags: JobFlags, settings: ProjectSettings) -> str:
    from gpu_pipelines.targets.vertex.machines import with_image

    require_no_flags(name, flags)
    try:
        text = Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"The file {name} cannot be read: {getattr(error, 'strerror', None) or error}.") from None
    return with_image(text, settings, name)


def _uploaded(address: str, flags: JobFlags, settings: ProjectSettings) -> tuple[str, str]:
    """The address of the version that is meant, and its file."""
    from gpu_pipelines.targets.vertex.machines import with_image
    from gpu_pipelines.targets.vertex.repository import PipelineRepository, find_version

    require_no_flags(address, flags)
    version = find_version(address, settings)
    return version.address, with_image(PipelineRepository(version.repository).text(version), settings, address)


def require_no_flags(what: str, flags: JobFlags) -> None:
    """Checks that no flag is given that would have to be compiled into what is compiled already.

    Raises:
        UserError: lists those that are.
    """
    if flags.given:
        raise UserError(
            f"{what} is compiled already; {', '.join(flags.given)} cannot change it.",
            "Give the name of the pipeline in its place, or compile it again.",
        )


def checked_arguments(
    spec: Mapping[str, Any], assignments: Sequence[str], file: Path | None, before: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """All parameters of a run on Vertex AI, as its pipeline takes them.

    Args:
        spec: the compiled pipeline.
        assignments: texts of the form `key=value`.
        file: a YAML file of parameters.
        before: values that stand where no other is given, in place of the defaults.

    Raises:
        UserError: lists everything that is wrong with them.
    """
    from gpu_pipelines.dag import PIPELINES, load_pipeline
    from gpu_pipelines.targets.vertex.machines import data_nodes_of, not_evaluated

    known, name = parameters_of_spec(spec), str(spec["pipelineInfo"]["name"]).replace("-", "_")
    fields = fields_of(name, known)
    arguments = all_arguments(known, assignments, file, before, fields)
    if name in PIPELINES:
        module, checked = load_pipeline(name), {**compiled_in(spec), **arguments}
        problems = module.problems(checked) or module.problems_on_vertex(checked, data_nodes_of(spec))
        if problems := problems or not_evaluated(spec, checked):
            raise UserError.of_all(problems)
    return as_taken(arguments, known, fields)


def of_the_project(spec: Mapping[str, Any], settings: ProjectSettings) -> dict[str, Any]:
    """Parameters that the project's settings say: its file is not there where the steps run."""
    from gpu_pipelines.targets.vertex.target import IMAGE_PARAMETER

    known = parameters_of_spec(spec)
    known = {**known, **fields_of(str(spec["pipelineInfo"]["name"]), known)}
    said = {"serving_image": settings.serving_image, IMAGE_PARAMETER: settings.image}
    return {name: image for name, image in said.items() if image and name in known}


def show_cost(machines: Sequence[StepMachines], region: str | None) -> None:
    """What the steps' machines cost and what to know of them, for the reader: on stderr."""
    for each in machines:
        print(_cost(each, region), file=sys.stderr)
    for message in dict.fromkeys(caution.message for each in machines for caution in each.plan.warnings):
        print(f"warning: {message}", file=sys.stderr)


def _cost(each: StepMachines, region: str | None) -> str:
    from gpu_pipelines.accelerators.cost import estimate_cost

    plan = each.plan
    what = f"{each.step}: {plan.nodes} × {plan.machine_type} with {plan.count} × {plan.accelerator_type}"
    limit = f", {plan.hours:g} h at most" if plan.hours else ""
    if each.persistent_resource:
        return f"{what}, of the persistent resource {each.persistent_resource}, which costs as long as it exists{limit}"
    cost = estimate_cost(plan)
    price = cost.per_hour(cost.here) if cost and cost.here else None
    if cost is None or cost.here is None or price is None:
        return f"{what}; no price is known for {region}{limit}"
    kind = "spot" if plan.strategy == "spot" else "on demand"
    unverified = ", unverified" if cost.here.unverified else ""
    return (
        f"{what}, about ${price:,.2f} an hour "
        f"({kind}, {region}; list prices of {cost.as_of or 'unknown date'}{unverified}){limit}"
    )
