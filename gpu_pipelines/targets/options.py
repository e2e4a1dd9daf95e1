"""Options of targets: dataclasses whose fields define the command line, and the options that several targets share.

The metadata of a field has its help text, the commands that take it, and the project setting that it gives.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, get_type_hints

from gpu_pipelines.errors import UserError

if TYPE_CHECKING:
    from gpu_pipelines.accelerators import AcceleratorPlan
    from gpu_pipelines.accelerators.fallback import Fallback
    from gpu_pipelines.project_settings import ProjectSettings

#: Completions of an option's value for a shell, from the values of the other options.
Words = Callable[[Mapping[str, Any]], Iterable[str]]

#: The options that say what to fall back to and what it may cost; the project's `fallback` can give them as well.
FALLBACK = ("accelerator", "strategy", "regions", "max_price_per_hour", "max_price")

#: The commands that make a file, those that start runs, and those that inspect what a service has.
COMPILED = frozenset({"run", "compile", "upload", "schedule create"})
STARTED = frozenset({"run", "schedule create"})
LOOKING = frozenset(
    {
        "follow",
        "cancel",
        "runs show",
        *(f"schedule {verb}" for verb in ("list", "describe", "pause", "resume", "delete", "update")),
    }
)
TALKING = LOOKING | STARTED | {"upload"}
#: The commands that create a single machine or job, and the command that checks whether a project is ready for it.
ALONE = frozenset({"job", "vm"})
DOCTOR = frozenset({"doctor"})

HERE, MACHINES, CONTAINER, PROJECT = "On this machine (target local)", "Machines in the cloud", "Container", "Project"
MESSAGES = "Messages"


@dataclass(frozen=True)
class Option:
    """How a field of a target's options appears on the command line.

    Attributes:
        help: its help text.
        commands: the commands that take it, such as `run` and `schedule create`.
        group: heading in the help of a command with many options; empty for none in particular.
        metavar: placeholder for its value; empty for its type.
        setting: the project setting whose value it gives; empty for none.
        in_file: whether it is compiled into a file, so that it cannot be given with a compiled file.
        words: completions of its value for a shell.
        minimum: smallest number that it takes; None for any.
        hidden: whether the help leaves it out.
    """

    help: str
    commands: frozenset[str]
    group: str = ""
    metavar: str = ""
    setting: str = ""
    in_file: bool = False
    words: Words | None = None
    minimum: float | None = None
    hidden: bool = False


def option(default: Any, help: str, commands: Iterable[str], **more: Any) -> Any:
    """A field of a target's options; see `Option` for `more`."""
    metadata = {Option: Option(help, frozenset(commands), **more)}
    return dataclasses.field(default=default, metadata=metadata)


def setting(help: str, commands: Iterable[str], name: str, **more: Any) -> Any:
    """A field that gives a project setting with a text value."""
    return option(None, help, commands, setting=name, **{"group": PROJECT, **more})


def declared(options: type) -> dict[str, Option]:
    """The options that the fields of a dataclass declare, by their names."""
    return {each.name: each.metadata[Option] for each in dataclasses.fields(options) if Option in each.metadata}


def kinds_of_options(options: type) -> dict[str, tuple[Any, Any]]:
    """The type and the default of each option that a dataclass declares, by name."""
    hints = get_type_hints(options)
    return {
        each.name: (hints[each.name], each.default) for each in dataclasses.fields(options) if Option in each.metadata
    }


def given(options: Any) -> dict[str, Any]:
    """The values of a target's options that are not their defaults, by name."""
    return {
        each.name: getattr(options, each.name)
        for each in dataclasses.fields(options)
        if getattr(options, each.name) != each.default
    }


def flag_of(name: str) -> str:
    """The flag of an option."""
    return f"--{name.replace('_', '-')}"


def fixed(*words: str) -> Words:
    """Completions that do not depend on other options."""
    return lambda others: words


def accelerators(others: Mapping[str, Any]) -> Iterable[str]:
    """`NAME:COUNT` of all GPUs, and of CPU processes for runs on this machine."""
    from gpu_pipelines.accelerators.catalog import load_catalog

    catalog = load_catalog()
    specs = [f"{name}:{count}" for name in catalog.gpus for count in catalog.counts(name)]
    return [*specs, *(f"cpu:{count}" for count in (1, 2, 4, 8) if (others.get("target") or "local") == "local")]


def regions(others: Mapping[str, Any]) -> Iterable[str]:
    """The regions of the catalog."""
    from gpu_pipelines.accelerators.catalog import load_catalog

    return load_catalog().regions


def machine_types(others: Mapping[str, Any]) -> Iterable[str]:
    """The machine types of the catalog."""
    from gpu_pipelines.accelerators.catalog import load_catalog

    return load_catalog().machine_types


def strategies(others: Mapping[str, Any]) -> Iterable[str]:
    """The ways to buy machines."""
    from gpu_pipelines.accelerators.request import STRATEGIES

    return STRATEGIES


