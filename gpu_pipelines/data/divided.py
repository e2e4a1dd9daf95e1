"""A division into train and test that the names of files tell, as data sets of torchvision and of the hub have it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

from gpu_pipelines.errors import UserError

_TRAIN = ("train", "training")
#: What a test source may be of; the best first.
_TEST = ("test", "testing", "eval", "evaluation", "val", "valid", "validation", "dev")


def require_classes_not_splits(classes: Collection[str], source: str) -> None:
    """Refuses folders of train and test where folders of classes are wanted: the model would learn to tell these apart.

    Args:
        classes: the names of the folders.
        source: as the user named it.

    Raises:
        UserError: all of them are names of splits.
    """
    folders = {name.lower(): name for name in classes}
    train, test = _train_and_test(folders)
    if train and test and folders.keys() <= {*_TRAIN, *_TEST}:
        place = source.rstrip("/")
        raise UserError(
            f"The folders of {source} are splits, not classes: {', '.join(sorted(classes))}.",
            f"Give -p source={place}/{train} -p test_source={place}/{test}; val is drawn from the source.",
        )


def warning_of_division(names: Iterable[str], source: str) -> str:
    """What to know of a source that has files of train and files of test; empty where it has not both.

    Args:
        names: of the files, relative to the source.
        source: as the user named it.
    """
    first: dict[str, str] = {}
    for name in names:
        for part in name.lower().split("/"):
            word = re.split("[^a-z]", part, maxsplit=1)[0]
            if word in _TRAIN or word in _TEST:
                first.setdefault(word, name)
    train, test = _train_and_test(first)
    if not (train and test):
        return ""
    return (
        f"{source} has files of train ({train}) and of test ({test}), and all of its rows are divided anew; to keep "
        "the division, give the ones as source and the others as test_source"
    )


def _train_and_test(named: Mapping[str, str]) -> list[str]:
    """What is of train, and what is best to test on, by the names of splits; empty for what is not there."""
    return [next((named[split] for split in splits if split in named), "") for splits in (_TRAIN, _TEST)]
