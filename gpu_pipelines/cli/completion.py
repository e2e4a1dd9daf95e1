"""Completes words for a shell: pipelines, accelerators, targets, parameters and their values, models.

`gpu-pipelines --install-completion` sets the shell up. Nothing here asks a service: a word must appear at once.
"""

from __future__ import annotations

import inspect
import io
import os
from collections.abc import Iterable, Iterator
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any

import typer

from gpu_pipelines.cli.target_options import Words, asked
from gpu_pipelines.component_interface.default_registry import registry_of_project
from gpu_pipelines.targets.options import accelerators, machine_types, regions, strategies

_ASKED = "_GPU_PIPELINES_COMPLETE"
#: Where bash breaks a word before it asks; the part before must not be repeated.
_BASH_BREAKS = ":=@"


def is_asked() -> bool:
    """Whether this process was started by a shell that wants to complete a word."""
    return bool(os.environ.get(_ASKED))


def answer(app: typer.Typer) -> None:
    """Prints the words for the shell."""
    begun = _join_words_of_bash() if os.environ[_ASKED] == "complete_bash" else ""
    for path, callback in _commands(app):
        for name, info in _declarations(callback):
            if words := _WORDS_OF_COMMAND.get((path, name)) or _WORDS.get(name):
                info.autocompletion = asked(words)
    with redirect_stdout(io.StringIO()) as said, suppress(SystemExit):
        app(prog_name="gpu-pipelines")
    for line in said.getvalue().splitlines():
        print(line.removeprefix(begun))


def _join_words_of_bash() -> str:
    """Joins the words that bash has broken into `-p`, `task`, `=`, `te` to `-p`, `task=te`.

    Returns:
        The beginning of the last word that bash takes for separate words, and puts before its answer.
    """
    place = int(os.environ.get("COMP_CWORD", "0"))
    joined: list[str] = []
    glue = False
    for word in os.environ.get("COMP_WORDS", "").split("\n")[: place + 1]:
        is_break = bool(word) and set(word) <= set(_BASH_BREAKS)
        if joined and (glue or is_break):
            joined[-1] += word
        else:
            joined.append(word)
        glue = is_break
    os.environ["COMP_WORDS"], os.environ["COMP_CWORD"] = "\n".join(joined), str(len(joined) - 1)
    last = joined[-1].partition("=")[2] if joined[-1].startswith("--") else joined[-1]
    return last[: max(last.rfind(sign) for sign in _BASH_BREAKS) + 1]