def compiled_in(default: Any, help: str, also: Iterable[str] = (), **more: Any) -> Any:
    """A field that is compiled into a file, usually about machines; `also` names further commands that take it."""
    return option(default, help, COMPILED | frozenset(also), in_file=True, **{"group": MACHINES, **more})


def command_of_container(commands: Iterable[str]) -> Any:
    """A field for the command of a container; see `words_of`."""
    told = 'Runs in place of the image\'s entrypoint, in quotes: "python -m trainer".'
    return option(None, told, commands, group=CONTAINER, metavar="WORDS")


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of a command; some of them give settings of the project."""

    def project_settings(self) -> ProjectSettings:
        """The project's settings, with those that the options give.

        Raises:
            UserError: a setting has the wrong form.
        """
        from gpu_pipelines.project_settings import load_project_settings, problems_of_labels

        names = {each.setting: name for name, each in declared(type(self)).items() if each.setting}
        settings = load_project_settings({known: getattr(self, name) for known, name in names.items()})
        labels = pairs("--label", getattr(self, "label", None))
        if problems := problems_of_labels(labels, "--label"):
            raise UserError.of_all(problems)
        return replace(settings, labels={**settings.labels, **labels})


@dataclass(frozen=True, kw_only=True)
class AcceleratorOptions(Options):
    """What a pipeline trains on, and who gets a message at its end."""

    accelerator: str = compiled_in(
        "",
        "Accelerator to train on, such as l4:4; in the cloud also several, tried in order: h100:8,a100-80gb:8; local: "
        "cpu:N, or all GPUs of this machine.",
        group="What is run",
        metavar="SPEC",
        words=accelerators,
    )
    notify: list[str] | None = compiled_in(
        None,
        "Send a message at the end of each run: to an e-mail address, or slack:, google-chat: or webhook: with the "
        "secret that has the address. Repeatable; see docs/notifications.md.",
        group=MESSAGES,
        metavar="ADDRESS",
    )
    notify_nothing_new: bool = compiled_in(
        False, "Send a message also if there was nothing new to train on.", group=MESSAGES
    )


@dataclass(frozen=True, kw_only=True)
class CloudOptions(AcceleratorOptions):
    """The options of every target in Google Cloud: machines, an image for the steps, a project and a region."""

    evaluation_accelerator: str | None = compiled_in(
        None,
        "Accelerator to evaluate on, such as l4:1; by default chosen by the model.",
        DOCTOR,
        metavar="SPEC",
        words=accelerators,
    )
    nodes: int = compiled_in(1, "Machines to train on.", DOCTOR)
    strategy: str | None = compiled_in(
        None,
        "standard, spot, flex-start or reservation; for a pipeline also several, tried in order: spot,standard.",
        ALONE | DOCTOR,
        words=strategies,
    )
    regions: str | None = compiled_in(
        None, "Regions to train in, tried in order; the other steps run in --region.", metavar="R,R,…", words=regions
    )
    max_price_per_hour: float | None = compiled_in(
        None, "Most that the machines of a step may cost in an hour, by list price.", metavar="USD", minimum=0
    )
    max_price: float | None = compiled_in(
        None, "Most that machines with GPUs may cost in a run, all tries together.", metavar="USD", minimum=0
    )
    machine_type: str | None = compiled_in(
        None, "Machine type; by default the smallest that fits.", ALONE, words=machine_types
    )
    reservation: str | None = compiled_in(None, "projects/P/zones/Z/reservations/R.", ALONE)
    hours: float | None = compiled_in(None, "Longest time that a job may run.", ALONE)
    env: list[str] | None = compiled_in(
        None,
        "An environment variable of the containers, not for secrets. Repeatable.",
        ALONE,
        group=CONTAINER,
        metavar="NAME=VALUE",
    )
    image: str | None = setting("Image of the steps; see docs/images.md.", COMPILED | DOCTOR, "image", group=CONTAINER)
    billing_table: str | None = setting(
        "Table of billing export, P.DATASET.TABLE.", {"follow", "runs show"}, "billing_table", metavar="TABLE"
    )
    project: str | None = setting("Id of the project.", LOOKING | STARTED | ALONE | DOCTOR, "project")
    region: str | None = setting("Google Cloud region.", TALKING | COMPILED | ALONE | DOCTOR, "region", words=regions)
    pipeline_root: str | None = setting(
        "Where runs leave artifacts, gs://….", STARTED | DOCTOR, "pipeline_root", metavar="URI"
    )

    def fallback(self, region: str | None, title: str, settings: ProjectSettings | None = None) -> Fallback:
        """The plans to try, in order: one plan if no lists were given.

        Args:
            region: the region if no regions were given; None to leave it open.
            title: name of the target in messages.
            settings: the project's fallback, for options that were not given.

        Raises:
            UserError: no accelerator was given, or none of the plans holds.
        """
        from gpu_pipelines.accelerators.fallback import PriceLimits, fallback
        from gpu_pipelines.accelerators.request import require_gpu

        wishes = self.wishes(settings)
        specs = listed(wishes["accelerator"])
        if not specs:
            raise UserError(no_accelerator(title))
        for spec in specs:
            require_gpu(spec, title)
        limits = PriceLimits(wishes["max_price_per_hour"], wishes["max_price"])
        strategies: Sequence[str | None] = listed(wishes["strategy"]) or [None]
        places: Sequence[str | None] = listed(wishes["regions"]) or [region]
        bought = {name: value for name, value in self.bought.items() if name != "strategy"}
        return fallback(specs, strategies, places, limits, **bought)

    def require_one_choice(self, what: str) -> None:
        """Checks that there is no list to fall back to, and no price limit.

        Args:
            what: what takes one choice, as the beginning of a sentence.

        Raises:
            UserError: there is one.
        """
        several = [name for name in ("regions", "max_price_per_hour", "max_price") if getattr(self, name) is not None]
        several += ["strategy"] if len(listed(self.strategy)) > 1 else []
        if several:
            flags = ", ".join(flag_of(name) for name in several)
            raise UserError(
                f"{what} takes one choice of machines and no price limit; given: {flags}.",
                "Give one accelerator, one strategy and --region; docs/fallback.md says what takes lists.",
            )

    def wishes(self, settings: ProjectSettings | None = None) -> dict[str, Any]:
        """What to fall back to and the limits, by name: the given values, else those of the project's settings."""
        given = {name: getattr(self, name) for name in FALLBACK}
        of_project = dict(settings.fallback) if settings else {}
        if settings and settings.origins.get("region") == "--region":
            of_project.pop("regions", None)
        return {name: of_project.get(name) if value in (None, "") else value for name, value in given.items()}

    @property
    def bought(self) -> dict[str, Any]:
        """The machines besides their GPUs, and the (first) way to buy them, as `plan` takes them."""
        names = ("nodes", "machine_type", "reservation", "hours")
        strategy = next(iter(listed(self.strategy)), None)
        return {**{name: getattr(self, name) for name in names}, "strategy": strategy}

    def evaluation(self, planned: AcceleratorPlan) -> AcceleratorPlan | None:
        """The plan of the evaluation, given that of the training; None if no accelerator was named for it."""
        from gpu_pipelines.accelerators.one_gpu import named_evaluation_plan

        return named_evaluation_plan(self.evaluation_accelerator, planned) if self.evaluation_accelerator else None

    @property
    def environment(self) -> dict[str, str]:
        """The variables of the containers, by name.

        Raises:
            UserError: a text is not of the form NAME=VALUE, or a name is invalid.
        """
        return variables(self.env)


