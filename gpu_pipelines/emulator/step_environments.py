"""Environments of Python for steps that install packages: into one of their own, not into that of the emulator."""

from __future__ import annotations

import sys
import sysconfig
import venv
from pathlib import Path

#: KFP's `use_venv` makes an environment in the step's own, which is to see what the step has installed before. In a
#: container that is the system's Python; here it is an environment, which Python does not pass on.
_FOR_INNER = """import pathlib, site, sys
_settings = pathlib.Path(sys.prefix, "pyvenv.cfg")
if sys.prefix != {folder!r} and _settings.exists():
    if "include-system-site-packages = true" in _settings.read_text():
        site.addsitedir({packages!r})
"""


def make_environment(folder: Path) -> None:
    """Makes an environment that has all that the emulator's has.

    Args:
        folder: where; its `bin` is for PATH, its `for-inner` for PYTHONPATH.
    """
    venv.create(folder, symlinks=True)
    packages = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    added = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
    (packages / "of-the-emulator.pth").write_text(added)
    inner = folder / "for-inner"
    inner.mkdir()
    (inner / "sitecustomize.py").write_text(_FOR_INNER.format(folder=str(folder), packages=str(packages)))
