"""The options of the targets on the command line, and the target that a command has chosen."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import MISSING
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpu_pipelines.driver.opening import fields_of_command, open_target
from gpu_pipelines.targets.options import Option, flag_of

if TYPE_CHECKING:
    from gpu_pipelines.targets.target import Target

Words = Callable[[typer.Context, str], Iterable[str]]
#: The default targets of commands: the local one for running, and the one for a service.
HERE, THERE = "local", "vertex"


def of_targets(name: str, can: str = "", default: str = HERE, *, with_flags: bool = False) -> Callable[[Any], Any]:
    """Makes a function a command with `--target` and the options of all targets that support it.

    The function is called with its own parameters and `target`, the opened target.

    Args:
        name: the name of the command, which the options of targets refer to.
        can: the method or attribute that a target must have; empty for any.
        default: the target if none is named.
        with_flags: whether it takes the options of pipeline parameters that have their own; their values are added to
            the function's list `param`.
    """

    def parameters() -> list[inspect.Parameter]:
        able = _able(can, default)
        choice = typer.Option(
            "--target", help=f"Where: {', '.join(able)}.", autocompletion=_completion(lambda others: able)
        )
        flags = _flags() if with_flags else []
        return [_parameter("target", Annotated[str, choice], default), *_options(name, able), *flags]

    def opened(given: dict[str, Any]) -> Target:
        return open_target(given.pop("target"), given, name, can)

    return lambda function: _completed(function, "target", parameters, opened)


def with_fields(options: str, command: str) -> Callable[[Any], Any]:
    """Makes a function a command with the options that a dataclass declares for it.

    The function is called with its own parameters and `options`, an instance of the dataclass.

    Args:
        options: the dataclass, as `module:Name`.
        command: the name of the command.
    """

    def parameters() -> list[inspect.Parameter]:
        return [option_parameter(*each) for each in fields_of_command(resolve_name(options), command)]

    return lambda function: _completed(function, "options", parameters, lambda given: resolve_name(options)(**given))


def _completed(
    function: Callable[..., None],
    last: str,
    parameters: Callable[[], list[inspect.Parameter]],
    made: Callable[[dict[str, Any]], Any],
) -> Callable[..., None]:
    """A command whose parameter `last` consists of options that are found when the command is used.

    Finding targets and their options takes as long as the rest of a short command.
    """
    own = dict(inspect.signature(function).parameters)
    del own[last]

    def whole() -> Callable[..., None]:
        def command(**given: Any) -> None:
            values = {name: given.pop(name) for name in own}
            if named := [f"{name}={text}" for name, text in _taken_flags(given) if text is not None]:
                values["param"] = [*(values["param"] or []), *named]
            function(**values, **{last: made(given)})

        hints = inspect.get_annotations(function, eval_str=True)
        more = parameters()
        # A package's target does not keep the others from working.
        for name in [each.name for each in more if each.name in own]:
            print(f"warning: {flag_of(name)} of a target is left out: the command has its own", file=sys.stderr)
        every = [_parameter(name, hints[name], each.default) for name, each in own.items()]
        every += [each for each in more if each.name not in own]
        command.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
        command.__annotations__ = {each.name: each.annotation for each in every}
        command.__doc__, command.__name__ = function.__doc__, function.__name__
        return command

    function.whole = whole  # type: ignore[attr-defined]
    # The list of commands needs no options.
    function.__signature__ = inspect.Signature()  # type: ignore[attr-defined]
    return function


def _able(can: str, default: str) -> list[str]:
    """The names of the targets with a method or attribute, the default first."""
    from gpu_pipelines.targets.target import is_able, targets

    able = [name for name, target in targets().items() if not can or is_able(target, can)]
    return sorted(able, key=lambda name: name != default)


def _options(name: str, able: Sequence[str]) -> list[inspect.Parameter]:
    """The options of targets for a command; options of a single target say so."""
    from gpu_pipelines.targets.target import targets

    owners: dict[str, list[str]] = {}
    found: dict[str, tuple[Option, Any, Any]] = {}
    for target in able:
        for each, *declaration in fields_of_command(targets()[target].Options, name):
            owners.setdefault(each, []).append(target)
            found.setdefault(each, tuple(declaration))
    prefixes = {each: f"{names[0]}: " if len(names) == 1 else "" for each, names in owners.items()}
    return [option_parameter(each, *declaration, prefixes[each]) for each, declaration in found.items()]


#: Prefix of a pipeline parameter among the parameters of a command.
_OF_A_FLAG = "parameter_"


def _flags() -> list[inspect.Parameter]:
    """The options of pipeline parameters that have their own."""
    from gpu_pipelines.component_interface.catalog import flagged_parameters

    found = []
    for name, declared in flagged_parameters().items():
        assert declared.flag is not None
        option = typer.Option(
            declared.flag.name,
            help=declared.text.partition(".")[0] + ".",
            metavar=declared.flag.metavar,
            rich_help_panel=declared.flag.group,
        )
        found.append(_parameter(f"{_OF_A_FLAG}{name}", Annotated[str | None, option], None))
    return found


def _taken_flags(given: dict[str, Any]) -> list[tuple[str, str | None]]:
    """Removes the values of these options from the given ones, and returns them by the names of the parameters."""
    names = [name for name in given if name.startswith(_OF_A_FLAG)]
    return [(name.removeprefix(_OF_A_FLAG), given.pop(name)) for name in names]


def option_parameter(name: str, option: Option, hint: Any, default: Any, prefix: str = "") -> inspect.Parameter:
    """A field of a dataclass as a parameter of a command.

    Args:
        name: the name of the field.
        option: its declaration.
        hint: its type.
        default: its value if none is given.
        prefix: the beginning of its help.
    """
    flag = flag_of(name)
    if hint == bool | None or (hint is bool and default):
        flag = f"{flag}/--no-{flag[2:]}"
    declaration = typer.Option(
        flag,
        help=prefix + option.help,
        metavar=option.metavar or None,
        min=option.minimum,
        hidden=option.hidden,
        rich_help_panel=option.group or None,
        autocompletion=_completion(option.words) if option.words else None,
    )
    return _parameter(name, Annotated[hint, declaration], inspect.Parameter.empty if default is MISSING else default)


def _completion(words: Any) -> Callable[[typer.Context, str], Sequence[str]]:
    complete: Callable[[typer.Context, str], Sequence[str]] = asked(lambda context, begun: words(context.params))
    return complete


def asked(words: Words) -> Any:
    """The function that typer calls to complete a word."""

    def complete(context: typer.Context, incomplete: str) -> list[str]:
        # A shell cannot show an error.
        with suppress(Exception):
            return sorted(word for word in set(words(context, incomplete)) if word.startswith(incomplete))
        return []

    return complete


def _parameter(name: str, hint: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


Param = Annotated[
    list[str] | None,
    typer.Option("--param", "-p", metavar="KEY=VALUE", help="Set a parameter. It wins over --params. Repeatable."),
]
Arguments = Annotated[
    list[str] | None, typer.Argument(metavar="-- ARGUMENT…", help="The application's own arguments, after --.")
]
Params = Annotated[Path | None, typer.Option(metavar="FILE", help="A YAML file of parameters.")]
Cache = Annotated[
    bool | None,
    typer.Option("--cache/--no-cache", help="Let steps reuse results of earlier runs."),
]
Interval = Annotated[float, typer.Option(metavar="SECONDS", min=0.1, help="Time between two checks of a run.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check and show the request, without sending or running it.")]
#: Seconds between two checks of a run.
INTERVAL = 10.0
