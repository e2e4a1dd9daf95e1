"""Random runs over lists of machines: each ends with its weights or a clear refusal, and no two jobs are paid for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from random_runs import quick, run, undisturbed, weather_of, what_is_wrong

if TYPE_CHECKING:
    from gpu_pipelines.emulator.vertex_api import VertexApi


@pytest.mark.slow
def test_ten_random_runs_end_well(vertex_emulator: VertexApi, tmp_path: Path) -> None:
    vertex_emulator.state.replicas.grace_s = 5
    weights, found = undisturbed(tmp_path / "undisturbed"), []
    with quick():
        for number in range(10):
            weather = weather_of(number)
            found.append((run(vertex_emulator, number, tmp_path, weather), weather))
    wrong = {number: each for number, (o, w) in enumerate(found) if (each := what_is_wrong(o, weights, w))}
    assert not wrong
    states = [outcome.state for outcome, _ in found]
    assert {"weights", "refused"} <= set(states), states
    assert max(len(outcome.tries) for outcome, _ in found) > 1
    counted, billed = (sum(getattr(o, name) for o, _ in found) for name in ("counted_usd", "billed_usd"))
    assert abs(counted - billed) <= 0.05 * billed
