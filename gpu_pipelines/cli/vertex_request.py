"""From the words of a command line to a compiled pipeline and checked parameters for Vertex AI."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_pipelines.cli import job_options as options
from gpu_pipelines.cli.arguments import all_arguments, parameters_of_spec
from gpu_pipelines.errors import UserError

if TYPE_CHECKING:
    from gpu_pipelines.project_settings import ProjectSettings
    from gpu_pipelines.targets.vertex_machines import StepMachines

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
    tensorboard: str | None = None

    @property
    def given(self) -> list[str]:
        """The flags that were given."""
        names = [flag.name for flag in fields(self) if getattr(self, flag.name) != flag.default]
        return [f"--{name.replace('_', '-')}" for name in names]


@dataclass(frozen=True)
class CompiledPipeline:
    """A pipeline that is ready for Vertex AI.

    Attributes:
        origin: name of the pipeline, or its file.
        spec: the compiled pipeline.
        machines: the GPUs of its steps, checked for the region.
        settings: where it runs.
    """

    origin: str
    spec: dict[str, Any]
    machines: Sequence[StepMachines]
    settings: ProjectSettings


def compiled_pipeline(what: str, flags: JobFlags, settings: ProjectSettings) -> CompiledPipeline:
    """The pipeline that a name or a file stands for.

    Args:
        what: name of a pipeline, which is compiled, or a compiled file.
        flags: accelerators and jobs.
        settings: project, region, image and so on.

    Raises:
        UserError: there is no such pipeline or file, or its machines cannot be had.
    """
    from gpu_pipelines.targets.vertex_machines import machines_of
    from gpu_pipelines.targets.vertex_pipelines import parsed_spec

    spec = parsed_spec(_text_of_file(what), what) if is_file(what) else _compiled(what, flags, settings)
    if is_file(what):
        spec = _usable(spec, what, flags, settings)
    return CompiledPipeline(what, spec, machines_of(spec, settings.region), settings)


def is_file(what: str) -> bool:
    """Whether this is meant as a compiled file, not as the name of a pipeline."""
    return what.endswith(FILE_SUFFIXES)


def _compiled(name: str, flags: JobFlags, settings: ProjectSettings) -> dict[str, Any]:
    from gpu_pipelines.accelerators import plan
    from gpu_pipelines.targets.vertex_compiled import compiled_for_vertex
    from gpu_pipelines.targets.vertex_pipelines import parsed_spec

    if not flags.accelerator:
        raise UserError(
            "Vertex AI needs to know what to train on.",
            "Give --accelerator, l4:1 say; gpu-pipelines accelerators list shows them all.",
        )
    settings.require("image")
    planned = plan(
        flags.accelerator,
        nodes=flags.nodes,
        region=settings.region,
        strategy=flags.strategy,
        machine_type=flags.machine_type,
        reservation=flags.reservation,
        hours=flags.hours,
    )
    job = options.job_options(flags.max_wait, flags.boot_disk_gb, flags.reduction_server, flags.web_access, flags.env)
    return parsed_spec(compiled_for_vertex(name, planned, settings, job), name)


def _text_of_file(name: str) -> str:
    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"The file {name} cannot be read: {getattr(error, 'strerror', None) or error}.") from None


def _usable(spec: dict[str, Any], name: str, flags: JobFlags, settings: ProjectSettings) -> dict[str, Any]:
    from gpu_pipelines.targets.vertex_machines import with_image

    if flags.given:
        raise UserError(
            f"{name} is compiled already; {', '.join(flags.given)} cannot change it.",
            "Give the name of the pipeline in place of the file, or compile it again.",
        )
    return with_image(spec, settings, name)


def checked_arguments(
    spec: Mapping[str, Any], assignments: Sequence[str], file: Path | None, before: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """All parameters of a run on Vertex AI.

    Args:
        spec: the compiled pipeline.
        assignments: texts of the form `key=value`.
        file: a YAML file of parameters.
        before: values that stand where no other is given, in place of the defaults.

    Raises:
        UserError: lists everything that is wrong with them.
    """
    from gpu_pipelines.pipelines import PIPELINES, load_pipeline

    arguments = all_arguments(parameters_of_spec(spec), assignments, file, before)
    name = str(spec["pipelineInfo"]["name"]).replace("-", "_")
    if name in PIPELINES:
        module = load_pipeline(name)
        if problems := module.problems(arguments) or module.problems_on_vertex(arguments):
            raise UserError.of_all(problems)
    return arguments


def cost_lines(machines: Sequence[StepMachines], region: str | None) -> list[str]:
    """What the steps' machines cost per hour, as far as list prices are known."""
    from gpu_pipelines.accelerators.cost import estimate_cost

    lines = []
    for each in machines:
        plan = each.plan
        what = f"{plan.nodes} × {plan.machine_type} with {plan.count} × {plan.accelerator_type}"
        cost = estimate_cost(plan)
        price = cost.per_hour(cost.here) if cost and cost.here else None
        if cost is None or price is None:
            lines.append(f"{each.step}: {what}; no price is known for {region}")
            continue
        kind = "spot" if plan.strategy == "spot" else "on demand"
        unverified = ", unverified" if cost.here and cost.here.unverified else ""
        lines.append(
            f"{each.step}: {what}, about ${price:,.2f} an hour ({kind}, {region}; "
            f"list prices of {cost.as_of or 'unknown date'}{unverified})"
        )
    return lines
