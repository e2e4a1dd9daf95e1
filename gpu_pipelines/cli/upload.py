"""`gpu-pipelines upload`: a compiled pipeline into the store of a target."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

from gpu_pipelines.cli.run import show
from gpu_pipelines.cli.target_options import THERE, AsJson, of_targets


@of_targets("upload", can="publish", default=THERE)
def upload(
    pipeline: Annotated[str, typer.Argument(help="Name of the pipeline, or a compiled file.")],
    target: Any,
    tag: Annotated[
        list[str] | None, typer.Option(help="A tag for this version, default latest; kubeflow: the version's name.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Upload a pipeline to Artifact Registry, as an immutable version with tags, or to Kubeflow Pipelines.

    With a name the pipeline is compiled for the accelerator first.
    """
    from gpu_pipelines.targets.messages import Request

    compiled = target.load(Request(pipeline, to_publish=True))
    for line in compiled.told:
        print(line, file=sys.stderr)
    done = target.publish(compiled, tag or [])
    if as_json:
        print(json.dumps(done.document, indent=2))
    else:
        show(done.lines)
