"""The start-up script of a training VM: `startup.sh` with the values for one VM."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources

from gpu_pipelines.errors import UserError
from gpu_pipelines.targets.container import Container

#: What can happen to the VM when the training has ended or failed.
AT_END = ("stop", "delete", "keep")
#: Most bytes of one value of the metadata: https://cloud.google.com/compute/docs/metadata/setting-custom-metadata.
MAX_SCRIPT_BYTES = 256 * 1024

_SETTINGS = "#@settings@\n"
_ARTIFACT_REGISTRY = "-docker.pkg.dev"
#: Compute Engine stops a Spot VM 30 seconds after its notice; copying a directory takes a part of them.
_GRACE_SECONDS, _GRACE_SECONDS_WITH_COPY = 28, 20


@dataclass(frozen=True)
class StartupSettings:
    """The settings of the start-up script.

    Attributes:
        vm_name: name of the VM.
        zone: its zone.
        gpu_count: number of GPUs that it must find.
        container: its container.
        environment: variables of the container, by name.
        output_directory: `gs://…`, from which the container gets AIP_MODEL_DIR, AIP_CHECKPOINT_DIR and
            AIP_TENSORBOARD_LOG_DIR, as on Vertex AI; the log goes there, too. None for none.
        sync_directory: directory in the container that is copied to `checkpoints/` of the output directory while the
            training runs, and from there before it; None for none.
        work_directory: directory in the container that stays on the disk of the VM from start to start; None for none.
        at_end: one of `AT_END`.
        driver_seconds: how long to wait for the driver of the GPUs.
        pull_pauses: seconds to wait after each pull of the image that failed, before the next.
        sync_seconds: time between two copies.
        state_directory: where the script keeps its log, the copies, and the mark that the training has ended.
    """

    vm_name: str
    zone: str
    gpu_count: int
    container: Container
    environment: Mapping[str, str] = field(default_factory=dict)
    output_directory: str | None = None
    sync_directory: str | None = None
    work_directory: str | None = None
    at_end: str = "stop"
    driver_seconds: int = 600
    pull_pauses: Sequence[float] = (5, 10, 20, 40)
    sync_seconds: float = 60
    state_directory: str = "/var/lib/gpu-pipelines"


def startup_script(settings: StartupSettings) -> str:
    """The script as text for bash; every value is quoted, none is run.

    Raises:
        UserError: it is longer than Compute Engine allows, or is not text.
    """
    template = (
        resources.files("gpu_pipelines.targets.compute_engine").joinpath("startup.sh").read_text(encoding="utf-8")
    )
    script = template.replace(_SETTINGS, "".join(f"{line}\n" for line in _assignments(settings)), 1)
    try:
        size = len(script.encode("utf-8"))
    except UnicodeEncodeError:
        raise UserError("An argument or a variable is not UTF-8; the metadata of a VM takes nothing else.") from None
    if size > MAX_SCRIPT_BYTES:
        raise UserError(
            f"The start-up script has {size:,} bytes with these arguments; Compute Engine takes {MAX_SCRIPT_BYTES:,}.",
            "Put them into a file in Cloud Storage or in the image.",
        )
    return script


def _assignments(settings: StartupSettings) -> list[str]:
    output = (settings.output_directory or "").rstrip("/")
    scalars = {
        "vm_name": settings.vm_name,
        "zone": settings.zone,
        "gpu_count": str(settings.gpu_count),
        "image": settings.container.image,
        "registry": artifact_registry(settings.container.image) or "",
        "output_directory": output,
        "sync_directory": settings.sync_directory or "",
        "work_directory": settings.work_directory or "",
        "at_end": settings.at_end,
        "grace_seconds": str(_GRACE_SECONDS_WITH_COPY if settings.sync_directory else _GRACE_SECONDS),
        "driver_seconds": str(settings.driver_seconds),
        "sync_seconds": str(settings.sync_seconds),
        "state_directory": settings.state_directory,
    }
    command = list(settings.container.command)
    words = [*command[1:], *settings.container.arguments]
    return [
        *(f"readonly {name}={shlex.quote(value)}" for name, value in scalars.items()),
        f"readonly pull_pauses=({' '.join(map(str, settings.pull_pauses))})",
        f"readonly docker_options=({shlex.join(_docker_options(settings, output))})",
        f"readonly words=({shlex.join(words)})",
    ]


def _docker_options(settings: StartupSettings, output: str) -> Sequence[str]:
    variables = {**_variables_of_the_output(output), **settings.environment}
    options = [f"--env={name}={value}" for name, value in variables.items()]
    if settings.sync_directory:
        options.append(f"--volume={settings.state_directory}/synced:{settings.sync_directory}")
    if settings.work_directory:
        options.append(f"--volume={settings.state_directory}/work:{settings.work_directory}")
    if settings.container.command:
        options.append(f"--entrypoint={settings.container.command[0]}")
    return options


def _variables_of_the_output(output: str) -> dict[str, str]:
    """The variables that Vertex AI sets for a job's base output directory."""
    if not output:
        return {}
    return {
        "AIP_MODEL_DIR": f"{output}/model/",
        "AIP_CHECKPOINT_DIR": f"{output}/checkpoints/",
        "AIP_TENSORBOARD_LOG_DIR": f"{output}/logs/",
    }


def artifact_registry(image: str) -> str | None:
    """The host of an image in Artifact Registry, for which docker needs access; None for other registries."""
    host = image.partition("/")[0]
    return host if host.endswith(_ARTIFACT_REGISTRY) else None
