"""The program of a RayJob's head: it runs the command in its variable.

`python3 -m gpu_pipelines.targets.kubeflow.in_cluster.ray_job_command`
"""

from __future__ import annotations

import base64
import json
import os

from gpu_pipelines.targets.kubeflow.in_cluster.ray_job_manifest import COMMAND


def main() -> None:
    """Becomes the command."""
    command = json.loads(base64.b64decode(os.environ.pop(COMMAND)))
    os.execvp(command[0], command)  # noqa: S606 (it replaces this process, so that signals reach it)


if __name__ == "__main__":
    main()
