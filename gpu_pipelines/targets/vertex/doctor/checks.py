"""The result of one of the doctor's checks."""

from __future__ import annotations

from dataclasses import dataclass

#: It exists; it is needed and missing; it is not needed, or could not be checked.
OK, MISSING, NOT_KNOWN = "ok", "missing", "unknown"


@dataclass(frozen=True)
class Check:
    """The result of one check.

    Attributes:
        subject: the subject, in a word or two.
        state: one of `OK`, `MISSING` and `NOT_KNOWN`.
        message: the finding.
        remedy: what to run or to do; empty for nothing.
    """

    subject: str
    state: str
    message: str
    remedy: str = ""
