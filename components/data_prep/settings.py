"""What `prepare_data` is asked to do, checked without reading any data."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_pipelines.recipes.tasks import task_problems

SAMPLES = ("digits",)
COLOR_MODES = ("auto", "L", "RGB")
MAX_IMAGE_SIZE = 1024


@dataclass(frozen=True)
class PrepareSettings:
    """The parameters of `prepare_data`; see the component for what each means."""

    source: str
    task: str = "image_classification"
    image_column: str = "image"
    label_column: str = "label"
    image_size: int = 0
    color_mode: str = "auto"
    val_fraction: float = 0.1
    test_fraction: float = 0.1
    split_seed: int = 0

    def problems(self) -> list[str]:
        """Everything that is wrong with the values, each with what to do."""
        found = task_problems(self.task)
        if not self.source:
            found.append("source is empty. Give a folder, a table (.csv, .jsonl, .parquet) or sample:digits.")
        elif self.source.startswith("sample:") and self.source.removeprefix("sample:") not in SAMPLES:
            found.append(f"There is no {self.source!r}. Samples: {', '.join(f'sample:{name}' for name in SAMPLES)}.")
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
