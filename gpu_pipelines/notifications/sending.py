"""Sends a message to all recipients; a failure is reported, and changes nothing else."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable, Sequence

from gpu_pipelines.errors import UnavailableError, UserError
from gpu_pipelines.google_cloud.secret_reference import value_of
from gpu_pipelines.notifications.channel import Channel, MailServer, NotSentError, TryAgainError
from gpu_pipelines.notifications.channels import channel_named, split
from gpu_pipelines.notifications.message import Message

#: Seconds for all addresses with all tries; for one try; before the second try; and the longest wait.
_WHOLE, _TRY, _FIRST_WAIT, _LONGEST_WAIT = 60.0, 15.0, 1.0, 16.0
#: After this many further seconds the last try has ended, unless a server sends its answer bit by bit.
_LATE = 1.0


def tell(
    message: Message,
    notify: Sequence[str],
    mail: MailServer,
    *,
    about_nothing_new: bool = False,
    say: Callable[[str], None] | None = None,
    first_wait: float = _FIRST_WAIT,
    whole: float = _WHOLE,
) -> list[str]:
    """Sends a message to all recipients in parallel; never raises an error.

    Args:
        message: the end of a run.
        notify: the recipients.
        mail: the server for e-mails.
        about_nothing_new: whether to tell them also if there was nothing new.
        say: gets a line for each address; by default, lines go to stderr.
        first_wait: seconds before the second try.
        whole: seconds for all recipients.

    Returns:
        Those of `notify` that were told.
    """
    say = say or (lambda line: print(line, file=sys.stderr, flush=True))
    notify = list(dict.fromkeys(notify))
    if not notify or not (message.is_eventful or about_nothing_new):
        return []
    ends: dict[int, str] = {}

    def one(number: int, given: str) -> None:
        ends[number] = _why_not(message, given, mail, first_wait, whole)

    # Daemon threads: a server that never ends its answer keeps neither the run nor the process alive.
    threads = [threading.Thread(target=one, args=each, daemon=True) for each in enumerate(notify)]
    for thread in threads:
        thread.start()
    until = time.monotonic() + whole + _LATE
    told = []
    for number, (given, thread) in enumerate(zip(notify, threads, strict=True)):
        thread.join(max(until - time.monotonic(), 0.0))
        if why := ends.get(number, f"no whole answer came in {whole:g} s"):
            say(f"warning: {_called(given)} was not told of the end of the run: {why}")
        else:
            say(f"told {_called(given)} that the run ended: {message.outcome}")
            told.append(given)
    return told


def _called(given: str) -> str:
    """A name for an entry of `notify`; for a channel its title, because the address is the place of a secret."""
    name, address = split(given)
    try:
        channel = channel_named(name)
    except Exception:
        return name
    return channel.title if channel.takes_secret else address


def _why_not(message: Message, given: str, mail: MailServer, first_wait: float, whole: float) -> str:
    """Sends to one address; returns why that failed, or an empty text."""
    name, address = split(given)
    try:
        _send(channel_named(name), message, address, mail, first_wait, whole)
    except (NotSentError, UserError) as error:
        return _in_words(error)
    except Exception as error:
        # A channel of another package may raise anything, and its message may contain the secret.
        return type(error).__name__
    return ""


def _send(channel: Channel, message: Message, address: str, mail: MailServer, first_wait: float, whole: float) -> None:
    """Sends a message to one address, and tries again after errors that may pass.

    Raises:
        NotSentError: it did not get through in time, or never will.
        UserError: the secret cannot be read.
    """
    until, wait = time.monotonic() + whole, first_wait
    while True:
        try:
            place = value_of(address) if channel.takes_secret else address
            channel.send(message, place, mail, max(min(_TRY, until - time.monotonic()), 0.1))
            return
        except (TryAgainError, UnavailableError) as error:
            pause = max(min(wait, _LONGEST_WAIT) * random.uniform(1.0, 1.5), getattr(error, "seconds", 0.0))  # noqa: S311
            if time.monotonic() + pause >= until:
                raise NotSentError(f"{_in_words(error)}; it was tried for {whole:g} s") from None
            time.sleep(pause)
            wait *= 2


def _in_words(error: Exception) -> str:
    return error.in_one_line if isinstance(error, UserError) else str(error)
