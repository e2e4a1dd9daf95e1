"""What a signal does to a program that waits."""

import os
import signal
import threading
import time

import pytest

from gpu_pipelines.distributed.signals import handled, interrupt, nudged


def test_a_signal_that_comes_just_before_a_call_that_waits_ends_the_waiting() -> None:
    reading, writing = os.pipe()

    def signal_another_thread() -> None:
        # As in that instant, the signal is noted and the call of the main thread goes on.
        time.sleep(0.2)
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

    given_up = threading.Timer(20, os.close, (writing,))
    given_up.start()
    signalling = threading.Thread(target=signal_another_thread)
    try:
        signalling.start()
        with handled(interrupt, (signal.SIGTERM,)), nudged(), pytest.raises(KeyboardInterrupt):
            os.read(reading, 1)
        assert not given_up.finished.is_set(), "the pipe was closed first"
    finally:
        given_up.cancel()
        signalling.join()
        os.close(reading)


def test_what_waits_without_a_signal_waits_to_its_end() -> None:
    reading, writing = os.pipe()
    before = signal.getsignal(signal.SIGURG)
    writer = threading.Timer(1.5, os.write, (writing, b"x"))
    with nudged():
        writer.start()
        assert os.read(reading, 1) == b"x"
    assert signal.getsignal(signal.SIGURG) == before
    for end in (reading, writing):
        os.close(end)
