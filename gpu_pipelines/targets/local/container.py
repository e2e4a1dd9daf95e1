"""Runs the command of a container component here: in a container, with the files of the run at their own paths.

`python -m gpu_pipelines.targets.local.container --instead-of X --input JSON [--image IMAGE] [--env NAME]… -- COMMAND…`;
without an image the command is a process of this machine. The input is KFP's executor input.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from gpu_pipelines.step_environment import RUN_DIRECTORY

ENGINES = ("docker", "podman")


def main(arguments: Sequence[str]) -> int:
    """Runs a command; returns its exit status."""
    end = arguments.index("--")
    command = list(arguments[end + 1 :])
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--instead-of")
    parser.add_argument("--input", type=json.loads)
    parser.add_argument("--image")
    parser.add_argument("--env", action="append", default=[])
    options = parser.parse_args(arguments[:end])
    outputs = options.input.get("outputs", {})
    artifacts = {name: each["artifacts"] for name, each in outputs.get("artifacts", {}).items()}
    places = [made["uri"] for each in artifacts.values() for made in each]
    places += [each["outputFile"] for each in outputs.get("parameters", {}).values()]
    for place in places:
        # Kubeflow makes the folders of outputs before a container starts.
        Path(place).parent.mkdir(parents=True, exist_ok=True)
    directory = Path(os.environ[RUN_DIRECTORY]).absolute()
    if options.image:
        command = in_container(options.image, command, directory, options.env)
    status = subprocess.run(command, check=False).returncode
    if status == 0:
        # KFP's local runner passes on the artifacts that a step itself tells of, which a program does not.
        written = {"artifacts": {name: {"artifacts": each} for name, each in artifacts.items()}}
        Path(outputs["outputFile"]).write_text(json.dumps(written), encoding="utf-8")
    return status


def in_container(image: str, command: Sequence[str], directory: Path, variables: Sequence[str]) -> list[str]:
    """The command that runs another one in a container.

    Args:
        image: the image.
        command: what to run in place of its entrypoint; empty for that.
        directory: of the run, which is mounted at its own path; the paths of outputs may be relative to where we are.
        variables: names of those that the container gets.
    """
    engine = next(found for engine in ENGINES if (found := shutil.which(engine)))
    # What it leaves is to be whoever's run it is; a rootless podman sees to that itself.
    owner = [] if engine.endswith("podman") and os.getuid() else ["--user", f"{os.getuid()}:{os.getgid()}"]
    given = [part for name in variables for part in ("--env", name)]
    mounted = ["--volume", f"{directory}:{directory}", "--workdir", str(Path.cwd())]
    entry = ["--entrypoint", command[0]] if command else []
    return [engine, "run", "--rm", *owner, *given, *mounted, *entry, image, *command[1:]]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