def listed(value: str | Sequence[str] | None) -> list[str]:
    """The words of an option that takes several, separated by commas, or of a list in the project's settings."""
    words = value.split(",") if isinstance(value, str) else value or []
    return [word.strip() for word in words if word.strip()]


def no_accelerator(title: str) -> str:
    """Says that no accelerator was given, and how to give one; `title` begins the sentence."""
    return (
        f"{title} needs to know what to train on. Give --accelerator, such as l4:1; gpu-pipelines accelerators list "
        "shows them all."
    )


def variables(texts: Sequence[str] | None) -> dict[str, str]:
    """The variables of containers, by name, from texts of the form NAME=VALUE.

    Raises:
        UserError: a text is not of that form, or a name is invalid.
    """
    from gpu_pipelines.step_environment import problems_of_variables

    found = pairs("--env", texts)
    if problems := problems_of_variables(found):
        raise UserError.of_all(problems)
    return found


def pairs(flag: str, texts: Sequence[str] | None) -> dict[str, str]:
    """Names and values from texts of the form NAME=VALUE.

    Raises:
        UserError: a text is not of that form or not UTF-8, or a name is given with two values.
    """
    from gpu_pipelines.yaml_output import is_utf8

    found: dict[str, str] = {}
    for text in texts or []:
        if not is_utf8(text):
            raise UserError(f"{flag} {text[:80]!a} is not UTF-8; the request has to be UTF-8.")
        name, sign, value = text.partition("=")
        if not (sign and name):
            raise UserError(f"{flag} {text[:80]} is not of the form NAME=VALUE.")
        if found.setdefault(name, value) != value:
            raise UserError(f"{flag} {name[:80]} is given twice, with {found[name][:80]!r} and {value[:80]!r}.")
    return found


def words_of(flag: str, text: str | None) -> list[str]:
    """The words of a text, split as a shell does it.

    Raises:
        UserError: a quotation mark is left open, or only a shell could run it.
    """
    try:
        words = shlex.split(text or "")
    except ValueError as error:
        raise UserError(f"{flag} {(text or '')[:80]!r} cannot be split into words: {error}.") from None
    if joined := {"&&", "||"}.intersection(words):
        raise UserError(
            f"{flag} joins commands by {min(joined)}, and no shell reads it: all words go to the first command.",
            f"Give {flag} \"sh -c '…'\", with the arguments in it.",
        )
    return words
