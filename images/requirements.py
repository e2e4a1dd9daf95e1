"""Prints what an image has to have installed, from setup.cfg, one requirement a line."""

from __future__ import annotations

import configparser
import re
import sys
from pathlib import Path

# Of kfp the steps need no dependency, so it is installed apart; the others, which would bring them, compile only.
LEFT_OUT = ("kfp", "kfp-kubernetes", "google-cloud-pipeline-components")
PACKAGE = "gpu-pipelines"
#: Extras that the image of the steps has besides `steps`.
FURTHER = ("kubeflow", "ray", "mlflow", "tune", "quantization", "benchmarks")


def requirements(setup: str, extra: str) -> list[str]:
    """Requirements of an extra and those of the extras that it names; without those of `LEFT_OUT`.

    Args:
        setup: content of setup.cfg.
        extra: `steps`, which use the whole package, need its own requirements, and those to start a TrainJob and a Ray
            cluster, to speak to MLflow, to search for parameters, to quantize weights and to run benchmarks, as well;
            or `serving`, which does not.
    """
    parser = configparser.ConfigParser()
    parser.read_string(setup)
    extras = parser["options.extras_require"]
    lines = extras[extra].split("\n")
    for named in re.findall(rf"{PACKAGE}\[(\w+)\]", extras[extra]):
        lines += extras[named].split("\n")
    if extra == "steps":
        wholes = (parser["options"]["install_requires"], *(extras[each] for each in FURTHER))
        lines += [line for whole in wholes for line in whole.split("\n")]
    wanted = dict.fromkeys(line for line in lines if line)
    return [line for line in wanted if re.split(r"[^\w.-]", line)[0] not in (*LEFT_OUT, PACKAGE)]


if __name__ == "__main__":
    print("\n".join(requirements(Path(sys.argv[1]).read_text(encoding="utf-8"), sys.argv[2])))
