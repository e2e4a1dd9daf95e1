"""Errors for a missing model, version or alias, with what the registry has instead."""

from __future__ import annotations

from gpu_pipelines.errors import NotFoundError, UserError, nearest, some_of
from gpu_pipelines.registry.registered import COMPARED_WITH, Registry

MOST_NAMED = 10


def missing_version(registry: Registry, name: str, reference: str, where: str) -> UserError:
    """The error for a missing version or alias, with those that there are.

    Args:
        registry: the registry that was searched.
        name: the name of the model.
        reference: the number or alias that was given.
        where: the registry, for people.
    """
    versions, aliases = registry.versions(name), registry.aliases(name)
    if not versions and not aliases:
        return missing_model(registry, name, where)
    there = [f"{alias} (version {number})" for alias, number in sorted(aliases.items())]
    numbers = [str(version.number) for version in versions]
    has = f"It has the aliases {', '.join(there)} and" if there else "It has no aliases, and"
    which = f"the version{'s' * (len(numbers) > 1)} {', '.join(numbers[-MOST_NAMED:])}" if numbers else "no version"
    known = f"{has} {which}."
    gone = {alias: str(number) for alias, number in sorted(aliases.items()) if str(number) not in numbers}
    if named := [alias for alias, number in gone.items() if reference in (alias, number)]:
        number, by = gone[named[0]], some_of(named, MOST_NAMED)
        another = f"point the alias at another: gpu-pipelines models alias {name} {named[0]} NUMBER"
        return NotFoundError(
            f"Version {number} of the model {name!r} in {where} is not there, but {by} names it.",
            f"Put its files back, or {another if numbers else 'give another model_name'}. {known}",
        )
    guess = nearest(reference, aliases, otherwise="")
    return NotFoundError(
        f"The model {name!r} in {where} has no version or alias {reference!r}.", f"{guess} {known}".strip()
    )


def missing_model(registry: Registry, name: str, where: str) -> UserError:
    """The error for a missing model, with those that there are.

    Args:
        registry: the registry that was searched.
        name: the model that was given.
        where: the registry, for people.
    """
    names = registry.names()
    problem = f"There is no model {name!r} in {where}."
    if not names:
        return NotFoundError(problem, "The registry holds no models. Is it the right one?")
    guess = nearest(name, names, otherwise="")
    return NotFoundError(problem, f"{guess} It has {some_of(names, MOST_NAMED)}.".strip())


def require_champion_not_lost(registry: Registry, name: str) -> None:
    """Checks that a model without a champion has never had one, which somebody may have deleted.

    A service removes the aliases together with their version, and then the next model would be promoted without a
    comparison. If no version of a model has passed its gates, it has never had a champion.

    Args:
        registry: the registry of the model.
        name: the name of the model, which has no champion there.

    Raises:
        NotFoundError: a version has passed its gates, or was compared with a champion.
    """
    for version in reversed(registry.versions(name)):
        before = version.info.get(COMPARED_WITH)
        if version.info.get("passed") or before:
            had = f"was compared with the champion, version {before}" if before else "has passed its gates"
            raise NotFoundError(
                f"The model {name!r} in {registry.where(name)} has lost its champion: no version has the alias, "
                "although "
                f"version {version.number} {had}.",
                "The next model would be promoted without a comparison. Point the alias at a version: gpu-pipelines "
                f"models alias {name} champion NUMBER, or give another model_name.",
            )
