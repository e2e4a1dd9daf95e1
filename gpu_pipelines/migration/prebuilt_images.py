"""Google's images that run Python packages on Vertex AI, and until when they are there.

Source: page "Prebuilt containers for serverless training" of the documentation of Vertex AI (by now Gemini Enterprise
Agent Platform), docs.cloud.google.com/gemini-enterprise-agent-platform/machine-learning/training/pre-built-containers,
in a copy of 2026. Runtimes of AI Platform Training had TensorFlow, scikit-learn and XGBoost; the images of TensorFlow
are those that a training on GPUs can use.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date

_ADDRESS = re.compile(r"(us|europe|asia)-docker\.pkg\.dev/vertex-ai/training/[\w.-]+(:latest)?")


@dataclass(frozen=True)
class PrebuiltImage:
    """An image with TensorFlow.

    Attributes:
        tensorflow: its version, `2.17`.
        python: version of Python.
        available_until: the day that Google may take it away.
    """

    tensorflow: str
    python: str
    available_until: date

    def address(self, gpu: bool, region: str | None) -> str:
        """Its address in the registry nearest to a region."""
        place = (region or "").partition("-")[0]
        registry = place if place in ("europe", "asia") else "us"
        kind = "gpu" if gpu else "cpu"
        version, python = self.tensorflow.replace(".", "-"), self.python.replace(".", "")
        return f"{registry}-docker.pkg.dev/vertex-ai/training/tf-{kind}.{version}.py{python}:latest"


#: The newest first.
IMAGES = (
    PrebuiltImage("2.17", "3.10", date(2026, 7, 11)),
    PrebuiltImage("2.16", "3.10", date(2026, 6, 28)),
    PrebuiltImage("2.15", "3.10", date(2025, 11, 14)),
    PrebuiltImage("2.14", "3.10", date(2025, 9, 26)),
)


def is_prebuilt(address: str) -> bool:
    """Whether an image is one of Google's for training, which alone may run a Python package."""
    return _ADDRESS.fullmatch(address) is not None


def image_for(runtime_version: str | None, today: date) -> PrebuiltImage | None:
    """The oldest image that is not older than a runtime version and is still there; None if there is none.

    The oldest, because it asks for the fewest changes of the code. There is none for TensorFlow 1.

    Args:
        runtime_version: of AI Platform Training, such as `2.11`, which is that of TensorFlow.
        today: the day that availability is judged by.
    """
    wanted = _version(runtime_version or "")
    if wanted is None or wanted < (2, 0):
        return None
    there = [
        each for each in IMAGES if today < each.available_until and (_version(each.tensorflow) or wanted) >= wanted
    ]
    return there[-1] if there else None


def _version(text: str) -> tuple[int, int] | None:
    match = re.fullmatch(r"([0-9]{1,3})\.([0-9]{1,3})(\.[0-9]{1,3})?", text, re.ASCII)
    return (int(match[1]), int(match[2])) if match else None
