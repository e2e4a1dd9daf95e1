"""The file with the permissions of accounts: roles and permissions, in the project and on single buckets.

accounts:
  trainer@example-project.iam.gserviceaccount.com:
    roles: [roles/aiplatform.user]
    permissions: [logging.logEntries.list]
    buckets:
      example-bucket: [roles/storage.objectViewer]
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from gpu_pipelines.emulator.project.roles import ROLES
from gpu_pipelines.errors import UserError
from gpu_pipelines.yaml_input import node_of, read_text

_ADDRESS = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+")
_PERMISSION = re.compile(r"[a-z][a-z0-9]*(\.[a-zA-Z0-9*]+){1,2}")
_SERVICES = ("aiplatform", "artifactregistry", "bigquery", "iam", "logging", "storage")


@dataclass(frozen=True)
class Grants:
    """The permissions of one account.

    Attributes:
        project: patterns of permissions in the project.
        buckets: further patterns on single buckets.
    """

    project: tuple[str, ...] = ()
    buckets: dict[str, tuple[str, ...]] = field(default_factory=dict)


def read_permissions(path: Path) -> dict[str, Grants]:
    """The permissions of accounts, by address.

    Raises:
        UserError: the file cannot be read, or something in it is wrong, with its line.
    """
    what = f"The file {path}"
    root = node_of(read_text(path, what), what)
    reader = _Reader(what)
    found: dict[str, Grants] = {}
    for key, node in reader.mapping(root, ("accounts",)):
        del key
        for address, grants in reader.mapping(node):
            if not _ADDRESS.fullmatch(address.value):
                raise reader.error(address, f"{address.value!r} is no address of an account")
            found[address.value] = reader.grants(grants)
    return found


class _Reader:
    def __init__(self, what: str) -> None:
        self._what = what

    def error(self, node: yaml.Node | None, problem: str) -> UserError:
        line = f", line {node.start_mark.line + 1}" if node is not None else ""
        return UserError(f"{self._what}{line}: {problem}.", "docs/emulator.md shows such a file.")

    def mapping(
        self, node: yaml.Node | None, known: tuple[str, ...] = ()
    ) -> Iterator[tuple[yaml.ScalarNode, yaml.Node]]:
        if not isinstance(node, yaml.MappingNode):
            raise self.error(node, "a mapping belongs here")
        for key, value in node.value:
            if known and key.value not in known:
                raise self.error(key, f"there is no {key.value!r} here; there are: {', '.join(known)}")
            yield key, value

    def grants(self, node: yaml.Node) -> Grants:
        project: list[str] = []
        buckets: dict[str, tuple[str, ...]] = {}
        for key, value in self.mapping(node, ("roles", "permissions", "buckets")):
            if key.value == "buckets":
                buckets = {bucket.value: tuple(self._patterns(held)) for bucket, held in self.mapping(value)}
            else:
                project += self._patterns(value, "role" if key.value == "roles" else "permission")
        return Grants(tuple(project), buckets)

    def _patterns(self, node: yaml.Node, kind: str = "") -> Iterator[str]:
        if not isinstance(node, yaml.SequenceNode):
            raise self.error(node, "a list belongs here")
        for each in node.value:
            text = str(each.value)
            if text.startswith("roles/") and kind != "permission":
                if text not in ROLES:
                    raise self.error(each, f"the emulator does not know {text}; list what it permits under permissions")
                yield from ROLES[text]
            elif kind == "role":
                raise self.error(each, f"{text!r} is no role, such as roles/storage.objectViewer")
            elif not _PERMISSION.fullmatch(text) or text.partition(".")[0] not in _SERVICES:
                raise self.error(each, f"{text!r} is no permission of {', '.join(_SERVICES)}")
            else:
                yield text
