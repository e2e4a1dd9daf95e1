"""The pipelines that the console can start: this project's, files dropped on it, the emulator's own."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_pipelines.console.emulator_client import EmulatorClient
from gpu_pipelines.errors import NotFoundError, UserError

if TYPE_CHECKING:
    from gpu_pipelines.component_interface.parameter import Parameter

#: Where dropped files are kept, below the console's folder.
_DROPPED = "pipelines"
_SUFFIX = ".yaml"
_NO_NAME = re.compile(r"[^a-z0-9]+")
#: Characters of a digest in the key of a file.
_DIGEST = 12
_DAMAGED = "damaged file"
_OF_THE_PROJECT, _FILE, _UPLOADED = "project", "file", "uploaded"


@dataclass(frozen=True)
class Listed:
    """A pipeline in the list.

    Attributes:
        key: its key in addresses: KIND:NAME.
        name: the name of the pipeline.
        text: its description, if it has one.
        origin: its origin in words.
    """

    key: str
    name: str
    text: str
    origin: str


@dataclass(frozen=True)
class Pipeline:
    """A pipeline with its inputs.

    Attributes:
        listed: its entry in the list.
        parameters: the parameters in its form, by name.
        advanced: further parameters, in a separate part of the form.
        file: the compiled file; None for a pipeline of this project, which is compiled when it is started.
        spec: the content of the file.
    """

    listed: Listed
    parameters: Mapping[str, Parameter]
    advanced: Mapping[str, Parameter] = field(default_factory=dict)
    file: Path | None = None
    spec: Mapping[str, Any] = field(default_factory=dict)

    @property
    def every_parameter(self) -> dict[str, Parameter]:
        """All parameters by name."""
        return {**self.parameters, **self.advanced}


class Pipelines:
    """The pipelines that the console can start.

    Args:
        folder: the folder of the console, for dropped files.
        client: the emulator; None without one.
    """

    def __init__(self, folder: Path, client: EmulatorClient | None) -> None:
        self._folder, self._client = folder / _DROPPED, client
        self.folder = folder

    def listed(self) -> list[Listed]:
        """All pipelines: dropped files first, starting with the newest."""
        return [*self._files(), *self._uploaded(), *_of_the_project()]

    def key_of(self, name: str) -> str:
        """The key of the pipeline with a name of runs; empty if it is not known."""
        # KFP writes the names of this project's pipelines with dashes.
        names = (name, name.replace("-", "_"))
        known = [*self._files(), *_of_the_project()]
        return next((each.key for each in known if each.name in names and each.origin != _DAMAGED), "")

    def add(self, content: bytes, name: str) -> Listed:
        """Keeps a compiled file.

        Args:
            content: the content of the file.
            name: the name of the file, only for messages.

        Raises:
            UserError: it is not a compiled pipeline, or cannot be kept.
        """
        called = f"The file {Path(name).name[:80]}" if name else "The file"
        spec = _spec_of(content, called)
        title = (
            _NO_NAME.sub("-", str(spec.get("pipelineInfo", {}).get("name", "")).lower()).strip("-")[:80] or "pipeline"
        )
        path = self._folder / f"{title}-{hashlib.sha256(content).hexdigest()[:_DIGEST]}{_SUFFIX}"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        except OSError as error:
            raise UserError(
                f"{called} cannot be kept in {self._folder}: {error.strerror}.", "Free space there."
            ) from error
        return _listed_file(path, spec)

    def pipeline(self, key: str) -> Pipeline:
        """A pipeline with its inputs.

        Raises:
            UserError: there is no such pipeline.
        """
        kind, _, name = key.partition(":")
        if kind == _OF_THE_PROJECT:
            return project_pipeline(name)
        if kind == _UPLOADED and self._client:
            return self._uploaded_pipeline(name)
        path = self._folder / f"{name}{_SUFFIX}"
        if kind != _FILE or Path(name).name != name or not path.is_file():
            raise NotFoundError(f"There is no pipeline {key[:80]!r}.", "Drop its compiled file on the page again.")
        spec = _spec_of(path.read_bytes(), f"The file {path.name}")
        return _of_spec(_listed_file(path, spec), path, spec)

    def _files(self) -> Iterator[Listed]:
        files = self._folder.glob(f"*{_SUFFIX}") if self._folder.is_dir() else ()
        for path in sorted(files, key=lambda path: path.stat().st_mtime_ns, reverse=True):
            try:
                yield _listed_file(path, _spec_of(path.read_bytes(), f"The file {path.name}"))
            except UserError as error:
                yield Listed(f"{_FILE}:{path.stem}", path.stem, str(error), _DAMAGED)

    def _uploaded(self) -> Iterator[Listed]:
        """The pipelines in the emulator's Artifact Registry."""
        if self._client is None:
            return
        base = str(self._client.about["repository"]).removeprefix(f"{self._client.address}/")
        for package in self._client.ask("GET", f"{base}/packages").get("packages", []):
            name = str(package["name"]).rpartition("/")[2]
            for version in self._client.ask("GET", f"{base}/packages/{name}/versions").get("versions", []):
                digest = str(version["name"]).rpartition("/")[2]
                tags = ", ".join(str(tag["name"]).rpartition("/")[2] for tag in version.get("relatedTags", []))
                text = f"version {tags or digest[:19]}"
                yield Listed(f"{_UPLOADED}:{name}/{digest}", name, text, "the emulator's Artifact Registry")

    def _uploaded_pipeline(self, name: str) -> Pipeline:
        assert self._client is not None
        package, _, digest = name.partition("/")
        if not re.fullmatch(r"[\w.-]+", package) or not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
            raise NotFoundError(f"There is no pipeline {name[:80]!r} in the emulator's registry.", "Look at the list.")
        base = str(self._client.about["repository"]).removeprefix(f"{self._client.address}/")
        kept = self.add(self._client.content(f"{base}/{package}/{digest}"), package)
        return self.pipeline(kept.key)


