"""Ends all processes that a run has started on this machine."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from gpu_pipelines.distributed.processes import below
from gpu_pipelines.distributed.signals import ASKING, Signalled, adopt_orphans, handled, interrupt, nudged
from gpu_pipelines.step_environment import RUN_DIRECTORY, SECONDS_AFTER_STEP, STEP

# The time that a training has for its last checkpoint.
SECONDS_TO_END = 35.0
_SECONDS_BETWEEN_LOOKS = 0.1


@contextmanager
def no_process_left_behind(stopping: Callable[[], None]) -> Iterator[None]:
    """Ends the processes of the block if an exception or a signal that ends a program, such as Ctrl-C, leaves it.

    These are all processes below this one, except the children that a program had before it ran the pipeline.

    torchrun starts its workers in sessions of their own, which a Ctrl-C at the terminal does not reach. While the block
    runs, this process becomes the parent of its children's orphans, in place of init, so that they can be found.

    Args:
        stopping: called after a Ctrl-C, a SIGTERM or the end of the terminal, before the processes are told to end.
            They may take `SECONDS_TO_END` for that; a second Ctrl-C or SIGTERM kills them.
    """
    import psutil

    adopt_orphans()
    before = psutil.Process().children()
    with handled(interrupt, (signal.SIGTERM, signal.SIGHUP)), nudged():
        try:
            yield
        except BaseException as error:
            again = Signalled()
            # Nothing may interrupt the clean-up. The end of a terminal is often signalled twice.
            with handled(again.note, ASKING), handled(Signalled().note, (signal.SIGHUP,)):
                if isinstance(error, KeyboardInterrupt):
                    stopping()
                end_children(lambda: bool(again), before)
            raise


def end_left_behind(directory: Path) -> None:
    """Ends the remaining processes of a run that was killed: its steps do not notice that, and keep running.

    Args:
        directory: directory of the run.
    """
    import psutil

    left = _processes_with(RUN_DIRECTORY, lambda of_run: Path(of_run).resolve() == directory.resolve())
    if left:
        print(f"{directory.name} was killed, but its step still runs: it is told to end", file=sys.stderr, flush=True)
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    _, left = psutil.wait_procs(left, timeout=SECONDS_TO_END)
    _kill(left)


def end_left_by_step(step: str) -> None:
    """Ends the processes that a step has left behind, as the end of its container does on the platforms.

    Args:
        step: the value of their variable `STEP`.
    """
    import psutil

    _, left = psutil.wait_procs(_processes_with(STEP, step.__eq__), timeout=SECONDS_AFTER_STEP)
    _kill(left)


def _processes_with(variable: str, is_wanted: Callable[[str], bool]) -> list[Any]:
    """The processes that have a variable with a wanted value; those of other users do not show theirs."""
    import psutil

    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            value = process.environ().get(variable)
            if value and is_wanted(value):
                found.append(process)
    return found


def end_children(at_once: Callable[[], bool], spared: Collection[Any]) -> None:
    """Tells the processes below this one to end (SIGTERM), and kills those that do not in time.

    Args:
        at_once: whether to kill them now; called repeatedly.
        spared: children of this process that stay, with their descendants.
    """
    import psutil

    children = _below(spared)
    for child in children:
        with suppress(psutil.NoSuchProcess):
            child.terminate()
    deadline = time.monotonic() + SECONDS_TO_END
    while children and time.monotonic() < deadline and not at_once():
        _, children = psutil.wait_procs(children, timeout=_SECONDS_BETWEEN_LOOKS)
    _kill(_below(spared))


def _below(spared: Collection[Any]) -> list[Any]:
    """The processes below this one, except some of its children and their descendants."""
    import psutil

    children = [child for child in psutil.Process().children() if child not in spared]
    return [process for child in children for process in (child, *below(child))]


def _kill(left: list[Any]) -> None:
    import psutil

    for child in left:
        with suppress(psutil.NoSuchProcess):
            child.kill()
    psutil.wait_procs(left, timeout=SECONDS_TO_END)
