"""`gpu-pipelines compile` and `upload`: pipelines as the files that Kubeflow and Vertex AI take, and in a store."""

from __future__ import annotations

import re
import sys
from difflib import unified_diff
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpu_pipelines.cli.application import print_json
from gpu_pipelines.cli.run import show
from gpu_pipelines.cli.target_options import HERE, THERE, AsJson, of_targets
from gpu_pipelines.errors import UserError
from gpu_pipelines.targets.options import flag_of, given

if TYPE_CHECKING:
    from gpu_pipelines.project_settings import ProjectSettings

DIFFERENCE_LINES_SHOWN = 20
Default = Annotated[
    list[str] | None,
    typer.Option("--param", "-p", metavar="KEY=VALUE", help="Set the default of a parameter in the file. Repeatable."),
]


@of_targets("compile", default=HERE, with_flags=True)
def compile_pipelines(
    target: Any,
    pipeline: Annotated[str | None, typer.Argument(help="Name of the pipeline, FILE.py or FILE.py:function.")] = None,
    task: Annotated[str, typer.Option(help="Task that the file is for; by default it has all tasks.")] = "",
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where to write it.")] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Write all files of the directory compiled, with --image if given.")
    ] = False,
    check: Annotated[bool, typer.Option("--check", help="With --all: compare instead of writing.")] = False,
    directory: Annotated[
        Path | None, typer.Option(metavar="DIR", help="With --all: directory of the files, default compiled.")
    ] = None,
    param: Default = None,
) -> None:
    """Compile a pipeline, or all pipelines and components.

    The region of --region is only checked: the file runs wherever it is submitted. Without --image and without an image
    in the settings, a file for vertex has a parameter for it, and one for kubeflow has none yet.
    """
    if every == (pipeline is not None):
        raise UserError("Give either the name of a pipeline or --all.")
    if every and task:
        raise UserError("--all writes files of every task.", "Leave --task out, or give the name of a pipeline.")
    if every and param:
        raise UserError("--all writes files with the defaults of the pipelines.", "Leave out -p and --params.")
    if every and output:
        raise UserError("--all writes many files, and -o names only one.", "Give --directory instead.")
    if every and (others := _of_one_file(target)):
        raise UserError(
            f"--all writes the files of every target and accelerator, and {' and '.join(others)} would be for one of "
            "them.",
            "Leave it out, or give the name of a pipeline.",
        )
    if not every and directory:
        raise UserError("--directory is for --all; a pipeline is one file.", "Give -o FILE instead.")
    if not every and check:
        raise UserError("--check compares all files.", "Give --all instead of the name, or leave out --check.")
    if pipeline is None:
        _all(directory or Path("compiled"), check, target.settings)
        return
    from gpu_pipelines.driver.parameters.defaults import defaults_in_file
    from gpu_pipelines.targets.compiled import write_compiled
    from gpu_pipelines.tasks.tasks import task_problems

    if task and (problems := task_problems(task)):
        raise UserError.of_all(problems)
    with defaults_in_file(pipeline, param or []) as name:
        compiled = target.compile(name, task)
    for line in compiled.told:
        print(line, file=sys.stderr)
    path = output or Path(f"{compiled.name}.yaml")
    write_compiled(path, compiled.text, pipeline)
    print(f"wrote {path}")
    if target.note:
        print(target.note)
        if not target.settings.image:
            print("To compile it for an image of your own give --image, or write image into gpu-pipelines.yaml.")


@of_targets("upload", can="publish", default=THERE, with_flags=True)
def upload(
    pipeline: Annotated[str, typer.Argument(help="Name of the pipeline, FILE.py, or a compiled file.")],
    target: Any,
    tag: Annotated[
        list[str] | None, typer.Option(help="Tag of this version, default latest; kubeflow: name of the version.")
    ] = None,
    param: Default = None,
    as_json: AsJson = False,
) -> None:
    """Upload a pipeline to Artifact Registry, as an immutable version with tags, or to Kubeflow Pipelines.

    A pipeline that is given by name is compiled for the accelerator first.
    """
    from gpu_pipelines.driver.parameters.defaults import defaults_in_file
    from gpu_pipelines.targets.messages import Request

    with defaults_in_file(pipeline, param or []) as name:
        compiled = target.load(Request(name, to_publish=True))
    for line in compiled.told:
        print(line, file=sys.stderr)
    done = target.publish(compiled, tag or [])
    if as_json:
        print_json(done.document)
    else:
        show(done.lines)


def _of_one_file(target: Any) -> list[str]:
    """The options that apply only to one file, as they were given; the image may apply to all."""
    named = [] if target.name == HERE else [f"--target {target.name}"]
    return [*named, *(flag_of(name) for name in given(target.options) if name != "image")]


def _all(directory: Path, check: bool, settings: ProjectSettings) -> None:
    from gpu_pipelines.project_settings import ProjectSettings
    from gpu_pipelines.targets.compiled import write_file

    image = settings.image if settings.origins.get("image") == "--image" else None
    files = compiled_files(ProjectSettings(image=image))
    if check:
        _compare(files, directory)
        return
    for name, text in files.items():
        write_file(directory / name, text)
    print(f"wrote {len(files)} files to {directory}")
    if image is None:
        print("For an image of your own give --image: those for kubeflow need one, those for vertex ask for one.")


def compiled_files(settings: ProjectSettings | None = None) -> dict[str, str]:
    """The text of every file of the directory `compiled`, by its path there: those of the targets, and the components.

    Args:
        settings: the image of the steps; by default that is open.
    """
    from gpu_pipelines.component_interface.catalog import COMPONENTS, load_component
    from gpu_pipelines.component_interface.image import STEPS_IMAGE
    from gpu_pipelines.targets.compiled import compiled
    from gpu_pipelines.targets.target import targets

    files = {
        f"{each.pipeline}/{name}/{each.path}": target(each.options, settings).compile(each.pipeline, each.task).text
        for name, target in targets().items()
        for each in target.published()
    }
    files |= {f"components/{name}.yaml": compiled(load_component(name)) for name in COMPONENTS}
    if not settings or not settings.image:
        return files
    # Components, and files for this machine, are compiled without settings. A user's image may have the name of the
    # other in its own.
    other, image = re.compile(rf"(?<![\w./-]){re.escape(STEPS_IMAGE)}(?![\w.@-])"), settings.image
    return {name: other.sub(lambda _: image, text) for name, text in files.items()}


def _compare(files: dict[str, str], directory: Path) -> None:
    there = {path.relative_to(directory).as_posix() for path in directory.rglob("*.yaml")}
    problems = [f"{name} is missing" for name in sorted(files.keys() - there)]
    problems += [f"{name} is of no pipeline, target or component" for name in sorted(there - files.keys())]
    for name in sorted(files.keys() & there):
        before = (directory / name).read_text(encoding="utf-8")
        if before != files[name]:
            lines = list(unified_diff(before.splitlines(), files[name].splitlines(), name, "compiled now", lineterm=""))
            problems.append("\n".join([f"{name} differs:", *lines[:DIFFERENCE_LINES_SHOWN]]))
    if problems:
        print("\n".join([*problems, "Run gpu-pipelines compile --all."]), file=sys.stderr)
        raise typer.Exit(1)
    print(f"{len(files)} files of {directory} are up to date")
