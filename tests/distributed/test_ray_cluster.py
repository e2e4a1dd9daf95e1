"""Machines of a step as a Ray cluster: two network namespaces, in each of which `ray start` really runs."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from network import ADDRESSES, Network, two_machines
from processes import Started
from ray_work import PROGRAM, done_in

from gpu_pipelines.distributed.ray_node import CLIENT_PORT, METRICS_OF_HEAD_PORT, PORTS, WORKER_PORTS
from gpu_pipelines.errors import INTERRUPTED

HEAD_PORT = 2222
SPEC = {"workerpool0": [f"{ADDRESSES[0]}:{HEAD_PORT}"], "workerpool1": [f"{ADDRESSES[1]}:{HEAD_PORT}"]}
JOIN_SECONDS = "60"


class Machines:
    """Starts the program of a step on two machines that share a folder."""

    def __init__(self, network: Network, folder: Path) -> None:
        self.network, self.folder = network, folder
        self.pieces = folder / "pieces"
        self.pieces.mkdir()
        self.file = folder / "ray.json"
        (folder / "program.py").write_text(PROGRAM.format(folder=str(Path(__file__).parent)))

    def start(self, rank: int, join_seconds: str = JOIN_SECONDS, **work: Any) -> Started:
        task = {"type": f"workerpool{rank}", "index": 0}
        given = {"file": str(self.file), "work": {"place": str(self.pieces), "pieces": 8, "seconds": 0.2, **work}}
        environment = {
            "CLUSTER_SPEC": json.dumps({"cluster": SPEC, "task": task}),
            "GPU_PIPELINES_JOIN_TIMEOUT": join_seconds,
            "TMPDIR": "/tmp",
        }
        return self.network.start(rank, [str(self.folder / "program.py"), json.dumps(given)], environment)

    def await_pieces(self, number: int, seconds: float = 90, nodes: int = 1) -> None:
        """Waits until so many are done, by so many machines."""
        deadline = time.monotonic() + seconds
        while len(done_in(self.pieces)) < number or len(set(self.nodes_of_pieces())) < nodes:
            assert time.monotonic() < deadline, f"{len(done_in(self.pieces))} of {number} pieces"
            time.sleep(0.1)

    def nodes_of_pieces(self) -> list[str]:
        return [piece["node"] for _, piece in sorted(done_in(self.pieces).items())]


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    with two_machines(tmp_path) as network:
        yield Machines(network, tmp_path)


def command_lines() -> list[str]:
    return [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]


@pytest.mark.slow
def test_two_machines_work_together_on_documented_ports_and_leave_nothing(machines: Machines) -> None:
    head, member = (machines.start(rank, nodes=2, seconds=1) for rank in (0, 1))
    member.await_line("node 1 (10.77.0.2) has joined the cluster of node 0 (10.77.0.1)")
    machines.await_pieces(1)
    token = json.loads(machines.file.read_text())["token"]
    assert len(token) == 64
    assert not any(token in line for line in command_lines()), "whoever lists processes would see it"
    listening = machines.network.listening(0) | machines.network.listening(1)
    first, last = WORKER_PORTS
    known = {HEAD_PORT, CLIENT_PORT, METRICS_OF_HEAD_PORT, *PORTS.values(), *range(first, last + 1)}
    assert HEAD_PORT in listening
    assert not listening - known, "docs/ray.md names all ports"
    assert (head.wait(), member.wait()) == (0, 0), head.output + member.output
    assert "ended with 8" in head.output
    assert "ended with None" in member.output
    assert len(set(machines.nodes_of_pieces())) == 2, "both did some"
    assert not machines.file.exists(), "the token is gone with the cluster"
    assert token not in head.output + member.output
    assert not [line for line in command_lines() if ADDRESSES[0] in line], "no process of Ray is left"


@pytest.mark.slow
def test_whoever_has_another_token_or_none_is_refused(machines: Machines) -> None:
    head = machines.start(0, pieces=400, seconds=1)
    head.await_line("work begins")
    token = json.loads(machines.file.read_text())["token"]
    places = (f"{ADDRESSES[0]}:{HEAD_PORT}", f"ray://{ADDRESSES[0]}:{CLIENT_PORT}")
    programs = [f"import ray; ray.init(address='{place}'); print('is in')" for place in places]
    wrong, none = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}, {"RAY_AUTH_MODE": "disabled"}
    outsiders = [
        machines.network.start(0, ["-c", program], variables) for program in programs for variables in (wrong, none)
    ]
    machines.file.write_text(json.dumps({"token": "0" * 64, "failure": None}))
    member = machines.start(1, join_seconds="70")
    for outsider in (*outsiders, member):
        assert outsider.wait() != 0, outsider.output
        assert "is in" not in outsider.output
        assert "has joined" not in outsider.output
    assert "InvalidAuthToken" in member.output, "why it could not join"
    for program in programs:
        insider = machines.network.start(0, ["-c", program], {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token})
        assert insider.wait() == 0, insider.output
    head.process.terminate()
    assert head.wait() == INTERRUPTED


@pytest.mark.slow
def test_a_machine_that_is_killed_costs_its_pieces_and_joins_again(machines: Machines) -> None:
    head = machines.start(0, pieces=60, seconds=0.6, nodes=2)
    member = machines.start(1)
    machines.await_pieces(6, nodes=2)
    member.kill_tree()
    at = time.time()
    again = machines.start(1)
    again.await_line("has joined")
    assert (head.wait(), again.wait()) == (0, 0), head.output + again.output
    done = done_in(machines.pieces)
    assert len(done) == 60
    before = {piece["node"] for piece in done.values() if piece["at"] < at}
    after = {piece["node"] for piece in done.values() if piece["at"] > at}
    assert len(before) == 2
    assert len(before | after) == 3, "the machine that came back did some"


@pytest.mark.slow
def test_the_work_begins_without_one_that_comes_late(machines: Machines) -> None:
    head = machines.start(0, pieces=40, seconds=1)
    machines.await_pieces(2)
    late = machines.start(1)
    late.await_line("has joined")
    assert (head.wait(), late.wait()) == (0, 0), head.output + late.output
    assert len(set(machines.nodes_of_pieces())) == 2


@pytest.mark.slow
def test_rank_0_is_killed_and_its_successor_goes_on(machines: Machines) -> None:
    head, member = machines.start(0, pieces=24, seconds=1, nodes=2), machines.start(1)
    machines.await_pieces(4)
    first = machines.file.read_text()
    kept = done_in(machines.pieces)
    head.kill_tree()
    successor = machines.start(0, pieces=24, seconds=1, nodes=2)
    assert (successor.wait(), member.wait()) == (0, 0), successor.output + member.output
    assert member.output.count("has joined the cluster") == 2
    assert json.loads(first)["token"] not in (successor.output + member.output)
    (left,) = re.findall(r"ended with (\d+)", successor.output)
    assert int(left) <= 24 - len(kept)
    assert all(done_in(machines.pieces)[number] == piece for number, piece in kept.items())


@pytest.mark.slow
def test_rank_0_is_interrupted_and_the_other_waits_for_it_and_no_longer_than_it_may(machines: Machines) -> None:
    head, member = machines.start(0, pieces=400, seconds=1, nodes=2), machines.start(1, join_seconds="40")
    machines.await_pieces(1)
    head.process.terminate()
    assert head.wait(30) == INTERRUPTED
    assert "interrupted: stopped by SIGTERM; what is done is kept" in head.output
    assert member.wait() == 1
    said = "Waited 40 s for node 0 (10.77.0.1) to be the head of a Ray cluster at 10.77.0.1:2222."
    assert said in member.output
    assert "no firewall keeps the ports" in member.output


@pytest.mark.slow
def test_an_interrupted_machine_leaves_and_the_work_goes_on(machines: Machines) -> None:
    head, member = machines.start(0, pieces=24, seconds=1, nodes=2), machines.start(1)
    machines.await_pieces(2)
    member.process.terminate()
    assert member.wait(30) == INTERRUPTED
    assert head.wait() == 0, head.output
    assert len(done_in(machines.pieces)) == 24


@pytest.mark.slow
def test_an_error_of_the_work_is_that_of_all_machines(machines: Machines) -> None:
    head, member = (machines.start(rank, nodes=2, fail="The file x is damaged.") for rank in (0, 1))
    assert (head.wait(), member.wait()) == (1, 1)
    assert "error: The file x is damaged.\n  Mend it." in head.output
    assert "error: node 0 (10.77.0.1) failed: The file x is damaged." in member.output
    assert "Traceback" not in head.output + member.output
    # What is left of it is no error of the next work.
    head, member = machines.start(0, nodes=2), machines.start(1)
    assert (head.wait(), member.wait()) == (0, 0), head.output + member.output


@pytest.mark.slow
def test_a_head_that_cannot_start_says_why(machines: Machines) -> None:
    server = f"server = socket.create_server(('{ADDRESSES[0]}', {HEAD_PORT}))"
    listen = f"import socket, time; {server}; print('there'); time.sleep(99)"
    taken = machines.network.start(0, ["-c", listen], {})
    taken.await_line("there")
    head = machines.start(0)
    assert head.wait() == 1
    assert "The head of the Ray cluster could not start at 10.77.0.1:2222" in head.output
    assert not machines.file.exists(), "nobody is asked to join"
