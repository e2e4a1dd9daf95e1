"""Random loops and branches give steps what the same program in plain Python gives its functions."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import gpu_pipelines
from random_pipelines import RandomNested, RandomPipeline


@pytest.mark.slow_but_for("RandomPipeline-0")
@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("kind", [RandomPipeline, RandomNested])
def test_steps_are_given_what_the_program_says(kind: type[RandomPipeline], seed: int, tmp_path: Path) -> None:
    pipeline, said = kind(seed), tmp_path / "said.txt"
    (tmp_path / "its_file.py").write_text(pipeline.kfp.replace("SAID", str(said)))
    done = gpu_pipelines("run", "its_file.py:pipeline", cwd=tmp_path)
    assert done.status == 0, f"{pipeline.kfp}\n{done.out}{done.err}"
    found = said.read_text().splitlines() if said.exists() else []
    assert sorted(found) == pipeline.said()
