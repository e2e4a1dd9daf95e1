"""`gpu-pipelines init`: a new project."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpu_pipelines.terminal import wrapped

if TYPE_CHECKING:
    from gpu_pipelines.new_project import NewProject

#: The defaults.
_FOLDER, _TASK, _DATA, _TARGET, _ACCELERATOR = "my-pipeline", "image_classification", "sample", "vertex", "l4:1"


def init(
    directory: Annotated[str | None, typer.Argument(help=f"Its folder; {_FOLDER} if not given.")] = None,
    task: Annotated[str | None, typer.Option(help=f"What is trained; {_TASK} if not given.")] = None,
    data: Annotated[
        str | None,
        typer.Option(help="A folder, a file, gs://…, bq://…, hf://…; or sample, the sample of the task, if not given."),
    ] = None,
    target: Annotated[
        str | None, typer.Option(help=f"Where it will run: local, vertex, kubeflow …; {_TARGET} if not given.")
    ] = None,
    accelerator: Annotated[
        str | None, typer.Option(metavar="SPEC", help=f"What it trains on there; {_ACCELERATOR} if not given.")
    ] = None,
    name: Annotated[str, typer.Option(help="Name of pipeline and model; the folder's name if not given.")] = "",
    param: Annotated[
        list[str] | None,
        typer.Option("--param", "-p", metavar="KEY=VALUE", help="A default of a further parameter. May be repeated."),
    ] = None,
    project: Annotated[str | None, typer.Option(help="Id of the project in Google Cloud.")] = None,
    region: Annotated[str | None, typer.Option(help="Google Cloud region.")] = None,
    pipeline_root: Annotated[
        str | None, typer.Option(metavar="URI", help="Where runs leave artifacts, gs://….")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files that differ.")] = False,
) -> None:
    """Write a project of your own: settings, a pipeline, a task to change, tests, continuous integration.

    On a terminal it asks for options that are not given. make run and make test work in the project at once.
    """
    from gpu_pipelines.new_project import NewProject, files_of, write_project

    if sys.stdin.isatty() and sys.stdout.isatty():
        directory, task, data, target, accelerator = _asked(directory, task, data, target, accelerator)
    asked = NewProject(
        directory=Path(directory or _FOLDER),
        task=task or _TASK,
        data=data or _DATA,
        target=target or _TARGET,
        accelerator=accelerator or _ACCELERATOR,
        name=name,
        assignments=tuple(param or ()),
        settings=_settings(project, region, pipeline_root),
    )
    files = files_of(asked)
    done = write_project(files, asked.directory, force=force)
    for path, outcome in done.items():
        print(f"{outcome:<9} {asked.directory / path}")
    _tell(asked)


def _asked(
    directory: str | None, task: str | None, data: str | None, target: str | None, accelerator: str | None
) -> tuple[str, str, str, str, str]:
    """Asks on the terminal for what is not given."""
    from gpu_pipelines.new_project.request import names_of_tasks
    from gpu_pipelines.targets.target import targets

    directory = directory or typer.prompt("Folder", default=_FOLDER)
    task = task or _chosen("Task", names_of_tasks(), _TASK)
    data = data or typer.prompt("Data (a folder, a file, gs://…, or the sample of the task)", default=_DATA)
    target = target or _chosen("Target", sorted(targets()), _TARGET)
    if accelerator is None and target != "local":
        accelerator = typer.prompt("Accelerator", default=_ACCELERATOR)
    return str(directory), str(task), str(data), str(target), str(accelerator or _ACCELERATOR)


def _chosen(what: str, choices: list[str], default: str) -> str:
    """Asks for one of several names, or its number in the list."""
    for number, choice in enumerate(choices, 1):
        print(f"  {number}  {choice}")
    answer = str(typer.prompt(what, default=default)).strip()
    return choices[int(answer) - 1] if answer.isdecimal() and 0 < int(answer) <= len(choices) else answer


def _settings(project: str | None, region: str | None, pipeline_root: str | None) -> dict[str, str]:
    """The known settings of the project in Google Cloud, from flags and from gcloud; not from the current folder."""
    from gpu_pipelines.project_settings import load_project_settings

    flags = {"project": project, "region": region, "pipeline_root": pipeline_root}
    found = load_project_settings(flags, Path("/nonexistent"))
    return {name: value for name in flags if (value := getattr(found, name))}


def _tell(asked: NewProject) -> None:
    """Prints what to do next, and what keeps others from doing the same."""
    from gpu_pipelines.new_project.installed import folder_of_programs, is_of_this_machine, requirement
    from gpu_pipelines.new_project.project import packages_in

    for place in (requirement(), *(requirement(name, "") for name in packages_in(asked))):
        if is_of_this_machine(place):
            where = place.partition("@ ")[2]
            _note(f"requirements.txt names {where}, which other machines do not have. Change it there.")
    if folder_of_programs() is None:
        _note("make installs requirements.txt into .venv first: this installation lacks packages that a project needs.")
    print("next:", f"  cd {shlex.quote(str(asked.directory))}", "  make run", "  make test", sep="\n")


def _note(text: str) -> None:
    print(wrapped(text, "note: "))
