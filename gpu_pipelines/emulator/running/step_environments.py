"""Python environments for steps that install packages: into their own, not into the emulator's."""

from __future__ import annotations

import hashlib
import json
import sys
import sysconfig
import threading
import venv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path

#: KFP's `use_venv` creates an environment within the step's own, which must see the step's earlier installations. In a
#: container that is the system's Python; here it is an environment, which Python does not pass on.
_FOR_INNER = """import pathlib, site, sys
_settings = pathlib.Path(sys.prefix, "pyvenv.cfg")
if sys.prefix != {folder!r} and _settings.exists():
    if "include-system-site-packages = true" in _settings.read_text():
        site.addsitedir({packages!r})
"""

_LAST = Path("for-inner", "sitecustomize.py")


class StepEnvironments:
    """Environments kept for steps with the same packages. Each is used by one step at a time: two would both install.

    Args:
        folder: their folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._taken: set[Path] = set()
        self._lock = threading.Lock()

    @contextmanager
    def lent(self, command: Sequence[str]) -> Iterator[Path]:
        """An environment for a step to install into, for as long as it runs.

        Args:
            command: the step's command; the packages to install are in its first words.
        """
        key = hashlib.sha256(json.dumps(command[:4]).encode()).hexdigest()[:16]
        with self._lock:
            places = (self._folder / f"{key}-{number}" for number in count())
            place = next(each for each in places if each not in self._taken)
            self._taken.add(place)
        try:
            if not (place / _LAST).exists():
                make_environment(place)
            yield place
        finally:
            with self._lock:
                self._taken.discard(place)


def make_environment(folder: Path) -> None:
    """Creates an environment with everything in the emulator's.

    Args:
        folder: the destination; its `bin` is for PATH, its `for-inner` for PYTHONPATH.
    """
    venv.create(folder, symlinks=True)
    packages = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    added = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
    (packages / "of-the-emulator.pth").write_text(added)
    (folder / _LAST).parent.mkdir(exist_ok=True)
    (folder / _LAST).write_text(_FOR_INNER.format(folder=str(folder), packages=str(packages)))
