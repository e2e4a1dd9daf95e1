"""`gpu-pipelines migrate`: a training job of AI Platform Training as a job of Vertex AI."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpu_pipelines.cli.application import Command, print_json
from gpu_pipelines.cli.target_options import AsJson
from gpu_pipelines.terminal import width_of, wrapped

if TYPE_CHECKING:
    from gpu_pipelines.migration import Migration
    from gpu_pipelines.migration.study import MigratedStudy

#: The name of the config in commands if it is printed.
_FILE = "vertex.yaml"
_USER_ARGS = "gpu_pipelines.cli.migrate.user_args"


class JobCommand(Command):
    """A command that keeps the words after `--` as the application's own arguments, like gcloud."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Puts those arguments aside before the rest is parsed."""
        if "--" in args:
            place = args.index("--")
            ctx.meta[_USER_ARGS] = args[place + 1 :]
            args = args[:place]
        return super().parse_args(ctx, args)


def migrate(
    context: typer.Context,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="File to write; printed if not given.")
    ] = None,
    image: Annotated[
        str | None,
        typer.Option(help="Image that runs a job of Python packages; by default Google's own, if there is one."),
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Refuse GPUs that are gone (K80, P100) instead of replacing them.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Bring a job of AI Platform Training to Vertex AI: gpu-pipelines migrate FILE [GCLOUD FLAG…] [-- ARGUMENT…]

    FILE is the config.yaml of the job. The flags are those of gcloud ai-platform jobs submit training, and win over the
    file; a whole command line can be given as it was. The changes are listed on stderr.
    """
    from gpu_pipelines.migration.command import migrated as brought
    from gpu_pipelines.migration.gcloud_flags import parse_command
    from gpu_pipelines.migration.result import space_file
    from gpu_pipelines.targets.compiled import require_another, write_file

    command = parse_command(context.args, context.meta.get(_USER_ARGS))
    if output is not None and command.file is not None:
        require_another(output, command.file, "old job")
    migrated = brought(command, image=image, keep=keep)
    file = str(output or _FILE)
    if output is not None:
        write_file(output, migrated.config_text(_origin(command.file), file))
        if migrated.study is not None:
            place = space_file(file)
            write_file(Path(place), migrated.study.text(_origin(command.file), place))
    if as_json:
        print_json(migrated.to_json(file))
        return
    if output is None:
        print(migrated.config_text(_origin(command.file), file), end="")
    _tell(migrated, file)
    if migrated.study is not None:
        _tell_study(migrated.study, space_file(file), is_written=output is not None)


def _origin(file: Path | None) -> str:
    return file.name if file else "a gcloud command"


def _tell(migrated: Migration, file: str) -> None:
    """Prints for the reader, not for programs that read stdout."""
    width = width_of(sys.stderr)
    lines = [wrapped(f"{n.field}: {n.text}", f"{n.kind + ':':<9} ", width=width) for n in migrated.notes]
    if migrated.region is None and migrated.regions:
        lines.append(f"{'regions:':<9} {', '.join(migrated.regions)}")
    own = migrated.own_command(file)
    if migrated.upload:
        lines += ["bring the packages to Cloud Storage:", *(f"  {command}" for command in migrated.upload)]
    when = ", when what is to do is done" if any(note.kind == "to do" for note in migrated.notes) else ""
    lines.append(f"submit it{when}:" if own is None else f"submit it{when}, with one of:")
    lines += [f"  {command}" for command in (own, migrated.gcloud_command(file)) if command]
    print("\n".join(lines), file=sys.stderr)


def _tell_study(study: MigratedStudy, file: str, *, is_written: bool) -> None:
    """Prints the same search with the trainings of this project."""
    width = width_of(sys.stderr)
    lines = [f"or search with the trainings of this project{'' if is_written else f', with {file}'}:"]
    lines += [wrapped(f"{name}: {why}", "left out: ", width=width) for name, why in study.left_out.items()]
    lines.append(f"  {study.command(file)}")
    if not is_written:
        lines += [f"{file}:", *(f"  {line}" for line in study.text_of_space().splitlines())]
    print("\n".join(lines), file=sys.stderr)
