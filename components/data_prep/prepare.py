"""Prepares a data set: reads, checks, splits and writes it in the dataset format."""

from __future__ import annotations

import tempfile
from pathlib import Path

from gpu_pipelines.artifacts.dataset import Manifest
from gpu_pipelines.components.data_prep.settings import PrepareSettings
from gpu_pipelines.errors import UserError
from gpu_pipelines.sources.fingerprint import source_fingerprint


def prepare_data(settings: PrepareSettings, directory: Path) -> Manifest:
    """Prepares the dataset that `settings` describe in `directory`.

    Args:
        settings: what to read and how to split it.
        directory: where the dataset goes.

    Returns:
        The manifest of the dataset written.

    Raises:
        UserError: a setting is wrong, the source has no usable rows, or a split or class would be empty.
    """
    if problems := settings.problems():
        raise UserError.of_all(problems)
    with tempfile.TemporaryDirectory(prefix="gpu-pipelines-prepare-") as scratch:
        for name in ("sample", "seen"):
            Path(scratch, name).mkdir()
        print(f"reading {settings.source}", flush=True)
        # Before anything is read: a file that comes later is then new for whoever compares.
        fingerprint = source_fingerprint(settings.source, settings.billing_project)
        if settings.task == "image_classification":
            from gpu_pipelines.components.data_prep.prepare_images import prepare_images

            return prepare_images(settings, directory, Path(scratch), fingerprint)
        # Loading a tokenizer imports transformers, which images do not need.
        from gpu_pipelines.components.data_prep.prepare_text import prepare_text

        return prepare_text(settings, directory, Path(scratch), fingerprint)
