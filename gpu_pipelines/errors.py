"""How a user's mistake is reported: what was wrong, which value, what to do; never a traceback.

People read it as text. Another process gets it as data: a step leaves it in the file that `ERROR_FILE` names.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, NoReturn

ERROR_PREFIX = "error: "
INTERRUPTED_PREFIX = "interrupted: "

# Exit status of a step, and of a process of a training, that was interrupted, has saved its state, and continues when
# the same command is run again: EX_TEMPFAIL of sysexits.h.
INTERRUPTED = 75

# Exit status of a step that a service has failed, and that may succeed when it is run again: EX_UNAVAILABLE.
OF_SERVICE = 69

#: Names the file in which a step leaves its error as data, for the process that has started it.
ERROR_FILE = "GPU_PIPELINES_ERROR_FILE"
# Causes that are read at most: what comes from another machine need not end.
_MOST_CAUSES = 8
#: The subclasses of `UserError` that have a kind of their own, by that.
_BY_KIND: dict[str, type[UserError]] = {}


class UserError(Exception):
    """Something the user can mend: a wrong value, missing data, a place that cannot be written.

    A program that drives runs catches the subclasses: whether to change the request, to ask for access, to try the
    same again. One that was raised from another has that as its cause.

    Args:
        problem: what is wrong, with the value that is.
        remedy: what to do about it; empty where the problem says it already.

    Attributes:
        kind: what the error is called where it is data.
    """

    kind: ClassVar[str] = "user_error"

    def __init_subclass__(cls, kind: str = "") -> None:
        super().__init_subclass__()
        if kind:
            cls.kind = kind
            _BY_KIND[kind] = cls

    def __init__(self, problem: str, remedy: str = "") -> None:
        # What is said of an error of something else may be a sentence already.
        self.problem = re.sub(r"(?<=[\w)'\"])\.\.$", ".", problem)
        super().__init__(self.problem)
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.problem}\n  {self.remedy}" if self.remedy else self.problem

    @property
    def in_one_line(self) -> str:
        """The problem, and what to do."""
        return f"{self.problem} {self.remedy}".strip()

    @staticmethod
    def of_all(problems: Sequence[str]) -> InvalidRequestError:
        """One error that lists several problems, so that a second try does not meet the next of them.

        Args:
            problems: each with what to do.
        """
        if len(problems) == 1:
            return InvalidRequestError(problems[0])
        return InvalidRequestError(
            f"{len(problems)} things are wrong:" + "".join(f"\n  - {problem}" for problem in problems)
        )


def said_by(look: Callable[[], object]) -> list[str]:
    """What a look at something says is wrong with it: an error in one line, or nothing."""
    try:
        look()
    except UserError as error:
        return [error.in_one_line]
    return []


class InvalidRequestError(UserError, kind="invalid_request"):
    """The request cannot be carried out as it is, whenever it is tried: change it."""


class UnfitParametersError(UserError, kind="unfit_parameters"):
    """A training cannot go on with its parameters: it has diverged, or needs more memory than there is."""


class NotFoundError(UserError, kind="not_found"):
    """What the request names is not there: a model, a version, a run, a file."""


class DamagedError(UserError, kind="damaged"):
    """A file is cut off, empty, or not what it should be."""


class NewerFormatError(UserError, kind="newer_format"):
    """A document was written by a newer version of this program, and is whole for all that is known."""


class AccessDeniedError(UserError, kind="access_denied"):
    """The account is not known to the service, or may not do this."""


class QuotaExceededError(UserError, kind="quota_exceeded"):
    """A quota is used up: ask for more of it, or take another region or accelerator."""


class NoMachinesError(UserError, kind="no_machines"):
    """There are no such machines just now, or no money for them: try later, or take others."""


class UnavailableError(UserError, kind="unavailable"):
    """A service could not answer just now; the same may succeed later.

    Args:
        problem: what is wrong.
        remedy: what to do about it.
        status: what it answered; 0 if nobody answered.
    """

    def __init__(self, problem: str, remedy: str = "", status: int = 0) -> None:
        super().__init__(problem, remedy)
        self.status = status


class RunFailedError(UserError, kind="run_failed"):
    """A run has begun, and a step of it has failed.

    Args:
        problem: which step failed, and why.
        remedy: where more is said.
        run: the `gpu_pipelines.driver.run.Run`, where a program has run it and a step has failed; else None.
    """

    def __init__(self, problem: str, remedy: str = "", run: Any = None) -> None:
        super().__init__(problem, remedy)
        self.run = run


class NodeLostError(UserError, kind="node_lost"):
    """Another machine of the same step is gone, or its network is; the same step continues when it is run again."""


class NodeFailedError(UserError, kind="node_failed"):
    """Another machine of the same step has failed; the cause is its error."""


class ProcessFailedError(UserError, kind="process_failed"):
    """A process of a step has ended with an error that it did not explain."""


class ProcessKilledError(ProcessFailedError, kind="process_killed"):
    """A process of a step was killed from outside, most often because the memory was full."""


class ConnectionLostError(ProcessFailedError, kind="connection_lost"):
    """A process of a step has ended because another one, which it computes with, was gone before."""


class IdleError(UserError, kind="idle"):
    """A training was stopped because its devices did nothing; it continues from its newest checkpoint."""


class Interrupted(Exception):  # noqa: N818 (it is no error)
    """The work was interrupted before its end and can be continued; no mistake of anybody.

    Args:
        message: who stopped it and what was saved, such as "node 1 was interrupted".
    """

    kind: ClassVar[str] = "interrupted"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


_OF_PROCESSES = (NodeLostError, ProcessKilledError, ProcessFailedError, ConnectionLostError, NodeFailedError)


def as_data(error: UserError | Interrupted) -> dict[str, Any]:
    """An error for another process: `kind`, `problem` and `remedy`, and the same of its `cause` where it has one."""
    data: dict[str, Any] = {"kind": error.kind}
    if isinstance(error, Interrupted):
        data |= {"problem": error.message, "remedy": ""}
    else:
        data |= {"problem": error.problem, "remedy": error.remedy}
    if isinstance(error.__cause__, (UserError, Interrupted)):
        data["cause"] = as_data(error.__cause__)
    return data


def from_data(data: Any, most_causes: int = _MOST_CAUSES) -> UserError | Interrupted | None:
    """The error that another process has described; None where it is no such description.

    Args:
        data: as `as_data` made it. A kind that is not known here, of another version, is a `UserError`.
        most_causes: how many causes are read.
    """
    if not isinstance(data, dict) or not isinstance(data.get("problem"), str):
        return None
    if data.get("kind") == Interrupted.kind:
        return Interrupted(data["problem"])
    found = _BY_KIND.get(str(data.get("kind")), UserError)(data["problem"], str(data.get("remedy") or ""))
    if most_causes:
        found.__cause__ = from_data(data.get("cause"), most_causes - 1)
    return found


def leave_error(path: Path, error: UserError | Interrupted) -> None:
    """Leaves an error in a file, whole or not at all.

    Args:
        path: the file, as `ERROR_FILE` names it.
        error: what happened.
    """
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_text(json.dumps(as_data(error)), encoding="utf-8")
    scratch.replace(path)


def left_error(path: Path) -> UserError | Interrupted | None:
    """The error that a process has left in a file; None if there is none.

    Args:
        path: the file, as `ERROR_FILE` names it.
    """
    try:
        return from_data(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return None


def root_of(error: BaseException) -> BaseException:
    """The error that another one comes from in the end."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def is_of_service(error: BaseException) -> bool:
    """Whether an error, or the one that it comes from, is a service's that could not answer; the same may succeed."""
    return isinstance(root_of(error), UnavailableError) or isinstance(error, UnavailableError)


