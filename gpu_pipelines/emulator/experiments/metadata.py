"""Vertex ML Metadata: contexts, executions, artifacts, and their relations.

https://cloud.google.com/vertex-ai/docs/ml-metadata/introduction. The store `default` always exists.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterable
from typing import Any

from google.cloud import aiplatform_v1 as api

from gpu_pipelines.emulator.api_error import ApiError, not_found
from gpu_pipelines.emulator.filters import predicate
from gpu_pipelines.emulator.jobs.job_states import now
from gpu_pipelines.emulator.jobs.rules import check_name_and_labels, raise_found
from gpu_pipelines.emulator.names import Names, Resources, page
from gpu_pipelines.emulator.operations import Operations
from gpu_pipelines.emulator.state_folder import StateFolder
from gpu_pipelines.emulator.transcoding import as_json

DEFAULT_STORE = "default"
_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,127}")
_IN_CONTEXT = re.compile(r'in_context\(\s*("[^"]*")\s*\)')
_LINKS, _EVENTS = "metadataLinks", "metadataEvents"
#: Fields that the service sets, not the client.
_OWN = ("name", "etag", "create_time", "update_time")


class Nodes(Resources):
    """The contexts, executions or artifacts of all stores; arguments as for `Resources`.

    Attributes:
        singular: the word for one of them.
    """

    def __init__(self, names: Names, listed: Any, page_size: int, state: StateFolder) -> None:
        super().__init__(names, listed, page_size, state, folder="metadata-")
        self.singular = self._field[:-1]

    def make(self, parent: str, node: Any, key: str = "") -> Any:
        """Creates one in a store, with a number as its id unless an id is given.

        Raises:
            ApiError: the id has another form, or already exists.
        """
        if key and not _ID.fullmatch(key):
            raise ApiError(400, f"The {self.singular} id {key!r} does not match {_ID.pattern}.")
        raise_found([each for each in check_name_and_labels(node) if each[0] == "labels" or node.display_name])
        made = self._message(node)
        made.name = self._names.new(parent, self._field, key)
        made.create_time = made.update_time = now()
        made.etag = str(time.time_ns() // 1000)
        with self._lock:
            if made.name in self.held:
                text = f"{self.singular.capitalize()} with name {made.name} already exists"
                raise ApiError(409, text)
            self.keep(made)
        return self._copy(made)

    def update(self, request: Any) -> Any:
        """UpdateContext, UpdateExecution, UpdateArtifact."""
        return self.change(getattr(request, self.singular), request.update_mask.paths, request.allow_missing)

    def change(self, node: Any, paths: Iterable[str], allow_missing: bool = False) -> Any:
        """Updates one: the named fields, or all that are set.

        Raises:
            ApiError: it does not exist, or another client has changed it meanwhile.
        """
        name = self._names.number(node.name)
        if name not in self.held and allow_missing:
            parent, _, key = name.rpartition(f"/{self._field}/")
            return self.make(parent, node, key)
        held = self.one(node.name)
        with self._lock:
            if node.etag and node.etag != held.etag:
                noun = self.singular.capitalize()
                text = f"Specified {noun} `etag`: `{node.etag}` does not match server `etag`: `{held.etag}`"
                raise ApiError(409, text, "ABORTED")
            fields = list(paths) or [field for field in self._message.meta.fields if getattr(node, field)]
            changed = self._copy(held)
            for field in fields:
                if field not in self._message.meta.fields:
                    raise ApiError(400, f"The field {field} of a {self.singular} cannot be updated.")
                if field not in _OWN:
                    setattr(changed, field, getattr(node, field))
            return self.touch(changed)

    def touch(self, node: Any) -> Any:
        """Saves one that has changed."""
        node.update_time, node.etag = now(), str(time.time_ns() // 1000)
        self.keep(node)
        return self._copy(node)

    def find(self, request: Any, contexts_of: Any) -> Any:
        """A page of those that a list request matches; `contexts_of` returns the contexts of one."""
        parent = self._names.number(request.parent)
        text = _IN_CONTEXT.sub(r"in_context:\1", request.filter)
        for project, number in self._names.projects.items():
            text = text.replace(f"projects/{project}/", f"projects/{number}/")
        test = predicate(text)
        with self._lock:
            held = list(self.held.values())
        found = [each for each in held if test({**as_json(each), "inContext": contexts_of(each.name)})]
        asked = type(request)(parent=parent, page_size=request.page_size, page_token=request.page_token)
        asked.order_by = request.order_by
        listed, token = page(found, parent, asked, self.page_size)
        return self._listed(**{self._field: listed, "next_page_token": token})


class Metadata:
    """The metadata of runs, their inputs and their outputs.

    Attributes:
        contexts, executions, artifacts: the nodes.
    """

    def __init__(self, names: Names, operations: Operations, page_size: int, state: StateFolder) -> None:
        self._names, self._operations, self._state, self._lock = names, operations, state, threading.RLock()
        self.contexts = Nodes(names, api.ListContextsResponse, page_size, state)
        self.executions = Nodes(names, api.ListExecutionsResponse, page_size, state)
        self.artifacts = Nodes(names, api.ListArtifactsResponse, page_size, state)
        # Members of contexts, by the context's name; events of executions, as pairs of an artifact and a type, by name.
        self._members = {each["name"]: list(each["members"]) for _, each in state.documents(_LINKS)}
        self._events = {each["name"]: [tuple(pair) for pair in each["events"]] for _, each in state.documents(_EVENTS)}

    def create_store(self, request: Any) -> Any:
        """CreateMetadataStore: only for the default one, which exists."""
        if request.metadata_store_id not in ("", DEFAULT_STORE):
            raise ApiError(501, f"The emulator has no metadata store but {DEFAULT_STORE!r}.")
        store = self._store(f"{self._names.number(request.parent)}/metadataStores/{DEFAULT_STORE}")
        return self._operations.done(store.name, store)

    def get_store(self, request: Any) -> Any:
        """GetMetadataStore."""
        return self._store(self._names.number(request.name))

    def list_stores(self, request: Any) -> Any:
        """ListMetadataStores."""
        store = self._store(f"{self._names.number(request.parent)}/metadataStores/{DEFAULT_STORE}")
        return api.ListMetadataStoresResponse(metadata_stores=[store])

    def create(self, nodes: Nodes, request: Any) -> Any:
        """CreateContext, CreateExecution, CreateArtifact."""
        store = self._store(self._names.number(request.parent))
        return nodes.make(store.name, *(getattr(request, nodes.singular + part) for part in ("", "_id")))

    def find(self, nodes: Nodes, request: Any) -> Any:
        """ListContexts, ListExecutions, ListArtifacts."""
        return nodes.find(request, self._contexts_of)

    def delete(self, nodes: Nodes, request: Any) -> Any:
        """DeleteContext, DeleteExecution, DeleteArtifact; a context with members only with `force`."""
        node = nodes.one(request.name)
        if request.etag and request.etag != node.etag:
            raise ApiError(409, f"The etag of {node.name} is {node.etag}.", "ABORTED")
        if self._members.get(node.name) and not request.force:
            raise ApiError(400, f"Context {node.name} has members.", "FAILED_PRECONDITION")
        nodes.forget(node.name)
        with self._lock:
            self._members.pop(node.name, None)
            self._events.pop(node.name, None)
            self._state.remove(_LINKS, node.name)
            self._state.remove(_EVENTS, node.name)
        return self._operations.done(node.name)

    def add_members(self, request: Any) -> Any:
        """AddContextArtifactsAndExecutions."""
        artifacts = [self.artifacts.one(name).name for name in request.artifacts]
        executions = [self.executions.one(name).name for name in request.executions]
        self.put_in(self.contexts.one(request.context).name, [*artifacts, *executions])
        return api.AddContextArtifactsAndExecutionsResponse()

    def put_in(self, context: str, members: Iterable[str]) -> None:
        """Puts artifacts and executions into a context."""
        with self._lock:
            held = list(dict.fromkeys([*self._members.get(context, []), *members]))
            self._state.write(_LINKS, context, {"name": context, "members": held})
            self._members[context] = held

    def add_children(self, request: Any) -> Any:
        """AddContextChildren."""
        parent = self.contexts.one(request.context)
        for child in [self.contexts.one(name) for name in request.child_contexts]:
            if parent.name == child.name:
                raise ApiError(400, f"The context {child.name} cannot be its own parent.")
            if parent.name not in child.parent_contexts:
                child.parent_contexts.append(parent.name)
                self.contexts.touch(child)
        return api.AddContextChildrenResponse()

    def add_events(self, request: Any) -> Any:
        """AddExecutionEvents."""
        execution = self.executions.one(request.execution)
        events = [(self.artifacts.one(each.artifact).name, each.type_.name) for each in request.events]
        self.note(execution.name, events)
        return api.AddExecutionEventsResponse()

    def note(self, execution: str, events: Iterable[tuple[str, str]]) -> None:
        """Records which artifacts an execution has read (INPUT) and made (OUTPUT)."""
        with self._lock:
            held = list(dict.fromkeys([*self._events.get(execution, []), *events]))
            self._state.write(_EVENTS, execution, {"name": execution, "events": held})
            self._events[execution] = held

    def execution_graph(self, request: Any) -> Any:
        """QueryExecutionInputsAndOutputs."""
        return self._graph([self.executions.one(request.execution).name], [])

    def context_graph(self, request: Any) -> Any:
        """QueryContextLineageSubgraph."""
        members = self._members.get(self.contexts.one(request.context).name, [])
        executions = [name for name in members if name in self.executions.held]
        return self._graph(executions, [name for name in members if name in self.artifacts.held])

    def artifact_graph(self, request: Any) -> Any:
        """QueryArtifactLineageSubgraph: the executions linked to an artifact, and their other artifacts."""
        name = self._names.number(request.artifact)
        self.artifacts.one(name)
        known = list(self._events.items())
        touching = [execution for execution, events in known if any(artifact == name for artifact, _ in events)]
        return self._graph(touching, [name])

    def _graph(self, executions: list[str], artifacts: list[str]) -> Any:
        pairs = [(execution, *event) for execution in executions for event in self._events.get(execution, [])]
        named = dict.fromkeys([*artifacts, *(artifact for _, artifact, _ in pairs)])
        return api.LineageSubgraph(
            executions=[self.executions.held[name] for name in executions if name in self.executions.held],
            artifacts=[self.artifacts.held[name] for name in named if name in self.artifacts.held],
            events=[api.Event(execution=one, artifact=artifact, type_=kind) for one, artifact, kind in pairs],
        )

    def _contexts_of(self, name: str) -> list[str]:
        return [context for context, members in list(self._members.items()) if name in members]

    def _store(self, name: str) -> Any:
        if not re.fullmatch(rf"projects/\d+/locations/[^/]+/metadataStores/{DEFAULT_STORE}", name):
            raise not_found(name)
        return api.MetadataStore(name=name)
