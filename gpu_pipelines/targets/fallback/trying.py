"""Sends a job to one choice after the other until one has machines: each has surely ended before the next is sent.

The next is sent as soon as the service has said that there is no capacity or no quota, which is checked every few
seconds. If a job fails for another reason, that ends it: other machines would not help.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from gpu_pipelines.distributed.signals import Signalled
from gpu_pipelines.errors import Interrupted, NoMachinesError, ProcessFailedError, UnavailableError, UserError
from gpu_pipelines.targets.fallback.tries import (
    ASKED,
    FAILED,
    GOES_ON_AFTER,
    INTERRUPTED,
    NO_CAPACITY,
    NO_QUOTA,
    SENT,
    SUCCEEDED,
    TOO_DEAR,
    Choice,
    Tries,
    Try,
)

#: Seconds between two reads of a job, for tests; and seconds after which a request of another process was surely
#: answered, which is longer than a request may take with the searches for its job.
INTERVAL, PATIENCE = "GPU_PIPELINES_FALLBACK_INTERVAL", "GPU_PIPELINES_FALLBACK_PATIENCE"
_INTERVAL, _PATIENCE = 10.0, 120.0
#: The state of a job that somebody else cancelled.
CANCELLED = "cancelled"
#: Most failed reads in a row, and seconds that a cancelled job has to end.
_MOST_MISSES, _LONGEST_END = 5, 600.0


@dataclass(frozen=True)
class Seen:
    """A job as the service reports it.

    Attributes:
        state: `SENT` while it has not ended; else `SUCCEEDED`, `FAILED`, `NO_CAPACITY`, `NO_QUOTA` or `CANCELLED`.
        reason: the service's message.
        began: when its machines began to cost, seconds since 1970; None before.
        ended: when they ended.
    """

    state: str
    reason: str = ""
    began: float | None = None
    ended: float | None = None


class Sender(Protocol):
    """The port that sends jobs, or requests machines."""

    def send(self, choice: Choice, made: Try, seconds: float | None) -> str:
        """Creates the job of a try; returns its name.

        Args:
            choice: the machines.
            made: the try, whose label the job gets.
            seconds: the longest that it may run; None for the choice's own limit.

        Raises:
            NoMachinesError: there is no capacity for it.
            QuotaExceededError: there is no quota for it.
            UserError: it was refused for another reason, or nobody knows whether it was created.
        """
        ...

    def find(self, choice: Choice, made: Try) -> str | None:
        """The name of the job with the label of a try; None if there is none."""
        ...

    def cancel(self, choice: Choice, job: str) -> None:
        """Asks the service to end a job; one that has ended is ignored."""
        ...


class Jobs(Sender, Protocol):
    """The port that sends and follows jobs."""

    def look(self, choice: Choice, job: str) -> Seen:
        """The state of a job.

        Raises:
            UserError: the service cannot be reached.
        """
        ...


def try_in_order(tries: Tries, jobs: Jobs, stopped: Signalled, say: Callable[[str], None]) -> str:
    """Runs a job on the first choice that has machines, and on the next if they are taken away.

    Args:
        tries: the choices, and the tries so far.
        jobs: where they are sent.
        stopped: whether this process was interrupted.
        say: called with each line.

    Returns:
        The name of the job that succeeded.

    Raises:
        NoMachinesError: none is available, or the money is spent.
        ProcessFailedError: the job failed, for a reason that other machines do not solve.
        Interrupted: this process was interrupted, and its job has ended.
    """
    while True:
        made = tries.current
        if made is None:
            made = tries.begin()
            if made is None:
                continue
            say(f"{made.told}: sending a job, {_of(made, tries)}")
            send(tries, jobs, made, say)
        elif not made.job:
            take_over(tries, jobs, made, stopped, say)
        if (current := tries.current) is None:
            continue
        if not current.job:
            continue
        seen = _followed(tries, jobs, current, stopped, say)
        if seen is not None and _is_done(tries, seen, stopped, say):
            return current.job


def _of(made: Try, tries: Tries) -> str:
    return f"choice {made.choice + 1} of {len(tries.choices)}"


def send(tries: Tries, jobs: Sender, made: Try, say: Callable[[str], None]) -> None:
    """Sends the job of a recorded try, and records the answer of the service."""
    choice = tries.choice_of(made)
    try:
        job = jobs.send(choice, made, tries.seconds_left(choice))
    except UserError as error:
        if (state := _refusal(error)) is None:
            if not isinstance(error, UnavailableError):
                tries.change(state=FAILED, reason=error.problem)
            raise
        say(f"{made.told}: {state}: {error.problem}")
        tries.change(state=state, reason=error.problem, ended=time.time())
    else:
        if not tries.change(state=SENT, job=job) and not (tries.current and tries.current.job == job):
            # This process was silent for so long that another took over, which has not found this job.
            jobs.cancel(choice, job)


def _refusal(error: UserError) -> str | None:
    """The service's reason to try the next choice; None if that would not help."""
    if error.kind == "quota_exceeded":
        return NO_QUOTA
    return NO_CAPACITY if isinstance(error, NoMachinesError) else None


