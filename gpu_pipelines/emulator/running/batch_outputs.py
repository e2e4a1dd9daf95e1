"""The output of a batch prediction job in Cloud Storage: the predictions, and the instances without one.

Files have the service's names; they exist once the job has ended.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import IO, Any, Protocol

from gpu_pipelines.emulator.storage.bucket_places import BucketPlaces

#: Predictions in a file.
ROWS_OF_A_FILE = 10_000


class Output(Protocol):
    """Where predictions go."""

    def add(self, told: Mapping[str, Any], prediction: Any) -> None:
        """Adds the prediction of an instance."""

    def refuse(self, told: Mapping[str, Any], error: str) -> None:
        """Adds an instance without a prediction, and the reason."""

    def finish(self) -> dict[str, str]:
        """Writes everything; returns the fields of `OutputInfo`."""

    def close(self) -> None:
        """Discards what was not written."""


class FileOutput:
    """Files of JSON lines in a new folder.

    Args:
        places: the buckets.
        prefix: `gs://…`, the parent of the folder.
        model: display name of the model.
        created: the creation time of the job.
        work: folder for unfinished files.

    Raises:
        ApiError: there is no such bucket.
    """

    def __init__(self, places: BucketPlaces, prefix: str, model: str, created: datetime, work: Path) -> None:
        moment = created.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        self._uri = f"{prefix.rstrip('/')}/prediction-{model.replace('/', '_')}-{moment}"
        self._target = places.path(self._uri)
        work.mkdir(parents=True, exist_ok=True)
        self._folder = Path(tempfile.mkdtemp(dir=work))
        self._files: list[IO[str]] = []
        self._rows = 0
        self._errors = (self._folder / "errors").open("w", encoding="utf-8")

    def add(self, told: Mapping[str, Any], prediction: Any) -> None:
        """Adds the prediction of an instance."""
        if self._rows % ROWS_OF_A_FILE == 0:
            self._files.append((self._folder / str(len(self._files))).open("w", encoding="utf-8"))
        self._rows += 1
        self._files[-1].write(json.dumps({**told, "prediction": prediction}, ensure_ascii=False) + "\n")

    def refuse(self, told: Mapping[str, Any], error: str) -> None:
        """Adds an instance without a prediction, and the reason."""
        self._errors.write(json.dumps({**told, "error": {"code": 3, "message": error}}, ensure_ascii=False) + "\n")

    def finish(self) -> dict[str, str]:
        """Writes everything; returns the fields of `OutputInfo`."""
        self._close_files()
        self._target.mkdir(parents=True, exist_ok=True)
        number = len(self._files)
        for place in range(number):
            name = f"prediction.results-{place:05}-of-{number:05}"
            shutil.move(self._folder / str(place), self._target / name)
        shutil.move(self._folder / "errors", self._target / "prediction.errors_stats-00000-of-00001")
        return {"gcs_output_directory": self._uri}

    def close(self) -> None:
        """Discards what was not written."""
        self._close_files()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _close_files(self) -> None:
        for file in (*self._files, self._errors):
            file.close()
