"""Other defaults of parameters in the file of a pipeline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from gpu_pipelines.driver.parameters.advanced_fields import ADVANCED, as_taken, fields_of
from gpu_pipelines.driver.parameters.arguments import all_arguments
from gpu_pipelines.driver.parameters.interface import parameters_of_pipeline
from gpu_pipelines.driver.parameters.texts import given_values
from gpu_pipelines.errors import UserError


@contextmanager
def defaults_in_file(pipeline: str, assignments: Sequence[str]) -> Iterator[str]:
    """Lets a pipeline that is compiled in the block have other defaults.

    Args:
        pipeline: its name.
        assignments: texts of the form `key=value`.

    Returns:
        The name of the pipeline to compile: if a script is given, the one that trains with it, as for a run.

    Raises:
        UserError: lists everything that is wrong with them; or the pipeline is not one of this project.
    """
    if not assignments:
        yield pipeline
        return
    from gpu_pipelines.dag import PIPELINES, load_pipeline, load_request, pipeline_for
    from gpu_pipelines.dag.parameters import other_defaults
    from gpu_pipelines.targets.local.target import LocalTarget

    if pipeline not in PIPELINES:
        raise UserError(
            f"{pipeline} has its defaults in its file.", "Give parameters to a run of it, or the name of a pipeline."
        )
    pipeline = pipeline_for(pipeline, given_values(assignments, None))
    known = parameters_of_pipeline(load_pipeline(pipeline).build(LocalTarget(), None))
    fields = fields_of(pipeline, known)
    given = {assignment.partition("=")[0].strip() for assignment in assignments}
    optional = {name: replace(each, optional=True) for name, each in known.items()}
    values = all_arguments(optional, assignments, None, None, fields)
    is_whole = all(each.optional or name in given for name, each in known.items())
    if is_whole and (problems := load_request(pipeline).problems(values)):
        raise UserError.of_all(problems)
    if broken := [name for name in given if isinstance(values.get(name), str) and "\n" in values[name]]:
        raise UserError(
            f"{', '.join(broken)} has several lines, which KFP cannot write as a default.", "Give one line."
        )
    taken = as_taken(values, known, fields)
    inside = taken.get(ADVANCED)
    changed = {name: value for name, value in taken.items() if name in given}
    with other_defaults({**changed, **({ADVANCED: inside} if inside else {})}):
        yield pipeline
