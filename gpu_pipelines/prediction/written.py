"""The form of written predictions: a JSON object in each line, or the columns of Parquet."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gpu_pipelines.prediction.settings import PARQUET

if TYPE_CHECKING:
    import pyarrow as pa

KEY, INSTANCE, PREDICTION = "key", "instance", "prediction"
#: The key of a Parquet file's metadata that names the model, as JSON.
MODEL = b"gpu_pipelines.model"


class Prediction(NamedTuple):
    """The prediction of a row: `instance` is None if a key column is given, or for an image's bytes."""

    key: Any
    instance: Any
    prediction: Mapping[str, Any]


class Form:
    """The form in which predictions are written.

    Args:
        output_format: `jsonl` or `parquet`.
        answer: the JSON Schema of a prediction; see `Predictor.answer`.
        model: the model, for the metadata of files.
        has_instances: whether to write instances.
    """

    def __init__(
        self, output_format: str, answer: Mapping[str, Any], model: Mapping[str, Any], has_instances: bool
    ) -> None:
        self.suffix = output_format
        self._is_parquet = output_format == PARQUET
        self._answer, self._model, self._has_instances = answer, dict(model), has_instances

    def content(self, predictions: Sequence[Prediction]) -> bytes:
        """Predictions as the content of a file."""
        if not self._is_parquet:
            return "".join(self._line(each) for each in predictions).encode("utf-8")
        import pyarrow.parquet as pq

        file = io.BytesIO()
        pq.write_table(self._table(predictions), file, compression="zstd")
        return file.getvalue()

    def join(self, parts: Iterator[Path], target: Path) -> None:
        """Joins files of predictions into one.

        Args:
            parts: files of this form.
            target: the file.
        """
        if not self._is_parquet:
            with target.open("wb") as whole:
                for part in parts:
                    whole.write(part.read_bytes())
            return
        import pyarrow.parquet as pq

        with pq.ParquetWriter(target, self.schema, compression="zstd") as whole:
            for part in parts:
                whole.write_table(pq.read_table(part))

    def _line(self, row: Prediction) -> str:
        instance = {INSTANCE: row.instance} if self._has_instances and row.instance is not None else {}
        return as_json({KEY: row.key, **instance, PREDICTION: row.prediction}) + "\n"

    @property
    def schema(self) -> pa.Schema:
        """The columns of Parquet: key, instance as JSON, and prediction with a field for each of the answer.

        Without a schema of its fields, the prediction is JSON as well.
        """
        import pyarrow as pa

        fields = self._answer.get("properties")
        answer = pa.struct([pa.field(name, _type(each)) for name, each in fields.items()]) if fields else pa.string()
        columns = [pa.field(KEY, pa.string(), nullable=False), pa.field(PREDICTION, answer)]
        if self._has_instances:
            columns.insert(1, pa.field(INSTANCE, pa.string()))
        return pa.schema(columns, metadata={MODEL: as_json(self._model).encode("utf-8")})

    def _table(self, predictions: Sequence[Prediction]) -> pa.Table:
        import pyarrow as pa

        kinds, schema = self._answer.get("properties"), self.schema
        keys = [row.key if isinstance(row.key, str) else as_json(row.key) for row in predictions]
        found = [
            {name: _value(row.prediction.get(name), kind) for name, kind in kinds.items()}
            if kinds
            else as_json(row.prediction)
            for row in predictions
        ]
        columns = {KEY: pa.array(keys, pa.string()), PREDICTION: pa.array(found, schema.field(PREDICTION).type)}
        if self._has_instances:
            columns[INSTANCE] = pa.array([row.instance and as_json(row.instance) for row in predictions], pa.string())
        return pa.table({name: columns[name] for name in schema.names}, schema=schema)


def as_json(value: Any) -> str:
    """A value as JSON that UTF-8 can hold: lone surrogates, which a row may have anywhere, are escaped."""
    return json.dumps(value, ensure_ascii=False, default=str).encode("utf-8", "backslashreplace").decode("utf-8")


def _kind(schema: Mapping[str, Any]) -> str:
    """string, number, integer, numbers (an object of numbers by name), strings, or json for everything else."""
    kinds = schema.get("type")
    kind = next((each for each in kinds if each != "null"), "") if isinstance(kinds, list) else str(kinds)
    if kind == "object" and "number" in str(schema.get("additionalProperties")):
        return "numbers"
    if kind == "array" and schema.get("items") == {"type": "string"}:
        return "strings"
    return kind if kind in ("string", "number", "integer", "boolean") else "json"


def _type(schema: Mapping[str, Any]) -> pa.DataType:
    import pyarrow as pa

    named = pa.struct([pa.field("name", pa.string()), pa.field("value", pa.float64())])
    kinds = {"number": pa.float64(), "integer": pa.int64(), "boolean": pa.bool_(), "numbers": pa.list_(named)}
    kinds["strings"] = pa.list_(pa.string())
    return kinds.get(_kind(schema), pa.string())


def _value(value: Any, schema: Mapping[str, Any]) -> Any:
    kind = _kind(schema)
    if value is None:
        return None
    if kind == "numbers":
        return [{"name": name, "value": number} for name, number in value.items()]
    return as_json(value) if kind == "json" else value
