"""A training job of a Hugging Face model, whose config.json gives its size."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gpu_pipelines.accelerators.model_config import fields_of_config
from gpu_pipelines.accelerators.workload import Workload
from gpu_pipelines.errors import UserError
from gpu_pipelines.tasks.model_check import with_file
from gpu_pipelines.tasks.model_places import CONFIG, place_told


def workload_of_model(model: str, **job: Any) -> Workload:
    """A training job of a model, as `gpu-pipelines accelerators advise --model`. No weights are read.

    Args:
        model: a directory with a config.json, local or remote, or an id of the hub, with `@REVISION` unless it is the
            newest.
        **job: fields of `Workload`, such as `tokens`; they win over the config.json.

    Raises:
        UserError: the config.json cannot be read, or does not give the number of parameters of its family.
    """
    with TemporaryDirectory() as folder:
        try:
            config = json.loads((with_file(model, CONFIG, Path(folder)) / CONFIG).read_bytes())
        except OSError:
            raise UserError(
                f"The model {place_told(model)} has no {CONFIG} that can be read.",
                "Give a directory in Hugging Face layout, or an id of the hub: OWNER/NAME.",
            ) from None
        except ValueError:
            raise UserError(f"The {CONFIG} of {model} is not JSON.", "Copy it again.") from None
    if not isinstance(config, dict):
        raise UserError(f"The {CONFIG} of {model} is not a JSON object.", "Copy it again.")
    return Workload(**{**fields_of_config(config, model), **job})
