"""Addresses of Container Registry, which Google shut down."""

from __future__ import annotations

_HOSTS = ("gcr.io/", "us.gcr.io/", "eu.gcr.io/", "asia.gcr.io/")


def shut_down(image: str) -> str:
    """What to know of an image whose address is one of Container Registry; empty for any other."""
    if not image.startswith(_HOSTS):
        return ""
    return (
        f"{image[:200]} has an address of Container Registry, which was shut down on 2025-03-18. It works if the "
        "project moved its images to Artifact Registry."
    )
