"""Prints what the steps need, from setup.cfg: all but kfp, which goes without its dependencies."""

from __future__ import annotations

import configparser
import sys
from pathlib import Path


def requirements(setup: str) -> list[str]:
    """Requirements of the package and of its extra `steps`, without kfp.

    Args:
        setup: content of setup.cfg.
    """
    parser = configparser.ConfigParser()
    parser.read_string(setup)
    wanted = parser["options"]["install_requires"] + parser["options.extras_require"]["steps"]
    return [line for line in wanted.split("\n") if line and not line.startswith("kfp>")]


if __name__ == "__main__":
    print("\n".join(requirements(Path(sys.argv[1]).read_text(encoding="utf-8"))))
