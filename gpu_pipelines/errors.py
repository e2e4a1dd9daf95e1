"""Reports a user's mistake: what was wrong, which value, what to do; never a traceback.

People get the error as text. Another process gets it as data: a step leaves it in the file that `ERROR_FILE` names.
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

#: Names the file in which a step leaves its error as data, for the process that started it.
ERROR_FILE = "GPU_PIPELINES_ERROR_FILE"
# The most causes to read: data from another machine need not end.
_MOST_CAUSES = 8
#: The subclasses of `UserError` with their own kind, by kind.
_BY_KIND: dict[str, type[UserError]] = {}


class UserError(Exception):
    """A problem that the user can solve: a wrong value, missing data, a place that cannot be written to.

    A program that drives runs catches the subclasses, to decide whether to change the request, ask for access, or try
    again. An error that was raised from another has that as its cause.

    Args:
        problem: what is wrong, with the value.
        remedy: what to do about it; empty if the problem says it already.

    Attributes:
        kind: the error's name as data.
    """

    kind: ClassVar[str] = "user_error"

    def __init_subclass__(cls, kind: str = "") -> None:
        super().__init_subclass__()
        if kind:
            cls.kind = kind
            _BY_KIND[kind] = cls

    def __init__(self, problem: str, remedy: str = "") -> None:
        # The text of another error may already be a sentence.
        self.problem = re.sub(r"(?<=[\w)'\"])\.\.$", ".", problem)
        super().__init__(self.problem)
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.problem}\n  {self.remedy}" if self.remedy else self.problem

    @property
    def in_one_line(self) -> str:
        """The problem, and what to do, in one line."""
        return f"{self.problem} {self.remedy}".strip()

    @staticmethod
    def of_all(problems: Sequence[str]) -> InvalidRequestError:
        """One error that lists several problems, so that a second try does not meet the next one.

        Args:
            problems: each with what to do.
        """
        if len(problems) == 1:
            return InvalidRequestError(problems[0])
        return InvalidRequestError(
            f"{len(problems)} things are wrong:" + "".join(f"\n  - {problem}" for problem in problems)
        )


def said_by(look: Callable[[], object]) -> list[str]:
    """The problems that a check reports: an error in one line, or nothing."""
    try:
        look()
    except UserError as error:
        return [error.in_one_line]
    return []


class InvalidRequestError(UserError, kind="invalid_request"):
    """The request cannot be carried out as it is, whenever it is tried: change it."""


class UnfitParametersError(UserError, kind="unfit_parameters"):
    """A training cannot continue with its parameters: it has diverged, or needs more memory than there is."""


class NotFoundError(UserError, kind="not_found"):
    """What the request names does not exist: a model, a version, a run, a file."""


class DamagedError(UserError, kind="damaged"):
    """A file is cut off, empty, or not what it should be."""


class NewerFormatError(UserError, kind="newer_format"):
    """A document was written by a newer version of this program, and is undamaged as far as is known."""


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
        status: the HTTP status of its answer; 0 if there was none.
    """

    def __init__(self, problem: str, remedy: str = "", status: int = 0) -> None:
        super().__init__(problem, remedy)
        self.status = status


class RunFailedError(UserError, kind="run_failed"):
    """A run has begun, and a step of it has failed.

    Args:
        problem: which step failed, and why.
        remedy: where to find more.
        run: the `gpu_pipelines.driver.run.Run`, if a program has run it and a step has failed; else None.
    """

    def __init__(self, problem: str, remedy: str = "", run: Any = None) -> None:
        super().__init__(problem, remedy)
        self.run = run


class NodeLostError(UserError, kind="node_lost"):
    """Another machine of the same step is gone, or its network is; the step continues when it is run again."""


class NodeFailedError(UserError, kind="node_failed"):
    """Another machine of the same step has failed; the cause is its error."""


class ProcessFailedError(UserError, kind="process_failed"):
    """A process of a step has ended with an error that it did not explain."""


