"""gcloud's own code as a process that reads many configs at once."""

from __future__ import annotations

import json
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

READER = Path(__file__).with_name("gcloud_reader.py")


@cache
def installation() -> list[str]:
    """The folder of gcloud, and its Python."""
    command = ["gcloud", "info", "--format=value(installation.sdk_root,basic.python_location)"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return done.stdout.strip().split("\t")


def read_by_gcloud(configs: list[tuple[str, str]]) -> list[dict[str, Any]]:
    """What gcloud sends for configs, or `{"refused": …}`."""
    folder, python = installation()
    done = subprocess.run(
        [python, str(READER), folder],
        input=json.dumps(configs),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found
