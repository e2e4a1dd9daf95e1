"""Writes the README of each component: `python -m gpu_pipelines.component_interface.readme [--check]`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from gpu_pipelines.component_interface.catalog import COMPONENTS
from gpu_pipelines.component_interface.description import Port, description_of
from gpu_pipelines.component_interface.examples import example
from gpu_pipelines.component_interface.generated import write_generated

_HEAD = "<!-- Generated from the interfaces of the components by make docs. -->"


def readme(name: str) -> str:
    """The README of a component: its purpose, inputs with defaults, outputs, and an example."""
    component = description_of(name)
    parts = [f"{_HEAD}\n\n# {name}\n\n{component.text}\n"]
    if component.artifacts:
        rows = [f"| `{each.name}` | {_type(each)} | {_cell(each.text)} |" for each in component.artifacts]
        parts.append(_table("Input artifacts", "| name | type | what |\n|---|---|---|", rows))
    rows = [
        f"| `{each.name}` | {each.type} | `{json.dumps(each.default)}` | {_cell(each.text)} |"
        for each in component.parameters
    ]
    parts.append(_table("Parameters", "| name | type | default | what |\n|---|---|---|---|", rows))
    rows = [f"| `{each.name}` | {_type(each)} | {_cell(each.text)} |" for each in component.outputs]
    parts.append(_table("Outputs", "| name | type | what |\n|---|---|---|", rows))
    parts.append(_example(name))
    return "\n".join(parts)


def _table(title: str, head: str, rows: list[str]) -> str:
    return f"## {title}\n\n{head}\n" + "\n".join(rows) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _type(port: Port) -> str:
    return f"{port.shown_type}, may be left out" if port.optional else port.shown_type


def _example(name: str) -> str:
    return f"""## In a pipeline of your own

```python
{example(name)}```

`gpu-pipelines components show {name}` prints all this. Where the package is not installed,
`compiled/components/{name}.yaml` is the same component for `kfp.components.load_component_from_file`; its image has to
hold the package.
[docs/components.md](../../docs/components.md) says how the components go together.
"""


def main(arguments: list[str]) -> int:
    """Writes the READMEs below the working directory; with `--check`, names stale ones and returns 1 if any is."""
    return write_generated(
        ((Path("components", folder, "README.md"), readme(name)) for name, folder in COMPONENTS.items()), arguments
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
