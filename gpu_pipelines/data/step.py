"""What `prepare_data` does with its KFP inputs and outputs."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from gpu_pipelines.artifacts.dataset import LABEL_CONFLICTS, MANIFEST, Dataset, Manifest
from gpu_pipelines.component_interface.machines import on_machines
from gpu_pipelines.component_interface.step import log_metrics, output_files, own_process, place_of, with_advanced
from gpu_pipelines.data.prepare import prepare_together
from gpu_pipelines.data.report import (
    class_rows,
    learned_of_first_row,
    names_of_classes,
    rows_with_prompts_of_train,
    special_tokens_in_texts,
    write_report,
)
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.data.units.unfinished_work import place_of_work, unfinished_work
from gpu_pipelines.data.usable import warn_of_untrained
from gpu_pipelines.distributed.executor import executor_for
from gpu_pipelines.distributed.members import Cluster
from gpu_pipelines.errors import UserError, some_of

#: What the name of a source begins with that is an artifact of a step before.
ARTIFACT = "artifact:"
#: What the metadata of `google.BQTable` say of the table.
_TABLE = ("projectId", "datasetId", "tableId")
#: Share of the rows of val and test from which it is said that their prompts are known from train.
_MANY_KNOWN = 0.1


def run(
    settings: PrepareSettings,
    *,
    dataset: Any,
    report: Any,
    statistics: Any,
    data: Any = None,
    source_fingerprint: str = "",
    test_source_fingerprint: str = "",
    advanced: Mapping[str, Any],
) -> None:
    """Runs the step.

    Args:
        settings: the parameters that the component declares.
        dataset: a KFP artifact, as are the next two.
        report: gets the report.
        statistics: gets the figures.
        data: a KFP artifact that is read in place of the source; None for the source.
        source_fingerprint: of the source when the request was checked; empty if it was not.
        test_source_fingerprint: the same of the test source; it is there for caches alone.
        advanced: values of parameters by name, which win.
    """
    with own_process():
        settings = with_advanced(settings, advanced, "test_source_fingerprint")
        named = ""
        if data is not None:
            settings, named = _of_artifact(settings, data)
        cluster = Cluster.from_environment(os.environ)
        place = place_of_work(dataset, "unfinished-preparations")
        if problems := settings.problems() or settings.problems_on_nodes(cluster.nodes):
            raise UserError.of_all(problems)
        work = partial(_prepared, settings, place, dataset, Path(report.path), named)
        manifest = on_machines(cluster, place, work)
        if manifest is None:
            # Only rank 0 writes outputs; KFP's executor would write its own after this function returned.
            sys.exit(0)
        if data is None and source_fingerprint not in ("", manifest.source_fingerprint):
            print(
                f"warning: {settings.source} has changed since the request was checked; the dataset is of the source "
                "as it was when it was read, and says so",
                flush=True,
            )
        dataset.metadata.update(task=manifest.task, fingerprint=manifest.fingerprint)
        figures = {
            "rows_read": manifest.rows_read,
            "rows_kept": manifest.records_kept,
            "rows_duplicate": manifest.duplicates,
            "rows_near_duplicate": manifest.near_duplicates,
            "rows_in_test_source": manifest.in_test_source,
            "rows_rejected": manifest.rows_rejected,
            "label_conflicts": manifest.label_conflicts,
            "classes": len(manifest.labels),
            **{f"rows_{split}": manifest.rows(split) for split in manifest.splits},
        }
        log_metrics(statistics, figures)
        _tell(manifest)


def _prepared(settings: PrepareSettings, place: str, dataset: Any, report: Path, named: str, address: str) -> Manifest:
    """Prepares the dataset and its report.

    Args:
        settings: of the preparation.
        place: of unfinished work.
        dataset: a KFP artifact.
        report: gets the report.
        named: what the dataset calls its source; empty for its own name.
        address: of the Ray cluster of this step's machines; empty for the one that the settings name, or none.
    """
    with unfinished_work(settings, place) as work, executor_for(address or settings.ray_address) as executor:
        with output_files(dataset, MANIFEST) as directory:
            manifest = prepare_together(settings, directory, work, executor, named=named)
            write_report(directory, report)
            dataset_here = Dataset(directory)
            _show(dataset_here)
            _warn_of_rows(dataset_here)
        work.remove()
    return manifest


def _show(dataset: Dataset) -> None:
    """Shows what a language model will learn, and warns of chats that were rendered before."""
    if text := learned_of_first_row(dataset):
        print(f"the first row; what is learned of it stands between « and »:\n{text}", flush=True)
    if tokens := special_tokens_in_texts(dataset):
        print(
            f"warning: {some_of(tokens, most=3)} in most of the texts are learned as letters, not as the special "
            "tokens of the tokenizer, because nothing in a text is one; give chats as messages, which the chat "
            "template renders",
            flush=True,
        )


def _warn_of_rows(dataset: Dataset) -> None:
    """Tells of classes that cannot be learned where rows have several, and of scores that say little of new rows."""
    if not dataset.manifest.labels:  # of which that is told before
        warn_of_untrained(names_of_classes(dataset.manifest), class_rows(dataset)["train"])
    splits = ("val",) if dataset.manifest.test_source else ("val", "test")
    scored = sum(map(dataset.manifest.rows, splits))
    if (known := rows_with_prompts_of_train(dataset, splits)) > _MANY_KNOWN * scored:
        print(
            f"warning: {known:,} of the {scored:,} rows of {' and '.join(splits)} have a prompt that a row of train "
            "has too, so their scores say little of new prompts; group_by with the column of the prompts keeps the "
            "rows of each in one split",
            flush=True,
        )


def _tell(manifest: Manifest) -> None:
    """Says what became of the rows."""
    if manifest.label_conflicts:
        print(
            f"warning: label conflicts, rows with the content of a row of another class: "
            f"{manifest.label_conflicts:,}; they are kept and listed in {LABEL_CONFLICTS} of the dataset, and "
            "label_conflicts=reject leaves all such rows out",
            flush=True,
        )
    if manifest.test_source:
        print(
            f"test is {manifest.test_source['source']}; rows of {manifest.source} that are in it too and were left "
            f"out: {manifest.in_test_source:,}",
            flush=True,
        )
    print(
        f"kept {manifest.records_kept:,} of {manifest.rows_read:,} rows, left out {manifest.duplicates:,} "
        f"duplicates, rejected {manifest.rows_rejected:,}: "
        + ", ".join(f"{split} {manifest.rows(split):,}" for split in manifest.splits),
        flush=True,
    )


def _of_artifact(settings: PrepareSettings, artifact: Any) -> tuple[PrepareSettings, str]:
    """The settings for reading an artifact, and what its dataset calls the source.

    Where the artifact lies is of one run alone; what its file or folder is called is the same in all. One that stands
    for a table in BigQuery, as Google's components leave it, is that table.

    Raises:
        UserError: a source is given as well.
    """
    if settings.source != PrepareSettings().source:
        raise UserError(
            f"prepare_data has two sources: the artifact data, and source={settings.source}.", "Give only one of them."
        )
    table = [artifact.metadata.get(key) for key in _TABLE]
    if all(table):
        return replace(settings, source=f"bq://{'.'.join(map(str, table))}"), ""
    place = place_of(artifact)
    return replace(settings, source=place), f"{ARTIFACT}{place.rstrip('/').rpartition('/')[2]}"
