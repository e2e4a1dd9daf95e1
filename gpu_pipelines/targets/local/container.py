"""Runs the command of a container component here: in a container, with the files of the run at their own paths.

`python -m gpu_pipelines.targets.local.container --instead-of X [--image IMAGE] [--env NAME]… -- COMMAND…`; without an
image the command is a process of this machine.
"""

from __future__ import annotations

import argparse
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
    parser.add_argument("--image")
    parser.add_argument("--env", action="append", default=[])
    options = parser.parse_args(arguments[:end])
    directory = Path(os.environ[RUN_DIRECTORY]).absolute()
    for word in command:
        # Kubeflow makes the folders of outputs before a container starts.
        if Path(word).absolute().is_relative_to(directory):
            Path(word).absolute().parent.mkdir(parents=True, exist_ok=True)
    if options.image:
        command = in_container(options.image, command, directory, options.env)
    return subprocess.run(command, check=False).returncode


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
