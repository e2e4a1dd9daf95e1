"""Durations for people."""

from __future__ import annotations


def format_seconds(seconds: float) -> str:
    """A duration for people: 4.2 s, 2 min 05 s, 1 h 02 min."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"
