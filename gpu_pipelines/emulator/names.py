"""Resource names as Vertex AI answers them: with the project's number, whichever way it was asked for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from gpu_pipelines.emulator.api_error import ApiError, not_found
from gpu_pipelines.emulator.filters import predicate
from gpu_pipelines.emulator.transcoding import as_json


class Names:
    """The projects that there are.

    Args:
        projects: number of each by its id.
    """

    def __init__(self, projects: Mapping[str, str]) -> None:
        self.projects = dict(projects)
        self._last = 1_000_000_000_000_000_000

    def number(self, name: str) -> str:
        """A resource name with the project's number in place of its id.

        Raises:
            ApiError: there is no such project.
        """
        match = re.match(r"projects/([^/]+)", name)
        project = match[1] if match else ""
        if project in self.projects.values():
            return name
        if project not in self.projects:
            raise ApiError(403, f"Permission denied on resource project {project}.")
        return f"projects/{self.projects[project]}{name[match.end() :] if match else ''}"

    def project(self, name: str) -> str:
        """Id of the project of a resource name."""
        number = self.number(name).split("/")[1]
        return next(project for project, held in self.projects.items() if held == number)

    def new(self, parent: str, collection: str, key: str = "") -> str:
        """Name of a new resource, with a number of its own unless it has a key."""
        self._last += 1
        return f"{self.number(parent)}/{collection}/{key or self._last}"


def region_of(name: str) -> str:
    """The region in a resource name."""
    return name.split("/")[3]


def page(resources: Iterable[Any], parent: str, request: Any, most: int) -> tuple[list[Any], str]:
    """Those resources of a parent that a list request asks for, the newest first, and the token of the next page."""
    test = predicate(getattr(request, "filter", ""))
    found = [item for item in resources if item.name.startswith(f"{parent}/") and test(as_json(item))]
    found.sort(key=lambda item: item.create_time, reverse=not str(getattr(request, "order_by", "")).endswith("time"))
    start = int(request.page_token or 0)
    end = start + min(request.page_size or most, most)
    return found[start:end], str(end) if end < len(found) else ""


class Resources:
    """The resources of one kind in all projects, and what is done with those of every kind.

    Args:
        names: the projects.
        listed: type of the answer to a list.
        field: its field for them.
        page_size: the longest page of a list.
        lock: is held while they change.

    Attributes:
        held: the resources by name.
    """

    def __init__(self, names: Names, listed: Any, field: str, page_size: int, lock: Any) -> None:
        self.held: dict[str, Any] = {}
        self.page_size = page_size
        self._names, self._listed, self._field, self._lock = names, listed, field, lock

    def get(self, request: Any) -> Any:
        """One of them, as it is now."""
        return self._copy(self.one(request.name))

    def list(self, request: Any) -> Any:
        """A page of those of a project in a region."""
        with self._lock:
            held = list(self.held.values())
        found, token = page(held, self._names.number(request.parent), request, self.page_size)
        return self._listed(**{self._field: found, "next_page_token": token})

    def one(self, name: str) -> Any:
        """One by its name, with the project's number or its id."""
        found = self.held.get(self._names.number(name))
        if found is None:
            raise not_found(name)
        return found

    def _copy(self, resource: Any) -> Any:
        kind = type(resource)
        with self._lock:
            return kind.deserialize(kind.serialize(resource))
