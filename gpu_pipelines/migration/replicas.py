"""The number and type of an old job's machines in each role: from its scale tier, or from its own fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpu_pipelines.accelerators.request import MAX_NODES
from gpu_pipelines.migration.job_fields import TPUS
from gpu_pipelines.migration.notes import Notes
from gpu_pipelines.migration.old_machines import SCALE_TIERS, Replicas

#: The roles in the order of Vertex AI's worker pools.
ROLES = ("master", "worker", "parameterServer", "evaluator")
#: Texts of notes and refusals.
NOT_VERIFIED = "That is from general knowledge; no copy of Google's page was at hand."
TPU = "The job asks for a TPU; jobs on GPUs and CPUs are migrated here."


def replicas_of(training: Mapping[str, Any], notes: Notes) -> dict[str, Replicas]:
    """The machines of a job by role, the master's first; contradictions are refused."""
    tier = training.get("scaleTier")
    own = [name for role in ROLES for name in (f"{role}Type", f"{role}Count") if training.get(name)]
    own += [
        f"{role}Config.acceleratorConfig"
        for role in ROLES
        if (training.get(f"{role}Config") or {}).get("acceleratorConfig")
    ]
    if tier == "BASIC_TPU":
        notes.refuse(f"scaleTier is BASIC_TPU. {TPU}")
        return {}
    if tier == "CUSTOM":
        return _custom(training, notes)
    if own:
        what = f"scaleTier is {tier}" if tier else "There is no scaleTier"
        notes.refuse(f"{what}, and {', '.join(own)} can be given with CUSTOM alone.", "Write scaleTier: CUSTOM.")
        return {}
    if tier is None:
        notes.changed("scaleTier", "None is given; that was BASIC.")
        tier = "BASIC"
    held = SCALE_TIERS[tier]
    by_role = {"master": held.master, "worker": held.worker, "parameterServer": held.parameter_server}
    found = {role: replicas for role, replicas in by_role.items() if replicas is not None}
    notes.changed("scaleTier", f"Vertex AI has no scale tiers; {tier} was {_told(found)}. {NOT_VERIFIED}")
    return found


def _told(replicas: Mapping[str, Replicas]) -> str:
    return ", ".join(
        f"{role}: {each.count} × {each.machine_type}"
        + (f" with {each.accelerator[1]} × {each.accelerator[0]}" if each.accelerator else "")
        for role, each in replicas.items()
    )


def _custom(training: Mapping[str, Any], notes: Notes) -> dict[str, Replicas]:
    """The machines of a job with the tier CUSTOM."""
    if not training.get("masterType"):
        notes.refuse("scaleTier is CUSTOM, which needs masterType.")
    found: dict[str, Replicas] = {}
    for role in ROLES:
        kind, count = training.get(f"{role}Type"), training.get(f"{role}Count", 1 if role == "master" else 0)
        if not 0 <= count <= MAX_NODES:
            notes.refuse(f"{role}Count is {count}; 0 to {MAX_NODES} can be migrated.")
        elif count and not kind and role != "master":
            notes.refuse(f"{role}Count is {count}, which needs {role}Type.")
        elif count and kind:
            found[role] = Replicas(kind, count, _accelerator(training, role, notes))
    return found


def _accelerator(training: Mapping[str, Any], role: str, notes: Notes) -> tuple[str, int] | None:
    given = (training.get(f"{role}Config") or {}).get("acceleratorConfig") or {}
    kind, count = given.get("type"), given.get("count")
    where = f"{role}Config.acceleratorConfig"
    if kind == "ACCELERATOR_TYPE_UNSPECIFIED":
        kind = None
    if kind in TPUS:
        notes.refuse(f"{where}.type is {kind}. {TPU}")
    elif kind is None and not count:
        return None
    elif kind is None or count is None or count < 1:
        notes.refuse(f"{where} needs a type and a count of at least 1; it has {given}.")
    else:
        return kind, count
    return None
