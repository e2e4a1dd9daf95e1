"""Data sets of the Hugging Face hub, `hf://OWNER/NAME`, which `datasets` downloads into its cache as Arrow files."""

from __future__ import annotations

import re
import uuid
from pathlib import Path
from typing import Any, NamedTuple

from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.data.sources.file_source import states_of_files
from gpu_pipelines.data.sources.source import Source, SourceFiles
from gpu_pipelines.errors import UserError, named

_SCHEME = "hf://"
_ID = re.compile(
    r"(?P<id>[\w.-]+(/[\w.-]+)?)(@(?P<revision>[^?@]+))?(\?(?P<options>(config|split)=[\w.-]+(&(config|split)=[\w.-]+)?))?"
)


class _Name(NamedTuple):
    """What the name of a data set says; the split is `train` where none is named."""

    id: str
    revision: str | None
    config: str | None
    split: str

    @classmethod
    def of(cls, uri: str) -> _Name:
        match = _ID.fullmatch(uri.removeprefix(_SCHEME))
        assert match
        options = dict(part.split("=") for part in (match["options"] or "").split("&") if part)
        return cls(match["id"], match["revision"], options.get("config"), options.get("split", "train"))


class HubDataSets(Source):
    """Data sets of the hub; single files in one are `hf://datasets/OWNER/NAME/…`, and read like those of a bucket."""

    title, example, scheme = "a data set of the Hugging Face hub", "hf://OWNER/NAME", _SCHEME
    form = (
        _ID,
        "a data set of the hub is hf://OWNER/NAME, with @REVISION and ?config=NAME&split=NAME if they are not the "
        "default ones.",
    )

    def matches(self, uri: str) -> bool:
        return super().matches(uri) and uri.removeprefix(_SCHEME).count("/") <= 1

    def require_readable(self, settings: PrepareSettings) -> None:
        try:
            import datasets  # noqa: F401
        except ImportError:
            raise UserError(
                "Reading from the Hugging Face hub needs the package datasets.",
                "Install it: pip install datasets; or download the files and give them as the source.",
            ) from None

    def open(self, settings: PrepareSettings, scratch: Path) -> SourceFiles:
        """Has `datasets` download a split, and finds its files.

        A directory of that name below the working directory is taken in place of the hub's data set, as `datasets`
        does.
        """
        self.require_readable(settings)
        import datasets

        name, revision, config, split = _Name.of(settings.source)
        datasets.disable_progress_bars()
        print(f"loading {name} with datasets {datasets.__version__}", flush=True)
        try:
            found: Any = datasets.load_dataset(name, config, split=split, revision=revision, keep_in_memory=False)
        except Exception as error:  # Names, networks, formats: each has exceptions of its own, of several packages.
            raise UserError(
                f"datasets cannot load {settings.source}: {named(error)[:500]}",
                "Check the name, and ?config=…&split=…; for a private one set HF_TOKEN.",
            ) from None
        files = [Path(file["filename"]) for file in found.cache_files]
        root = f"{files[0].parent}/"
        # Images that are not in the rows are where `datasets` downloaded them to, or in the directory itself.
        import huggingface_hub

        caches = (datasets.config.HF_DATASETS_CACHE, huggingface_hub.constants.HF_HUB_CACHE)
        return SourceFiles(
            "arrow",
            root,
            tuple(file.name for file in files),
            tuple(file.stat().st_size for file in files),
            given=settings.source,
            image_roots=tuple(str(place) for place in (*caches, *([name] if Path(name).is_dir() else []))),
        )

    def state(self, uri: str, billing_project: str) -> list[Any]:
        """The commit of the data set; never the same without a hub."""
        name, revision, *_ = _Name.of(uri)
        if Path(name).is_dir():
            return list(states_of_files(name))
        from huggingface_hub import HfApi

        try:
            return [uri, str(HfApi().dataset_info(name, revision=revision).sha)]
        except Exception:  # Names, networks: of several packages. What cannot be looked up may have changed.
            return [uuid.uuid4().hex]
