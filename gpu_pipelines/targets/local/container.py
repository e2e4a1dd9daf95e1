"""Runs the command of a container component here: in a container, with the run's files at their own paths.

`python -m gpu_pipelines.targets.local.container --instead-of X --input JSON [--image IMAGE] [--env NAME]…
[--mount FOLDER]… -- COMMAND…`; without an image the command is a process of this machine. The input is KFP's executor
input.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path

from gpu_pipelines.step_environment import RUN_DIRECTORY

ENGINES = ("docker", "podman")
#: How long a container may take to end when it is told to; less than the run waits for its steps.
SECONDS_TO_STOP = 20


def main(arguments: Sequence[str]) -> int:
    """Runs a command; returns its exit status."""
    end = arguments.index("--")
    command = list(arguments[end + 1 :])
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--instead-of")
    parser.add_argument("--input", type=json.loads)
    parser.add_argument("--image")
    parser.add_argument("--env", action="append", default=[])
    parser.add_argument("--mount", action="append", default=[])
    options = parser.parse_args(arguments[:end])
    outputs = options.input.get("outputs", {})
    artifacts = {name: each["artifacts"] for name, each in outputs.get("artifacts", {}).items()}
    places = [made["uri"] for each in artifacts.values() for made in each]
    places += [each["outputFile"] for each in outputs.get("parameters", {}).values()]
    for place in (*places, outputs["outputFile"]):
        # On Kubeflow the folders of outputs exist before a container starts.
        Path(place).parent.mkdir(parents=True, exist_ok=True)
    if options.image:
        status = _run_in_container(options.image, command, options.env, options.mount)
    else:
        status = subprocess.run(command, check=False).returncode
    if status == 0:
        # KFP's local runner passes on only artifacts that a step itself reports, which a program does not.
        written = {"artifacts": {name: {"artifacts": each} for name, each in artifacts.items()}}
        Path(outputs["outputFile"]).write_text(json.dumps(written), encoding="utf-8")
    return status


def _run_in_container(image: str, command: Sequence[str], variables: Sequence[str], folders: Sequence[str]) -> int:
    """Runs a command in a container, which is removed afterwards; returns its exit status.

    Args:
        image: the image.
        command: as KFP's runner gives it, with this machine's Python in place of `python3`.
        variables: names of the variables for the container.
        folders: folders to mount at their own paths.
    """
    directory = Path(os.environ[RUN_DIRECTORY]).absolute()
    name = f"gpu-pipelines-{uuid.uuid4().hex[:16]}"
    command = [part.replace(sys.executable, "python3") for part in command]
    started = in_container(image, command, (str(directory), *folders), variables, name)
    # A process that is told to end stops the container first, and is not killed while it does.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        return subprocess.run(started, check=False).returncode
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for ending in (["stop", "--time", str(SECONDS_TO_STOP), name], ["rm", "--force", name]):
            subprocess.run([started[0], *ending], check=False, capture_output=True)


def engine_here() -> str:
    """The container engine that answers; empty if none does, such as one that is installed but not running."""
    found = (place for name in ENGINES if (place := shutil.which(name)))
    return next((each for each in found if not subprocess.run([each, "info"], capture_output=True).returncode), "")


def in_container(
    image: str, command: Sequence[str], folders: Sequence[str], variables: Sequence[str], container: str
) -> list[str]:
    """The command that runs another one in a container.

    Args:
        image: the image.
        command: command in place of its entrypoint; empty for that.
        folders: folders of the run and others, to mount at their own paths; those of outputs may be relative.
        variables: names of the variables for the container.
        container: name of the container, which stays: an engine that removes it at its end may lose its exit status.
    """
    engine = engine_here() or ENGINES[0]  # whose own error says what is wrong with it by now
    # Its files must belong to the run's user; a rootless podman does that itself.
    owner = [] if engine.endswith("podman") and os.getuid() else ["--user", f"{os.getuid()}:{os.getgid()}"]
    given = [part for name in variables for part in ("--env", name)]
    mounted = [part for folder in folders for part in ("--volume", f"{folder}:{folder}")]
    entry = ["--workdir", str(Path.cwd()), *(["--entrypoint", command[0]] if command else [])]
    return [engine, "run", "--name", container, *owner, *given, *mounted, *entry, image, *command[1:]]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