def distance_from_cause(error: BaseException | None) -> int:
    """How likely an error is the consequence of another process's: 0 for what a process says itself, else more."""
    for distance, each in enumerate(_OF_PROCESSES, 1):
        if type(error) is each:
            return distance
    return 0


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
    close = difflib.get_close_matches(value[:64], [*names, *also])
    if close:
        # `batch_size` is as much of `global_batch_size` as of `micro_batch_size`, whichever is the shorter.
        ends = [name for name in close if name.endswith(value)]
        meant = ends if close[0] in ends else close[:1]
        return f"Did you mean {' or '.join(map(repr, meant))}?"
    return f"Valid: {', '.join(names)}." if otherwise is None else otherwise


def some_of(names: Iterable[str], most: int) -> str:
    """At most so many of some names, sorted, and how many more there are; "nothing" if there are none."""
    listed = sorted(names)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more if listed else "nothing"


def is_of_a_full_disk(error: BaseException) -> bool:
    """Whether something could not be written for lack of space, or of quota; libraries in Rust say it in words."""
    full = (errno.ENOSPC, errno.EDQUOT)
    in_words = (f"{called} {number}" for called in ("os error", "Errno") for number in full)
    return getattr(error, "errno", None) in full or any(each in str(error) for each in in_words)


def out_of_memory(what: str, error: BaseException) -> str:
    """The sentence that something ran out of memory, and how much more it needed, if PyTorch says so.

    Args:
        what: ran out of it.
        error: PyTorch's, of a GPU or of the main memory.
    """
    # What was asked for stands in the middle of figures that say nothing to a user.
    asked = re.search(r"ried to allocate ([\d.]+ \w+)", str(error))
    return f"{what} ran out of memory{f' when {asked[1]} more were needed' if asked else ''}."


