"""The wheel as PyPI would have it: built from the sdist, in empty environments, away from the repository."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from interpreters import interpreters
from try_wheel import CONSTRAINTS, try_wheel

ROOT = CONSTRAINTS.parent
PYTHONS = interpreters()

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make dist` builds, of what is in the tree."""
    folder = tmp_path_factory.mktemp("release")
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    for name in filter(None, names.stdout.decode().split("\0")):
        if not name.startswith(("compiled/", "tests/", "docs/")) and (ROOT / name).is_file():
            (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "source" / name).write_bytes((ROOT / name).read_bytes())
    subprocess.run(
        [sys.executable, "-m", "build", "--outdir", str(folder / "dist"), str(folder / "source")],
        check=True,
        capture_output=True,
    )
    [built] = (folder / "dist").glob("*.whl")
    return built


@pytest.mark.parametrize("version", PYTHONS)
def test_the_wheel_compiles_pipelines_in_an_empty_environment(version: str, wheel: Path, tmp_path: Path) -> None:
    seen = try_wheel(wheel, python=PYTHONS[version], extra="", torch_index="", folder=tmp_path)
    assert str(seen["python"]).startswith(f"{version}.")


def test_the_wheel_runs_the_quickstart_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    seen = try_wheel(wheel, python=sys.executable, extra="steps", torch_index="", folder=tmp_path)
    assert int(str(seen["report_bytes"])) > 100_000


@pytest.mark.parametrize("version", PYTHONS)
def test_all_that_steps_need_is_there_for_each_python(version: str, wheel: Path, tmp_path: Path) -> None:
    """A pin without a wheel for this Python would be built from source, or not be found."""
    subprocess.run([PYTHONS[version], "-m", "venv", str(tmp_path)], check=True)
    pip = [str(tmp_path / "bin" / "python"), "-m", "pip", "--quiet", "install", "--dry-run", "--only-binary=:all:"]
    pip.append("--no-binary=kfp-server-api")  # it is Python alone, and published as source alone
    done = subprocess.run([*pip, "--constraint", str(CONSTRAINTS), f"{wheel}[steps]"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