def take_over(
    tries: Tries, jobs: Sender, made: Try, stopped: Signalled, say: Callable[[str], None], patience: float = _PATIENCE
) -> None:
    """Finds the job of a try that another process recorded, or concludes after a while that there is none.

    Args:
        tries: the choices, and the tries so far.
        jobs: where they are sent.
        made: the try.
        stopped: whether this process was interrupted.
        say: called with each line.
        patience: seconds after which a request is surely answered.

    Raises:
        Interrupted: this process was interrupted.
    """
    choice = tries.choice_of(made)
    say(f"{made.told}: another process may have sent a job; looking for it")
    over = made.asked + float(os.environ.get(PATIENCE) or patience)
    while True:
        is_last = time.time() >= over
        if job := jobs.find(choice, made):
            tries.change(state=SENT, job=job, holder=tries.holder)
            return
        if is_last:
            tries.change(state=INTERRUPTED, reason="it was not sent", holder=tries.holder)
            return
        if stopped.wait(_interval()):
            raise Interrupted("it was interrupted while it searched for its job")
        tries.load()
        if tries.current is None or tries.current.state != ASKED:
            return


def _followed(tries: Tries, jobs: Jobs, made: Try, stopped: Signalled, say: Callable[[str], None]) -> Seen | None:
    """Waits for the end of a job; None if another process has taken over."""
    choice, ending = tries.choice_of(made), made.ending
    misses, until = 0, time.monotonic() + _LONGEST_END
    if ending:
        jobs.cancel(choice, made.job)
    while True:
        try:
            seen, misses = jobs.look(choice, made.job), 0
        except UserError:
            misses += 1
            if misses >= _MOST_MISSES:
                raise
            seen = Seen(SENT, began=made.began)
        if seen.began is not None and made.began is None:
            say(f"{made.told}: {made.job.rpartition('/')[2]} runs")
            if not tries.change(began=seen.began):
                return None
        if seen.state != SENT:
            return _ended(tries, made, seen, ending)
        if not ending and (ending := _why_to_end(tries, made, stopped)):
            # Recorded first, so that a successor of this process knows that nobody else has cancelled it.
            if not tries.change(ending=ending):
                return None
            jobs.cancel(choice, made.job)
            until = time.monotonic() + _LONGEST_END
        elif ending and time.monotonic() > until:
            raise UserError(
                f"{made.job} was cancelled and has not ended.", "Check it: it may still run, and cost money."
            )
        if ending:
            time.sleep(min(1.0, _interval()))
        else:
            stopped.wait(_interval())


def _why_to_end(tries: Tries, made: Try, stopped: Signalled) -> str:
    if stopped:
        return INTERRUPTED
    return TOO_DEAR if made.began is not None and tries.is_spent else ""


def _ended(tries: Tries, made: Try, seen: Seen, ending: str) -> Seen | None:
    state = ending if ending and seen.state != SUCCEEDED else seen.state
    began = made.began if seen.began is None else seen.began
    ended = time.time() if seen.ended is None else seen.ended
    kept = tries.change(state=state, reason=seen.reason, began=began, ended=ended)
    return Seen(state, seen.reason, began, ended) if kept else None


def _is_done(tries: Tries, seen: Seen, stopped: Signalled, say: Callable[[str], None]) -> bool:
    """Whether a job has succeeded; False if the next choice is to be tried; else it raises."""
    made = tries.made[-1]
    told = f"{made.told}: {seen.state}" + (f": {seen.reason}" if seen.reason else "")
    say(told)
    if seen.state == SUCCEEDED:
        return True
    if seen.state in GOES_ON_AFTER or (seen.state == INTERRUPTED and not stopped):
        # The second case: the process that interrupted it is gone, and the same choice is tried again.
        return False
    if seen.state == TOO_DEAR:
        error = tries.too_dear()
        tries.refuse(error.problem)
        raise error
    if seen.state == INTERRUPTED:
        raise Interrupted(f"{made.told}: the step was interrupted, and its job with it")
    if seen.state == CANCELLED:
        tries.refuse(f"{made.told}: {made.job.rpartition('/')[2]} was cancelled.")
        raise ProcessFailedError(tries.refused, "Run it again to continue from its checkpoints.")
    raise ProcessFailedError(told, f"Its log: {made.job}")


def _interval() -> float:
    return float(os.environ.get(INTERVAL) or _INTERVAL)
