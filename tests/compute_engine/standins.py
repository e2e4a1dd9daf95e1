"""Stand-ins for what a start-up script calls on a VM, in a folder that comes first on PATH, and a run of the script.

Each notes that it was called and with which arguments. `gcloud storage` copies to and from a folder in place of a
bucket, `docker run` runs a program of the test's own, and `docker stop` sends it SIGTERM.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpu_pipelines.targets.compute_engine.startup import StartupSettings, startup_script
from gpu_pipelines.targets.container import Container

BUCKET = "gs://bucket"
# In one piece, because several are called at once: bash writes what it has at each end of a line.
NOTE = r"""#!/bin/bash
printf -v words '\037%s' "$@"; printf '%s%s\036' "${0##*/}" "${words//$'\n'/$'\035'}" >>"$STANDINS/calls"
"""
PROGRAMS = {
    "nvidia-smi": 'cat "$STANDINS/gpus" 2>/dev/null || { echo "no devices were found"; exit 6; }',
    "docker": """case $1 in
      pull) exit "${PULL_STATUS:-0}" ;;
      run) echo $$ >"$STANDINS/pid"; exec "$STANDINS/training" ;;
      stop) kill -TERM "$(cat "$STANDINS/pid")" ;;
    esac""",
    "gcloud": """here() { echo "${1/gs:\\/\\/bucket/$STANDINS/bucket}"; }
    case "$1 $2" in
      "storage ls") [ -e "$(here "$3")" ] ;;
      "storage rsync") [ -z "$STORAGE_DENIED" ] || { echo "403 no access" >&2; exit 1; }
        mkdir "$STANDINS/copying" 2>/dev/null || touch "$STANDINS/two-at-once"
        mkdir -p "$(here "$5")" && cp -R "$(here "$4")/." "$(here "$5")" && sleep 0.2
        rmdir "$STANDINS/copying" ;;
      "storage cp") mkdir -p "$(here "$4")" && cp "$3" "$(here "$4")" ;;
      "compute instances") exit "${DELETE_STATUS:-0}" ;;
    esac""",
    "curl": 'sleep 0.1; if [ -e "$STANDINS/preempted" ]; then echo TRUE; else echo FALSE; fi',
    "systemctl": 'echo "${SYSTEM_STATE:-running}"',
    "shutdown": "",
}


@dataclass(frozen=True)
class Ran:
    """What a run of the script did."""

    status: int
    out: str
    calls: list[list[str]]

    def called(self, *words: str) -> list[list[str]]:
        """The calls that begin so."""
        return [call for call in self.calls if call[: len(words)] == list(words)]


@dataclass
class Vm:
    """A folder that stands for a VM."""

    folder: Path
    gpus: list[str] = field(default_factory=lambda: ["NVIDIA L4"] * 2)
    training: str = "echo trained"
    environment: dict[str, str] = field(default_factory=dict)
    programs: dict[str, str] = field(default_factory=dict)
    settings: StartupSettings = field(
        default_factory=lambda: StartupSettings(
            *("train-l4-2", "us-central1-a", 2, Container("us-docker.pkg.dev/p/r/t:1")),
            driver_seconds=0,
            pull_pauses=(),
        )
    )

    def told(self, **changes: object) -> Vm:
        """The same with other settings of the script."""
        self.settings = replace(self.settings, **changes)  # type: ignore[arg-type]
        return self

    @property
    def bucket(self) -> Path:
        """What is in the bucket."""
        return self.folder / "bucket"

    @property
    def synced(self) -> Path:
        """The directory of the VM that the container has as its sync directory."""
        return self.folder / "state" / "synced"

    def start(self) -> subprocess.Popen[str]:
        """Starts the script, as a start of the VM does."""
        programs = {**PROGRAMS, **self.programs, "training": self.training}
        for name, text in programs.items():
            path = self.folder / name
            path.write_text((NOTE if name in PROGRAMS else "#!/bin/bash\n") + text + "\n")
            path.chmod(0o755)
        if self.gpus:
            (self.folder / "gpus").write_text("".join(f"{gpu}\n" for gpu in self.gpus))
        script = self.folder / "startup.sh"
        script.write_text(startup_script(replace(self.settings, state_directory=str(self.folder / "state"))))
        environment = {
            "PATH": f"{self.folder}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(self.folder),
            "STANDINS": str(self.folder),
            **self.environment,
        }
        return subprocess.Popen(
            ["bash", script], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def end(self, process: subprocess.Popen[str], timeout: float = 20) -> Ran:
        """Waits for the end of the script."""
        out, _ = process.communicate(timeout=timeout)
        calls = self.folder / "calls"
        text = calls.read_text().replace("\035", "\n") if calls.exists() else ""
        calls.unlink(missing_ok=True)
        return Ran(process.returncode, out, [call.split("\037") for call in text.split("\036") if call])

    def run(self) -> Ran:
        """Starts the script and waits for its end."""
        return self.end(self.start())

    def stopped_when(self, sign: str, *, preempted: bool) -> Ran:
        """Starts the script, and tells it to stop when the training has made the file `sign`."""
        process = self.start()
        deadline = time.monotonic() + 30
        while not (self.folder / sign).exists():
            assert process.poll() is None, self.end(process).out
            assert time.monotonic() < deadline
            time.sleep(0.02)
        if preempted:
            (self.folder / "preempted").touch()
        else:
            process.send_signal(signal.SIGTERM)
        return self.end(process)
