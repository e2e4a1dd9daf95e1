"""The parameters of `run_training_script`, checked without importing torch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_pipelines.component_interface.parameter import parameter
from gpu_pipelines.errors import nearest
from gpu_pipelines.numbers import whole
from gpu_pipelines.training.machine.idle_stop import IDLE_STOP, IDLE_STOP_TEXT, problems_of_idle_stop
from gpu_pipelines.training.script.variables import SET_BY_THE_STEP

LAUNCHERS = ("torchrun", "tensorflow", "horovod", "plain")
# One process on each node, which uses all of its GPUs itself.
ONE_PROCESS = ("tensorflow", "plain")
MOST_PROCESSES = 256

_MODULE = re.compile(r"-m +(?P<name>[A-Za-z_]\w*(\.[A-Za-z_]\w*)*)")
_WHOLE_COMMAND = re.compile(r"(accelerate|deepspeed|horovodrun|python3?|torchrun)\s.*|.*\.py\s+-.*")
_SEVERAL_WORDS = re.compile(r"--[\w-]+\s+\S")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _written(value: Any) -> str:
    """A value as it was written: KFP hands on 40 in a list as 40.0, and `true` is Python's True."""
    return str(value).lower() if isinstance(value, bool) else str(whole(value))


@dataclass(frozen=True)
class ScriptSettings:
    """The parameters of `run_training_script`."""

    script: str = parameter(
        "",
        "A .py file, local or gs://, or -m package.module as on Python's command line. With code, a path inside it.",
    )
    code: str = parameter(
        "",
        "Folder or .tar.gz, local or gs://, that holds the script and what it imports. Empty for none.",
    )
    arguments: list[Any] = parameter(
        [],
        "Arguments of the script, texts and numbers, as after the script on torchrun's command line. {checkpoints}, "
        "{dataset} and {metrics} in them become the paths that the script also gets in environment variables.",
    )
    launcher: str = parameter(
        "torchrun",
        "torchrun; tensorflow (one process per node, with TF_CONFIG); horovod (one node, by horovodrun); or plain "
        "(one process per node, nothing set).",
    )
    processes_per_node: int = parameter(
        0,
        "Processes on each node, for torchrun and horovod; 0 for one per GPU, or two without a GPU.",
    )
    environment: dict[str, Any] = parameter({}, "Environment variables for the script, by name.")
    idle_stop: float = parameter(IDLE_STOP, IDLE_STOP_TEXT)

    @property
    def module(self) -> str:
        """The name after `-m`; empty if the script is a file."""
        match = _MODULE.fullmatch(self.script.strip())
        return match["name"] if match else ""

    @property
    def words(self) -> list[str]:
        """The arguments for the script."""
        return [_written(each) for each in self.arguments]

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables for the script."""
        return {name: _written(value) for name, value in self.environment.items()}

    def problems(self) -> list[str]:
        """All problems with the values, a sentence each."""
        return [
            *self._problems_of_script(),
            *self._problems_of_arguments(),
            *self._problems_of_processes(),
            *self._problems_of_environment(),
            *problems_of_idle_stop(self.idle_stop),
        ]

    def problems_here(self) -> list[str]:
        """Files of the script that are missing on this machine; buckets and modules are not checked."""
        code, script = Path(self.code).expanduser(), self.script.strip()
        if self.code and "://" not in self.code and not code.exists():
            return [f"There is no code at {self.code}. Give a folder or a .tar.gz."]
        if self.module or "://" in script or (self.code and not code.is_dir()):
            return []
        file = code / script if self.code else Path(script).expanduser()
        return [] if file.is_file() else [f"There is no script {file}."]

    def _problems_of_script(self) -> list[str]:
        script = self.script.strip()
        if not script:
            return ["script is empty: give a .py file, or -m and a module as on Python's command line."]
        if script.startswith("-") and not self.module:
            return [f"script is {script!r}: a module is given as -m package.module, arguments in arguments."]
        if _WHOLE_COMMAND.fullmatch(script):
            return [f"script is {script!r}: give the .py file alone, and what follows it as arguments."]
        if not self.module and not script.endswith(".py"):
            return [f"script is {script!r}: give a .py file, or -m and a module; folders and archives go to code."]
        if self.code and not self.module and ("://" in script or Path(script).is_absolute()):
            return [f"script is {script!r}, but with code it is a path inside of that."]
        return []

    def _problems_of_arguments(self) -> list[str]:
        nested = [value for value in self.arguments if not isinstance(value, (str, int, float))]
        if nested:
            return [f"arguments holds {nested[0]!r}: give texts and numbers."]
        # The script would get them as one word, which it knows nothing of, when the data has been prepared.
        words = [value for value in self.arguments if isinstance(value, str) and _SEVERAL_WORDS.match(value)]
        return [f"arguments holds {words[0]!r} as one word: part them by commas, as --rate,0.1."] if words else []

    def _problems_of_processes(self) -> list[str]:
        if self.launcher not in LAUNCHERS:
            return [f"launcher is {self.launcher!r}. {nearest(self.launcher, LAUNCHERS)}"]
        if not 0 <= self.processes_per_node <= MOST_PROCESSES:
            return [f"processes_per_node is {self.processes_per_node}: give 0 to {MOST_PROCESSES}."]
        if self.launcher in ONE_PROCESS and self.processes_per_node > 1:
            return [f"processes_per_node is {self.processes_per_node}, but {self.launcher} has one process per node."]
        return []

    def _problems_of_environment(self) -> list[str]:
        found = []
        for name, value in self.environment.items():
            if not _VARIABLE.fullmatch(name):
                found.append(f"environment has {name!r}, which is not the name of a variable.")
            elif name in SET_BY_THE_STEP:
                found.append(f"environment has {name}, which the step sets itself.")
            elif not isinstance(value, (str, int, float)) or "\0" in str(value):
                found.append(f"environment has {value!r} for {name}: give a text or a number.")
        return found
