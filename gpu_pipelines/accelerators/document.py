"""Writes the tables of docs/accelerators.md from the catalog: `python -m gpu_pipelines.accelerators.document`.

The prose of the page is written by hand; the text between two markers is replaced.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from gpu_pipelines.accelerators.catalog import Catalog, MachineType
from gpu_pipelines.accelerators.placement import usable_regions
from gpu_pipelines.accelerators.request import STRATEGIES

PAGE = Path("docs/accelerators.md")
_MARKED = re.compile(r"(?P<start><!-- table: (?P<name>[a-z0-9-]+) -->\n).*?(?P<end><!-- end -->)", re.DOTALL)


def render(text: str, catalog: Catalog) -> str:
    """The page with every marked table renewed.

    Args:
        text: the page.
        catalog: the facts.

    Raises:
        KeyError: if a marker names no table.
    """
    return _MARKED.sub(lambda match: f"{match['start']}{TABLES[match['name']](catalog)}\n{match['end']}", text)


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _gpus(catalog: Catalog) -> str:
    rows = []
    for gpu in catalog.gpus.values():
        unverified = set(gpu.unverified)

        def told(value: object, field: str, marks: set[str] = unverified) -> str:
            text = "–" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
            return f"{text}\\*" if field in marks and value is not None else text

        rows.append(
            [
                f"`{gpu.name}`",
                f"`{gpu.enum}`",
                told(gpu.memory_gb, "memory_gb"),
                told(gpu.memory_bandwidth_gb_s, "memory_bandwidth_gb_s"),
                told(gpu.bf16_tflops, "bf16_tflops"),
                told(gpu.fp16_tflops, "fp16_tflops"),
                told(gpu.compute_capability, "compute_capability"),
                ", ".join(map(str, catalog.counts(gpu.name))),
                "yes" if gpu.flex_start else "no",
                f"{gpu.ends}; take {' or '.join(gpu.replacements)}" if gpu.ends else "",
            ]
        )
    header = ["name", "accelerator type", "GB", "GB/s", "bf16 TFLOP/s", "fp16 TFLOP/s", "capability", "per machine"]
    return _table([*header, "Flex-start", "ends"], rows)


def _software(catalog: Catalog) -> str:
    rows = [
        [
            f"`{gpu.name}`",
            gpu.architecture,
            f"{gpu.min_cuda}{chr(92) + '*' if 'min_cuda' in gpu.unverified else ''}",
            gpu.last_cuda or "current",
            gpu.pytorch,
        ]
        for gpu in catalog.gpus.values()
    ]
    return _table(["name", "architecture", "first CUDA", "last CUDA", "PyTorch"], rows)


def _machines(catalog: Catalog) -> str:
    machines = [machine for machine in catalog.machine_types.values() if not machine.attached]
    rows = [[*_carried(machine), *_size(machine), *_bought(machine)] for machine in machines]
    header = ["machine type", "GPUs", "vCPUs", "GB", "local SSD GB", "Gbit/s", *STRATEGIES, "boot disk"]
    return _table(header, rows)


def _carried(machine: MachineType) -> list[str]:
    ((gpu, counts),) = machine.gpu_counts.items()
    return [f"`{machine.name}`", f"{counts[0]} × {gpu}"]


def _size(machine: MachineType) -> list[str]:
    return [str(machine.vcpus), f"{machine.memory_gb:g}", str(machine.local_ssd_gb), str(machine.network_gbps or "–")]


def _bought(machine: MachineType) -> list[str]:
    mark = "\\*" if "boot_disk" in machine.unverified else ""
    return [*(machine.offered(strategy) for strategy in STRATEGIES), f"{machine.boot_disk}{mark}"]


def _attached(catalog: Catalog) -> str:
    machines = [machine for machine in catalog.machine_types.values() if machine.attached]
    gpus = list(dict.fromkeys(gpu for machine in machines for gpu in machine.gpu_counts))
    rows = [
        [
            f"`{machine.name}`",
            str(machine.vcpus),
            f"{machine.memory_gb:g}",
            *(", ".join(map(str, machine.gpu_counts.get(gpu, ()))) for gpu in gpus),
        ]
        for machine in machines
    ]
    return _table(["machine type", "vCPUs", "GB", *gpus], rows)


def _regions(catalog: Catalog) -> str:
    offered = {gpu: set(usable_regions(catalog, gpu, catalog.machines_with(gpu))) for gpu in catalog.gpus}
    # The day of the facts, and not today: the page must not change by itself.
    day = max(source.as_of for source in catalog.sources.values() if source.as_of)
    shown = [gpu for gpu in catalog.gpus.values() if offered[gpu.name] and not gpu.has_ended(day)]
    rows = [
        [f"`{region}`", catalog.regions[region].place, *("●" if region in offered[gpu.name] else "" for gpu in shown)]
        for region in sorted(catalog.regions)
        if any(region in offered[gpu.name] for gpu in shown)
    ]
    return _table(["region", "place", *(gpu.name for gpu in shown)], rows)


def _elsewhere(catalog: Catalog) -> str:
    rows = [
        [f"`{gpu.name}`", gpu.kind, str(gpu.memory_gb), str(gpu.memory_bandwidth_gb_s), f"{gpu.bf16_tflops:g}"]
        for gpu in catalog.elsewhere.values()
    ]
    return _table(["name", "what it is", "GB", "GB/s", "bf16 TFLOP/s"], rows)


def _sources(catalog: Catalog) -> str:
    rows = [
        [f"`{source.id}`", source.what, source.where, str(source.as_of or "no date")]
        for source in catalog.sources.values()
    ]
    return _table(["id", "what", "where", "as of"], rows)


TABLES: dict[str, Callable[[Catalog], str]] = {
    "gpus": _gpus,
    "software": _software,
    "machines": _machines,
    "n1": _attached,
    "regions": _regions,
    "elsewhere": _elsewhere,
    "sources": _sources,
}


def main(arguments: Sequence[str]) -> int:
    """Writes the page, or with `--check` says whether it is up to date (0) or not (1)."""
    text = PAGE.read_text(encoding="utf-8")
    # The packaged facts, whatever the environment overlays them with.
    made = render(text, Catalog())
    if "--check" in arguments:
        if made != text:
            print(f"{PAGE} is not what the catalog says; run python -m gpu_pipelines.accelerators.document.")
        return int(made != text)
    PAGE.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
