"""`gpu-pipelines components`: the inputs and outputs of the components, and their use in a user's own pipeline."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpu_pipelines.cli.application import Application
from gpu_pipelines.terminal import Column, Table, width_of, wrapped

if TYPE_CHECKING:
    from gpu_pipelines.component_interface.description import Description, Port

app = Application(help="Show the components that pipelines are made of.")

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
_WIDEST = 110


@app.command("list")
def list_components(as_json: AsJson = False) -> None:
    """List the components and what each does."""
    from gpu_pipelines.component_interface.description import list_components as described

    found = {each.name: each.text for each in described()}
    if as_json:
        print(json.dumps([{"name": name, "description": text} for name, text in found.items()], indent=2))
        return
    table = Table("component", Column.text("what it does"))
    for row in found.items():
        table.add_row(*row)
    table.print()


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="Name of the component.")],
    as_json: AsJson = False,
) -> None:
    """Show a component: its inputs, outputs, image, and a pipeline that uses it."""
    from gpu_pipelines.component_interface.description import describe_component
    from gpu_pipelines.component_interface.examples import example

    component = describe_component(name)
    if as_json:
        print(json.dumps(_document(component, _image(), example(component.name)), indent=2, ensure_ascii=False))
        return
    _print(component)
    print(f"image:\n  {_image()}\n\nexample:\n")
    print(example(component.name), end="")


def _image() -> str:
    """The image of the steps in the project's settings, or a placeholder for it."""
    from gpu_pipelines.component_interface.image import STEPS_IMAGE
    from gpu_pipelines.project_settings import load_project_settings

    return load_project_settings().image or STEPS_IMAGE


def _document(component: Description, image: str, used: str) -> dict[str, Any]:
    return {
        "name": component.name,
        "description": component.text,
        "image": image,
        "inputs": [_of(port) | {"optional": port.optional, "default": port.default} for port in component.inputs],
        "outputs": [_of(port) for port in component.outputs],
        "example": used,
    }


def _of(port: Port) -> dict[str, Any]:
    kind = "artifact" if port.is_artifact else "parameter"
    return {"name": port.name, "kind": kind, "type": port.type, "list": port.is_list, "description": port.text}


def _print(component: Description) -> None:
    width = min(width_of(), _WIDEST)
    print(wrapped(f"{component.name}: {component.text}", then="  ", width=width), end="\n\n")
    for title, ports in (("inputs", component.inputs), ("outputs", component.outputs)):
        print(f"{title}:")
        for port in ports:
            said = _asked_for(port) if title == "inputs" else port.shown_type
            print(f"  {port.name}  ({said})")
            print(wrapped(port.text, first=" " * 6, width=width))
        print()


def _asked_for(port: Port) -> str:
    if not port.optional:
        return f"{port.shown_type}; must be given"
    default = "may be left out" if port.is_artifact else f"default {json.dumps(port.default, ensure_ascii=False)}"
    return f"{port.shown_type}; {default}"
