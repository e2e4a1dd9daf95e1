"""The units of a preparation become one dataset."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gpu_pipelines.artifacts.dataset import (
    LABEL_CONFLICTS,
    MANIFEST,
    NEAR_DUPLICATES,
    REJECTED,
    SPLITS,
    DataFile,
    Manifest,
)
from gpu_pipelines.artifacts.documents import sha256_of_tree, write_document
from gpu_pipelines.artifacts.moments import joined_moments
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.data.sources.files_read import FilesOfSources
from gpu_pipelines.data.units.source_shards import SourceShard
from gpu_pipelines.data.units.unfinished_work import UnfinishedWork
from gpu_pipelines.data.units.units import manifest_of, unit_name, units_done
from gpu_pipelines.data.usable import require_usable


def join_units(
    work: UnfinishedWork,
    shards: Sequence[SourceShard],
    directory: Path,
    settings: PrepareSettings,
    tokenizer: Path | None,
    files: FilesOfSources,
) -> Manifest:
    """Writes the dataset that the units make up, in the order of the source.

    Args:
        work: the units, all done.
        shards: all shards of the source.
        directory: where the dataset goes.
        settings: how many rows may be rejected.
        tokenizer: its directory, where the task has one.
        files: which files were read.

    Raises:
        UserError: a unit is missing or damaged, or the rows are of no use.
    """
    names = [name for shard in shards for name in _units_of(work, shard)]
    manifests = [manifest_of(work, name) for name in names]
    manifest = replace(_sum_of(manifests), files_read=files.read, files_passed_over=files.passed_over())
    if tokenizer is not None:
        manifest = replace(manifest, tokenizer=tokenizer.name, tokenizer_files=sha256_of_tree(tokenizer))
    require_usable(manifest, settings, [work.path(name) / REJECTED for name in names])
    directory.mkdir(parents=True, exist_ok=True)
    # What an earlier attempt left is no dataset any more.
    (directory / MANIFEST).unlink(missing_ok=True)
    for folder in (*SPLITS, *([tokenizer.name] if tokenizer else [])):
        shutil.rmtree(directory / folder, ignore_errors=True)
    if tokenizer is not None:
        shutil.copytree(tokenizer, directory / tokenizer.name)
    _place_shards(work, names, manifests, manifest, directory)
    for record in (REJECTED, NEAR_DUPLICATES, LABEL_CONFLICTS):
        with (directory / record).open("wb") as whole:
            for name in names:
                with (work.path(name) / record).open("rb") as part:
                    shutil.copyfileobj(part, whole)
    write_document(directory / MANIFEST, manifest.to_json())
    return manifest


def _units_of(work: UnfinishedWork, shard: SourceShard) -> list[str]:
    done = units_done(work, shard.number)
    if not (done and done[-1]["is_last"]):
        work.require(unit_name(shard.number, len(done)))
    return [unit_name(shard.number, number) for number in range(len(done))]


def _sum_of(manifests: Sequence[Manifest]) -> Manifest:
    rejected: Counter[str] = Counter()
    for manifest in manifests:
        rejected.update(manifest.rejected)
    splits: dict[str, list[DataFile]] = {split: [] for split in SPLITS}
    for split, files in splits.items():
        for manifest in manifests:
            for file in manifest.splits[split]:
                files.append(replace(file, path=f"{split}/part-{len(files):05d}.arrow"))
    return replace(
        manifests[0],
        splits=splits,
        rows_read=sum(manifest.rows_read for manifest in manifests),
        rejected=dict(sorted(rejected.items())),
        class_rows={
            split: [sum(rows) for rows in zip(*(manifest.class_rows[split] for manifest in manifests), strict=True)]
            for split in SPLITS
        },
        moments={split: joined_moments(manifest.moments.get(split, {}) for manifest in manifests) for split in SPLITS},
        records={split: sum(manifest.records[split] for manifest in manifests) for split in manifests[0].records},
        duplicates=sum(manifest.duplicates for manifest in manifests),
        near_duplicates=sum(manifest.near_duplicates for manifest in manifests),
        in_test_source=sum(manifest.in_test_source for manifest in manifests),
        label_conflicts=sum(manifest.label_conflicts for manifest in manifests),
    )


def _place_shards(
    work: UnfinishedWork, names: Sequence[str], manifests: Sequence[Manifest], whole: Manifest, directory: Path
) -> None:
    for split in SPLITS:
        (directory / split).mkdir()
        files = iter(whole.splits[split])
        for name, manifest in zip(names, manifests, strict=True):
            for file in manifest.splits[split]:
                _link(work.path(name) / file.path, directory / next(files).path)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # on another file system, or on one without links
        shutil.copyfile(source, target)
