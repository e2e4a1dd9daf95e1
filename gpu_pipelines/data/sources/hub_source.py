"""Data sets of the Hugging Face hub, which `datasets` downloads into its cache as Arrow files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.data.sources.files import Source
from gpu_pipelines.data.sources.names import hub_parts
from gpu_pipelines.errors import UserError


def require_datasets() -> None:
    """Checks that `datasets` is installed.

    Raises:
        UserError: it is not.
    """
    try:
        import datasets  # noqa: F401
    except ImportError:
        raise UserError(
            "Reading from the Hugging Face hub needs the package datasets.",
            "Install it: pip install datasets; or download the files and give them as the source.",
        ) from None


def find_data_set(settings: PrepareSettings) -> Source:
    """Has `datasets` download a split, and finds its files.

    Args:
        settings: `source` is read. A directory of that name below the working directory is taken in place of the hub's
            data set, as `datasets` does.

    Raises:
        UserError: `datasets` is not installed, or cannot load it.
    """
    require_datasets()
    import datasets

    name, revision, config, split = hub_parts(settings.source)
    datasets.disable_progress_bars()
    print(f"loading {name} with datasets {datasets.__version__}", flush=True)
    try:
        found: Any = datasets.load_dataset(name, config, split=split, revision=revision, keep_in_memory=False)
    except Exception as error:  # Names, networks, formats: each has exceptions of its own, of several packages.
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(
            f"datasets cannot load {settings.source}: {type(error).__name__}: {said[:500]}",
            "Check the name, and ?config=…&split=…; for a private one set HF_TOKEN.",
        ) from None
    files = [Path(file["filename"]) for file in found.cache_files]
    root = f"{files[0].parent}/"
    # Images that are not in the rows are where `datasets` downloaded them to, or in the directory itself.
    import huggingface_hub

    caches = (datasets.config.HF_DATASETS_CACHE, huggingface_hub.constants.HF_HUB_CACHE)
    return Source(
        "arrow",
        root,
        tuple(file.name for file in files),
        tuple(file.stat().st_size for file in files),
        given=settings.source,
        image_roots=tuple(str(place) for place in (*caches, *([name] if Path(name).is_dir() else []))),
    )
