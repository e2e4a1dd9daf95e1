"""`gpu-pipelines doctor`: what a project needs for training on Vertex AI, and the commands for what is missing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpu_pipelines.cli.application import print_json
from gpu_pipelines.cli.target_options import AsJson, with_fields
from gpu_pipelines.terminal import wrapped

if TYPE_CHECKING:
    from gpu_pipelines.targets.vertex.doctor.checks import Check

_WIDTH = 22


@with_fields("gpu_pipelines.targets.vertex.options:VertexOptions", "doctor")
def doctor(
    options: Any,
    accelerator: Annotated[
        str | None, typer.Option(metavar="SPEC", help="Accelerator to train on, NAME:COUNT; its quota is checked.")
    ] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Call no service.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check what training on Vertex AI (Gemini Enterprise Agent Platform) needs; exits with 1 if it is missing."""
    from gpu_pipelines.driver.doctor import checks_of
    from gpu_pipelines.targets.vertex.doctor.checks import MISSING

    checks = checks_of(options, accelerator, offline=offline)
    found = list(checks) if as_json else _shown(checks)
    missing = [check for check in found if check.state == MISSING]
    if as_json:
        print_json({"ok": not missing, "checks": [vars(check) for check in found]})
    else:
        print(_summary(found, len(missing)))
    if missing:
        raise typer.Exit(1)


def _shown(checks: Iterable[Check]) -> list[Check]:
    """Prints the result of each check at once."""
    found = []
    for check in checks:
        sign = {"ok": "✓", "missing": "✗"}.get(check.state, "–")
        print(wrapped(check.message, f"{sign} {check.subject:<{_WIDTH}} "), flush=True)
        if check.remedy:
            print(f"  {'':<{_WIDTH}} → {check.remedy}", flush=True)
        found.append(check)
    return found


def _summary(found: list[Check], missing: int) -> str:
    unknown = sum(check.state == "unknown" for check in found)
    told = f"{missing} missing" if missing else "Nothing that was checked is missing"
    return f"{told}; {unknown} not checked or not needed." if unknown else f"{told}."
