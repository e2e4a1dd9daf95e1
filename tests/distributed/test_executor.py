"""Work in pieces: the same from processes of this machine and from a Ray cluster, of one node and of several."""

from __future__ import annotations

import itertools
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from ray_cluster import RayCluster, ray_cluster
from works import Fails, FailsUnexplained, KillsItself, SlowFirst, Square, made_nowhere

from gpu_pipelines.distributed.executor import executor_for
from gpu_pipelines.distributed.pieces import Executor, Needs, WorkOptions
from gpu_pipelines.distributed.process_executor import ProcessExecutor
from gpu_pipelines.errors import Interrupted, NotFoundError, ProcessKilledError, UserError


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with ray_cluster(cpus_of_head=2) as started:
        yield started


# One for all tests: Ray starts processes for whoever connects, each of which takes a second of a core to start.
@pytest.fixture(scope="module")
def on_ray(cluster: RayCluster) -> Iterator[Executor]:
    with executor_for(cluster.address) as found:
        yield found


@pytest.fixture(scope="module", params=["processes", "ray"])
def executor(request: pytest.FixtureRequest) -> Iterator[Executor]:
    if request.param == "ray":
        yield request.getfixturevalue("on_ray")  # started by the first test that needs it
        return
    with executor_for("", processes=2) as found:
        yield found


def test_pieces_come_back_with_their_numbers_from_workers_that_are_made_once(
    executor: Executor, tmp_path: Path
) -> None:
    done = list(executor.map(Square, (str(tmp_path), 0.2), iter(range(10, 30))))
    assert sorted((number, square) for number, (square, _) in done) == [(n, (n + 10) ** 2) for n in range(20)]
    processes = {process for _, (_, process) in done}
    assert len(processes) == 2
    assert os.getpid() not in processes
    assert len(list(tmp_path.iterdir())) == 2
    in_order = executor.in_order(Square, (), range(30))
    assert [square for square, _ in in_order] == [number**2 for number in range(30)]


@pytest.mark.slow_but_for("processes")
def test_a_slow_piece_does_not_let_the_others_pile_up(executor: Executor, tmp_path: Path) -> None:
    taken: list[int] = []

    def pieces() -> Iterator[int]:
        for number in range(1000):
            taken.append(number)
            yield number

    looks = 0

    def check() -> None:
        nonlocal looks
        looks += 1
        if (looks >= 20 and len(taken) > 2) or len(taken) > 100:
            (tmp_path / "go").touch()

    results = executor.in_order(SlowFirst, (str(tmp_path / "go"),), pieces(), WorkOptions(check=check))
    assert next(results) == 0
    assert 2 < len(taken) <= 12
    assert list(results) == list(range(1, 1000))


@pytest.mark.slow_but_for("processes")
def test_an_error_comes_out_of_a_worker_as_it_was_raised(executor: Executor) -> None:
    with pytest.raises(NotFoundError) as raised:
        list(executor.map(Fails, (), range(20)))
    assert (raised.value.problem, raised.value.remedy) == ("The bucket b is not there.", "Create it.")
    assert isinstance(raised.value.__cause__, UserError)
    with pytest.raises(ZeroDivisionError) as unexplained:
        list(executor.map(FailsUnexplained, (), range(20)))
    assert "works.py" in str(unexplained.value.__cause__), "it says where"
    with pytest.raises(NotFoundError, match=r"No model\."):
        list(executor.map(made_nowhere, (), range(20)))
    assert dict(executor.map(Square, (), range(9)))[8][0] == 64, "the next work is done"


