"""What a check of the doctor finds."""

from __future__ import annotations

from dataclasses import dataclass

#: It is there; it is needed and not there; it is not needed, or could not be looked at.
OK, MISSING, NOT_KNOWN = "ok", "missing", "unknown"


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Attributes:
        subject: what it is, in a word or two.
        state: one of `OK`, `MISSING` and `NOT_KNOWN`.
        message: what was found.
        remedy: what to run or to do; empty if there is nothing to do.
    """

    subject: str
    state: str
    message: str
    remedy: str = ""
