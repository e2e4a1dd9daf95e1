"""Prints what the steps import, from setup.cfg, one requirement a line."""

from __future__ import annotations

import configparser
import re
import sys
from pathlib import Path

# Of kfp the steps need no dependency, so it is installed apart; the other one, which would bring them, compiles only.
LEFT_OUT = ("kfp", "google-cloud-pipeline-components")


def requirements(setup: str) -> list[str]:
    """Requirements of the package and of its extra `steps`, without those of `LEFT_OUT`.

    Args:
        setup: content of setup.cfg.
    """
    parser = configparser.ConfigParser()
    parser.read_string(setup)
    lines = parser["options"]["install_requires"] + parser["options.extras_require"]["steps"]
    return [line for line in lines.split("\n") if line and re.split(r"[^\w.-]", line)[0] not in LEFT_OUT]


if __name__ == "__main__":
    print("\n".join(requirements(Path(sys.argv[1]).read_text(encoding="utf-8"))))
