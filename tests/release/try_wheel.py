"""Installs a wheel into an empty environment, away from the repository, and does with it what a new user does.

    python tests/release/try_wheel.py dist/gpu_pipelines-0.1.0-py3-none-any.whl --extra steps

It needs the standard library alone, and runs on each Python that the wheel is for.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

CONSTRAINTS = Path(__file__).parents[2] / "constraints.txt"


class Installation:
    """A virtual environment with the wheel in it, and an empty folder to work in.

    Args:
        folder: an empty folder outside the repository.
        python: the interpreter of the environment.
    """

    def __init__(self, folder: Path, python: str) -> None:
        self.bin = folder / "environment" / "bin"
        self.work = folder / "work"
        self.work.mkdir(parents=True)
        self._run([python, "-m", "venv", str(folder / "environment")])

    def install(self, wheel: Path, extra: str, torch_index: str) -> None:
        """Installs the wheel with the versions of constraints.txt.

        Args:
            wheel: path of the wheel.
            extra: an extra of it; empty for none.
            torch_index: index that PyTorch is taken from; empty for the one that pip is set up with.
        """
        pip = [str(self.bin / "python"), "-m", "pip", "--quiet", "install", "--constraint", str(CONSTRAINTS)]
        if torch_index:
            self._run([*pip, "--index-url", torch_index, "torch"])
        self._run([*pip, f"{wheel.resolve()}[{extra}]" if extra else str(wheel.resolve())])
        self._run([str(self.bin / "python"), "-m", "pip", "check"])

    def program(self, *arguments: str) -> str:
        """What gpu-pipelines prints; an error if it fails."""
        return self._run([str(self.bin / "gpu-pipelines"), *arguments])

    def python(self, code: str) -> str:
        """What a program prints."""
        return self._run([str(self.bin / "python"), "-W", "error::SyntaxWarning", "-c", code])

    def _run(self, command: Sequence[str]) -> str:
        done = subprocess.run(command, cwd=self.work, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-4000:]}")
        return done.stdout


def try_wheel(wheel: Path, *, python: str, extra: str, torch_index: str, folder: Path) -> dict[str, object]:
    """Installs and tries a wheel.

    Args:
        wheel: path of the wheel.
        python: interpreter.
        extra: `steps` runs the quickstart as well; empty compiles only.
        torch_index: as of `Installation.install`.
        folder: an empty folder outside the repository.

    Returns:
        What was seen: version of Python, bytes of the wheel, seconds of the installation, and what ran.
    """
    started = time.monotonic()
    here = Installation(folder, python)
    here.install(wheel, extra, torch_index)
    seen: dict[str, object] = {
        "python": here.python("import platform; print(platform.python_version())").strip(),
        "wheel_bytes": wheel.stat().st_size,
        "installation_s": round(time.monotonic() - started),
    }
    version = wheel.name.split("-")[1]
    assert here.program("--version") == f"gpu-pipelines {version}\n"
    # Every file is read by this Python's own compiler; most of them are imported only where torch is.
    here.python(
        "import compileall, gpu_pipelines, sys\n"
        "sys.exit(not compileall.compile_dir(gpu_pipelines.__path__[0], quiet=1, force=True))"
    )
    assert "g2-standard" in here.program("accelerators", "plan", "l4:1")
    here.program(
        "compile", "train_evaluate_upload", "--target", "vertex", "--accelerator", "l4:4", "-o", "pipeline.yaml"
    )
    assert "exec-train-model" in (here.work / "pipeline.yaml").read_text(encoding="utf-8")
    seen["compiled_bytes"] = (here.work / "pipeline.yaml").stat().st_size
    if extra == "steps":
        here.program("run", "train_evaluate_upload")
        runs = json.loads(here.program("runs", "list", "--json"))
        assert [run["status"] for run in runs] == ["succeeded"], runs
        assert "champion" in here.program("models", "list")
        [report] = here.work.glob("runs/train_evaluate_upload-*/report.html")
        seen["report_bytes"] = report.stat().st_size
    seen["whole_s"] = round(time.monotonic() - started)
    return seen


def main() -> None:
    """Reads the command line and prints what was seen as one JSON object."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--python", default=sys.executable, help="interpreter; this one if left out")
    parser.add_argument("--extra", default="", help="extra to install; with steps the quickstart runs as well")
    parser.add_argument("--torch-index", default="", help="index of PyTorch; pip's own if left out")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        seen = try_wheel(
            options.wheel,
            python=options.python,
            extra=options.extra,
            torch_index=options.torch_index,
            folder=Path(folder),
        )
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