class ProcessKilledError(ProcessFailedError, kind="process_killed"):
    """A process of a step was killed from outside, most often because the memory was full."""


class ConnectionLostError(ProcessFailedError, kind="connection_lost"):
    """A process of a step has ended because another one, with which it computes, was gone before."""


class IdleError(UserError, kind="idle"):
    """A training was stopped because its devices did nothing; it continues from its newest checkpoint."""


class Interrupted(Exception):  # noqa: N818 (it is not an error)
    """The work was interrupted before its end and can be continued; nobody made a mistake.

    Args:
        message: who stopped it and what was saved, such as "node 1 was interrupted".
    """

    kind: ClassVar[str] = "interrupted"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


_OF_PROCESSES = (NodeLostError, ProcessKilledError, ProcessFailedError, ConnectionLostError, NodeFailedError)


def as_data(error: UserError | Interrupted) -> dict[str, Any]:
    """An error for another process: `kind`, `problem` and `remedy`, and the same for its `cause` if it has one."""
    data: dict[str, Any] = {"kind": error.kind}
    if isinstance(error, Interrupted):
        data |= {"problem": error.message, "remedy": ""}
    else:
        data |= {"problem": error.problem, "remedy": error.remedy}
    if isinstance(error.__cause__, (UserError, Interrupted)):
        data["cause"] = as_data(error.__cause__)
    return data


def from_data(data: Any, most_causes: int = _MOST_CAUSES) -> UserError | Interrupted | None:
    """The error that another process has described; None if the data is not such a description.

    Args:
        data: from `as_data`. An unknown kind, of another version, becomes a `UserError`.
        most_causes: the most causes to read.
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
    """Leaves an error in a file, completely or not at all.

    Args:
        path: the file that `ERROR_FILE` names.
        error: the error.
    """
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_text(json.dumps(as_data(error)), encoding="utf-8")
    scratch.replace(path)


def left_error(path: Path) -> UserError | Interrupted | None:
    """The error that a process has left in a file; None if there is none.

    Args:
        path: the file that `ERROR_FILE` names.
    """
    try:
        return from_data(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return None


def root_of(error: BaseException) -> BaseException:
    """The original cause of an error."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def is_of_service(error: BaseException) -> bool:
    """Whether an error or its original cause is a service that could not answer; the same may succeed later."""
    return isinstance(root_of(error), UnavailableError) or isinstance(error, UnavailableError)


def distance_from_cause(error: BaseException | None) -> int:
    """How likely an error follows from another process's: 0 for a process's own error, else more."""
    for distance, each in enumerate(_OF_PROCESSES, 1):
        if type(error) is each:
            return distance
    return 0


def nearest(value: str, valid: Iterable[str], also: Iterable[str] = (), otherwise: str | None = None) -> str:
    """A sentence with the names that were probably meant, or with all valid names in the given order.

    Args:
        value: the value that was given.
        valid: the valid names.
        also: further names that are accepted, but not listed.
        otherwise: the sentence if no name is similar; by default it lists the valid ones.
    """
    import difflib

    names = list(valid)
    close = difflib.get_close_matches(value[:64], [*names, *also])
    if close:
        # `batch_size` matches `global_batch_size` as well as `micro_batch_size`, whichever is the shorter.
        ends = [name for name in close if name.endswith(value)]
        meant = ends if close[0] in ends else close[:1]
        return f"Did you mean {' or '.join(map(repr, meant))}?"
    return f"Valid: {', '.join(names)}." if otherwise is None else otherwise


def some_of(names: Iterable[str], most: int) -> str:
    """Some of the names, sorted, at most `most`, and how many more there are; "nothing" if there are none."""
    listed = sorted(names)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more if listed else "nothing"


def columns_in_words(names: Iterable[str]) -> str:
    """The names of columns, in quotes where blanks around a name would not be seen."""
    return ", ".join(name if name == name.strip() else repr(name) for name in names) or "none at all"


