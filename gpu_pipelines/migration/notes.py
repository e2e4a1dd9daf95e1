"""The notes of a migration: what it changed, what is left to the user, and what it refused."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpu_pipelines.errors import UserError

#: In the order of the output.
KINDS = ("to do", "changed", "dropped", "warning")


@dataclass(frozen=True)
class Note:
    """A note on a migration.

    Attributes:
        kind: `to do`: required before the job runs; `changed`; `dropped`: Vertex AI has no such thing; `warning`.
        field: the field or flag of the old job.
        text: what was done with it, and why.
    """

    kind: str
    field: str
    text: str

    def to_json(self) -> dict[str, str]:
        """The note as a JSON object."""
        return vars(self).copy()


@dataclass
class Notes:
    """Collects notes; a repeated one is not added again.

    Attributes:
        found: the notes.
        refusals: why the job cannot be migrated; collected, so that all are reported at once.
    """

    found: list[Note] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)

    def to_do(self, about: str, text: str) -> None:
        """Adds something that only the user can do."""
        self._add(Note("to do", about, text))

    def changed(self, about: str, text: str) -> None:
        """Adds something that has another form on Vertex AI."""
        self._add(Note("changed", about, text))

    def dropped(self, about: str, text: str) -> None:
        """Adds something that Vertex AI does not have."""
        self._add(Note("dropped", about, text))

    def warn(self, about: str, text: str) -> None:
        """Adds something that may go wrong."""
        self._add(Note("warning", about, text))

    def refuse(self, problem: str, remedy: str = "") -> None:
        """Adds a reason why the job cannot be migrated, and what to do about it."""
        self.refusals.append(f"{problem} {remedy}".rstrip())

    def require_none_refused(self) -> None:
        """Raises an error if anything was refused.

        Raises:
            UserError: lists all refusals.
        """
        if self.refusals:
            raise UserError.of_all(self.refusals)

    def sorted(self) -> tuple[Note, ...]:
        """All notes by kind, otherwise in the order in which they were added."""
        return tuple(sorted(self.found, key=lambda note: KINDS.index(note.kind)))

    def _add(self, note: Note) -> None:
        if note not in self.found:
            self.found.append(note)
