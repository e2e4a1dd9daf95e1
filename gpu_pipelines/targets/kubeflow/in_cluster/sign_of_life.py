"""How the nodes of a TrainJob know that somebody still waits for their results.

The step's pod repeatedly writes a new number into the folder that it shares with the nodes. A pod that was cancelled or
lost does not, and may have had no time to delete its TrainJob.
"""

from __future__ import annotations

import threading
import time
import uuid
from contextlib import suppress

from gpu_pipelines.errors import UserError
from gpu_pipelines.targets.kubeflow.in_cluster.exchange import Exchange

_SIGN, _ORPHANED = "waiting", "orphaned"
#: Number of signs in the time after which silence counts.
_SIGNS = 6


class SignOfLife:
    """Tells the nodes that this process waits for them, for as long as the block runs.

    Args:
        exchange: the folder that the nodes read.
        silence: seconds without a sign after which they end.
    """

    def __init__(self, exchange: Exchange, silence: float) -> None:
        self._exchange, self._every = exchange, silence / _SIGNS
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep, daemon=True, name="sign of life")

    def __enter__(self) -> SignOfLife:
        # Earlier nodes may have ended; when they start again they continue.
        self._exchange.forget(_ORPHANED)
        self._exchange.note(_SIGN, uuid.uuid4().hex)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _keep(self) -> None:
        while not self._over.wait(self._every):
            with suppress(UserError, OSError):  # it is tried again
                self._exchange.note(_SIGN, uuid.uuid4().hex)


class Listener:
    """Waits, on a node, until the signs of the step's pod stay away.

    Args:
        exchange: the folder.
        silence: seconds without a sign after which they count as away.
    """

    def __init__(self, exchange: Exchange, silence: float) -> None:
        self._exchange, self._silence = exchange, silence

    @property
    def is_orphan(self) -> bool:
        """Whether a node of this TrainJob has already found that nobody waits."""
        return bool(self._exchange.noted(_ORPHANED))

    def wait(self, over: threading.Event) -> bool:
        """Returns True when nobody waits for this node any more, and False when `over` is set.

        If the storage cannot be read, that says nothing about the pod, and the time does not count.
        """
        sign, heard = "", time.monotonic()
        every = self._silence / (2 * _SIGNS)
        while not over.wait(every):
            try:
                now = self._exchange.noted(_SIGN)
            except (UserError, OSError):
                heard += every
                continue
            if now and now != sign:
                sign, heard = now, time.monotonic()
            elif time.monotonic() - heard > self._silence:
                with suppress(UserError, OSError):
                    self._exchange.note(_ORPHANED, "1")
                return True
        return False
