"""Documents held against the types of the official client: its own reader drops what it does not know."""

from __future__ import annotations

import re
from typing import Any

from kubernetes import client

#: `resource.Quantity` of apimachinery.
_QUANTITY = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)(([KMGTPE]i)|[numkMGTPE]|([eE][+-]?[0-9]+))?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_PLAIN: dict[str, type | tuple[type, ...]] = {"str": str, "int": int, "bool": bool, "float": (int, float)}
#: Each object makes one otherwise, and each time logging forgets what it knows of all loggers: 1 ms among thousands.
_CONFIGURATION = client.Configuration()


def problems_of(kind: str, document: Any, path: str = "") -> list[str]:
    """What is wrong with a document that should be of a type, such as V1Pod or dict(str, str)."""
    if kind == "object":
        return []
    if inner := re.fullmatch(r"list\[(.*)\]", kind):
        if not isinstance(document, list):
            return [f"{path} is no list"]
        return [p for n, each in enumerate(document) for p in problems_of(inner[1], each, f"{path}[{n}]")]
    if inner := re.fullmatch(r"dict\(str, (.*)\)", kind):
        if not isinstance(document, dict):
            return [f"{path} is no mapping"]
        return [p for key, each in document.items() for p in problems_of(inner[1], each, f"{path}.{key}")]
    if kind in _PLAIN:
        is_bool = isinstance(document, bool) and kind != "bool"
        return [] if isinstance(document, _PLAIN[kind]) and not is_bool else [f"{path} is {document!r}, no {kind}"]
    if kind == "datetime":
        return [] if isinstance(document, str) else [f"{path} is no time"]
    return _problems_of_object(getattr(client, kind), document, path)


def _problems_of_object(model: Any, document: Any, path: str) -> list[str]:
    if not isinstance(document, dict):
        return [f"{path} is no {model.__name__}"]
    names = {outside: inside for inside, outside in model.attribute_map.items()}
    found = [f"{path}.{name} is no field of {model.__name__}" for name in document if name not in names]
    known = {name: value for name, value in document.items() if name in names}
    for name, value in known.items():
        found += problems_of(model.openapi_types[names[name]], value, f"{path}.{name}")
    try:
        # It refuses what lacks a field that must be there, and values that are not of an enumeration.
        model(**{names[name]: value for name, value in known.items()}, local_vars_configuration=_CONFIGURATION)
    except ValueError as error:
        found.append(f"{path}: {error}")
    return found


def problems_of_pod(pod: dict[str, Any]) -> list[str]:
    """What the API server would say of a pod: types, quantities, labels, and names that must be there."""
    found = problems_of("V1Pod", pod, "pod")
    spec = pod["spec"]
    volumes = [volume["name"] for volume in spec.get("volumes", [])]
    found += [f"the volume {name} is there twice" for name in set(volumes) if volumes.count(name) > 1]
    for container in spec["containers"]:
        resources = container.get("resources", {})
        for kind in ("limits", "requests"):
            for name, amount in resources.get(kind, {}).items():
                if not _QUANTITY.fullmatch(str(amount)):
                    found.append(f"{kind} of {name} is {amount!r}, no quantity")
        for name in resources.get("limits", {}):
            asked = resources.get("requests", {}).get(name)
            if "/" in name and asked not in (None, resources["limits"][name]):
                found.append(f"{name}: an extended resource has one amount")
        paths = [mount["mountPath"] for mount in container.get("volumeMounts", [])]
        found += [f"two volumes are mounted at {path}" for path in set(paths) if paths.count(path) > 1]
        found += [f"{m['name']} is no volume" for m in container.get("volumeMounts", []) if m["name"] not in volumes]
    for volume in spec.get("volumes", []):
        limit = volume.get("emptyDir", {}).get("sizeLimit")
        if limit is not None and not _QUANTITY.fullmatch(limit):
            found.append(f"sizeLimit is {limit!r}, no quantity")
    labels = {**spec.get("nodeSelector", {}), **pod.get("metadata", {}).get("labels", {})}
    found += [f"{name}: {value!r} is no value of a label" for name, value in labels.items() if not is_label(value)]
    for toleration in spec.get("tolerations", []):
        if toleration.get("operator") == "Exists" and toleration.get("value"):
            found.append(f"{toleration['key']}: a value with Exists")
    return found


def is_label(value: Any) -> bool:
    """Whether a text can be the value of a label."""
    return isinstance(value, str) and bool(_LABEL_VALUE.fullmatch(value))
