"""The common parts of all commands: plain help in groups, complete summaries, and one form of error.

The help is drawn without rich, which would take longer than the rest of a short command.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from gpu_pipelines.errors import ERROR_PREFIX
from gpu_pipelines.terminal import wrapped

RUN_FAILED, WRONG_REQUEST, INTERRUPTED = 1, 2, 130
#: The longest readable line of help.
_WIDEST_HELP = 110
#: The most parameters in one table of help.
_MOST_WITHOUT_GROUPS = 12
_ARGUMENTS, _FURTHER = "Arguments", "Options"
#: The heading of the options that say what to run; other options declare theirs.
_WHAT_IS_RUN = dict.fromkeys(("param", "params", "target", "accelerator", "dry_run", "task"), "What is run")

#: typer's exceptions for a command line that it cannot read.
UsageError: type[Exception] = typer.BadParameter.__bases__[0]


_HelpFormatter: Any = typer.Context.formatter_class


class _Help(_HelpFormatter):
    """Help that breaks no word, not even at a dash: names and commands are copied from it."""

    def write_text(self, text: str) -> None:
        """Writes paragraphs."""
        indent = " " * self.current_indent
        paragraphs = [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]
        self.write("\n\n".join(wrapped(paragraph, indent, width=self.width) for paragraph in paragraphs) + "\n")

    def write_dl(self, rows: Sequence[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        """Writes names with their texts beside them, or below long names."""
        beside = min(max(len(name) for name, _ in rows), col_max) + col_spacing
        indent = " " * self.current_indent
        for name, text in rows:
            first = f"{indent}{name:<{beside}}"
            if len(name) > col_max:
                self.write(f"{indent}{name}\n")
                first = f"{indent}{'':<{beside}}"
            self.write(wrapped(" ".join(text.split()), first, " " * len(first), self.width) + "\n")


def _help_of(command: Any, ctx: Any) -> str:
    formatter = _Help(width=ctx.terminal_width, max_width=ctx.max_content_width)
    command.format_help(ctx, formatter)
    return str(formatter.getvalue()).rstrip("\n")


class Command(TyperCommand):
    """A command whose help has its options in groups."""

    def get_help(self, ctx: Any) -> str:
        """The help as text."""
        return _help_of(self, ctx)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Writes the arguments, then each group of options."""
        sections: dict[str, list[tuple[str, str]]] = {}
        parameters = self.get_params(ctx)
        for parameter in parameters:
            record = parameter.get_help_record(ctx)
            if record is not None:
                group = _group_of(parameter) if len(parameters) > _MOST_WITHOUT_GROUPS else _FURTHER
                group = _ARGUMENTS if parameter.param_type_name == "argument" else group
                sections.setdefault(group, []).append(record)
        for name in sorted(sections, key=lambda name: (name != _ARGUMENTS, name == _FURTHER)):
            with formatter.section(name):
                formatter.write_dl(sections[name])


class CommandGroup(TyperGroup):
    """A group of commands whose summaries are wrapped instead of cut, and which has subgroups."""

    def get_help(self, ctx: Any) -> str:
        """The help as text."""
        return _help_of(self, ctx)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Writes the commands with the first sentence of their descriptions."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command: Any = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                panel = command.rich_help_panel if isinstance(command.rich_help_panel, str) else "Commands"
                sections.setdefault(panel, []).append((name, _summary(command)))
        longest = max((len(name) for rows in sections.values() for name, _ in rows), default=0)
        for panel, rows in sections.items():
            with formatter.section(panel):
                formatter.write_dl([(name.ljust(longest), summary) for name, summary in rows])

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As in typer; without any argument it shows the help as a wrong request."""
        if not args and self.no_args_is_help and not ctx.resilient_parsing:
            first = self.first_steps(ctx)
            print(*([first, ""] if first else []), ctx.get_help(), sep="\n", file=sys.stderr)
            raise typer.Exit(WRONG_REQUEST)
        return super().parse_args(ctx, args)

    def first_steps(self, ctx: Any) -> str:
        """What to do first, above the help for a command line without arguments; empty for nothing."""
        return ""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """As in typer; a command whose options depend on what is installed gets them now."""
        name, command, rest = super().resolve_command(ctx, args)
        whole = getattr(getattr(command, "callback", None), "whole", None)
        if whole is not None:
            alone = Application(add_completion=False)
            alone.command(name, cls=type(command))(whole())
            command = typer.main.get_command(alone)
        return name, command, rest

    def invoke(self, ctx: Any) -> Any:
        """As in typer, which says nothing about a Ctrl-C."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            raise typer.Exit(INTERRUPTED) from None


class Application(typer.Typer):
    """A `typer.Typer` with these commands."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(
            **{
                "cls": CommandGroup,
                "no_args_is_help": True,
                "rich_markup_mode": None,
                "pretty_exceptions_enable": False,
                "context_settings": {"help_option_names": ["-h", "--help"], "max_content_width": _WIDEST_HELP},
                **settings,
            }
        )

    def command(self, name: str | None = None, **settings: Any) -> Any:
        """Registers a command, as in typer."""
        return super().command(name, **{"cls": Command, **settings})


def print_json(document: Any) -> None:
    """Prints the one JSON document of a command."""
    # In parts: the text of thousands of runs takes more memory than the runs.
    json.dump(document, sys.stdout, indent=2, ensure_ascii=False)
    print()


def told_usage_error(error: Any) -> str:
    """Formats an unreadable command line like all other errors: what is wrong, then what to do."""
    problem = error.format_message()
    option = getattr(error, "option_name", "")
    takes_parameters = error.ctx and "param" in {each.name for each in error.ctx.command.params}
    if takes_parameters and "extra argument" in problem and "=" in problem:
        problem += ". A parameter is given as -p NAME=VALUE."
    elif "extra argument(s) (#" in problem:
        # zsh does so, if nobody has changed it: a comment behind a pasted command is then part of the command.
        problem += ". The shell took a comment for words; in zsh, setopt interactive_comments changes that."
    elif option and hasattr(error, "possibilities"):
        # `--model` and `--source` are meant as parameters, though they resemble `--nodes` and `--space`.
        close = get_close_matches(option, error.possibilities or (), n=1, cutoff=0.8 if takes_parameters else 0.6)
        problem = f"There is no option {option}."
        if close:
            problem += f" Did you mean {close[0]}?"
        elif takes_parameters:
            problem += f" A parameter is given as -p {option.lstrip('-').replace('-', '_')}=…."
    where = f"{error.ctx.command_path} -h lists what there is." if error.ctx else ""
    return f"{ERROR_PREFIX}{problem}" + (f"\n  {where}" if where else "")


def _group_of(option: Any) -> str:
    """The heading of an option of a command."""
    panel = getattr(option, "rich_help_panel", None)
    return panel if isinstance(panel, str) else _WHAT_IS_RUN.get(option.name, _FURTHER)


def _summary(command: Any) -> str:
    """The first sentence of a command's help, without its later paragraphs."""
    text = " ".join((command.short_help or command.help or "").split("\n\n")[0].split())
    sentence, end, _ = text.partition(". ")
    return f"{sentence}." if end else text
