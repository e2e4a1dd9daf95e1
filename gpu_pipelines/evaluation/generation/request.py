"""The parameters about written text: metrics, amount and judge. Checked without importing torch."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gpu_pipelines.artifacts.remote_files import is_remote, problems_of_place, read_remote
from gpu_pipelines.errors import UserError, nearest, said_by
from gpu_pipelines.evaluation.generation.judge_settings import HIGHEST_SCORE, JudgeSettings
from gpu_pipelines.evaluation.generation.text_metrics import TEXT_METRICS
from gpu_pipelines.evaluation.user_function import file_of, names_function, why_not_there
from gpu_pipelines.tasks.metric import Metric
from gpu_pipelines.tasks.tasks import TASKS, task_named

JUDGE, JSON_SCHEMA = "judge", "json_schema"
#: What writes: vLLM where it is installed and there is a GPU, or one of the two in any case.
AUTO, TRANSFORMERS, VLLM = WRITERS = ("auto", "transformers", "vllm")
#: All that can be asked for by its name.
NAMES = (*TEXT_METRICS, JSON_SCHEMA, JUDGE)
#: Tokens that are written for a prompt at most, where nobody says it.
NEW_TOKENS = 256
#: A schema in object storage is small.
_LARGEST_SCHEMA = 1 << 20


@dataclass(frozen=True)
class TextRequest:
    """The parameters about written text.

    Attributes:
        generate: metrics, and functions of the user's own.
        max_new_tokens: most tokens to write after a prompt.
        generate_rows: most prompts to answer; 0 for all.
        generate_with: what writes.
        json_schema: text of a schema, or its path.
        judge: the model that judges.
    """

    generate: tuple[str, ...]
    max_new_tokens: int
    generate_rows: int
    generate_with: str
    json_schema: str
    judge: JudgeSettings

    @property
    def metrics(self) -> dict[str, Metric]:
        """The metrics by name, of those that there are; a function's is called like the function."""
        known = [given for given in self.generate if not _problems_of_name(given)]
        return {name: metric_of(name) for name in map(name_of, known)}

    @property
    def functions(self) -> list[str]:
        """Functions of the user's own, as they were given."""
        return [given for given in self.generate if ":" in given]

    @property
    def places(self) -> list[tuple[str, str]]:
        """Where the files of functions and the schema are, each after the parameter that names it."""
        found = [("generate", str(file)) for given in self.functions if (file := file_of(given))]
        if self.json_schema and not _is_text(self.json_schema):
            found.append((JSON_SCHEMA, self.json_schema))
        return found

    @property
    def files(self) -> list[Path]:
        """Those of them that are files of this machine."""
        return [Path(place).expanduser() for _, place in self.places if not is_remote(place)]

    def problems(self, task: str) -> list[str]:
        """Everything that is wrong with the values, each with what to do."""
        if not self.generate:
            return self.judge.problems_without_use()
        if not task_named(task).text_task:
            able = ", ".join(name for name in TASKS if task_named(name).text_task)
            return [
                f"generate is {', '.join(self.generate)}, but models of {task} write no text. Leave it out; of the "
                f"tasks of this program, it is for {able}."
            ]
        found = [problem for given in self.generate for problem in _problems_of_name(given)]
        names = [name_of(given) for given in self.generate]
        if twice := sorted({name for name in names if names.count(name) > 1 or name in task_named(task).metrics}):
            found.append(f"generate gives {twice[0]}, which is a metric already. Call the function otherwise.")
        if self.max_new_tokens < 1:
            found.append(f"max_new_tokens is {self.max_new_tokens}; give 1 or more, or 0 for {NEW_TOKENS}.")
        if self.generate_rows < 0:
            found.append(f"generate_rows is {self.generate_rows}; give how many rows, or 0 for all.")
        if self.generate_with not in WRITERS:
            found.append(f"generate_with is {self.generate_with!r}. {nearest(self.generate_with, WRITERS)}")
        found += self._schema_problems()
        if JUDGE in self.generate:
            return found + self.judge.problems()
        return found + self.judge.problems_without_use()

    def problems_here(self) -> list[str]:
        """Problems on this machine: files that are missing."""
        if not self.generate:
            return []
        found = [f"generate is {given!r}: {why}" for given in self.functions if (why := why_not_there(given))]
        if self.generate_with == VLLM and find_spec(VLLM) is None:
            found.append("generate_with is vllm, which is not installed. Install it, or leave generate_with out.")
        if self.json_schema:
            found += said_by(self.schema)
        return found + self.judge.problems_here() if JUDGE in self.generate else found

    def schema(self) -> Mapping[str, Any]:
        """The JSON schema.

        Raises:
            UserError: it cannot be read, or is none.
        """
        what, text = "json_schema", self.json_schema
        if not _is_text(text):
            what, text = f"The JSON schema {self.json_schema}", _read(self.json_schema)
        return checked_schema(text, what)

    def _schema_problems(self) -> list[str]:
        if JSON_SCHEMA in self.generate and not self.json_schema:
            return ["generate names json_schema, and there is none. Give json_schema, the schema or its path."]
        if self.json_schema and JSON_SCHEMA not in self.generate:
            return ["json_schema is given, and generate does not name it. Add json_schema to generate."]
        if _is_text(self.json_schema):
            return said_by(self.schema)
        return problems_of_place(JSON_SCHEMA, self.json_schema)


def name_of(given: str) -> str:
    """The name of a metric: its own, or that of a function."""
    return given.rpartition(":")[2]


def metric_of(name: str) -> Metric:
    """The properties of a metric of written text."""
    if name == JUDGE:
        return Metric(largest=HIGHEST_SCORE)
    return Metric() if name in NAMES else Metric(largest=math.inf, smallest=-math.inf)


def checked_schema(text: str, what: str) -> Mapping[str, Any]:
    """A JSON schema.

    Args:
        text: it.
        what: what it is called in messages.

    Raises:
        UserError: it is none.
    """
    try:
        schema = json.loads(text)
    except ValueError as error:
        raise UserError(f"{what} is not JSON: {error}.", "Give a JSON Schema, such as {'type': 'object'}.") from None
    if not isinstance(schema, dict):
        raise UserError(f"{what} is {text[:60]!r}, not an object.", 'Give a JSON Schema, such as {"type": "object"}.')
    return schema


def _problems_of_name(given: str) -> list[str]:
    if given in NAMES or names_function(given):
        return []
    functions = "A function of your own is package.module:function or path/to/file.py:function."
    if ":" in given:
        return [f"generate names {given[:80]!r}. {functions}"]
    return [
        f"generate names {given[:80]!r}, which is not a metric of written text. {nearest(given, NAMES)} {functions}"
    ]


def _is_text(schema: str) -> bool:
    return schema.lstrip().startswith("{")


def _read(place: str) -> str:
    try:
        if is_remote(place):
            return read_remote(place, _LARGEST_SCHEMA).decode("utf-8", "replace")
        return Path(place).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"The JSON schema {place} cannot be read: {error}.", "Give its text, or its place.") from None
