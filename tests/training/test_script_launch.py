"""A script without a pipeline, started on a node; on several, tests/vertex/test_job_submit.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from forked import Forked

MODULE = "gpu_pipelines.training.script.launch"


def launched(folder: Path, *words: str) -> tuple[int, str]:
    """The exit status, and what is printed to stderr."""
    process = Forked(MODULE, words, {"PATH": "/usr/bin:/bin"}, cwd=folder)
    _, errors = process.communicate()
    return process.wait(), errors


def test_a_module_gets_its_arguments_and_keeps_the_variables_of_the_platform(tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text("import os, sys; print(sys.argv[1:], os.environ['AIP_MODEL_DIR'])")
    done = subprocess.run(
        [sys.executable, "-m", MODULE, "--launcher", "plain", "--", "-m", "task", "--x", "a b"],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "AIP_MODEL_DIR": "gs://b/model/"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "['--x', 'a b'] gs://b/model/" in done.stdout


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ((), 2, "there is no script"),
        (("--launcher", "ray", "--", "x.py"), 2, "invalid choice"),
        (("--", "x.py"), 1, "error: There is no script x.py"),
        (("--", "train.sh"), 1, "give a .py file, or -m and a module"),
        (("--processes", "-1", "--", "here.py"), 1, "processes_per_node is -1"),
        (("--launcher", "plain", "here.py"), 1, "ended with exit status 4"),
    ],
)
def test_what_is_wrong_is_told(words: tuple[str, ...], status: int, said: str, tmp_path: Path) -> None:
    (tmp_path / "here.py").write_text("import sys; sys.exit(4)")
    ended, errors = launched(tmp_path, *words)
    assert (ended, said in errors) == (status, True), errors
    assert "Traceback" not in errors
