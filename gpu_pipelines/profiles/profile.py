"""The reference profile of a model: a sample of its training data, and of its predictions on them.

It is one file beside the model, `reference_profile.npz`: arrays by name, and their description as JSON. It holds
figures of rows, not the rows.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gpu_pipelines.errors import UserError
from gpu_pipelines.profiles.values import Categories, Numbers, Values, Vectors

_HEADER, _FORMAT = "header", 1
_KINDS: dict[str, type[Numbers | Vectors]] = {"numbers": Numbers, "vectors": Vectors}


@dataclass(frozen=True)
class Profile:
    """The content of a profile.

    Attributes:
        task: the task of the model.
        dataset_fingerprint: the fingerprint of the dataset that was profiled.
        rows_read: records of the source of that dataset.
        rejected: how many of these were rejected, by reason.
        inputs: the model's inputs by name, of rows of all splits.
        outputs: the model's predictions and embedding by name, of rows that it was not trained on.
    """

    task: str
    dataset_fingerprint: str
    rows_read: int
    rejected: dict[str, int]
    inputs: dict[str, Values] = field(repr=False)
    outputs: dict[str, Values] = field(repr=False)

    def save(self, path: Path) -> None:
        """Writes the file; equal profiles give equal bytes."""
        arrays: dict[str, Any] = {}
        parts = {
            group: [_stored(f"{group}.{number}", name, values, arrays) for number, (name, values) in enumerate(of)]
            for group, of in (("inputs", self.inputs.items()), ("outputs", self.outputs.items()))
        }
        said = {name: getattr(self, name) for name in ("task", "dataset_fingerprint", "rows_read", "rejected")}
        header = json.dumps({"format_version": _FORMAT, **said, **parts}).encode()
        with path.open("wb") as file:
            arrays[_HEADER] = np.frombuffer(header, dtype=np.uint8)
            np.savez_compressed(file, **arrays)

    @classmethod
    def load(cls, path: Path) -> Profile:
        """Reads the file.

        Raises:
            UserError: it is damaged, or written by a later release.
        """
        try:
            with np.load(path, allow_pickle=False) as arrays:
                said = json.loads(arrays[_HEADER].tobytes())
                version = said.pop("format_version")
                if version == _FORMAT:
                    groups: dict[str, Any] = {
                        group: {each["name"]: _restored(each, arrays) for each in said.pop(group)}
                        for group in ("inputs", "outputs")
                    }
                    return cls(**said, **groups)
        except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
            raise UserError(
                f"The reference profile {path} cannot be read: {str(error)[:200] or type(error).__name__}.",
                "Restore it from a copy.",
            ) from None
        raise UserError(f"The reference profile {path} has the format {version}.", "Take a newer release.")


def _stored(place: str, name: str, values: Values, arrays: dict[str, Any]) -> dict[str, Any]:
    """Puts the values into `arrays`; returns their entry in the header."""
    if isinstance(values, Categories):
        names = sorted({value for value in values.values if value is not None})
        numbers = {value: number for number, value in enumerate(names)}
        arrays[place] = np.array([-1 if v is None else numbers[v] for v in values.values], dtype=np.int32)
        return {"name": name, "kind": "categories", "names": names, "place": place}
    arrays[place] = values.values
    return {"name": name, "kind": "numbers" if isinstance(values, Numbers) else "vectors", "place": place}


def _restored(said: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Values:
    found = arrays[said["place"]]
    if said["kind"] == "categories":
        return Categories([None if number < 0 else said["names"][number] for number in found.tolist()])
    return _KINDS[said["kind"]](found)