def _commands(app: typer.Typer, above: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Each command's path, such as `models show`, and its function."""
    for command in app.registered_commands:
        if command.callback:
            yield " ".join((*above, command.name or command.callback.__name__.replace("_", "-"))), command.callback
    for group in app.registered_groups:
        if group.typer_instance:
            name = group.name if isinstance(group.name, str) else group.typer_instance.info.name
            yield from _commands(group.typer_instance, (*above, str(name)))


def _declarations(callback: Any) -> Iterator[tuple[str, Any]]:
    """The names of a command's parameters, with the declaration of each."""
    hints = inspect.get_annotations(callback, eval_str=True)
    # The annotations are texts; typer would evaluate them again, to other declarations.
    callback.__annotations__ = hints
    for name, hint in hints.items():
        for info in getattr(hint, "__metadata__", ()):
            # The declarations of a target have their own words.
            if getattr(info, "autocompletion", True) is None:
                yield name, info


def _fixed(*words: str) -> Words:
    return lambda context, incomplete: words


def _pipelines(context: typer.Context, incomplete: str) -> Iterable[str]:
    from gpu_pipelines.dag import PIPELINES

    return PIPELINES


def _targets(context: typer.Context, incomplete: str) -> Iterable[str]:
    from gpu_pipelines.targets.target import targets

    return targets()


def _components(context: typer.Context, incomplete: str) -> Iterable[str]:
    from gpu_pipelines.component_interface.catalog import COMPONENTS

    return COMPONENTS


def _gpus(context: typer.Context, incomplete: str) -> Iterable[str]:
    from gpu_pipelines.accelerators.catalog import load_catalog

    return load_catalog().gpus


def _of_options(words: Any) -> Words:
    return lambda context, incomplete: words(context.params)


def _tasks(context: typer.Context, incomplete: str) -> Iterable[str]:
    from gpu_pipelines.tasks.tasks import TASKS

    return TASKS


def _parameters(context: typer.Context, incomplete: str) -> Iterable[str]:
    """`NAME=` for each parameter of the pipeline; after the sign its values, as far as they are known."""
    from gpu_pipelines.driver.parameters.known import known_parameters
    from gpu_pipelines.targets.messages import is_python

    pipeline = str(context.params.get("pipeline") or "train_evaluate_upload")
    if is_python(pipeline):
        # Its parameters are known only after it has run, and completion must not run a program.
        return ()
    known = known_parameters(pipeline)
    matching = [name for name in known if f"{name}=".startswith(incomplete)]
    if "=" not in incomplete and len(matching) != 1:
        return [f"{name}=" for name in known]
    name = matching[0] if matching else incomplete.partition("=")[0]
    # With a value beside it, the shell stops after the sign; otherwise it would go on to the next word.
    return [f"{name}=", *(f"{name}={value}" for value in _values_of(name, known[name]))]


def _values_of(name: str, parameter: Any) -> list[str]:
    from gpu_pipelines.tasks.tasks import TASKS

    if parameter.type == "Boolean":
        return ["true", "false"]
    if name == "task":
        return list(TASKS)
    if name == "model":
        return [model for task in TASKS.values() for model in task.models]
    if name == "source":
        return [str(task.defaults["source"]) for task in TASKS.values() if "source" in task.defaults]
    if name == "select_by":
        return [metric for task in TASKS.values() for metric in task.metrics]
    shown = [] if parameter.default in (None, "", [], {}) else [str(parameter.default)]
    return [choice for choice in parameter.choices or shown if choice]


def _models(context: typer.Context, incomplete: str) -> Iterable[str]:
    """Names of models in a registry that is a directory."""
    opened = _registry(context)
    return opened.names() if opened else ()


def _versions(context: typer.Context, incomplete: str) -> Iterable[str]:
    """`NAME@ALIAS` of the models in a registry that is a directory."""
    opened = _registry(context)
    return [f"{name}@{alias}" for name in opened.names() for alias in opened.aliases(name)] if opened else ()


def _numbers_of_versions(context: typer.Context, incomplete: str) -> Iterable[str]:
    opened, name = _registry(context), str(context.params.get("name") or "")
    return [str(version.number) for version in opened.versions(name)] if opened else ()


def _runs(context: typer.Context, incomplete: str) -> Iterable[str]:
    """The runs on this machine."""
    runs = Path(str(context.params.get("runs") or "runs"))
    return ["latest", *(file.parent.name for file in runs.glob("*/run.json"))]


def _registry(context: typer.Context) -> Any | None:
    """The registry that is named, if it is a directory; any other would have to be asked over the network."""
    from gpu_pipelines.registry import is_local, open_registry

    registry = str(context.params.get("registry") or registry_of_project())
    return open_registry(registry) if is_local(registry) else None


#: Words by the name of a command's parameter; those for one command come first.
_WORDS: dict[str, Words] = {
    "pipeline": _pipelines,
    **dict.fromkeys(("accelerator", "specs", "spec", "measured_on"), _of_options(accelerators)),
    "strategy": _of_options(strategies),
    "region": _of_options(regions),
    "machine_type": _of_options(machine_types),
    "param": _parameters,
    "task": _tasks,
    "at_end": _fixed("stop", "delete", "keep"),
}
_WORDS_OF_COMMAND: dict[tuple[str, str], Words] = {
    ("vm config", "output_format"): _fixed("gcloud", "terraform", "script"),
    ("accelerators show", "name"): _gpus,
    ("components show", "name"): _components,
    ("init", "target"): _targets,
    ("models show", "name"): _models,
    ("models alias", "name"): _models,
    ("models alias", "alias"): _fixed("champion", "challenger"),
    ("models alias", "version"): _numbers_of_versions,
    ("models deploy", "model"): _versions,
    ("models predict", "model"): _versions,
    ("models predict", "output_format"): _fixed("jsonl", "parquet"),
    ("serve", "model"): _versions,
    **dict.fromkeys([("runs show", "run"), ("runs open", "run"), ("runs rm", "run")], _runs),
    **dict.fromkeys([("runs compare", "first"), ("runs compare", "second")], _runs),
}
