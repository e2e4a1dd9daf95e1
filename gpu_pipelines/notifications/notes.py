"""Notes that the steps of a run leave for the message at its end: a small JSON file each, in a folder of the run.

The step that sends the message runs even if others fail, so it can take none of their outputs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpu_pipelines.artifacts.remote_files import RemoteFolder, is_remote
from gpu_pipelines.component_interface.step import in_this_run
from gpu_pipelines.errors import UserError

LOOKED, TRAINED, EVALUATED, UPLOADED = "looked", "trained", "evaluated", "uploaded"


def leave(folder: str, step: str, note: Mapping[str, Any]) -> None:
    """Leaves a note. If that fails, prints a warning; the step does not fail.

    Args:
        folder: a directory, local or gs://, in which the run may have to be filled in; empty for a run without
            recipients.
        step: the name of the step, one of those above.
        note: the outcome of the step.
    """
    if not folder:
        return
    content = json.dumps(note, ensure_ascii=False).encode()
    try:
        folder = in_this_run(folder)
        if is_remote(folder):
            RemoteFolder(folder).write(f"{step}.json", content)
        else:
            Path(folder).mkdir(parents=True, exist_ok=True)
            Path(folder, f"{step}.json").write_bytes(content)
    except (UserError, OSError) as error:
        print(f"warning: the message at the end of the run will lack the outcome of this step: {error}", flush=True)


def left(folder: str) -> dict[str, dict[str, Any]]:
    """The notes that can be read, by step."""
    found = {}
    for step in (LOOKED, TRAINED, EVALUATED, UPLOADED) if folder else ():
        try:
            folder = in_this_run(folder)
            content = RemoteFolder(folder).read(f"{step}.json") if is_remote(folder) else _read(folder, step)
            found[step] = dict(json.loads(content))
        except FileNotFoundError:
            continue
        except (UserError, OSError, ValueError, TypeError) as error:
            print(f"warning: the outcome of the run is only partly known: {type(error).__name__}: {error}", flush=True)
    return found


def _read(folder: str, step: str) -> bytes:
    return Path(folder, f"{step}.json").read_bytes()