@contextmanager
def full_disk_named(what: str, place: Path) -> Iterator[None]:
    """Says of what cannot be written for lack of space on which disk that is; the system does not say it.

    Args:
        what: is written.
        place: it is written there.

    Raises:
        RunFailedError: the disk is full.
    """
    try:
        yield
    except OSError as error:
        if not is_of_a_full_disk(error):
            raise
        told = f"{what} could not be written on the disk of {place}: {first_line(error)}."
        raise RunFailedError(told, "Make room there, and run it again.") from error


def of_the_system(error: BaseException) -> UserError | None:
    """What a user is told of a full disk, of a file that they may not use, and of what names none; None for any other
    error."""
    if is_of_a_full_disk(error):
        return UserError(f"Something could not be written: {first_line(error)}.", "Make room there, and run it again.")
    if not isinstance(error, OSError) or not error.filename:
        return None
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return UserError(
            f"{error.filename} may not be used: {error.strerror}.", "Mend its permissions, or give another."
        )
    if error.errno == errno.ENAMETOOLONG:
        return UserError(f"{error.filename!s:.80}… names no file: {error.strerror}.", "Give another path.")
    return None


def first_line(error: BaseException) -> str:
    """What an error says first, up to the end of a sentence; the name of its class where it says nothing.

    Where a folder could not be copied, that is what its first file says.
    """
    if isinstance(error, shutil.Error) and isinstance(error.args[0], list):
        return str(error.args[0][0][-1])
    first, *others = (str(error).strip() or type(error).__name__).splitlines()
    return f"{first} {others[0].strip()}" if first.endswith(":") and others else first


@contextmanager
def user_errors_end_the_step() -> Iterator[None]:
    """Turns a `UserError` inside a pipeline step into its message on stderr and exit status 1; a service's into 69.

    The message begins with `ERROR_PREFIX` at the start of a line. `Interrupted` becomes a line with
    `INTERRUPTED_PREFIX` and exit status `INTERRUPTED`. Both are left as data where `ERROR_FILE` names a file. A full
    disk, and a file that may not be used, are errors that a user can mend as well.
    """
    try:
        yield
    except (UserError, Interrupted) as error:
        _end_the_step(error)
    except Exception as error:
        told = of_the_system(error)
        if told is None:
            raise
        _end_the_step(told)


def _end_the_step(error: UserError | Interrupted) -> NoReturn:
    _leave_for_the_starter(error)
    with suppress(OSError):  # the log may be on the disk that is full
        sys.stdout.flush()
    told, status = f"{ERROR_PREFIX}{error}", OF_SERVICE if is_of_service(error) else 1
    if isinstance(error, Interrupted):
        told, status = f"{INTERRUPTED_PREFIX}{error}; run the same command again to continue", INTERRUPTED
    print(told, file=sys.stderr, flush=True)
    sys.exit(status)


def _leave_for_the_starter(error: UserError | Interrupted) -> None:
    if place := os.environ.get(ERROR_FILE):
        # Without it, whoever has started the step still has its log and its exit status.
        with suppress(OSError):
            leave_error(Path(place), error)
