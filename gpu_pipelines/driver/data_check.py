"""A look at the data of a run before it is sent, as far as this machine may read it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from gpu_pipelines.driver.arguments import compiled_in
from gpu_pipelines.errors import UserError

if TYPE_CHECKING:
    from gpu_pipelines.data.remote_check import Look
    from gpu_pipelines.targets.messages import Compiled, Values


def require_usable_data(compiled: Compiled, values: Values) -> None:
    """Refuses data in object storage that the first step of a run would refuse; says what cannot be seen from here.

    Args:
        compiled: the pipeline; of one that is not of this project nothing is known.
        values: its parameters.

    Raises:
        UserError: lists what is wrong with the data.
    """
    look = _look(compiled, values)
    if look and look.problems:
        raise UserError.of_all(look.problems)


def warn_of_data(compiled: Compiled, values: Values) -> None:
    """As `require_usable_data`, for runs that come later: the data may be there by then."""
    look = _look(compiled, values)
    for problem in look.problems if look else ():
        print(f"warning: with the data as it is now, each run will fail: {problem}", file=sys.stderr)


def _look(compiled: Compiled, values: Values) -> Look | None:
    from gpu_pipelines.dag import PIPELINES, PREDICTION

    if compiled.name.replace("-", "_") not in PIPELINES or compiled.name.replace("-", "_") == PREDICTION:
        return None
    from gpu_pipelines.component_interface.step import fields_from
    from gpu_pipelines.data.remote_check import look_at_sources
    from gpu_pipelines.data.settings import PrepareSettings

    look = look_at_sources(fields_from(PrepareSettings, {**compiled_in(compiled.spec), **values.arguments}))
    for line in look.unseen:
        print(f"note: {line} The first step of the run checks it.", file=sys.stderr)
    return look
