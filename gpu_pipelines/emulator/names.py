"""Resource names in Vertex AI's form: with the project's number, even if the request has its id."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gpu_pipelines.emulator.api_error import ApiError, not_found
from gpu_pipelines.emulator.filters import predicate
from gpu_pipelines.emulator.state_folder import StateFolder, damaged
from gpu_pipelines.emulator.transcoding import as_json, parsed


class Names:
    """The projects.

    Args:
        projects: the number of each project by id.
    """

    def __init__(self, projects: Mapping[str, str]) -> None:
        self.projects = dict(projects)
        # Numbers of an earlier emulator are not reused.
        self._last = 1_000_000_000_000_000_000 + time.time_ns() // 1000

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
        """Id of the project in a resource name."""
        number = self.number(name).split("/")[1]
        return next(project for project, held in self.projects.items() if held == number)

    def new(self, parent: str, collection: str, key: str = "") -> str:
        """Name of a new resource, with a new number unless it has a key."""
        self._last += 1
        return f"{self.number(parent)}/{collection}/{key or self._last}"


def region_of(name: str) -> str:
    """The region in a resource name."""
    return name.split("/")[3]


def page(resources: Iterable[Any], parent: str, request: Any, most: int) -> tuple[list[Any], str]:
    """The resources of a parent that match a list request, the newest first, and the token of the next page."""
    test = predicate(getattr(request, "filter", ""))
    is_filtered = bool(getattr(request, "filter", "").strip())
    # Of the plain messages: each look at a field of a wrapped one takes many times as long.
    known = [item for item in resources if type(item).pb(item).name.startswith(f"{parent}/")]
    known.sort(key=_created, reverse=not str(getattr(request, "order_by", "")).endswith("time"))
    start = start_of_page(request.page_token)
    if request.page_size < 0:
        raise ApiError(400, f"page_size must not be negative: {request.page_size}.")
    size = min(request.page_size or most, most)
    found: list[Any] = []
    for place, item in enumerate(known[start:], start):
        # Pipeline jobs contain their whole pipelines, which take milliseconds each: only the one that begins the next
        # page is checked twice.
        if is_filtered and not test(as_json(item)):
            continue
        if len(found) == size:
            return found, str(place)
        found.append(item)
    return found, ""


def _created(resource: Any) -> tuple[int, int]:
    time = type(resource).pb(resource).create_time
    return time.seconds, time.nanos


def start_of_page(token: str) -> int:
    """The index at which a page begins.

    Raises:
        ApiError: the token is not from a list.
    """
    if not re.fullmatch(r"[0-9]{0,9}", token):
        raise ApiError(400, f"Invalid page token: {token!r}.")
    return int(token or 0)


def restored(state: StateFolder, kind: str, message: Any) -> Iterator[Any]:
    """The resources of a kind in the state.

    Raises:
        UserError: a file of them is damaged.
    """
    for path, document in state.documents(kind):
        yield restored_from(path, document, message)


def restored_from(path: Path, document: Mapping[str, Any], message: Any) -> Any:
    """A resource from a file of the state.

    Raises:
        UserError: the file is damaged.
    """
    try:
        found = parsed(message, document)
    except ApiError as error:
        raise damaged(path, error.message) from error
    if not found.name:
        raise damaged(path, "it has no name")
    return found


class Resources:
    """The resources of one kind in all projects, and the operations that all kinds share.

    Args:
        names: the projects.
        listed: type of the answer to a list, whose first field holds the resources.
        page_size: the longest page of a list.
        state: where they are kept.
        lock: held while they change.
        folder: prefix of their kind in the state.

    Attributes:
        held: the resources by name.
    """

    def __init__(
        self, names: Names, listed: Any, page_size: int, state: StateFolder, lock: Any = None, folder: str = ""
    ) -> None:
        self._field, declared = next(iter(listed.meta.fields.items()))
        self._state, self._message = state, declared.message
        self._kind = folder + listed.pb().DESCRIPTOR.fields_by_name[self._field].json_name
        self.held: dict[str, Any] = {each.name: each for each in restored(state, self._kind, self._message)}
        self.page_size = page_size
        self._names, self._listed, self._lock = names, listed, lock or threading.RLock()

    def get(self, request: Any) -> Any:
        """The current version of one of them."""
        return self._copy(self.one(request.name))

    def list(self, request: Any) -> Any:
        """A page of those in a project and region."""
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

    def keep(self, resource: Any) -> None:
        """Writes one to the state, and holds it.

        Raises:
            ApiError: it cannot be written; a new one is then not held.
        """
        with self._lock:
            self._state.write(self._kind, resource.name, self.document(resource))
            self.held[resource.name] = resource

    def document(self, resource: Any) -> dict[str, Any]:
        """What is written of one of them."""
        return as_json(resource)

    def forget(self, name: str) -> None:
        """Takes one away."""
        with self._lock:
            self._state.remove(self._kind, name)
            del self.held[name]

    def _copy(self, resource: Any) -> Any:
        kind = type(resource)
        with self._lock:
            return kind.deserialize(kind.serialize(resource))
