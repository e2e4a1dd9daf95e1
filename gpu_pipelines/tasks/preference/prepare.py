"""Prepares completions that were compared or judged: the tokens of the prompt and of each completion, one row each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gpu_pipelines.artifacts.dataset import Feature
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.data.sources.row_streams import Meter, Problem
from gpu_pipelines.data.sources.rows import beside, columns_read, rows_of
from gpu_pipelines.data.sources.source import SourceFiles
from gpu_pipelines.data.text.prepare import TextPreparation
from gpu_pipelines.data.text.sources import TextRecord
from gpu_pipelines.data.text.work import TextRows, TextWork, UsableText, one_to_a_row
from gpu_pipelines.data.usable import TOO_LONG
from gpu_pipelines.tasks.formats import BESIDE_CHATS
from gpu_pipelines.tasks.preference.compared import GOOD, Compared, compared, judgement
from gpu_pipelines.tasks.preference.task import JUDGED, WITH_IMPLICIT_PROMPT
from gpu_pipelines.tasks.text_encoding import CannotEncodeError, Chat, shared_length

_COMPLETION, _LABEL = JUDGED[1:]
#: A feature of judged rows: the completion of another row, beside which the model's drift is measured (KTO).
OTHER = "other"
_NO_TOKENS = np.zeros(0, dtype=np.int32)


class ComparedWork(TextWork):
    """Prompts with their completions, as TRL makes tokens of them: where the tokens part is where learning begins."""

    def __call__(self, batch: Sequence[UsableText]) -> TextRows:
        encoded = self._encoded([record.text for record in batch])
        rejected = [(r.source, e) for r, e in zip(batch, encoded, strict=True) if isinstance(e, Problem)]
        good = [(r, e) for r, e in zip(batch, encoded, strict=True) if not isinstance(e, Problem)]

        def columns_of(chosen: Sequence[int]) -> dict[str, Any]:
            prompts, *completions = zip(*(good[number][1] for number in chosen), strict=True)
            columns = {"prompt": list(prompts)}
            if len(completions) > 1:
                return columns | {n: list(c) for n, c in zip(WITH_IMPLICIT_PROMPT, completions, strict=True)}
            (own,) = completions
            # The only row of its split here has no other one.
            others = [own[-1], *own[:-1]] if len(own) > 1 else [_NO_TOKENS]
            labels = np.array([good[number][0].target for number in chosen], dtype=np.uint8)
            return columns | {_COMPLETION: list(own), OTHER: others, _LABEL: labels}

        made = one_to_a_row([record for record, _ in good], [False] * len(good), columns_of)
        made.read, made.rejected = len(batch), rejected
        return made

    def _encoded(self, records: Sequence[Any]) -> list[list[np.ndarray] | Problem]:
        """Of each record the tokens of its prompt and those of each completion."""
        plain = [record for record in records if not record.has_messages]
        prompts = [each.tokens for each in self._encoder.documents([record.prompt for record in plain])]
        wholes = iter(
            self._encoder.documents([record.prompt + part for record in plain for part in record.completions])
        )
        of_plain = iter(
            self._parted(prompt, [next(wholes).tokens for _ in record.completions])
            for prompt, record in zip(prompts, plain, strict=True)
        )
        return [self._of_messages(record) if record.has_messages else next(of_plain) for record in records]

    def _of_messages(self, record: Compared) -> list[np.ndarray] | Problem:
        given: Any = record.prompt
        try:
            prompt = self._encoder.conversation(Chat(given, record.tools), asks=True)
            wholes = [self._encoder.conversation(Chat([*given, *part], record.tools)) for part in record.completions]
        except CannotEncodeError as error:
            return Problem("chat cannot be rendered", str(error))
        return self._parted(prompt, wholes)

    def _parted(self, prompt: np.ndarray, wholes: list[np.ndarray]) -> list[np.ndarray] | Problem:
        longest = max(map(len, wholes))
        if longest > self._form.length:
            # Cut, an answer would lose its prompt or its end, and the model would learn to ramble.
            return Problem(TOO_LONG, f"{longest:,} tokens")
        given = min(shared_length(prompt.tolist(), whole.tolist()) for whole in wholes)
        if any(len(whole) <= max(given, 1) for whole in wholes):
            return Problem("nothing to predict", f"{longest:,} tokens")
        return [wholes[0][:given], *(whole[given:] for whole in wholes)]


class ComparedTexts(TextPreparation):
    """Pairs of completions, or completions that were judged, by the columns that the source has."""

    ends = False
    work = ComparedWork

    def columns_of(self, source: SourceFiles, settings: PrepareSettings) -> tuple[str, ...]:
        return columns_read(source, settings)

    @property
    def _are_judged(self) -> bool:
        return _COMPLETION in self.source.columns

    def records(self, source: SourceFiles, meter: Meter) -> Iterator[TextRecord]:
        # One file may have what stands beside a chat where another has none.
        columns = [name for name in self.source.columns if name not in BESIDE_CHATS]
        names = (_COMPLETION,) if self._are_judged else WITH_IMPLICIT_PROMPT
        for _, (where, row) in rows_of(source, columns, meter, BESIDE_CHATS):
            found = row if isinstance(row, Problem) else compared(row, names)
            label = judgement(row.get(_LABEL)) if self._are_judged and not isinstance(row, Problem) else ""
            problem = next((each for each in (found, label) if isinstance(each, Problem)), None)
            if problem or isinstance(found, Problem):
                yield TextRecord(where, "", problem=problem)
            else:
                yield TextRecord(where, found, str(label), **beside(row, self.settings))

    def features(self, length: int) -> dict[str, Feature]:
        tokens = Feature("int32", (-1,))
        if self._are_judged:
            return {"prompt": tokens, _COMPLETION: tokens, OTHER: tokens, _LABEL: Feature("uint8")}
        return {"prompt": tokens, **dict.fromkeys(WITH_IMPLICIT_PROMPT, tokens)}

    def preprocessing(self, plan: Mapping[str, Any]) -> dict[str, Any]:
        return {"sequence_length": plan["length"]}

    def target_of(self, plan: Mapping[str, Any]) -> Callable[[TextRecord], int]:
        return lambda record: int(record.label == GOOD)
