"""NCCL's settings for machines whose GPUs reach other machines by RDMA (A3 Ultra, A4, A4X) or by TCPXO (A3 Mega).

Google puts them there as a shell script, which the training's command has to source: for RDMA by Vertex AI's
documentation; for TCPXO on GKE, where NCCL_LIB_DIR says in which folder it is, by
https://github.com/GoogleCloudPlatform/container-engine-accelerators/blob/master/gpudirect-tcpxo/best-practice.md.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from gpu_pipelines.errors import UserError

SCRIPT = Path("/usr/local/gib/scripts/set_nccl_env.sh")
LIBRARIES, PROFILE = "NCCL_LIB_DIR", "nccl-env-profile.sh"
_TAKEN = ("NCCL_", "LD_LIBRARY_PATH")


def adopt_nccl_settings(script: Path | None = None) -> list[str]:
    """Sets the variables of the script in this process, from which those of the training have them.

    A variable that is set already stays, but for LD_LIBRARY_PATH, which the script extends.

    Args:
        script: the script; left out, that of this machine. Where there is none, nothing is to be set.

    Returns:
        Names of the variables that were set.

    Raises:
        UserError: the script fails.
    """
    if script is None:
        libraries = os.environ.get(LIBRARIES, "")
        script = Path(libraries) / PROFILE if libraries else SCRIPT
    if not script.is_file():
        return []
    done = subprocess.run(
        ["/bin/bash", "-c", 'source "$0" >&2 && env -0', str(script)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        told = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UserError(f"{script}, which sets NCCL up for this machine, failed: {told}", "Look at the image's gIB.")
    wanted = dict(line.partition("=")[::2] for line in done.stdout.split("\0") if line.startswith(_TAKEN))
    found = {
        name: value
        for name, value in wanted.items()
        if name not in os.environ or (name == "LD_LIBRARY_PATH" and os.environ[name] != value)
    }
    os.environ.update(found)
    return sorted(found)
