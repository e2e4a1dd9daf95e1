"""Prints what the steps import, from setup.cfg, one requirement a line."""

from __future__ import annotations

import configparser
import re
import sys
from pathlib import Path

# Of kfp the steps need no dependency, so it is installed apart; the others, which would bring them, compile only.
LEFT_OUT = ("kfp", "kfp-kubernetes", "google-cloud-pipeline-components")
# What the steps import, and what one that starts a TrainJob does.
EXTRAS = ("steps", "kubeflow")


def requirements(setup: str) -> list[str]:
    """Requirements of the package and of those of its extras that steps need, without those of `LEFT_OUT`.

    Args:
        setup: content of setup.cfg.
    """
    parser = configparser.ConfigParser()
    parser.read_string(setup)
    extras = [parser["options.extras_require"][extra] for extra in EXTRAS]
    lines = "\n".join([parser["options"]["install_requires"], *extras])
    return [line for line in lines.split("\n") if line and re.split(r"[^\w.-]", line)[0] not in LEFT_OUT]


if __name__ == "__main__":
    print("\n".join(requirements(Path(sys.argv[1]).read_text(encoding="utf-8"))))
