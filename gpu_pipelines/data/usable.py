"""What every classifier and every split needs, whatever the rows are."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from gpu_pipelines.artifacts.dataset import SPLITS, Manifest
from gpu_pipelines.data.settings import PrepareSettings, limit_of
from gpu_pipelines.errors import UserError, some_of
from gpu_pipelines.numbers import number_in_text
from gpu_pipelines.tasks.tasks import task_named

#: Why a row is rejected that cannot be cut without losing what is learned.
TOO_LONG = "longer than sequence_length"
#: How classes that are meant as one may differ, and what is the same of them then.
_ALIKE: dict[str, Callable[[str], str]] = {
    "differ in capitals alone": str.casefold,
    "are the same number": number_in_text,
    "look the same, as their letters are composed or not": partial(unicodedata.normalize, "NFC"),
}
#: Share of rows that are left out as equal to others, above which a table of numbers may well have no copies.
_MANY_EQUAL = 0.1


def require_labels(
    found: Iterable[str], settings: PrepareSettings, problems: Mapping[str, str] | None = None
) -> list[str]:
    """The classes of a source in the order of people.

    Args:
        found: the labels of its usable rows; empty ones are none.
        settings: `source` is named in the message.
        problems: the first row with each reason for which rows cannot be used.

    Raises:
        UserError: there are fewer than two.
    """
    labels = _sorted_labels({label for label in found if label})
    if len(labels) < 2:
        if not labels:
            require_rows(problems or {}, settings)
        only = f"a single class, {labels[0]!r}" if labels else "no labelled rows"
        where = "sub-folders or the label column" if "images" in task_named(settings.task).formats else "label column"
        raise UserError(
            f"The source {settings.source} has {only}; a classifier needs at least two.", f"Check the {where}."
        )
    return labels


def require_rows(problems: Mapping[str, str], settings: PrepareSettings) -> None:
    """Says why none of the rows of a source can be used.

    Args:
        problems: the first row with each reason for which rows cannot be used.
        settings: `source` is named in the message.

    Raises:
        UserError: there are reasons.
    """
    if problems:
        reasons = "; ".join(f"{reason} (first: {first[:300]})" for reason, first in sorted(problems.items()))
        raise UserError(f"No row of {settings.source} can be used: {reasons}.")


def require_labels_of_test(found: Iterable[str], labels: list[str], settings: PrepareSettings) -> None:
    """Refuses a test source with classes that cannot be learned; warns of classes that it does not test.

    Args:
        found: the labels of its usable rows.
        labels: the classes of the source.
        settings: the sources are named in the message.

    Raises:
        UserError: there are other classes, or no labelled rows.
    """
    tested = {label for label in found if label}
    if not tested:
        raise UserError(f"The test_source {settings.test_source} has no labelled rows.")
    if unknown := tested - set(labels):
        raise UserError(
            f"The test_source {settings.test_source} has classes that {settings.source} does not have: "
            f"{some_of(map(repr, unknown), most=10)}.",
            "Both need the same classes.",
        )
    if untested := set(labels) - tested:
        print(f"warning: test_source has no rows of {some_of(map(repr, untested), most=10)}", flush=True)


def _sorted_labels(labels: set[str]) -> list[str]:
    if all(re.fullmatch("[0-9]{1,18}", label) for label in labels):
        return sorted(labels, key=lambda label: (int(label), label))
    return sorted(labels)


def require_usable(manifest: Manifest, settings: PrepareSettings, rejected: Iterable[Path] = ()) -> None:
    """Refuses a dataset with too many rejected rows, without rows in a split, or with fewer than two classes to learn.

    Warns of lesser faults.

    Args:
        manifest: the dataset.
        settings: `max_rejected`, the fractions and the source are read.
        rejected: files with the rejected rows, as `DatasetWriter` writes them; messages name the first of each reason.
    """
    reasons = ""
    if manifest.rows_rejected:
        places = _first_places(rejected, set(manifest.rejected))
        reasons = ", ".join(
            f"{rows:,} × {reason}" + (f" (first: {places[reason]})" if reason in places else "")
            for reason, rows in manifest.rejected.items()
        )
    most_share, most = limit_of(settings.max_rejected)
    longer = "give more for sequence_length, " if TOO_LONG in manifest.rejected else ""
    if manifest.rows_rejected > most or manifest.rows_rejected > most_share * manifest.rows_read:
        raise UserError(
            f"{manifest.rows_rejected:,} of {manifest.rows_read:,} rows of {settings.source} were rejected, more than "
            f"max_rejected={settings.max_rejected}: {reasons}.",
            f"Fix the rows, {longer}or raise max_rejected, a share such as 20%, a number, or unlimited.",
        )
    for split in SPLITS:
        if not manifest.rows(split):
            raise _empty(split, manifest, settings, reasons)
    _warn_of_equal_rows(manifest)
    if not manifest.labels:
        return
    _require_trained(manifest, settings)


def _empty(split: str, manifest: Manifest, settings: PrepareSettings, reasons: str) -> UserError:
    """The error for a split without rows: what became of all rows, and which parameter decides."""
    if split == "test" and settings.test_source:
        return UserError(f"No row of the test_source {settings.test_source} can be used: {reasons or 'none'}.")
    repeated = manifest.duplicates - manifest.near_duplicates - manifest.in_test_source
    left_out = {
        "duplicates": repeated,
        f"near-duplicates (near_duplicates={settings.near_duplicates:g})": manifest.near_duplicates,
        "rows that are in the test_source too": manifest.in_test_source,
        f"rejected rows ({reasons})": manifest.rows_rejected,
    }
    why = ", ".join(f"{rows:,} {what}" for what, rows in left_out.items() if rows)
    read, fractions = f"{manifest.rows_read:,} rows of {settings.source}", f"val_fraction={settings.val_fraction:g}"
    if settings.test_source:
        read += f" and {settings.test_source}"
    else:
        fractions += f" and test_fraction={settings.test_fraction:g}"
    tested = (manifest.records or {"test": manifest.rows("test")})["test"] if settings.test_source else 0
    left = manifest.records_kept - tested
    if not left:
        return UserError(f"None of the {read} is left to learn from: {why or 'there were none'}.")
    return UserError(
        f"The split {split!r} is empty: {left:,} of the {read} are left, too few to give {fractions}."
        + f" Left out: {why}." * bool(why),
        "Add rows, or lower the fractions." if split == "train" else f"Add rows, or raise {split}_fraction.",
    )


def _warn_of_equal_rows(manifest: Manifest) -> None:
    """Tells that measurements which are alike may not be copies of one: how many they are is then to be learned."""
    are_numbers = not any(each.shape for name, each in manifest.features.items() if name not in ("label", "target"))
    equal = manifest.duplicates - manifest.in_test_source
    if are_numbers and equal > _MANY_EQUAL * manifest.rows_read:
        print(
            f"warning: {equal:,} of {manifest.rows_read:,} rows are equal to an earlier one and were left out; if they "
            "are not copies, such as rows of columns with few values, give remove_duplicates=false",
            flush=True,
        )


def _first_places(files: Iterable[Path], reasons: set[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for file in files:
        with file.open(encoding="utf-8") as lines:
            for line in lines:
                row = json.loads(line)
                where = [part[:200] for part in (row["source"], row["detail"]) if part]
                found.setdefault(row["reason"], ": ".join(where))
                if found.keys() == reasons:
                    return found
    return found


def _require_trained(manifest: Manifest, settings: PrepareSettings) -> None:
    trained = sum(1 for rows in manifest.class_rows["train"] if rows)
    if trained < 2:
        raise UserError(
            f"Only {trained} of the {len(manifest.labels)} classes of {settings.source} has usable training rows.",
            "Add rows; rejected.jsonl and the report say why rows were left out.",
        )
    _warn_of_classes(manifest)


def warn_of_untrained(classes: Sequence[str], rows: Sequence[int]) -> None:
    """Tells of classes that cannot be learned.

    Args:
        classes: all of them.
        rows: how many rows of train are of each.
    """
    untrained = [name for name, number in zip(classes, rows, strict=True) if not number]
    if len(untrained) == 1:
        print(f"warning: the class {untrained[0]!r} has no training rows; it cannot be learned", flush=True)
    elif untrained:
        print(
            f"warning: {len(untrained):,} of the {len(classes):,} classes have no training rows and cannot be "
            f"learned: {some_of(map(repr, untrained), most=10)}",
            flush=True,
        )


def _warn_of_classes(manifest: Manifest) -> None:
    """Tells of classes that cannot be learned, or may not be meant as they are."""
    warn_of_untrained(manifest.labels, manifest.class_rows["train"])
    for what, form in _ALIKE.items():
        if alike := [" and ".join(map(repr, labels)) for labels in _alike(manifest.labels, form) if len(labels) > 1]:
            print(f"warning: classes that {what}: {some_of(alike, most=10)}", flush=True)
    if 2 * len(manifest.labels) > manifest.records_kept:
        print(
            f"warning: {manifest.records_kept:,} rows have {len(manifest.labels):,} classes; numbers are learned by "
            "the task regression, and label_column names the column of the classes",
            flush=True,
        )


def _alike(labels: Iterable[str], form: Callable[[str], str]) -> Iterable[list[str]]:
    """Labels of the same form, together."""
    found: dict[str, list[str]] = {}
    for label in labels:
        found.setdefault(form(label), []).append(label)
    return found.values()
