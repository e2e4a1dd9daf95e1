"""A pipeline or component as the text of a YAML file, and its steps."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from gpu_pipelines.component_interface.image import STEPS_IMAGE
from gpu_pipelines.errors import UserError
from gpu_pipelines.project_settings import ProjectSettings
from gpu_pipelines.targets.spec_steps import tasks_in
from gpu_pipelines.yaml_input import require_bounded

#: In the program of Google's component for e-mails, which Vertex AI Pipelines alone runs: elsewhere it only raises.
EMAILS_OF_VERTEX = "vertex_notification_email"
#: Files that programs write are larger than those of people.
_LIMITS_OF_A_FILE = 20

_TURNS = re.compile(r"(-#\d+)+$")
# Ten times as fast if PyYAML was built with libyaml.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def compiled(source: Any) -> str:
    """The text that KFP's compiler writes.

    Args:
        source: a KFP pipeline or component.
    """
    from kfp import compiler

    with tempfile.TemporaryDirectory() as folder, by_libyaml():
        path = Path(folder) / "compiled.yaml"
        compiler.Compiler().compile(source, str(path))
        return path.read_text(encoding="utf-8")


@contextmanager
def by_libyaml() -> Iterator[None]:
    """Makes PyYAML's functions, which other libraries call, use libyaml meanwhile, in a tenth of the time.

    It breaks lines at other places; parsing gives the same.
    """
    module: Any = yaml
    plain = module.SafeLoader, module.SafeDumper, module.dump_all
    module.SafeLoader, module.SafeDumper = _LOADER, getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    module.dump_all = partial(yaml.dump_all, Dumper=getattr(yaml, "CDumper", yaml.Dumper))
    try:
        yield
    finally:
        module.SafeLoader, module.SafeDumper, module.dump_all = plain


def with_image(text: str, settings: ProjectSettings, origin: str) -> str:
    """A compiled file with the settings' image in place of the placeholder in published files.

    Args:
        text: content of the file.
        settings: they have the image, which is required only if the file needs it.
        origin: name of the file in messages.

    Raises:
        UserError: the file needs an image and none is known, or it has one of its own and another was given.
    """
    if STEPS_IMAGE in text:
        settings.require("image")
        return text.replace(STEPS_IMAGE, str(settings.image))
    if settings.origins.get("image") == "--image":
        raise UserError(
            f"{origin} was compiled with an image of its own.", "Leave out --image, or compile it again with --image."
        )
    return text


def note_of_file(settings: ProjectSettings) -> str:
    """The note of a file about the image of its steps; nobody can pull the placeholder in a file without one."""
    if settings.image:
        return f"Its steps run in {settings.image}."
    return (
        f"Its steps run in {STEPS_IMAGE}, which stands for an image of your own; nobody can pull it. Where "
        "gpu-pipelines runs this file, it fills in that of the settings."
    )


def text_of_file(name: str) -> str:
    """The text of a compiled file.

    Raises:
        UserError: it cannot be read.
    """
    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"The file {name} cannot be read: {getattr(error, 'strerror', None) or error}.") from None


def write_file(path: Path, text: str) -> None:
    """Writes a file that a user named, and creates its directory.

    Raises:
        UserError: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"The file {path} cannot be written: {error.strerror}.") from None


def write_compiled(path: Path, text: str, pipeline: str) -> None:
    """Writes a compiled pipeline; see `write_file`.

    Args:
        path: the file.
        text: its content.
        pipeline: the compiled pipeline, as in `Request.pipeline`.

    Raises:
        UserError: it cannot be written, or the file would be a program, most likely the pipeline itself, or is the file
            that was compiled.
    """
    if path.suffix == ".py":
        raise UserError(f"A compiled pipeline is YAML, and {path} would be a program.", "Give FILE.yaml.")
    require_another(path, Path(pipeline), "pipeline")
    write_file(path, text)


