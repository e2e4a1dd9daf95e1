"""Prepares texts of a language model: several to a row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpu_pipelines.artifacts.dataset import SPLITS, Feature
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.data.sources.row_streams import Meter, Problem
from gpu_pipelines.data.sources.rows import source_columns
from gpu_pipelines.data.sources.source import SourceFiles
from gpu_pipelines.data.text.packing import PackedRow, Packer, packed_features, packed_rows
from gpu_pipelines.data.text.prepare import TextPreparation
from gpu_pipelines.data.text.sources import TextRecord, plain_texts
from gpu_pipelines.data.text.work import TextRows, TextWork, UsableText
from gpu_pipelines.data.usable import TOO_LONG
from gpu_pipelines.tasks.text_encoding import CannotEncodeError, Chat, Encoded


class PackedWork(TextWork):
    """Texts of a language model, packed."""

    def __call__(self, batch: Sequence[UsableText]) -> TextRows:
        form = self._form
        made = TextRows(read=len(batch))
        packers = {split: Packer(form.length, form.several) for split in SPLITS}
        full: dict[str, list[PackedRow]] = {split: [] for split in SPLITS}
        for record, encoded in zip(batch, self._encoded(batch), strict=True):
            if isinstance(encoded, Problem):
                made.rejected.append((record.source, encoded))
            elif not isinstance(record.text, str) and len(encoded.tokens) > form.length:
                # Cut, an answer would lose its prompt or its end, and the model would learn to ramble.
                problem = Problem(TOO_LONG, f"{len(encoded.tokens):,} tokens")
                made.rejected.append((record.source, problem))
            elif not encoded.targets[1:].any():
                problem = Problem("nothing to predict", f"{len(encoded.tokens)} tokens")
                made.rejected.append((record.source, problem))
            else:
                full[record.split] += packers[record.split].add(encoded.tokens, encoded.targets, record.source)
        for split, packer in packers.items():
            if full[split]:
                made.rows[split] = packed_rows(full[split], form.length, form.padding)
            made.rest[split] = [piece for row in packer.rest() for piece in row.pieces]
        return made

    def _encoded(self, batch: Sequence[UsableText]) -> list[Encoded | Problem]:
        documents = iter(self._encoder.documents([r.text for r in batch if isinstance(r.text, str)]))
        pairs = iter(self._encoder.completions([r.text for r in batch if isinstance(r.text, tuple)]))
        found: list[Encoded | Problem] = []
        for record in batch:
            if isinstance(record.text, Chat):
                try:
                    found.append(self._encoder.chat(record.text))
                except CannotEncodeError as error:
                    found.append(Problem("chat cannot be rendered", str(error)))
            else:
                found.append(next(documents if isinstance(record.text, str) else pairs))
        return found


class PackedTexts(TextPreparation):
    """Documents, prompts with completions, or chats."""

    ends = False
    packs = True
    work = PackedWork

    def records(self, source: SourceFiles, meter: Meter) -> Iterator[TextRecord]:
        return plain_texts(source, self.settings, meter, source.columns)

    def features(self, length: int) -> dict[str, Feature]:
        return packed_features(length)

    def columns_of(self, source: SourceFiles, settings: PrepareSettings) -> tuple[str, ...]:
        # Told by the first file, and the same for all but for what stands beside chats.
        if source.format == "text":
            return ("text",)
        # Without those of `group_by`: whatever is in the columns is text.
        return self.task.columns_of(settings, source_columns(source, settings.column_choices()))
