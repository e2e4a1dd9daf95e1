"""The reference of the command line, from the commands themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from gpu_pipelines.cli.main import app


@cache
def root() -> Any:
    """`gpu-pipelines`, as click has it."""
    from typer.main import get_command

    return get_command(app)


def command_pages() -> Iterator[tuple[str, str]]:
    """A page for each command and each group of commands, with its path on the site; the first is their list."""
    commands = shown_commands(root())
    rows = [f"| [`{name}`]({name}.md) | {_cell(_short(command))} |" for name, command in commands]
    yield (
        "reference/commands/index.md",
        "# Commands\n\nWhat `gpu-pipelines COMMAND --help` prints, command by command. "
        "[The command line](../../command-line.md) says what all of them have in common.\n\n"
        "| command | what it does |\n|---|---|\n" + "\n".join(rows) + "\n",
    )
    for name, command in commands:
        yield f"reference/commands/{name}.md", "\n".join(_page(name, command))


def shown_commands(group: Any) -> list[tuple[str, Any]]:
    """The commands of a group that are not hidden, by their names."""
    return [(name, whole(group, name)) for name, each in sorted(group.commands.items()) if not each.hidden]


@cache
def whole(group: Any, name: str) -> Any:
    """A command of a group, with the options that it gets when it is used."""
    context = group.make_context("gpu-pipelines", [], resilient_parsing=True)
    return group.resolve_command(context, [name])[1]


def _page(name: str, command: Any) -> Iterator[str]:
    yield f"# {name}\n"
    if not hasattr(command, "commands"):
        yield from _described(f"gpu-pipelines {name}", command)
        return
    yield f"{_text(command.help)}\n"
    for inner, each in shown_commands(command):
        yield f"## {name} {inner}\n"
        yield from _described(f"gpu-pipelines {name} {inner}", each)


def _described(path: str, command: Any) -> Iterator[str]:
    context = command.make_context(path, [], resilient_parsing=True)
    usage = re.sub(
        r"\{(\w+)\}", lambda match: match[1].upper(), " ".join([path, *command.collect_usage_pieces(context)])
    )
    yield f"{_text(command.help)}\n\n```text\n{usage}\n```\n"
    kinds: dict[str, list[str]] = {"argument": [], "option": []}
    for each in command.get_params(context):
        if (record := each.get_help_record(context)) is not None:
            name = " ".join(f"`{part}`" for part in record[0].replace("|", "\\|").replace(" <str>", "").split(", "))
            kinds[each.param_type_name].append(f"| {name} | {_cell(record[1])} |")
    for kind, rows in kinds.items():
        if rows:
            yield f'<div class="options" markdown>\n\n| {kind} | what |\n|---|---|'
            yield from rows
            yield "\n</div>\n"


def _short(command: Any) -> str:
    return re.split(r"\n\s*\n", (command.help or "").strip())[0]


def _text(help_: str | None) -> str:
    """A text of help in Markdown: what it calls by a name in capitals stays as it is."""
    text = re.sub(r"^\s*\\?\x08\s*", "", help_ or "", flags=re.MULTILINE)
    return "\n".join(line.strip() for line in text.split("\n")).strip().replace("<", "&lt;").replace("[", "\\[")


def _cell(text: str) -> str:
    return " ".join(_text(text).split()).replace("|", "\\|")
