"""All trackers by name, and checks of the parameter `tracking`."""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec
from urllib.parse import parse_qsl, urlsplit

from gpu_pipelines.errors import UserError, nearest
from gpu_pipelines.own_class import own_class, places_of, said_by_own
from gpu_pipelines.step_environment import TRACKING
from gpu_pipelines.tracking.tracker import Tracker

#: The value of `tracking` for no tracking.
NONE = "none"
#: A tracker of this program is one file and one line here.
_BUILT_IN = {
    "mlflow": "gpu_pipelines.tracking.mlflow_tracker:MlflowTracker",
    "vertex": "gpu_pipelines.tracking.vertex_tracker:VertexTracker",
    "wandb": "gpu_pipelines.tracking.wandb_tracker:WandbTracker",
}
#: A tracker of an installed package is one line in its metadata: `name = package.module:Class`.
ENTRY_POINTS = "gpu_pipelines.trackers"
_SEE = "See docs/extending.md."
#: Parts of the names of parameters in an address that hold a secret.
_SECRETS = ("key", "token", "password", "secret")


def tracking_of(given: str) -> str:
    """The tracker of a step: from its parameter, else from its environment, else none.

    Args:
        given: the step's input `tracking`.
    """
    return given if given not in ("", NONE) else os.environ.get(TRACKING) or NONE


def tracker_for(tracking: str) -> Tracker:
    """The tracker with the name and address of `tracking`.

    Raises:
        UserError: there is none with that name, or it cannot be loaded.
    """
    name, _, address = tracking.partition(":")
    return _class_of(name)(address)


def problems_of_tracking(tracking: str, place: str, *, is_here: bool) -> list[str]:
    """Problems with a value of `tracking`, each with what to do.

    Args:
        tracking: a tracker's name, and after a colon its address if it takes one; `none` or empty for no tracker.
        place: the target of the run.
        is_here: whether this code runs where the steps run.
    """
    if tracking in ("", NONE):
        return []
    name, _, address = tracking.partition(":")
    if _has_secret(address):
        # The value is not repeated: it would appear in a log.
        return [
            f"tracking has a password or a key in its address, which compiled files and logs would show. Give "
            f"{name}:ADDRESS without it, and the secret in the variable that the client of {name} takes it from."
        ]
    try:
        tracker = _class_of(name)
    except UserError as error:
        return [error.in_one_line]
    found = said_by_own(f"The tracker {name}", tracker.problems, address, place, is_here=is_here, see=_SEE)
    if not found and is_here and tracker.package and not _is_installed(tracker.package):
        install = f"pip install 'gpu-pipelines[{tracker.extra}]'" if tracker.extra else f"pip install {tracker.package}"
        found.append(f"tracking is {name}, but {tracker.package} is not installed. Install it: {install}.")
    return found


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # one that it is in
        return False


def _has_secret(address: str) -> bool:
    parts = urlsplit(address)
    return "@" in parts.netloc or any(
        secret in name.lower() for name, _ in parse_qsl(parts.query) for secret in _SECRETS
    )


def _class_of(name: str) -> type[Tracker]:
    if name not in (found := _places()):
        raise UserError(f"There is no tracker {name[:60]!r}.", nearest(name, [NONE, *found]))
    return own_class(found[name], Tracker, f"The tracker {name}", _SEE)


@cache
def _places() -> dict[str, str]:
    """The classes of all trackers by name; those of this program take precedence."""
    return places_of(ENTRY_POINTS, "tracker", _BUILT_IN, taken=(NONE,))
