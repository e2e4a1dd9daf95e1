"""The options of commands that place work in Google Cloud: the accelerator, and where and how its jobs run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpu_pipelines.errors import UserError

if TYPE_CHECKING:
    from gpu_pipelines.project_settings import ProjectSettings
    from gpu_pipelines.targets.vertex.job_spec import JobOptions

Nodes = Annotated[int, typer.Option(help="Machines to train on.")]
EvaluationAccelerator = Annotated[
    str | None,
    typer.Option(metavar="SPEC", help="What to evaluate on, l4:1 say; chosen by the model if not given."),
]
DataNodes = Annotated[int, typer.Option(help="vertex: machines that prepare the data together.")]
DataMachineType = Annotated[
    str | None, typer.Option(metavar="TYPE", help="vertex: type of these machines; n2-standard-16 if not given.")
]
Region = Annotated[str | None, typer.Option(help="Google Cloud region.")]
Strategy = Annotated[str | None, typer.Option(help="standard, spot, flex-start or reservation.")]
MachineType = Annotated[str | None, typer.Option(help="Machine type; the smallest that fits if not given.")]
Reservation = Annotated[str | None, typer.Option(help="projects/P/zones/Z/reservations/R.")]
Hours = Annotated[float | None, typer.Option(help="Longest that a job may run.")]
Project = Annotated[str | None, typer.Option(help="Id of the project.")]
PipelineRoot = Annotated[str | None, typer.Option(metavar="URI", help="Where runs leave artifacts, gs://….")]
Repository = Annotated[
    str | None, typer.Option(metavar="URL", help="Repository of pipelines, https://LOCATION-kfp.pkg.dev/P/R.")
]
Image = Annotated[str | None, typer.Option(help="Image that the steps run in; docs/images.md.")]
ServiceAccount = Annotated[str | None, typer.Option(metavar="EMAIL", help="What jobs run as.")]
Network = Annotated[str | None, typer.Option(metavar="NAME", help="projects/NUMBER/global/networks/NAME.")]
NetworkAttachment = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Vertex AI: projects/P/regions/R/networkAttachments/N."),
]
PersistentResource = Annotated[
    str | None, typer.Option(metavar="ID", help="Vertex AI: persistent resource whose machines run what has GPUs.")
]
FailurePolicy = Annotated[
    str | None,
    typer.Option(metavar="fast|slow", help="vertex: whether steps that do not depend on a failed one still begin."),
]
EncryptionKey = Annotated[str | None, typer.Option(metavar="NAME", help="Cloud KMS key, by its full name.")]
Tensorboard = Annotated[str | None, typer.Option(metavar="NAME", help="Vertex AI TensorBoard, by its full name.")]
MaxWait = Annotated[
    float | None, typer.Option(metavar="HOURS", help="With flex-start: wait for machines so long; 0 for ever.")
]
BootDiskGb = Annotated[int, typer.Option(metavar="GB", help="Boot disk of each machine.")]
ReductionServer = Annotated[
    bool, typer.Option("--reduction-server", help="Add reduction servers, which sum up gradients of several machines.")
]
WebAccess = Annotated[bool, typer.Option("--web-access", help="Allow an interactive shell in the containers.")]
Env = Annotated[
    list[str] | None, typer.Option("--env", metavar="NAME=VALUE", help="A variable of the containers; repeatable.")
]
Label = Annotated[
    list[str] | None, typer.Option("--label", metavar="KEY=VALUE", help="A label of the jobs; repeatable.")
]
Param = Annotated[
    list[str] | None,
    typer.Option("--param", "-p", metavar="KEY=VALUE", help="A parameter; wins over --params. May be repeated."),
]
Params = Annotated[Path | None, typer.Option(metavar="FILE", help="A YAML file of parameters.")]
Cache = Annotated[
    bool | None,
    typer.Option("--cache/--no-cache", help="Let all steps take results of earlier runs, or none; else as compiled."),
]
Interval = Annotated[float, typer.Option(metavar="SECONDS", min=0.1, help="Time between two looks at a run.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]

Cloud = Annotated[str, typer.Option("--target", help="Where it is: vertex or kubeflow.")]
KubeflowHost = Annotated[
    str | None, typer.Option(metavar="URL", help="Address of Kubeflow Pipelines, https://HOST/PATH.")
]
KubeflowNamespace = Annotated[str | None, typer.Option(metavar="NAME", help="Namespace of the runs on Kubeflow.")]
Experiment = Annotated[str | None, typer.Option(metavar="NAME", help="kubeflow: experiment to file the run under.")]

BOOT_DISK_GB = 200
#: Settings that other targets than Vertex AI have no use for.
_OF_VERTEX = (
    "service_account",
    "network",
    "network_attachment",
    "persistent_resource",
    "failure_policy",
    "encryption_key",
    "tensorboard",
)
#: Directory of the runs on this machine.
RUNS = Path("runs")
#: Seconds between two looks at a run.
INTERVAL = 10.0


def job_options(
    max_wait: float | None, boot_disk_gb: int, reduction_server: bool, web_access: bool, env: Sequence[str] | None
) -> JobOptions:
    """The options of a job, from the flags.

    Raises:
        UserError: a variable is not of the form NAME=VALUE.
    """
    from gpu_pipelines.targets.vertex.job_spec import JobOptions

    return JobOptions(boot_disk_gb, max_wait, reduction_server, web_access, variables(env))


def is_kubeflow(target: str) -> bool:
    """Whether what a command is about is on Kubeflow rather than on Vertex AI.

    Raises:
        UserError: there is no such target.
    """
    from gpu_pipelines.errors import nearest

    if target not in ("vertex", "kubeflow"):
        raise UserError(f"There is no target {target[:60]!r}.", nearest(target, ("vertex", "kubeflow")))
    return target == "kubeflow"


def kubeflow_settings(host: str | None, namespace: str | None) -> ProjectSettings:
    """The settings with the address of Kubeflow Pipelines.

    Raises:
        UserError: it is not known.
    """
    from gpu_pipelines.project_settings import load_project_settings

    settings = load_project_settings({"kubeflow_host": host, "kubeflow_namespace": namespace})
    settings.require("kubeflow_host")
    return settings


def require_no_vertex_job(options: JobOptions, settings: ProjectSettings) -> None:
    """Checks that no flag is given that only a job of Vertex AI has.

    Raises:
        UserError: lists those that are.
    """
    from gpu_pipelines.project_settings import flag_of

    given = {
        "--max-wait": options.max_wait_hours is not None,
        "--boot-disk-gb": options.boot_disk_gb != BOOT_DISK_GB,
        "--reduction-server": options.reduction_server,
        "--web-access": options.web_access,
    }
    flags = [flag for flag, is_given in given.items() if is_given]
    for name in _OF_VERTEX:
        if settings.origins.get(name) == flag_of(name):
            flags.append(flag_of(name))
    if flags:
        raise UserError(f"The target kubeflow has no {', '.join(flags)}.", "Leave it out; docs/kubeflow.md.")


def with_labels(settings: ProjectSettings, labels: Sequence[str] | None) -> ProjectSettings:
    """Settings with labels of the command line added to those of the file.

    Raises:
        UserError: a label is not of the form KEY=VALUE, or not one that Google Cloud takes.
    """
    from dataclasses import replace

    from gpu_pipelines.project_settings import problems_of_labels

    given = pairs("--label", labels)
    if problems := problems_of_labels(given, "--label"):
        raise UserError.of_all(problems)
    return replace(settings, labels={**settings.labels, **given})


def variables(texts: Sequence[str] | None) -> dict[str, str]:
    """The variables of containers, by name, from texts of the form NAME=VALUE.

    Raises:
        UserError: a text is not of that form, or a name is none.
    """
    from gpu_pipelines.step_environment import problems_of_variables

    found = pairs("--env", texts)
    if problems := problems_of_variables(found):
        raise UserError.of_all(problems)
    return found


def pairs(flag: str, texts: Sequence[str] | None) -> dict[str, str]:
    """Names and values from texts of the form NAME=VALUE.

    Raises:
        UserError: a text is not of that form.
    """
    found = {}
    for text in texts or []:
        name, sign, value = text.partition("=")
        if not (sign and name):
            raise UserError(f"{flag} {text[:80]} is not of the form NAME=VALUE.")
        found[name] = value
    return found