@pytest.mark.slow_but_for("processes")
def test_a_piece_whose_worker_is_killed_is_done_again(
    executor: Executor, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = executor.map(KillsItself, (str(tmp_path), 2), range(20), WorkOptions(named=lambda piece: f"file {piece}"))
    assert sorted(done) == [(number, number) for number in range(20)]
    assert capsys.readouterr().out.count("; file 7 is done again") == 2


@pytest.mark.slow_but_for("processes")
def test_a_piece_that_kills_worker_after_worker_is_named(executor: Executor, tmp_path: Path) -> None:
    with pytest.raises(ProcessKilledError, match=r"^3 processes ended .* during file 7, "):
        list(
            executor.map(KillsItself, (str(tmp_path), 99), range(20), WorkOptions(named=lambda piece: f"file {piece}"))
        )


@pytest.mark.slow_but_for("processes")
def test_work_is_cancelled_by_whoever_checks(executor: Executor, tmp_path: Path) -> None:
    def check() -> None:
        if list(tmp_path.iterdir()):
            raise Interrupted("stopped")

    with pytest.raises(Interrupted):
        list(executor.map(Square, (str(tmp_path), 60), range(20), WorkOptions(check=check)))
    made = {int(path.name.split("-")[0]) for path in tmp_path.iterdir()}
    _await(lambda: not any(map(psutil.pid_exists, made)))


def test_work_within_work_has_workers_of_its_own() -> None:
    with ProcessExecutor(2) as executor:

        def pieces() -> Iterator[int]:
            for number, (square, _) in executor.map(Square, (), range(10)):
                assert square == number**2
                yield number

        assert sorted(square for _, (square, _) in executor.map(Square, (), pieces())) == [n**2 for n in range(10)]


def test_little_work_starts_no_process() -> None:
    with ProcessExecutor(2) as executor:
        assert {process for _, (_, process) in executor.map(Square, (), range(4))} == {os.getpid()}
        assert os.getpid() not in {process for _, (_, process) in executor.map(Square, (), range(5))}
    assert list(ProcessExecutor(1).map(Square, (), range(6)))[5] == (5, (25, os.getpid()))


def test_processes_are_kept_and_end_with_their_executor() -> None:
    with ProcessExecutor(2) as executor:
        first = {process for _, (_, process) in executor.map(Square, ("", 0.05), range(20))}
        assert {process for _, (_, process) in executor.map(Square, ("", 0.05), range(20))} == first
    assert not any(map(psutil.pid_exists, first))


def test_gpus_that_are_not_there_are_missed() -> None:
    with ProcessExecutor(2) as executor, pytest.raises(UserError, match="needs GPUs, 1 for each worker"):
        list(executor.map(Square, (), range(9), WorkOptions(needs=Needs(gpus=1))))


@pytest.mark.slow
def test_a_node_that_is_killed_costs_its_pieces_alone_and_one_that_joins_gets_some(
    cluster: RayCluster, on_ray: Executor, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = cluster.begin()
    head: set[int] = set()

    def pieces() -> Iterator[int]:
        """Goes on until the one that has joined did some and was killed, and then for as many as both had begun."""
        numbers, deadline = itertools.count(), time.monotonic() + 200
        yield from itertools.islice(numbers, 20)
        cluster.await_node(node)
        while node in cluster.nodes and time.monotonic() < deadline:
            yield next(numbers)
        yield from itertools.islice(numbers, 20)

    done: dict[int, int] = {}
    for number, (square, process) in on_ray.map(Square, (str(tmp_path), 0.2), pieces()):
        assert square == number**2
        assert number not in done
        done[number] = square
        if number < 20:
            head.add(process)
        elif process not in head and node in cluster.nodes:
            cluster.kill(node)
    assert sorted(done) == list(range(len(done)))
    assert node not in cluster.nodes, "the one that joined did some"
    assert re.search(r"machine [0-9.]+ is gone; piece \d+ is done again\n", capsys.readouterr().out)
    made = len(list(tmp_path.iterdir()))
    assert made == 3, "two from the beginning, and the one that came and was killed"


def test_ray_leaves_signals_to_the_step(on_ray: Executor) -> None:
    assert on_ray.is_cluster
    assert "ray" not in str(getattr(signal.getsignal(signal.SIGTERM), "__module__", ""))


def _await(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