def _listed_file(path: Path, spec: Mapping[str, Any]) -> Listed:
    info = spec.get("pipelineInfo", {})
    return Listed(f"{_FILE}:{path.stem}", str(info.get("name", path.stem)), str(info.get("description", "")), "file")


def _spec_of(content: bytes, called: str) -> dict[str, Any]:
    from gpu_pipelines.targets.compiled import parsed_documents, required_pipeline

    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise UserError(f"{called} is not text.", "Drop the YAML or JSON that KFP's compiler has written.") from None
    documents = parsed_documents(text, called)
    spec = required_pipeline(documents[0] if documents else None, called, "vertex")
    if not isinstance(spec.get("pipelineInfo", {}), dict) or not isinstance(spec.get("components", {}), dict):
        raise UserError(f"{called} is not a compiled pipeline.", "Drop the file that KFP's compiler has written.")
    return spec


def _of_spec(listed: Listed, path: Path, spec: Mapping[str, Any]) -> Pipeline:
    from gpu_pipelines.driver.parameters.interface import parameters_of_spec

    try:
        return Pipeline(listed, parameters_of_spec(spec), file=path, spec=spec)
    except (AttributeError, TypeError, KeyError) as error:
        raise UserError(f"{listed.name} has inputs that cannot be read: {error!r}.", "Compile it again.") from error


def _of_the_project() -> Iterator[Listed]:
    from importlib.util import find_spec

    from gpu_pipelines.dag import PIPELINES

    for name in PIPELINES:
        found = find_spec(f"gpu_pipelines.pipelines.{name}.pipeline")
        text = _first_line(Path(found.origin)) if found and found.origin else ""
        yield Listed(f"{_OF_THE_PROJECT}:{name}", name, text, "gpu-pipelines")


def _first_line(module: Path) -> str:
    """The first line of a module's docstring; importing the module would import KFP."""
    return module.read_text(encoding="utf-8").partition('"""')[2].partition('"""')[0].strip()


def project_pipeline(name: str) -> Pipeline:
    """A pipeline of this project; building it takes seconds the first time.

    Raises:
        UserError: there is none with that name.
    """
    from gpu_pipelines.driver.programs import ONE_AT_A_TIME

    # Each request has a thread.
    with ONE_AT_A_TIME:
        return _built(name)


@cache
def _built(name: str) -> Pipeline:
    from dataclasses import replace

    from gpu_pipelines.component_interface.parameter import parameters_in
    from gpu_pipelines.dag import load_pipeline, load_request
    from gpu_pipelines.driver.parameters.advanced_fields import ADVANCED, fields_of
    from gpu_pipelines.driver.parameters.interface import parameters_of_pipeline
    from gpu_pipelines.targets.local.target import LocalTarget

    own = parameters_of_pipeline(load_pipeline(name).build(LocalTarget(), None))
    declared = {key: each for kind in load_request(name).SETTINGS.values() for key, each in parameters_in(kind).items()}
    choices = {key: declared[key].choices for key in own if key in declared}
    form = {key: replace(each, choices=choices.get(key, ())) for key, each in own.items() if key != ADVANCED}
    listed = next(each for each in _of_the_project() if each.name == name)
    return Pipeline(listed, form, fields_of(name, own))
