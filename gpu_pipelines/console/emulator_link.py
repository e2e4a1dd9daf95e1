"""The emulator that a console shows: a running one, one that it starts, or none."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gpu_pipelines.console.emulator_client import EmulatorClient
from gpu_pipelines.distributed.processes import end_process
from gpu_pipelines.errors import UserError

_LISTENS = "listens at "
_SECONDS_TO_END = 20.0
_SECONDS_BETWEEN_LOOKS = 5.0
_STARTING = "The emulator is starting; load the page again in some seconds."
_NONE = "This console shows no emulator."
_HOW = "Start one with gpu-pipelines emulator start, or give the console --state DIR."


class EmulatorLink:
    """The connection to an emulator.

    Args:
        usual: an address at which to look for one now and then; empty for none.

    Attributes:
        problem: why there is no emulator now, in a sentence; empty if there is one.
        is_wanted: whether the user asked for one.
    """

    def __init__(self, problem: str = _NONE, *, is_wanted: bool = False, usual: str = "") -> None:
        self.problem, self.is_wanted = problem, is_wanted
        self._usual, self._looked = usual, -_SECONDS_BETWEEN_LOOKS
        self._client: EmulatorClient | None = None

    @property
    def client(self) -> EmulatorClient | None:
        """The client of the emulator; None if there is none now.

        Also finds one that was started at the usual address after the console.
        """
        if self._client is None and self._usual and time.monotonic() - self._looked > _SECONDS_BETWEEN_LOOKS:
            self._looked = time.monotonic()
            with suppress(UserError):
                self.connect(self._usual)
        return self._client

    def require(self) -> EmulatorClient:
        """The client of the emulator.

        Raises:
            UserError: there is no emulator now.
        """
        if (client := self.client) is None:
            raise UserError(self.problem, "" if self.is_wanted else _HOW)
        return client

    def connect(self, address: str) -> None:
        """Connects to the emulator at an address.

        Raises:
            UserError: no emulator answers there.
        """
        self._client, self.problem, self.is_wanted = EmulatorClient(address), "", True


def linked(address: str, usual: str) -> EmulatorLink:
    """The emulator at an address.

    Args:
        address: the address that was asked for; empty for the usual one, if an emulator answers there.
        usual: where emulators listen by default.

    Raises:
        UserError: no emulator answers at an address that was asked for.
    """
    if not address:
        return EmulatorLink(usual=usual)
    link = EmulatorLink()
    link.connect(address)
    return link


@contextmanager
def started_for(state: Path) -> Iterator[EmulatorLink]:
    """Runs an emulator with a state during the block, which does not wait for it to start.

    Args:
        state: the folder of its state.
    """
    link = EmulatorLink(_STARTING, is_wanted=True)
    command = [
        sys.executable,
        "-m",
        "gpu_pipelines.cli.main",
        "emulator",
        "start",
        "--port",
        "0",
        "--state",
        str(state),
    ]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    follower = threading.Thread(target=_follow, args=(process, link), daemon=True)
    follower.start()
    try:
        yield link
    finally:
        end_process(process, _SECONDS_TO_END)
        follower.join()


def _follow(process: subprocess.Popen[str], link: EmulatorLink) -> None:
    """Connects to the emulator once it listens; records why if it does not, or if it ends."""
    last: deque[str] = deque(maxlen=4)
    for line in process.stdout or ():
        last.append(line.strip())
        if _LISTENS in line:
            try:
                link.connect(line.partition(_LISTENS)[2].strip())
            except UserError as error:
                link.problem = str(error)
    link._client, link.problem = None, f"The emulator has ended: {' '.join(last)}"
