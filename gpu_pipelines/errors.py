"""How a user's mistake is reported: what was wrong, which value, what to do; never a traceback."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

ERROR_PREFIX = "error: "
INTERRUPTED_PREFIX = "interrupted: "

# Exit status of a step, and of a process of a training, that was told to stop, has saved its state, and continues when
# the same command is run again: EX_TEMPFAIL of sysexits.h.
INTERRUPTED = 75


# In the message of a node about another that is gone with its machine or its network.
NOT_HEARD_OF = "has not been heard of"


class UserError(Exception):
    """Something the user can mend: a wrong value, missing data, a place that cannot be written.

    Args:
        problem: what is wrong, with the value that is.
        remedy: what to do about it; empty where the problem says it already.
    """

    def __init__(self, problem: str, remedy: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.problem}\n  {self.remedy}" if self.remedy else self.problem

    @classmethod
    def of_all(cls, problems: Sequence[str]) -> UserError:
        """One error that lists several problems, so that a second try does not meet the next of them."""
        if len(problems) == 1:
            return cls(problems[0])
        return cls(f"{len(problems)} things are wrong:" + "".join(f"\n  - {problem}" for problem in problems))


class Interrupted(Exception):  # noqa: N818 (it is no error)
    """The work was told to stop before its end and can be continued; no mistake of anybody.

    Args:
        message: who stopped it and what was saved, such as "node 1 was told to stop".
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


def nearest(value: str, valid: Iterable[str], also: Iterable[str] = (), otherwise: str | None = None) -> str:
    """A sentence that names what was probably meant, or everything that is valid, in the order given.

    Args:
        value: what was given.
        valid: the valid names.
        also: further names that are understood, but not listed.
        otherwise: what to say where no name is near; left out, it lists the valid ones.
    """
    import difflib

    names = list(valid)
    close = difflib.get_close_matches(value[:64], [*names, *also], n=1)
    if close:
        return f"Did you mean {close[0]!r}?"
    return f"Valid: {', '.join(names)}." if otherwise is None else otherwise


def some_of(names: Iterable[str], most: int) -> str:
    """At most so many of some names, sorted, and how many more there are; "nothing" if there are none."""
    listed = sorted(names)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more if listed else "nothing"


@contextmanager
def user_errors_end_the_step() -> Iterator[None]:
    """Turns a `UserError` inside a pipeline step into its message on stderr and exit status 1.

    The message begins with `ERROR_PREFIX` at the start of a line; the local target looks for it in the step's log.
    `Interrupted` becomes a line with `INTERRUPTED_PREFIX` and exit status `INTERRUPTED`.
    """
    try:
        yield
    except UserError as error:
        sys.stdout.flush()
        print(f"{ERROR_PREFIX}{error}", file=sys.stderr, flush=True)
        sys.exit(1)
    except Interrupted as interruption:
        sys.stdout.flush()
        print(
            f"{INTERRUPTED_PREFIX}{interruption.message}; run the same command again to continue",
            file=sys.stderr,
            flush=True,
        )
        sys.exit(INTERRUPTED)
