"""`examples.json` of an exported model: a few inputs as a server takes them, with the evaluated model's answers.

A server's operator can ask for the same predictions and see whether it serves the evaluated model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpu_pipelines.artifacts.documents import read_as, write_document

EXAMPLES = "examples.json"


@dataclass(frozen=True)
class Examples:
    """The content of `examples.json`.

    Attributes:
        task: task of the model.
        instances: inputs, ready to be sent: of an image classifier `{"b64": …}`, the base64 of a PNG in the size and
            colours of the model; of a text classifier `{"text": …}`; of a language model `{"prompt": …}`.
        predictions: for each instance, of a classifier `{"label": …, "scores": {label: probability}}`; of a language
            model `{"loss": …, "tokens": …}`, the mean loss in nats of the tokens of the prompt but the first, and
            their number.
    """

    task: str
    instances: list[dict[str, Any]]
    predictions: list[dict[str, Any]]

    def save(self, directory: Path) -> None:
        write_document(directory / EXAMPLES, asdict(self))

    @classmethod
    def load(cls, directory: Path, name: str = EXAMPLES) -> Examples:
        """Reads the document of an exported model, or another of its form.

        Raises:
            UserError: there is no such document, or it is damaged.
        """
        return read_as(directory / name, "exported model with examples", cls._from_json)

    @classmethod
    def _from_json(cls, content: Mapping[str, Any]) -> Examples:
        instances, predictions = list(content["instances"]), list(content["predictions"])
        if len(instances) != len(predictions):
            raise ValueError(f"{len(instances)} instances and {len(predictions)} predictions")
        return cls(content["task"], instances, predictions)
