"""Locations of buckets: regions, and multi-regions with several."""

from __future__ import annotations

import re

#: The regions of a multi-region: https://cloud.google.com/storage/docs/locations#location-mr. The EU is without the
#: regions of the United Kingdom and Switzerland.
MULTI_REGIONS = {"US": "us-", "EU": "europe-", "ASIA": "asia-"}
NOT_IN_THE_EU = ("europe-west2", "europe-west6")


def is_in(location: str, region: str) -> bool | None:
    """Whether a bucket's location includes a region; None if that is not known here, as for dual-regions.

    Args:
        location: as in Cloud Storage.
        region: a region of Google Cloud.
    """
    prefix = MULTI_REGIONS.get(location.upper())
    if location.lower() == region or (prefix and region.startswith(prefix) and region not in NOT_IN_THE_EU):
        return True
    if prefix is None and not re.fullmatch(r"[a-z]+-[a-z]+[0-9]+", location.lower()):
        return None
    return False