def is_of_a_full_disk(error: BaseException) -> bool:
    """Whether a write failed for lack of space or quota; libraries in Rust report it as text."""
    full = (errno.ENOSPC, errno.EDQUOT)
    in_words = (f"{called} {number}" for called in ("os error", "Errno") for number in full)
    return getattr(error, "errno", None) in full or any(each in str(error) for each in in_words)


def out_of_memory(what: str, error: BaseException) -> str:
    """A sentence on a lack of memory, with the missing amount if PyTorch gives it.

    Args:
        what: what ran out of memory.
        error: PyTorch's error, for a GPU or for the main memory.
    """
    # The amount is among other figures that mean nothing to a user.
    asked = re.search(r"ried to allocate ([\d.]+ \w+)", str(error))
    return f"{what} ran out of memory{f' when {asked[1]} more were needed' if asked else ''}."


@contextmanager
def full_disk_named(what: str, place: Path) -> Iterator[None]:
    """Names the disk if something cannot be written for lack of space; the system does not name it.

    Args:
        what: what is written.
        place: its destination.

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
    """The error for a full disk, a file without permission, or an impossible name; None for any other error."""
    if is_of_a_full_disk(error):
        return UserError(f"Something could not be written: {first_line(error)}.", "Make room there, and run it again.")
    if isinstance(error, UnicodeEncodeError) and error.encoding == "utf-8":
        # Bytes of a command line or of a file name that are not UTF-8, on their way into a request or a document.
        around = error.object[max(error.start - 40, 0) : error.end + 40]
        return UserError(f"{around!a} is not UTF-8, and nothing else can be sent or written.", "Give another name.")
    if not isinstance(error, OSError) or not error.filename:
        return None
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return UserError(
            f"{error.filename} may not be used: {error.strerror}.", "Fix its permissions, or give another."
        )
    if error.errno == errno.ENAMETOOLONG:
        return UserError(f"{error.filename!s:.80}… names no file: {error.strerror}.", "Give another path.")
    return None


def first_line(error: BaseException) -> str:
    """The first sentence of an error; the name of its class if it has no text.

    If a folder could not be copied, the sentence for its first file.
    """
    if isinstance(error, shutil.Error) and isinstance(error.args[0], list):
        return str(error.args[0][0][-1])
    first, *others = (str(error).strip() or type(error).__name__).splitlines()
    return f"{first} {others[0].strip()}" if first.endswith(":") and others else first


def named(error: BaseException) -> str:
    """The class of an error and its first sentence, such as `KeyError: 'width'`; the class alone if it has no text."""
    name, said = type(error).__name__, first_line(error)
    return name if said == name else f"{name}: {said}"


@contextmanager
def user_errors_end_the_step() -> Iterator[None]:
    """Turns a `UserError` in a pipeline step into its message on stderr and exit status 1, for a service's error 69.

    The message begins with `ERROR_PREFIX` at the start of a line. `Interrupted` becomes a line with
    `INTERRUPTED_PREFIX` and exit status `INTERRUPTED`. Both are also left as data if `ERROR_FILE` names a file. A full
    disk and a file without permission are errors that a user can solve as well.
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
    with suppress(OSError):  # the log may be on the full disk
        sys.stdout.flush()
    told, status = f"{ERROR_PREFIX}{error}", OF_SERVICE if is_of_service(error) else 1
    if isinstance(error, Interrupted):
        told, status = f"{INTERRUPTED_PREFIX}{error}; run the same command again to continue", INTERRUPTED
    print(told, file=sys.stderr, flush=True)
    sys.exit(status)


def _leave_for_the_starter(error: UserError | Interrupted) -> None:
    if place := os.environ.get(ERROR_FILE):
        # Without it, the process that started the step still has its log and its exit status.
        with suppress(OSError):
            leave_error(Path(place), error)
