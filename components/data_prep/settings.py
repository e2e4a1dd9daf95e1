"""What `prepare_data` is asked to do, checked without reading any data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gpu_pipelines.numbers import LARGEST_WHOLE_NUMBER
from gpu_pipelines.recipes.tasks import task_problems

SAMPLES = {
    "image_classification": ("digits",),
    "text_classification": ("docstrings",),
    "causal_lm": ("documentation",),
}
TABLE_SUFFIXES = (".csv", ".jsonl", ".parquet")
COLOR_MODES = ("auto", "L", "RGB")
MAX_IMAGE_SIZE = 1024
# A byte-level vocabulary has 256 bytes and three special tokens at least.
MIN_VOCABULARY_SIZE = 259
MAX_VOCABULARY_SIZE = 1_000_000
MAX_SEQUENCE_LENGTH = 131_072


@dataclass(frozen=True)
class PrepareSettings:
    """The parameters of `prepare_data`; see the component for what each means."""

    source: str = "sample:digits"
    task: str = "image_classification"
    image_column: str = "image"
    label_column: str = "label"
    text_column: str = "text"
    image_size: int = 0
    color_mode: str = "auto"
    tokenizer: str = "train"
    vocabulary_size: int = 0
    sequence_length: int = 0
    packing: bool = True
    val_fraction: float = 0.1
    test_fraction: float = 0.1
    split_seed: int = 0

    def problems(self) -> list[str]:
        """Everything that is wrong with the values, each with what to do."""
        found = task_problems(self.task)
        if not self.source:
            found.append("source is empty. Give a folder, a table (.csv, .jsonl, .parquet) or sample:digits.")
        elif self.source.startswith("sample:"):
            samples = SAMPLES.get(self.task, tuple(name for names in SAMPLES.values() for name in names))
            if self.source.removeprefix("sample:") not in samples:
                names = ", ".join(f"sample:{name}" for name in samples)
                found.append(f"There is no {self.source!r} for {self.task}. Samples: {names}.")
        found += self._text_problems()
        if abs(self.split_seed) > LARGEST_WHOLE_NUMBER:
            found.append(f"split_seed is {self.split_seed}; give a whole number of at most 2^53 either way.")
        if self.image_size != 0 and not 8 <= self.image_size <= MAX_IMAGE_SIZE:
            found.append(f"image_size is {self.image_size}; give 8 to {MAX_IMAGE_SIZE} pixels, or 0 to choose it.")
        if self.color_mode not in COLOR_MODES:
            found.append(f"color_mode is {self.color_mode!r}; give one of {', '.join(COLOR_MODES)}.")
        for name in ("val_fraction", "test_fraction"):
            value = getattr(self, name)
            if not 0 < value < 1:
                found.append(f"{name} is {value}; give a share between 0 and 1, such as 0.1.")
        if self.val_fraction + self.test_fraction >= 1:
            found.append(
                f"val_fraction + test_fraction is {self.val_fraction + self.test_fraction:g}; "
                "less than 1 must be left for training."
            )
        return found

    def _text_problems(self) -> list[str]:
        found = []
        if not self.tokenizer:
            found.append("tokenizer is empty. Give a local directory, a hub id, or train.")
        if self.vocabulary_size and not MIN_VOCABULARY_SIZE <= self.vocabulary_size <= MAX_VOCABULARY_SIZE:
            found.append(
                f"vocabulary_size is {self.vocabulary_size}; give {MIN_VOCABULARY_SIZE} to {MAX_VOCABULARY_SIZE:,} "
                "tokens, or 0 to choose it."
            )
        if self.sequence_length and not 8 <= self.sequence_length <= MAX_SEQUENCE_LENGTH:
            found.append(
                f"sequence_length is {self.sequence_length}; give 8 to {MAX_SEQUENCE_LENGTH:,} tokens, "
                "or 0 to choose it."
            )
        return found

    def problems_here(self) -> list[str]:
        """What is wrong with the source as seen from this machine, from its name and first level alone."""
        if not self.source or self.source.startswith("sample:"):
            return []
        if "://" in self.source:
            return [
                f"The source {self.source} is not on this machine. Copy it into a folder first; sources in "
                "Cloud Storage and BigQuery are not supported yet."
            ]
        try:
            path = Path(self.source).expanduser()
            if self.task == "image_classification":
                return _path_problems(self.source, path)
            return _text_path_problems(self.source, path, self.task)
        except (OSError, RuntimeError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            return [f"The source {self.source[:200]} cannot be read: {reason}."]


def class_folders(folder: Path) -> list[Path]:
    """The sub-folders that name the classes, sorted; hidden ones are none."""
    return sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def _path_problems(source: str, path: Path) -> list[str]:
    if path.is_dir():
        if class_folders(path):
            return []
        what = "has no sub-folders" if any(path.iterdir()) else "is empty"
        return [f"The folder {source} {what}. Put the images of each class into a sub-folder of its name."]
    if not path.exists():
        return [
            f"The source {source} does not exist. Give a folder with one sub-folder per class, a table "
            f"({', '.join(TABLE_SUFFIXES)}), or sample:digits."
        ]
    if path.suffix.lower() not in TABLE_SUFFIXES:
        return [f"The source {source} is neither a folder nor a table ({', '.join(TABLE_SUFFIXES)})."]
    return []


def _text_path_problems(source: str, path: Path, task: str) -> list[str]:
    suffixes = (*TABLE_SUFFIXES, ".txt") if task == "causal_lm" else TABLE_SUFFIXES
    samples = ", ".join(f"sample:{name}" for name in SAMPLES[task])
    if not path.exists():
        return [f"The source {source} does not exist. Give a file ({', '.join(suffixes)}), or {samples}."]
    if path.is_dir() or path.suffix.lower() not in suffixes:
        return [f"The source {source} is no file of texts that {task} reads ({', '.join(suffixes)})."]
    return []
