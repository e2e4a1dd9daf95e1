"""Runs the tutorials: `python website/tutorials.py [NAME …]`. What they print is a part of the site.

A tutorial is a notebook without outputs in docs/tutorials. Each is run in an empty folder by a kernel of this Python;
the notebook with its outputs is written to build/tutorials, and the site shows that.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SOURCES, DONE = ROOT / "docs" / "tutorials", ROOT / "build" / "tutorials"
#: Seconds that a cell may take.
LONGEST = 1200
#: Lines of an output that are shown; from more of them the middle is left out.
MOST_LINES = 60
#: Lets `!command` write into a pipe: on a terminal a run draws its steps anew ten times a second. A command that fails
#: is an error; the cells that show one have the tag `raises-exception`. What no reader is to see is not printed.
_FIRST = """def _system(command):
    import subprocess

    shell = get_ipython()
    done = subprocess.run(
        shell.var_expand(command), shell=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    print(done.stdout, end="")
    shell.user_ns["_exit_code"] = done.returncode
    done.check_returncode()


get_ipython().system = _system

import warnings

# It names a folder of this machine, and no bar of tqdm is shown.
warnings.filterwarnings("ignore", "IProgress not found")
"""
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def run(name: str) -> Path:
    """Runs a tutorial from its first cell to its last.

    Args:
        name: its file's name without the suffix.

    Returns:
        The notebook with its outputs.

    Raises:
        CellExecutionError: a cell has failed, or a command in it, and the cell has not the tag `raises-exception`.
    """
    import nbformat
    from nbclient import NotebookClient

    folder = DONE / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    notebook = nbformat.read(SOURCES / f"{name}.ipynb", as_version=4)
    # `!gpu-pipelines` is that of this environment; a width makes what is printed the same everywhere.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    os.environ.update({"COLUMNS": "100", "NO_COLOR": "1"})
    client = NotebookClient(notebook, timeout=LONGEST, kernel_name="python3", resources={"metadata": {"path": folder}})
    # Run before all others, and no part of the tutorial.
    notebook.cells.insert(0, nbformat.v4.new_code_cell(_FIRST))
    try:
        client.execute()
    finally:
        del notebook.cells[0]
        nbformat.write(notebook, DONE / f"{name}.ipynb")
    return DONE / f"{name}.ipynb"


def page(name: str) -> str:
    """A tutorial as a page in Markdown, with its outputs if it was run."""
    done = DONE / f"{name}.ipynb"
    return markdown_of((done if done.is_file() else SOURCES / f"{name}.ipynb").read_text(encoding="utf-8"))


def markdown_of(text: str) -> str:
    """A notebook in Markdown.

    Args:
        text: the notebook, in JSON.
    """
    parts = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
        else:
            parts += [_code(source), *map(_output, _joined(cell["outputs"]))]
    return "\n\n".join(filter(None, parts)) + "\n"


def _code(source: str) -> str:
    language = "python"
    if source.startswith("%%writefile"):
        first, _, source = source.partition("\n")
        path = first.split()[-1]
        return f'```{Path(path).suffix[1:].replace("py", "python")} title="{path}"\n{source}\n```'
    if source.startswith("!"):
        language, source = "sh", "\n".join(line.removeprefix("!") for line in source.split("\n"))
    return f"```{language}\n{source}\n```"


def _joined(outputs: list[Any]) -> Iterator[Mapping[str, Any]]:
    """Outputs, with what a cell has printed as one, in whichever pieces it came.

    An error is that a command has failed, as its cell expects; what the command printed says so.
    """
    printed = ""
    for output in outputs:
        if output["output_type"] == "stream":
            printed += "".join(output["text"])
        elif output["output_type"] != "error":
            yield from [{"printed": printed}] if printed else []
            printed = ""
            yield output
    if printed:
        yield {"printed": printed}


def _output(output: Mapping[str, Any]) -> str:
    if "printed" in output:
        return _shown(output["printed"])
    data = output.get("data", {})
    if "text/html" in data:
        return f'<div class="output" markdown="0">\n{"".join(data["text/html"])}\n</div>'
    if "image/png" in data:
        return f'<img class="output" alt="figure" src="data:image/png;base64,{_compact(data["image/png"])}">'
    return _shown("".join(data.get("text/plain", "")))


def _compact(data: str) -> str:
    return base64.b64encode(base64.b64decode("".join(data))).decode()


def _shown(text: str) -> str:
    """What was printed, without colours, without what was overwritten, and with the folder of this machine left out."""
    lines = [line.rpartition("\r")[2] for line in _COLOUR.sub("", text).rstrip().split("\n")]
    lines = [re.sub(rf"{re.escape(str(DONE))}/[^/\s]+/?", "", line) for line in lines]
    if len(lines) > MOST_LINES:
        half = MOST_LINES // 2
        lines = [*lines[:half], f"… {len(lines) - 2 * half} lines …", *lines[-half:]]
    body = "\n".join(lines)
    return f"``` {{.text .output}}\n{body}\n```" if body.strip() else ""


def main(names: list[str]) -> int:
    """Runs the tutorials of these names, or all."""
    for name in names or sorted(path.stem for path in SOURCES.glob("*.ipynb")):
        begun = time.monotonic()
        run(name)
        print(f"{name}: {time.monotonic() - begun:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