def require_another(path: Path, read: Path, what: str) -> None:
    """Checks that the file to write is not the file that was read.

    Args:
        path: the file to write.
        read: the file that was read; it need not exist.
        what: kind of the file that was read, for the message.

    Raises:
        UserError: they are the same.
    """
    if read.is_file() and path.resolve() == read.resolve():
        raise UserError(f"{path} is the {what} itself, and would be written over.", "Give another file to write.")


def documents_of(text: str) -> list[Any]:
    """The YAML documents of a compiled file that are not empty; KFP writes JSON as well.

    Raises:
        UserError: its aliases expand to more than any compiled file has.
        yaml.YAMLError, ValueError, RecursionError: it is not YAML.
    """
    if text.startswith("{"):
        # PyYAML takes 1e-05 in JSON for a text, and no escapes of emoji.
        with suppress(ValueError):
            return [json.loads(text)]
    require_bounded(text, "The compiled file", times=_LIMITS_OF_A_FILE)
    return [part for part in yaml.load_all(text, Loader=_LOADER) if part]


def parsed_documents(text: str, origin: str) -> list[Any]:
    """The same for a file that a user gave.

    Args:
        text: content of the file.
        origin: name of the file in messages.

    Raises:
        UserError: it is not YAML, or its aliases expand to more than any compiled file has.
    """
    try:
        return documents_of(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UserError(f"{origin} is not YAML: {' '.join(str(error).split())[:300]}.") from None


def required_pipeline(spec: Any, origin: str, target: str) -> dict[str, Any]:
    """A document that is a compiled pipeline.

    Args:
        spec: the document.
        origin: name of its file in messages.
        target: name of the target that the file is for.

    Raises:
        UserError: it is something else.
    """
    if isinstance(spec, dict) and isinstance(spec.get("root"), dict) and "deploymentSpec" in spec:
        return spec
    raise UserError(f"{origin} is not a compiled pipeline.", f"Make one with gpu-pipelines compile --target {target}.")


def steps_of(spec: Mapping[str, Any]) -> dict[str, list[str]]:
    """The tasks of a pipeline that run something, including those in its branches, each with the tasks before it.

    Args:
        spec: a compiled pipeline.

    Returns:
        Names of tasks by name, in an order in which they can run.
    """
    needs: dict[str, set[str]] = {}
    _add_steps(spec, spec["root"].get("dag", {}).get("tasks", {}), set(), needs)
    waiting = {name: sorted(needs[name]) for name in sorted(needs)}
    ordered: dict[str, list[str]] = {}
    while ready := [name for name, before in waiting.items() if all(each in ordered for each in before)]:
        ordered.update({name: waiting.pop(name) for name in ready})
    return ordered


def step_components(spec: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The component of each task of a pipeline that runs something, by the task's name."""
    components = spec.get("components", {})
    tasks = {name: components[task["componentRef"]["name"]] for name, task in tasks_in(spec)}
    return {name: component for name, component in tasks.items() if "executorLabel" in component}


def without_turns(name: str) -> str:
    """The name of a task without the turns of loops, which a service may append."""
    return _TURNS.sub("", name)


def _add_steps(
    spec: Mapping[str, Any], tasks: Mapping[str, Any], before: set[str], needs: dict[str, set[str]]
) -> set[str]:
    """Adds the steps of a part of a pipeline to `needs`; returns the steps that its end waits for.

    Args:
        spec: the pipeline.
        tasks: tasks of the part.
        before: the steps before the part as a whole.
        needs: gets for each step the steps before it.
    """
    last: dict[str, set[str]] = {}
    waiting = dict(tasks)
    while ready := [name for name, task in waiting.items() if not waiting.keys() & set(task.get("dependentTasks", []))]:
        for name in ready:
            task = waiting.pop(name)
            after = set().union(*(last[other] for other in task.get("dependentTasks", []))) or before
            component = spec["components"][task["componentRef"]["name"]]
            if "dag" in component:
                last[name] = _add_steps(spec, component["dag"]["tasks"], after, needs)
            else:
                needs[name], last[name] = after, {name}
    inner = {other for task in tasks.values() for other in task.get("dependentTasks", [])}
    return set().union(*(steps for name, steps in last.items() if name not in inner))
