"""The inputs and outputs of a component, for people and programs: the source of READMEs and `components`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpu_pipelines.component_interface.catalog import COMPONENTS, load_component
from gpu_pipelines.component_interface.parameter import PYTHON_TYPES
from gpu_pipelines.errors import UserError, nearest


@dataclass(frozen=True)
class Port:
    """An input or an output.

    Attributes:
        name: its name.
        type: Python's name of a parameter's type; for an artifact its schema, such as system.Dataset.
        is_artifact: whether it is an artifact, or a list of them.
        is_list: whether it takes a list of artifacts, as dsl.Collected gives it.
        optional: whether it may be left out.
        default: default of a parameter.
        text: its meaning.
    """

    name: str
    type: str
    is_artifact: bool
    is_list: bool
    optional: bool
    default: Any
    text: str

    @property
    def shown_type(self) -> str:
        """The type in words."""
        return f"list of {self.type}" if self.is_list else self.type


@dataclass(frozen=True, repr=False)
class Description:
    """A component.

    Attributes:
        name: its name.
        text: its purpose.
        inputs, outputs: its ports, in order.
    """

    name: str
    text: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]

    def __repr__(self) -> str:
        required = [port.name for port in self.inputs if not port.optional]
        optional = len(self.inputs) - len(required)
        return (
            f"Description {self.name}: takes {', '.join(required) or 'nothing'} and {optional} that may be left out, "
            f"gives {', '.join(port.name for port in self.outputs) or 'nothing'}"
        )

    @property
    def artifacts(self) -> list[Port]:
        """The inputs that are artifacts."""
        return [port for port in self.inputs if port.is_artifact]

    @property
    def parameters(self) -> list[Port]:
        """The inputs that are parameters."""
        return [port for port in self.inputs if not port.is_artifact]


def list_components() -> list[Description]:
    """The components that pipelines are made of, as `gpu-pipelines components list`."""
    return [description_of(name) for name in COMPONENTS]


def describe_component(name: str) -> Description:
    """The inputs and outputs of a component, as `gpu-pipelines components show`.

    Args:
        name: name of the component, such as train_model; dashes are possible, too.

    Returns:
        Its purpose, inputs and outputs.

    Raises:
        UserError: there is no such component.
    """
    known = name.replace("-", "_")
    if known not in COMPONENTS:
        raise UserError(f"There is no component {name[:60]!r}.", nearest(known, list(COMPONENTS)))
    return description_of(known)


def description_of(name: str) -> Description:
    """The component of that name."""
    spec = load_component(name).component_spec
    return Description(name, _prose(spec.description), _ports(spec.inputs or {}), _ports(spec.outputs or {}))


def _ports(found: Mapping[str, Any]) -> tuple[Port, ...]:
    return tuple(_port(name, port) for name, port in found.items())


def _port(name: str, port: Any) -> Port:
    is_artifact = port.type not in PYTHON_TYPES
    return Port(
        name,
        port.type.partition("@")[0] if is_artifact else PYTHON_TYPES[port.type].__name__,
        is_artifact,
        port.is_artifact_list,
        getattr(port, "optional", False),
        getattr(port, "default", None),
        _prose(port.description),
    )


def _prose(text: str) -> str:
    return " ".join(text.split())
