"""The installation that runs `gpu-pipelines init`: the requirements that give a project the same packages, and whether
the project may use this installation.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_PACKAGE = "gpu-pipelines"
#: The packages that a project needs to run its pipeline, and to test itself.
EXTRA = "project"
_MODULES = ("cryptography", "gcp_storage_emulator", "grpc", "pytest", "ruff", "torch", "transformers")
#: Only this index has the builds of PyTorch without CUDA.
_CPU_BUILDS = "https://download.pytorch.org/whl/cpu"


def requirement(name: str = _PACKAGE, extra: str = EXTRA) -> str:
    """The requirement for pip that gives an installed package as it is here: by its version, or by its origin.

    Args:
        name: the package; by default this one, with all that a project needs.
        extra: its extra; empty for none.
    """
    installed = metadata.distribution(name)
    origin = json.loads(installed.read_text("direct_url.json") or "{}")
    named = f"{name}[{extra}]" if extra else name
    if "url" not in origin:
        return f"{named}=={installed.version}"
    revision = origin.get("vcs_info", {})
    place = f"{revision['vcs']}+{origin['url']}@{revision['commit_id']}" if revision else origin["url"]
    return f"{named} @ {place}"


def packages_of(classes: Iterable[type[Any]]) -> tuple[str, ...]:
    """The installed packages that provide some classes; none for this one, or for a class that lies in a folder."""
    own = _PACKAGE.replace("-", "_")
    modules = {each.__module__.partition(".")[0] for each in classes} - {own}
    brought = metadata.packages_distributions() if modules else {}
    return tuple(sorted({name for module in modules for name in brought.get(module, ())}))


def is_of_this_machine(place: str) -> bool:
    """Whether a requirement names a folder or a file of this machine, which other machines do not have."""
    return "@ file:" in place


@cache
def pins(packages: tuple[str, ...] = ()) -> list[str]:
    """The installed versions of all that a project needs, as constraints for pip.

    Args:
        packages: its requirements besides this package.
    """
    found = {name: version for name, version in _closure(packages) if name not in (_PACKAGE, *packages)}
    index = [f"--extra-index-url {_CPU_BUILDS}"] if found.get("torch", "").endswith("+cpu") else []
    return [*index, *(f"{name}=={version}" for name, version in sorted(found.items()))]


def folder_of_programs() -> Path | None:
    """The folder of this installation's programs, if it has all that a project needs; else None."""
    programs = Path(sys.executable).parent
    # make ends a name at a blank.
    has_all = (
        " " not in str(programs) and all(find_spec(module) for module in _MODULES) and (programs / _PACKAGE).is_file()
    )
    return programs if has_all else None


def _closure(packages: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Name and version of each installed distribution that a project needs, directly or indirectly."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    waiting, seen = [(_PACKAGE, frozenset({EXTRA})), *((name, frozenset[str]()) for name in packages)], set()
    while waiting:
        name, extras = waiting.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        try:
            installed = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        yield name, installed.version
        for line in installed.requires or ():
            needed = Requirement(line)
            marker = needed.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in (extras or {""})):
                waiting.append((canonicalize_name(needed.name), frozenset(needed.extras)))
