"""Ends everything that a run has started on this machine."""

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
from gpu_pipelines.step_environment import RUN_DIRECTORY

# As long as a training has to write its last checkpoint.
SECONDS_TO_END = 35.0
_SECONDS_BETWEEN_LOOKS = 0.1


@contextmanager
def no_process_left_behind(stopping: Callable[[], None]) -> Iterator[None]:
    """Ends what the block has started if it is left by an exception, or by what ends a program, such as Ctrl-C.

    Those are all processes below this one, but for the children that a program which runs a pipeline had before.

    torchrun starts its workers in sessions of their own, which a Ctrl-C at the terminal does not reach. While the block
    runs, orphans of this process's children come to it instead of to init, so that they can be found.

    Args:
        stopping: is called after a Ctrl-C, a SIGTERM or the end of the terminal, before the processes are asked to end.
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
            # Nothing may interrupt the cleaning up. The end of a terminal is often told twice.
            with handled(again.note, ASKING), handled(Signalled().note, (signal.SIGHUP,)):
                if isinstance(error, KeyboardInterrupt):
                    stopping()
                end_children(lambda: bool(again), before)
            raise


def end_left_behind(directory: Path) -> None:
    """Ends what is left of a run that was killed: its steps do not notice that, and go on.

    Args:
        directory: the run's.
    """
    import psutil

    left = []
    for process in psutil.process_iter():
        # Those of other people are not shown.
        with suppress(psutil.Error, OSError):
            of_run = process.environ().get(RUN_DIRECTORY)
            if of_run and Path(of_run).resolve() == directory.resolve():
                left.append(process)
    if left:
        print(f"{directory.name} was killed, and its step goes on: it is asked to end", file=sys.stderr, flush=True)
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    _, left = psutil.wait_procs(left, timeout=SECONDS_TO_END)
    _kill(left)


def end_children(at_once: Callable[[], bool], spared: Collection[Any]) -> None:
    """Asks the processes below this one to end (SIGTERM), and kills those that have not in time.

    Args:
        at_once: whether they are to be killed now; it is asked again and again.
        spared: children of this process that stay, with what is below them.
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
    """The processes below this one, but for some of its children and what is below them."""
    import psutil

    children = [child for child in psutil.Process().children() if child not in spared]
    return [process for child in children for process in (child, *below(child))]


def _kill(left: list[Any]) -> None:
    import psutil

    for child in left:
        with suppress(psutil.NoSuchProcess):
            child.kill()
    psutil.wait_procs(left, timeout=SECONDS_TO_END)
