"""In which group of a command's help an option stands, by its name.

An option that declares `rich_help_panel` stands in that one. Commands share their options, and so the groups.
"""

from __future__ import annotations

from typing import Any

FURTHER = "Options"
GROUPS = {
    "What is run": ("param", "params", "target", "accelerator", "dry_run", "task"),
    "On this machine (target local)": ("reuse", "resume", "trial", "runs"),
    "Machines in the cloud": (
        "nodes",
        "strategy",
        "machine_type",
        "reservation",
        "zone",
        "hours",
        "max_wait",
        "boot_disk_gb",
        "reduction_server",
        "web_access",
        "data_nodes",
        "data_machine_type",
        "evaluation_accelerator",
        "persistent_resource",
    ),
    "Container": ("image", "command", "env", "output_dir", "sync_dir", "image_family", "image_project"),
    "Project": (
        "project",
        "region",
        "pipeline_root",
        "repository",
        "service_account",
        "network",
        "network_attachment",
        "subnet",
        "external_ip",
        "encryption_key",
        "tensorboard",
        "label",
    ),
    "Kubeflow Pipelines": ("kubeflow_host", "kubeflow_namespace", "experiment"),
}
_GROUP = {name: group for group, names in GROUPS.items() for name in names}


def group_of(option: Any) -> str:
    """The heading below which an option of a command stands."""
    panel = getattr(option, "rich_help_panel", None)
    return panel if isinstance(panel, str) else _GROUP.get(option.name, FURTHER)
