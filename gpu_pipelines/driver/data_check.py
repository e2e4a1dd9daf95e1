"""A look at the data of a run before it is sent, as far as this machine may read it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpu_pipelines.driver.arguments import compiled_in, steps_of
from gpu_pipelines.errors import UserError

if TYPE_CHECKING:
    from gpu_pipelines.data.remote_check import Look
    from gpu_pipelines.data.settings import PrepareSettings
    from gpu_pipelines.targets.messages import Compiled, Values


def require_usable_data(compiled: Compiled, values: Values) -> None:
    """Refuses data in object storage that the first step of a run would refuse; says what cannot be seen from here.

    Args:
        compiled: the pipeline; of anybody's, what its preparations read that is there before the run.
        values: its parameters.

    Raises:
        UserError: lists what is wrong with the data.
    """
    look = _look(compiled, values)
    if look.problems:
        raise UserError.of_all(look.problems)


def warn_of_data(compiled: Compiled, values: Values) -> None:
    """As `require_usable_data`, for runs that come later: the data may be there by then."""
    look = _look(compiled, values)
    for problem in look.problems:
        print(f"warning: with the data as it is now, each run will fail: {problem}", file=sys.stderr)


def _look(compiled: Compiled, values: Values) -> Look:
    from gpu_pipelines.data.remote_check import Look, look_at_sources

    look = Look()
    for settings in _data_of(compiled, values):
        look.add(look_at_sources(settings))
    for line in look.unseen:
        print(f"note: {line} The step that reads it checks it.", file=sys.stderr)
    return look


def _data_of(compiled: Compiled, values: Values) -> Iterator[PrepareSettings]:
    """What the preparations of a run read."""
    from gpu_pipelines.component_interface.step import fields_from
    from gpu_pipelines.dag import PIPELINES, PREDICTION
    from gpu_pipelines.data.settings import PrepareSettings
    from gpu_pipelines.targets.own.values import sources_of

    name = compiled.name.replace("-", "_")
    if name not in PIPELINES:
        yield from sources_of(steps_of(compiled), values.arguments)
    elif name != PREDICTION:
        yield fields_from(PrepareSettings, {**compiled_in(compiled.spec), **values.arguments})
