"""Cron expressions with a time zone, checked before they are sent, and their due times."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, timezone
from itertools import islice
from zoneinfo import ZoneInfo

from gpu_pipelines.errors import UserError

#: Fields of a cron expression, for messages.
_FIELDS = ("minute (0-59)", "hour (0-23)", "day of the month (1-31)", "month (1-12)", "day of the week (0-7)")
_PREFIX = re.compile(r"(?:CRON_)?TZ=(?P<zone>\S+)\s+(?P<fields>.*)", re.DOTALL)
#: The syntax of Unix cron. The library knows more (seconds, years, @daily, L, #), which the service does not.
_FIELD = re.compile(r"(\*|[0-9]+(-[0-9]+)?)(/[1-9][0-9]*)?(,(\*|[0-9]+(-[0-9]+)?)(/[1-9][0-9]*)?)*")


@dataclass(frozen=True)
class Cron:
    """The due times of something.

    Attributes:
        fields: the five fields: minute, hour, day of the month, month, day of the week.
        zone: their time zone, by its IANA name.
    """

    fields: str
    zone: str = "UTC"

    @property
    def text(self) -> str:
        """The expression for Vertex AI, with the time zone first."""
        return f"TZ={self.zone} {self.fields}"

    def times(self, after: datetime, until: datetime | None = None) -> Iterator[datetime]:
        """The due times, in its own time zone.

        Args:
            after: with a time zone; the first time is later.
            until: with a time zone; the last time is not later. None for no end.
        """
        from croniter import croniter

        try:
            due = croniter(self.fields, after.astimezone(ZoneInfo(self.zone)))
            while True:
                time: datetime = due.get_next(datetime)
                if until is not None and time > until:
                    return
                yield time
        except OverflowError:  # after the year 9999
            return


def parse_cron(text: str, zone: str | None = None) -> Cron:
    """A cron expression from its text, which may begin with `TZ=Europe/Paris`.

    Args:
        text: five fields, with or without a time zone before them.
        zone: the time zone; None for that of the text, else UTC.

    Raises:
        UserError: it is not one, it never comes due, or there is no such time zone.
    """
    from croniter import CroniterError, croniter

    match = _PREFIX.fullmatch(text.strip())
    named = match["zone"] if match else None
    if zone and named and zone != named:
        raise UserError(f"The expression {text!r} has the time zone {named}, and {zone} was given.", "Give only one.")
    words = (match["fields"] if match else text).split()
    if len(words) != len(_FIELDS):
        raise UserError(
            f"{text[:80]!r} has {len(words)} fields; a cron expression has five: {', '.join(_FIELDS)}.",
            "Every day at three is '0 3 * * *'.",
        )
    # The library takes a range of one number, such as 1-1, for any number.
    found = Cron(re.sub(r"\b(\d+)-\1\b(/\d+)?", r"\1", " ".join(words)), _zone(zone or named or "UTC"))
    for word, name in zip(words, _FIELDS, strict=True):
        if not _FIELD.fullmatch(word) or any(int(low) > int(high) for low, high in re.findall(r"(\d+)-(\d+)", word)):
            raise UserError(
                f"{word[:40]!r} is not valid for the {name.partition(' (')[0]} of a cron expression; it is {name}.",
                "Numbers, ranges such as 1-5, lists such as 1,3, steps such as */15 and * are valid.",
            )
    try:
        croniter(found.fields)
        next(found.times(datetime.now(timezone.utc)))
    except CroniterError as error:
        raise UserError(f"The cron expression {found.fields!r} never comes due: {error}.", ", ".join(_FIELDS)) from None
    return found


def _zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (OSError, ValueError, KeyError):  # KeyError: ZoneInfoNotFoundError
        raise UserError(
            f"There is no time zone {name[:60]!r}.", "Give its IANA name, such as Europe/Paris or America/New_York."
        ) from None
    return name


def parse_time(given: str | date, zone: str, flag: str) -> datetime:
    """A point in time, or one from ISO 8601; without an offset it is in the zone.

    Raises:
        UserError: it is not one.
    """
    try:
        # Python 3.10 does not know the Z.
        time = datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", str(given).strip()))
        time = time if time.tzinfo else time.replace(tzinfo=ZoneInfo(zone))
        time.astimezone(timezone.utc)  # which the first and the last day that there are need not have
    except (ValueError, OverflowError):
        raise UserError(
            f"{flag} is {str(given)[:60]!r}, which is not a time.",
            "Give 2027-01-31, 2027-01-31T03:00 or 2027-01-31T03:00Z.",
        ) from None
    return time


def next_times(cron: Cron, start: datetime | None, end: datetime | None, count: int = 3) -> list[datetime]:
    """The next due times between start and end.

    Args:
        cron: the expression.
        start: not before; None and the past for now.
        end: not after; None for no end.
        count: most of them to return.
    """
    now = datetime.now(timezone.utc)
    return list(islice(cron.times(max(start, now) if start else now, end), count))


def shown_time(time: datetime) -> str:
    """A time in its own zone, and in UTC if that is another."""
    shown, in_utc = f"{time:%Y-%m-%d %H:%M %Z}", f"{time.astimezone(timezone.utc):%Y-%m-%d %H:%M} UTC"
    return shown if shown == in_utc else f"{shown} ({in_utc})"
