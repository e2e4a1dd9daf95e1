"""Work for a Ray cluster in small pieces that say where they were done, and the program of a machine of it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

PROGRAM = """
import json, os, sys
sys.path.insert(0, {folder!r})
from gpu_pipelines.artifacts.versioned_file import versioned_file
from gpu_pipelines.component_interface.step import own_process
from gpu_pipelines.distributed.members import Cluster
from gpu_pipelines.distributed.ray_cluster import RayTiming, on_ray_cluster
from ray_work import do_pieces

if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    cluster = Cluster.from_environment(os.environ)
    with own_process():
        file = versioned_file(given["file"])
        done = on_ray_cluster(cluster, file, lambda address: do_pieces(address, **given["work"]), RayTiming(look=0.5))
        print("ended with", done, flush=True)
"""


def do_pieces(address: str, place: str, pieces: int, seconds: float, fail: str = "", nodes: int = 1) -> int:
    """Does the pieces that are not done, each for so long; how many were left to do.

    Args:
        address: of the cluster.
        place: gets a file for each piece, with the id of the node that did it.
        pieces: how many.
        seconds: that each takes.
        fail: what goes wrong when all are done.
        nodes: as soon as so many machines have joined.
    """
    import ray

    from gpu_pipelines.distributed.signals import noted
    from gpu_pipelines.errors import Interrupted, UserError

    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    with noted() as signalled:  # Ray sets a handler of its own
        while sum(node["Alive"] for node in ray.nodes()) < nodes:
            assert not signalled.wait(0.2)
        print("work begins", flush=True)

        @ray.remote(max_retries=-1, num_cpus=1)
        def piece(number: int) -> None:
            time.sleep(seconds)
            file = Path(place, f"{number}.json")
            node = ray.get_runtime_context().get_node_id()
            file.with_suffix(".new").write_text(json.dumps({"node": node, "at": time.time()}))
            file.with_suffix(".new").replace(file)

        left = [number for number in range(pieces) if not Path(place, f"{number}.json").exists()]
        waiting = [piece.remote(number) for number in left]
        while waiting:
            _, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=0.2)
            if signalled:
                raise Interrupted(f"stopped by {signalled.name}; what is done is kept")
        ray.shutdown()
    if fail:
        raise UserError(fail, "Mend it.")
    return len(left)


def done_in(place: Path) -> dict[int, dict[str, Any]]:
    """The pieces that are done."""
    return {int(file.stem): json.loads(file.read_text()) for file in place.glob("*.json")}
