"""What can be wrong with a request for `scheduled_retraining`; see that of `train_evaluate_upload`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from gpu_pipelines.component_interface.step import fields_from
from gpu_pipelines.dag import train_evaluate_upload as one_training
from gpu_pipelines.dag.train_evaluate_upload import places, problems_of_access
from gpu_pipelines.data.watch import WatchSettings

__all__ = ["SETTINGS", "places", "problems", "problems_of_access"]

#: The settings of the steps, by the output of `check_request` with those of them that are fields of `advanced`.
SETTINGS = {**one_training.SETTINGS, "watch": WatchSettings}
#: As many as the notification component takes.
#: Source: https://cloud.google.com/vertex-ai/docs/pipelines/email-notifications, RECIPIENTS_LIST.
MOST_ADDRESSES = 3
_ADDRESS = re.compile(r"[^@\s,]+@[^@\s,]+\.[^@\s,]+")


def problems(arguments: Mapping[str, Any]) -> list[str]:
    """Everything that is wrong with the parameters of a run, without reading any data."""
    found = [*one_training.problems(arguments), *fields_from(WatchSettings, arguments).problems()]
    return [*found, *_problems_of_addresses(arguments["notify"])] if "notify" in arguments else found


def _problems_of_addresses(addresses: Sequence[str]) -> list[str]:
    found = []
    if not 1 <= len(addresses) <= MOST_ADDRESSES:
        found.append(
            f"notify has {len(addresses)} addresses; give one to {MOST_ADDRESSES}, as in -p notify=team@example.com. "
            "They are told how each run ended."
        )
    wrong = [address for address in addresses if not _ADDRESS.fullmatch(address)]
    return [*found, *(f"notify has {address[:80]!r}, which is not an e-mail address." for address in wrong)]
