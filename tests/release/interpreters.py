"""The Pythons of this machine that the wheel is for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

VERSIONS = ("3.10", "3.11", "3.12", "3.13", "3.14")


def interpreters() -> dict[str, str]:
    """For each version that is here, its interpreter: on the path, or one of pyenv's."""
    found = {f"{sys.version_info.major}.{sys.version_info.minor}": sys.executable}
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for version in VERSIONS:
        for python in (f"python{version}", *map(str, sorted(pyenv.glob(f"{version}.*/bin/python")))):
            if version not in found and _is(python, version):
                found[version] = python
    return {version: found[version] for version in VERSIONS if version in found}


def _is(python: str, version: str) -> bool:
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=30)
    except OSError:
        return False
    # A shim of pyenv is there also where its version is not chosen; it fails.
    return done.returncode == 0 and done.stdout.strip() == version
