"""Checks of a request for `scheduled_retraining`; see `train_evaluate_upload`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpu_pipelines.component_interface.step import fields_from
from gpu_pipelines.dag import train_evaluate_upload as one_training
from gpu_pipelines.dag.places import DATA, Place
from gpu_pipelines.dag.train_evaluate_upload import problems_of_access
from gpu_pipelines.data.watch import WatchSettings
from gpu_pipelines.notifications.channels import is_email, problems_of_addresses, split

__all__ = ["SETTINGS", "places", "problems", "problems_of_access"]

#: The settings of the steps, by the output of `check_request` that has their fields of `advanced`.
SETTINGS = {**one_training.SETTINGS, "watch": WatchSettings}
#: The limit of Vertex AI's notification component.
#: Source: https://cloud.google.com/vertex-ai/docs/pipelines/email-notifications, RECIPIENTS_LIST.
MOST_ADDRESSES = 3


def problems(arguments: Mapping[str, Any]) -> list[str]:
    """Everything that is wrong with the parameters of a run, without reading any data."""
    found = [*one_training.problems(arguments), *fields_from(WatchSettings, arguments).problems()]
    # With that parameter a step of this project sends the messages, to any channel.
    by_service = "notify_nothing_new" not in arguments
    return [*found, *_problems_of_addresses(arguments["notify"], by_service)] if "notify" in arguments else found


def places(arguments: Mapping[str, Any]) -> list[Place]:
    """The places that a run reads from and writes to."""
    found = one_training.places(arguments)
    if source := fields_from(WatchSettings, arguments).drift_source:
        found.append(Place("drift_source", source, DATA))
    return found


def _problems_of_addresses(addresses: Sequence[str], by_service: bool) -> list[str]:
    found = []
    too_many = by_service and len(addresses) > MOST_ADDRESSES and all(map(is_email, addresses))
    if not addresses or too_many:
        found.append(
            f"notify has {len(addresses)} addresses; give one to {MOST_ADDRESSES}, as in -p notify=team@example.com. "
            "They get the result of each run."
        )
    if by_service and (channels := [split(address)[0] for address in addresses if not is_email(address)]):
        found.append(
            f"notify has {channels[0]}:, and in this file the service sends e-mails and nothing else. Give --notify "
            "where it is compiled: a step of the pipeline tells them then."
        )
    return [*found, *problems_of_addresses(addresses, None)]
