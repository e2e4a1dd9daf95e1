"""Pipelines in Artifact Registry, in a repository of the format KFP: immutable versions, and tags that name them."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from gpu_pipelines.errors import NotFoundError, UserError, some_of
from gpu_pipelines.google_cloud.connection import credentials, service_errors, tried_again
from gpu_pipelines.project_settings import ProjectSettings

DEFAULT_TAG = "latest"
_VERSION = re.compile(r"sha256:[0-9a-f]{64}")
_TAG = re.compile(r"[a-z][a-z0-9._-]{0,127}")
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")

T = TypeVar("T")


@dataclass(frozen=True)
class PipelineVersion:
    """An immutable version of a pipeline.

    Attributes:
        repository: address of the repository.
        package: name of the pipeline.
        version: `sha256:…`.
        tags: tags that name it.
    """

    repository: str
    package: str
    version: str
    tags: tuple[str, ...] = ()

    @property
    def address(self) -> str:
        """What `PipelineJob.template_uri` takes."""
        return f"{self.repository}/{self.package}/{self.version}"

    def to_json(self) -> dict[str, Any]:
        """The version as a JSON object."""
        return {"package": self.package, "version": self.version, "tags": list(self.tags), "address": self.address}


class PipelineRepository:
    """A repository.

    Args:
        address: `https://LOCATION-kfp.pkg.dev/PROJECT/REPOSITORY`.
    """

    def __init__(self, address: str) -> None:
        # The client uses this module without importing it.
        import google.auth.transport.requests  # noqa: F401
        from kfp.registry import RegistryClient

        self.address = address.rstrip("/")
        auth = _NoAuth() if urlsplit(address).scheme == "http" else credentials(address)
        self._client = RegistryClient(self.address, auth=auth)

    def upload(self, text: str, tags: Sequence[str]) -> PipelineVersion:
        """Uploads a compiled pipeline, moves the tags to it, and reads both back.

        A file that is uploaded twice is one version, because versions are named by their content.

        Raises:
            UserError: a tag is invalid, or the repository refuses it.
        """
        for tag in tags:
            if not _TAG.fullmatch(tag):
                raise UserError(
                    f"{tag[:60]!r} is not a tag.",
                    "Give lower-case letters, digits, dots, dashes and underscores, beginning with a letter.",
                )
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "pipeline.yaml"
            path.write_text(text, encoding="utf-8")
            with service_errors(f"Uploading to {self.address}"):
                package, version = _sent(lambda: self._client.upload_pipeline(str(path)))
                for tag in tags:
                    self._let_tag_name(package, tag, version)
        uploaded = PipelineVersion(self.address, package, version, tuple(tags))
        if self.text(uploaded) != text:
            raise UserError(
                f"{uploaded.address} does not hold what was uploaded.",
                "Upload it again.",
            )
        return uploaded

    def text(self, version: PipelineVersion) -> str:
        """The file of a version.

        Raises:
            UserError: it does not exist.
        """
        with tempfile.TemporaryDirectory() as folder, service_errors(f"Reading {version.address}"):
            path = str(Path(folder) / "pipeline.yaml")
            _sent(lambda: self._client.download_pipeline(version.package, version=version.version, file_name=path))
            return Path(path).read_text(encoding="utf-8")

    def find(self, package: str, reference: str) -> PipelineVersion:
        """A version by its digest, or by a tag that names it now.

        Raises:
            UserError: there is no such version.
        """
        try:
            return self._find(package, reference)
        except NotFoundError as error:
            tags = self._tags(package)
            named = f"{package} has the tags {some_of(tags, 9)}: name one, as in {package}/{tags[0]}." if tags else ""
            raise NotFoundError(error.problem, named or error.remedy) from None

    def _find(self, package: str, reference: str) -> PipelineVersion:
        with service_errors(f"Looking for {package}/{reference} in {self.address}"):
            if _VERSION.fullmatch(reference):
                found = _sent(lambda: self._client.get_version(package, reference))
                tags = [str(tag["name"]).rpartition("/")[2] for tag in found.get("relatedTags", [])]
                return PipelineVersion(self.address, package, reference, tuple(tags))
            tag = _sent(lambda: self._client.get_tag(package, reference))
            return PipelineVersion(self.address, package, str(tag["version"]).rpartition("/")[2], (reference,))

    def _tags(self, package: str) -> list[str]:
        """The tags of a package; none if there is no such package."""
        with suppress(UserError), service_errors(f"Looking for {package} in {self.address}"):
            return sorted(str(tag["name"]).rpartition("/")[2] for tag in _sent(lambda: self._client.list_tags(package)))
        return []

    def _let_tag_name(self, package: str, tag: str, version: str) -> None:
        from google.api_core.exceptions import NotFound

        try:
            there = _sent(lambda: self._client.get_tag(package, tag))
        except NotFound:
            _sent(lambda: self._client.create_tag(package, version, tag))
            return
        if str(there["version"]).rpartition("/")[2] != version:
            _sent(lambda: self._client.update_tag(package, version, tag))


def find_version(what: str, settings: ProjectSettings) -> PipelineVersion:
    """A version from its address, or from `PACKAGE` or `PACKAGE/TAG` in the settings' repository.

    Args:
        what: `https://LOCATION-kfp.pkg.dev/P/R/PACKAGE/TAG_OR_VERSION`, `PACKAGE/TAG_OR_VERSION`, or `PACKAGE` for the
            tag latest.
        settings: the repository.

    Raises:
        UserError: it is not such an address, or there is no such version.
    """
    address, reference = what.rstrip("/"), DEFAULT_TAG
    if "://" in address:
        parts = urlsplit(address)
        names = parts.path.strip("/").split("/")
        if len(names) not in (3, 4):
            raise UserError(
                f"{what[:200]} is not the address of a pipeline.", "Give https://LOCATION-kfp.pkg.dev/P/R/PACKAGE/TAG."
            )
        repository = f"{parts.scheme}://{parts.netloc}/{names[0]}/{names[1]}"
        package, reference = names[2], names[3] if len(names) == 4 else reference
    else:
        from gpu_pipelines.dag import PIPELINES

        settings.require("repository")
        repository = str(settings.repository)
        package, _, rest = address.partition("/")
        # In the repository a pipeline has KFP's name, with dashes.
        package = package.replace("_", "-") if package in PIPELINES else package
        reference = rest or reference
    if not _NAME.fullmatch(package) or not (_VERSION.fullmatch(reference) or _TAG.fullmatch(reference)):
        raise UserError(
            f"{what[:200]!r} names no pipeline of a repository.", "Give PACKAGE, PACKAGE/TAG or PACKAGE/sha256:DIGEST."
        )
    return PipelineRepository(repository).find(package, reference)


def _sent(request: Callable[[], T]) -> T:
    """Sends a request that may be sent twice, and retries it after transient errors; an error answer is raised."""

    def send() -> T:
        import google.api_core.exceptions as api
        import requests

        try:
            return request()
        except requests.HTTPError as error:
            raise api.from_http_response(error.response) from error

    found: T = tried_again()(send)()
    return found


class _NoAuth:
    """For an unencrypted address, which is for tests: otherwise the client would send credentials of this machine."""

    def __call__(self, request: Any) -> Any:
        return request
