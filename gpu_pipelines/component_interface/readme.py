"""Writes the README of each component: `python -m gpu_pipelines.component_interface.readme [--check]`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from gpu_pipelines.component_interface.catalog import COMPONENTS, load_component
from gpu_pipelines.component_interface.generated import write_generated
from gpu_pipelines.component_interface.parameter import PYTHON_TYPES

_HEAD = "<!-- Generated from the interfaces of the components by make docs. -->"


def readme(name: str) -> str:
    """The README of a component: what it does, inputs with defaults, outputs, and an example."""
    spec = load_component(name).component_spec
    artifacts = {n: i for n, i in spec.inputs.items() if i.type not in PYTHON_TYPES}
    parameters = {n: i for n, i in spec.inputs.items() if i.type in PYTHON_TYPES}
    parts = [f"{_HEAD}\n\n# {name}\n\n{_prose(spec.description)}\n"]
    if artifacts:
        rows = [f"| `{n}` | {_artifact(i.type)} | {_cell(i.description)} |" for n, i in artifacts.items()]
        parts.append(_table("Input artifacts", "| name | type | what |\n|---|---|---|", rows))
    rows = [
        f"| `{n}` | {PYTHON_TYPES[i.type].__name__} | `{json.dumps(i.default)}` | {_cell(i.description)} |"
        for n, i in parameters.items()
    ]
    parts.append(_table("Parameters", "| name | type | default | what |\n|---|---|---|---|", rows))
    rows = [f"| `{n}` | {_artifact(o.type)} | {_cell(o.description)} |" for n, o in spec.outputs.items()]
    parts.append(_table("Outputs", "| name | type | what |\n|---|---|---|", rows))
    parts.append(_example(name, list(artifacts)))
    return "\n".join(parts)


def _table(title: str, head: str, rows: list[str]) -> str:
    return f"## {title}\n\n{head}\n" + "\n".join(rows) + "\n"


def _prose(text: str) -> str:
    return " ".join(text.split())


def _cell(text: str) -> str:
    return _prose(text).replace("|", "\\|")


def _artifact(kind: str) -> str:
    return PYTHON_TYPES[kind].__name__ if kind in PYTHON_TYPES else kind.partition("@")[0]


def _example(name: str, artifacts: list[str]) -> str:
    arguments = ", ".join(f'{artifact}=before.outputs["{artifact}"]' for artifact in artifacts)
    return f"""## In a pipeline of your own

```python
from kfp import components

{name} = components.load_component_from_file("compiled/components/{name}.yaml")
task = {name}({arguments})
```

The compiled file stands alone: its image has to hold this package, nothing else is needed to compile with it. With the
package installed, `from gpu_pipelines.components.{COMPONENTS[name]}.component import {name}` is the same component.
"""


def main(arguments: list[str]) -> int:
    """Writes the READMEs below the working directory; with `--check`, says which differ and returns 1 if any does."""
    return write_generated(
        ((Path("components", folder, "README.md"), readme(name)) for name, folder in COMPONENTS.items()), arguments
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
