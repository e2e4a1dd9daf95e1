"""Images that Google no longer keeps: those in Container Registry, and its PyTorch images for trainings on GPUs."""

from __future__ import annotations

import re

_HOSTS = ("gcr.io/", "us.gcr.io/", "eu.gcr.io/", "asia.gcr.io/")
_PYTORCH = re.compile(r"(us|europe|asia)-docker\.pkg\.dev/vertex-ai/training/pytorch-gpu\.(\d+)-(\d+)\b")
#: The newest PyTorch of these images, and the last day of that image's availability:
#: https://cloud.google.com/vertex-ai/docs/training/pre-built-containers, read on 2026-11-20.
_NEWEST, _KEPT_UNTIL = (2, 4), "2026-07-24"


def shut_down(image: str) -> str:
    """A warning about an image that Google no longer keeps; empty for any other."""
    if image.startswith(_HOSTS):
        return (
            f"{image[:200]} has an address of Container Registry, which was shut down on 2025-03-18. It works if the "
            "project moved its images to Artifact Registry."
        )
    pytorch = _PYTORCH.match(image)
    if pytorch and (int(pytorch[2]), int(pytorch[3])) <= _NEWEST:
        return (
            f"{image[:200]} is past the end of its availability: Google kept the newest of these images, of PyTorch "
            f"{_NEWEST[0]}.{_NEWEST[1]}, until {_KEPT_UNTIL}. It may be gone; give an image of your own."
        )
    return ""
