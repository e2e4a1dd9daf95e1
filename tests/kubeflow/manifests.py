"""The manifests in docs/kubeflow.md and beside it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

DOCS = Path(__file__).parents[2] / "docs"


def yaml_blocks() -> list[str]:
    """The blocks of YAML of the page."""
    return re.findall(r"```yaml\n(.*?)```", (DOCS / "kubeflow.md").read_text(encoding="utf-8"), re.DOTALL)


def manifests() -> list[dict[str, Any]]:
    """All manifests of the page, and the files of docs/kubeflow-runtimes/."""
    files = [path.read_text(encoding="utf-8") for path in sorted((DOCS / "kubeflow-runtimes").glob("*.yaml"))]
    documents = [document for text in [*yaml_blocks(), *files] for document in yaml.safe_load_all(text)]
    return [document for document in documents if "kind" in document]
