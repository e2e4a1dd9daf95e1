"""What a migration changed, what is left to its user, and what it refuses: one note for each."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpu_pipelines.errors import UserError

#: In the order in which they are shown.
KINDS = ("to do", "changed", "dropped", "warning")


@dataclass(frozen=True)
class Note:
    """One thing to know of a migration.

    Attributes:
        kind: `to do`: the job does not run before; `changed`; `dropped`: Vertex AI has no such thing; `warning`.
        field: the field or flag of the old job that it is about.
        text: what was done with it and why.
    """

    kind: str
    field: str
    text: str

    def to_json(self) -> dict[str, str]:
        """The note as a JSON object."""
        return vars(self).copy()


@dataclass
class Notes:
    """Notes as they come up; one that is there already is not taken again.

    Attributes:
        found: the notes.
        refusals: why the job cannot be migrated; collected, so that a second try does not meet the next of them.
    """

    found: list[Note] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)

    def to_do(self, about: str, text: str) -> None:
        """Something that only the user can do."""
        self._add(Note("to do", about, text))

    def changed(self, about: str, text: str) -> None:
        """Something that has another form on Vertex AI."""
        self._add(Note("changed", about, text))

    def dropped(self, about: str, text: str) -> None:
        """Something that Vertex AI does not have."""
        self._add(Note("dropped", about, text))

    def warn(self, about: str, text: str) -> None:
        """Something that may go wrong."""
        self._add(Note("warning", about, text))

    def refuse(self, problem: str, remedy: str = "") -> None:
        """Something for which the job cannot be migrated, and what to do about it."""
        self.refusals.append(f"{problem} {remedy}".rstrip())

    def require_none_refused(self) -> None:
        """Ends here if anything was refused.

        Raises:
            UserError: lists all of it.
        """
        if self.refusals:
            raise UserError.of_all(self.refusals)

    def sorted(self) -> tuple[Note, ...]:
        """All of them, by kind, else in the order they came up in."""
        return tuple(sorted(self.found, key=lambda note: KINDS.index(note.kind)))

    def _add(self, note: Note) -> None:
        if note not in self.found:
            self.found.append(note)
