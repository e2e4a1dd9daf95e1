"""When devices are idle: by a clock that is turned by hand, and by processes that wait."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import psutil
import pytest

from gpu_pipelines.distributed.idleness import Idleness
from gpu_pipelines.training.machine.utilization import CpuShares, GpuUtilization


class Clock:
    """Seconds that a test lets pass."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def minutes_until_idle(
    shares: Sequence[Sequence[float] | None], ready: Sequence[float] = (), minutes: float = 10, names: str = "abc"
) -> tuple[float | None, str]:
    """After how many minutes there is an error, where each entry holds for a minute; None for none, and its text."""
    clock = Clock()

    def of_now(values: Sequence[Any]) -> Any:
        return values[min(int(clock.now // 60), len(values) - 1)]

    readiness = (lambda _: [of_now(ready)]) if ready else None
    idleness = Idleness(minutes, list(names), lambda _: of_now(shares), readiness, clock)
    while clock.now < 60 * 40:
        clock.now += 1
        if error := idleness.look(list):
            return round(clock.now / 60, 1), str(error)
    return None, ""


def test_a_device_that_worked_and_then_does_nothing_is_named_with_its_time_and_utilization() -> None:
    after, told = minutes_until_idle([[90, 95, 80]] * 5 + [[100, 0, 100]])
    assert after == pytest.approx(15, abs=0.2)
    assert "because b did nothing for 10 minutes. Utilization now: a 100 %, b 0 %, c 100 %." in told
    assert "idle_stop=0" in told


def test_a_device_that_a_program_leaves_out_is_not_idle() -> None:
    assert minutes_until_idle([[50, 0, 0]])[0] is None


def test_work_now_and_then_is_work() -> None:
    assert minutes_until_idle(([[0, 0, 0]] * 8 + [[1, 1, 1]]) * 5)[0] is None


def test_where_no_device_ever_works_processes_that_get_ready_have_their_time() -> None:
    nothing = [[0.0, 0.0, 0.0]]
    assert minutes_until_idle(nothing)[0] == pytest.approx(10, abs=0.2)
    assert minutes_until_idle(nothing, ready=[80.0] * 12 + [0.5])[0] == pytest.approx(22, abs=0.2)
    # Once a device has worked, what processes do without it does not count.
    assert minutes_until_idle([[9, 9, 9], [0, 0, 0]], ready=[80.0])[0] == pytest.approx(11, abs=0.2)


def test_what_is_not_known_ends_nothing() -> None:
    assert minutes_until_idle([None])[0] is None


def test_processes_that_are_started_again_have_all_their_time() -> None:
    clock = Clock()
    idleness = Idleness(1, ["rank 0"], lambda _: [0.0], None, clock)
    clock.now = 59
    assert idleness.look(list) is None
    idleness.begin()
    clock.now = 118
    assert idleness.look(list) is None
    clock.now = 124
    assert idleness.look(list) is not None


@pytest.fixture
def processes() -> Iterator[list[psutil.Process]]:
    """One that sleeps, and one whose child computes."""
    busy = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])"
    started = [subprocess.Popen([sys.executable, "-c", code]) for code in ("import time; time.sleep(60)", busy)]
    yield [psutil.Process(each.pid) for each in started]
    for each in started:
        for process in (*psutil.Process(each.pid).children(), each):
            process.kill()
        each.wait()


def test_the_time_of_processes_is_theirs_and_their_childrens_in_the_order_of_their_start(
    processes: list[psutil.Process],
) -> None:
    time.sleep(0.5)
    shares = CpuShares()
    assert shares(processes) == [100.0, 100.0]  # at first nothing is known of them
    time.sleep(1)
    waiting, computing = shares(list(reversed(processes))) or []
    assert waiting < 1.0
    assert computing > 10.0
    assert shares([]) is None


def test_gpus_of_which_nothing_is_known_are_said_once(capfd: pytest.CaptureFixture[str]) -> None:
    gpus = GpuUtilization(1)  # there is no driver here
    assert gpus([]) is None
    assert gpus([]) is None
    assert capfd.readouterr().out.count("warning: idle_stop does not watch the GPUs") == 1
