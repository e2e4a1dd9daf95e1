"""Users' own pipelines: a Python file with functions that `@dsl.pipeline` decorates, or a compiled file."""

from __future__ import annotations

import importlib.util
import shlex
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, get_args, get_origin

from gpu_pipelines.dag.callers import name_callers_without_source
from gpu_pipelines.errors import UserError, named, nearest
from gpu_pipelines.targets.messages import PYTHON
from gpu_pipelines.targets.own.annotations import LoaderWithTypes
from gpu_pipelines.targets.own.kfp_groups import mended_groups
from gpu_pipelines.targets.own.mistakes import meant, no_truth_of_values

#: Pipelines that a program gave as functions, by the places that targets use for them.
_GIVEN: dict[str, Any] = {}


@contextmanager
def place_of(pipeline: Any) -> Iterator[str]:
    """Gives a KFP pipeline of this program a place for `pipeline_in`, as long as the context lasts."""
    place = f"{pipeline.name}-{id(pipeline):x}{PYTHON}"
    _GIVEN[place] = pipeline
    try:
        yield place
    finally:
        _GIVEN.pop(place, None)


def pipeline_in(place: str) -> Any:
    """The KFP pipeline in a Python file; if it has none, its component.

    Args:
        place: `FILE.py`, or `FILE.py:function` if the file has several.

    Raises:
        UserError: the file cannot be imported, or there is no such pipeline in it.
    """
    if place in _GIVEN:
        return _GIVEN[place]
    path, _, function = (place, "", "") if place.endswith(PYTHON) else place.rpartition(":")
    module = _imported(Path(path))
    found = dict(_pipelines_of(module))
    if not found:
        raise UserError(
            f"{path} has no pipeline.", "Decorate a function of it with @dsl.pipeline (from kfp import dsl)."
        )
    if function in found:
        return found[function]
    if function:
        raise UserError(f"{path} has no pipeline {function!r}.", nearest(function, list(found)))
    if len(found) > 1:
        raise UserError(
            f"{path} has {len(found)} pipelines.", f"Name one: {', '.join(f'{path}:{each}' for each in found)}."
        )
    return next(iter(found.values()))


def item_types_of(pipeline: Any) -> dict[str, type]:
    """Item types of list parameters: whole numbers, numbers or truth values. A compiled file has only lists."""
    function = getattr(pipeline, "pipeline_func", None) or getattr(pipeline, "python_func", None)
    found = {}
    for name, hint in getattr(function, "__annotations__", {}).items():
        for each in (hint, *get_args(hint)):  # Optional[List[int]] has the list inside
            if get_origin(each) is list and get_args(each)[:1] and get_args(each)[0] in (int, float, bool):
                found[name] = get_args(each)[0]
    return found


def _pipelines_of(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """The pipelines that a module defines, by the names of their functions; not those that it imports."""
    from kfp.dsl.base_component import BaseComponent
    from kfp.dsl.graph_component import GraphComponent

    found = {name: value for name, value in vars(module).items() if isinstance(value, BaseComponent)}
    pipelines = {name: value for name, value in found.items() if isinstance(value, GraphComponent)}
    for name, value in (pipelines or found).items():
        function = getattr(value, "pipeline_func", None) or getattr(value, "python_func", None)
        if function is None or function.__module__ == module.__name__:
            yield name, value


def _imported(path: Path) -> ModuleType:
    if not path.is_file():
        raise UserError(f"The file {path} does not exist.", "Give FILE.py or FILE.py:function.")
    # Not its own name, which may be that of a package.
    name = f"_pipeline_file_{path.stem}"
    loader = LoaderWithTypes(name, str(path.resolve()))
    spec = importlib.util.spec_from_file_location(name, path.resolve(), loader=loader)
    assert spec
    assert spec.loader
    name_callers_without_source()
    module = importlib.util.module_from_spec(spec)
    with _beside(path, name, module), no_truth_of_values(path), mended_groups(), warnings.catch_warnings():
        # KFP warns about each component without an image; whoever runs this file has not written KFP.
        warnings.filterwarnings("ignore", message="The default base_image", category=FutureWarning)
        try:
            spec.loader.exec_module(module)
        except UserError:
            raise
        except (Exception, SystemExit) as error:  # importing runs the user's file, which can raise anything
            more = f"Fix it: python {shlex.quote(str(path))} says more."
            remedy = next(reversed(loader.unresolved), meant(error) or more)
            raise UserError(f"{path} cannot be imported: {_said(error, path)}.", remedy) from None
    return module


@contextmanager
def _beside(path: Path, name: str, module: ModuleType) -> Iterator[None]:
    """Lets a file import modules beside it, as `python FILE.py` does."""
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)
    sys.modules[name] = module
    try:
        yield
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        sys.path.remove(folder)


def _said(error: BaseException, path: Path) -> str:
    """The error, and the line of the file."""
    if isinstance(error, SyntaxError):
        return f"line {error.lineno}: {error.msg}"
    lines = [each.lineno for each in traceback.extract_tb(error.__traceback__) if Path(each.filename) == path.resolve()]
    where = f"line {lines[-1]}: " if lines else ""
    return f"{where}{named(error)}".rstrip(".")
