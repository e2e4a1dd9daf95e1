"""Artifact Registry: its repositories, and the packages, versions and tags of those with the format KFP."""

from __future__ import annotations

import hashlib
import re
from datetime import datetime, timezone
from email.parser import BytesParser
from email.policy import HTTP
from pathlib import Path
from typing import Any

import yaml

from gpu_pipelines.emulator.api_error import ApiError
from gpu_pipelines.emulator.pipelines.format import parsed_spec
from gpu_pipelines.emulator.project.project import policy_of
from gpu_pipelines.emulator.state_folder import StateFolder, damaged

_PACKAGE = re.compile(r"[a-z0-9][a-z0-9-]{0,127}")
_TAG = re.compile(r"[a-z][a-z0-9._-]{0,127}")


_KIND = "packages"


class Package:
    """A pipeline: its versions by digest, their creation times, and their tags."""

    def __init__(self) -> None:
        self.versions: dict[str, bytes] = {}
        self.created: dict[str, str] = {}
        self.tags: dict[str, str] = {}

    @classmethod
    def restored(cls, path: Path, document: dict[str, Any]) -> Package:
        """Reads a file of the state; raises UserError if that is damaged."""
        package = cls()
        try:
            package.versions = {name: text.encode() for name, text in document["versions"].items()}
            package.created, package.tags = dict(document["created"]), dict(document["tags"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise damaged(path, repr(error)) from error
        return package

    def to_json(self) -> dict[str, Any]:
        """What `restored` takes."""
        versions = {name: content.decode() for name, content in self.versions.items()}
        return {"versions": versions, "created": self.created, "tags": self.tags}


#: The verb, the kind of resource, and whether the request is for all of them.
_ASKED = {
    ("GET", None, True),
    ("DELETE", None, True),
    ("GET", "versions", True),
    ("GET", "versions", False),
    ("DELETE", "versions", False),
    ("GET", "tags", True),
    ("POST", "tags", True),
    ("GET", "tags", False),
    ("PATCH", "tags", False),
    ("DELETE", "tags", False),
}


class PipelineRepositories:
    """The repositories of a project.

    Attributes:
        formats: format of each repository by `LOCATION/NAME`: KFP or DOCKER.
        bindings: members by role, for each repository with its own policy.
        packages: pipelines by `LOCATION/REPOSITORY/PACKAGE`.
    """

    def __init__(self, state: StateFolder) -> None:
        self.formats: dict[str, str] = {}
        self.bindings: dict[str, dict[str, set[str]]] = {}
        self._state = state
        self.packages: dict[str, Package] = {}
        for path, document in state.documents(_KIND):
            self.packages[str(document.get("name"))] = Package.restored(path, document)

    def repository(self, project: str, location: str, repository: str) -> dict[str, Any]:
        """The answer to repositories.get."""
        name = f"projects/{project}/locations/{location}/repositories/{repository}"
        if f"{location}/{repository}" not in self.formats:
            raise ApiError(404, f"Repository does not exist: {name}")
        return {"name": name, "format": self.formats[f"{location}/{repository}"], "mode": "STANDARD_REPOSITORY"}

    def policy(self, project: str, location: str, repository: str) -> dict[str, Any]:
        """The answer to repositories.getIamPolicy."""
        self.repository(project, location, repository)
        return policy_of(self.bindings.get(f"{location}/{repository}", {}))

    def upload(self, project: str, location: str, repository: str, kind: str, body: bytes) -> bytes:
        """Stores an uploaded pipeline under the digest of its file; returns `PACKAGE/sha256:DIGEST`."""
        if self.repository(project, location, repository)["format"] != "KFP":
            raise ApiError(400, f"The repository {repository} does not have the format KFP.", "FAILED_PRECONDITION")
        form = _form(kind, body)
        if not set(form) <= {"content", "tags"} or "content" not in form:
            raise ApiError(400, f"The form has the fields {', '.join(form)}; it takes content and tags.")
        try:
            document = yaml.safe_load(form["content"])
        # An impossible date, and unclosed brackets, are different errors.
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise ApiError(400, f"The file is not one YAML document: {error}") from error
        package = parsed_spec(document if isinstance(document, dict) else {}).pipeline_info.name
        if not _PACKAGE.fullmatch(package):
            raise ApiError(400, f"The name of a pipeline in a repository must match {_PACKAGE.pattern}: {package!r}.")
        version = f"sha256:{hashlib.sha256(form['content']).hexdigest()}"
        tags = [tag for tag in form.get("tags", b"").decode(errors="replace").split(",") if tag]
        if wrong := [tag for tag in tags if not _TAG.fullmatch(tag)]:
            raise ApiError(400, f"Invalid tag: {wrong[0]}.")
        held = self.packages.setdefault(f"{location}/{repository}/{package}", Package())
        held.versions[version] = form["content"]
        held.created.setdefault(version, datetime.now(timezone.utc).isoformat())
        held.tags.update(dict.fromkeys(tags, version))
        self._keep(f"{location}/{repository}/{package}")
        return f"{package}/{version}".encode()

    def download(self, location: str, repository: str, package: str, reference: str) -> bytes:
        """The file of a version or a tag."""
        held = self._package(location, repository, package)
        version = held.tags.get(reference, reference)
        if version not in held.versions:
            raise ApiError(404, f"{package}/{reference} is not found.")
        return held.versions[version]

    def answer(self, verb: str, parent: str, path: str, query: dict[str, str], body: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request for packages, versions or tags.

        Args:
            verb: GET, POST, PATCH or DELETE.
            parent: full name of the repository.
            path: the rest of the address, from `packages` on.
            query: its parameters.
            body: the body of the request.
        """
        _, project, _, location, _, repository = parent.split("/")
        self.repository(project, location, repository)
        match = re.fullmatch(r"packages(?:/([^/]+)(?:/(versions|tags)(?:/([^/]+))?)?)?", path)
        if match is None:
            raise ApiError(404, f"There is no {path}.")
        package, kind, key = match.groups()
        if (verb, kind, key is None) not in _ASKED:
            raise ApiError(404, f"There is no {verb} {path}.")
        start = f"{location}/{repository}/"
        if package is None:
            if verb != "GET":
                raise ApiError(404, f"There is no {verb} {path}.")
            names = [name.removeprefix(start) for name in self.packages if name.startswith(start)]
            return {"packages": [self._told(parent, name) for name in names]}
        held = self._package(location, repository, package)
        if kind is None and verb == "DELETE":
            self._state.remove(_KIND, start + package)
            del self.packages[start + package]
            return {"done": True}
        where = f"{parent}/packages/{package}"
        if kind is None:
            return self._told(parent, package)
        handle = self._version if kind == "versions" else self._tag
        told = handle(verb, held, where, key or query.get("tagId", ""), key is None, body)
        if verb != "GET":
            self._keep(start + package)
        return told

    def _keep(self, name: str) -> None:
        self._state.write(_KIND, name, {"name": name, **self.packages[name].to_json()})

    def _version(
        self, verb: str, held: Package, where: str, key: str, everything: bool, body: dict[str, Any]
    ) -> dict[str, Any]:
        if everything:
            return {"versions": [self._told_version(held, where, version) for version in held.versions]}
        if key not in held.versions:
            raise ApiError(404, f"{where}/versions/{key} is not found.")
        if verb == "DELETE":
            if key in held.tags.values():
                raise ApiError(400, f"Version {key} has tags.", "FAILED_PRECONDITION")
            del held.versions[key]
            return {"done": True}
        return self._told_version(held, where, key)

    def _tag(
        self, verb: str, held: Package, where: str, key: str, everything: bool, body: dict[str, Any]
    ) -> dict[str, Any]:
        if verb in ("POST", "PATCH"):
            if unknown := set(body) - {"name", "version"}:
                raise ApiError(400, f'Invalid JSON payload received. Unknown name "{unknown.pop()}".')
            version = str(body.get("version", "")).rpartition("/versions/")[2]
            if version not in held.versions:
                raise ApiError(404, f"{where}/versions/{version} is not found.")
            if verb == "POST" and key in held.tags:
                raise ApiError(409, f"Tag {key} already exists.")
            if not _TAG.fullmatch(key):
                raise ApiError(400, f"Invalid tag: {key}.")
            held.tags[key] = version
        elif everything:
            return {"tags": [self._told_tag(held, where, tag) for tag in held.tags]}
        if key not in held.tags:
            raise ApiError(404, f"{where}/tags/{key} is not found.")
        told = self._told_tag(held, where, key)
        if verb == "DELETE":
            del held.tags[key]
            return {}
        return told

    def _package(self, location: str, repository: str, package: str) -> Package:
        held = self.packages.get(f"{location}/{repository}/{package}")
        if held is None:
            raise ApiError(404, f"Package {package} is not found.")
        return held

    def _told(self, parent: str, package: str) -> dict[str, Any]:
        return {"name": f"{parent}/packages/{package}", "displayName": package}

    def _told_version(self, held: Package, where: str, version: str) -> dict[str, Any]:
        tags = [self._told_tag(held, where, tag) for tag, on in held.tags.items() if on == version]
        return {
            "name": f"{where}/versions/{version}",
            "createTime": held.created[version],
            "updateTime": held.created[version],
            "relatedTags": tags,
        }

    def _told_tag(self, held: Package, where: str, tag: str) -> dict[str, Any]:
        return {"name": f"{where}/tags/{tag}", "version": f"{where}/versions/{held.tags[tag]}"}


def _form(kind: str, body: bytes) -> dict[str, bytes]:
    """The fields of multipart/form-data."""
    message = BytesParser(policy=HTTP).parsebytes(f"Content-Type: {kind}\r\n\r\n".encode() + body)
    if not message.is_multipart():
        raise ApiError(400, "The request is no multipart/form-data.")
    return {
        str(part.get_param("name", header="content-disposition")): part.get_payload(decode=True) or b""  # type: ignore
        for part in message.iter_parts()
    }
