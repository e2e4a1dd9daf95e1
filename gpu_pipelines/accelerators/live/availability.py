"""Where the GPUs are, from the Compute Engine API: which zones have which accelerator and which machine types."""

from __future__ import annotations

from collections import defaultdict

from gpu_pipelines.accelerators.catalog import Availability, Catalog
from gpu_pipelines.accelerators.live.clients import Clients, api_errors

SOURCE = "compute-engine-api"
#: GPU → zone → families of machine types there.
Places = dict[str, dict[str, set[str]]]


def read_places(catalog: Catalog, clients: Clients) -> Places:
    """Reads the zones of every GPU of the catalog.

    Raises:
        UserError: if the API cannot be read.
    """
    gpus = {gpu.compute_engine_name: gpu.name for gpu in catalog.gpus.values()}
    attached: dict[str, set[str]] = defaultdict(set)
    families = {machine.name: machine.family for machine in catalog.unusable_machine_types.values()}
    for machine in catalog.machine_types.values():
        if machine.attached:
            for gpu in machine.gpu_counts:
                attached[gpu].add(machine.family)
        else:
            families[machine.name] = machine.family
    series = sorted({name.partition("-")[0] for name in families})
    places: Places = defaultdict(lambda: defaultdict(set))
    with api_errors(f"The machine types of {clients.project}", "the role Compute Viewer and the API compute"):
        for zone, listed in clients.accelerator_types().aggregated_list(request={"project": clients.project}):
            for accelerator in listed.accelerator_types:
                name = gpus.get(accelerator.name)
                if name is not None:
                    places[name][_zone(zone)] |= attached[name]
        request = {"project": clients.project, "filter": f"name eq '({'|'.join(series)})-.*'"}
        for zone, machines in clients.machine_types().aggregated_list(request=request):
            for machine in machines.machine_types:
                for accelerator in machine.accelerators:
                    name = gpus.get(accelerator.guest_accelerator_type)
                    if name is not None:
                        # Of a machine that the catalog does not have, only the zone is of use.
                        places[name][_zone(zone)] |= {families[machine.name]} if machine.name in families else set()
    return places


def availability_of(places: Places, catalog: Catalog) -> tuple[list[Availability], list[str]]:
    """The places as rows of availability.csv, and the regions that regions.csv does not have yet.

    Zones are those where a machine that training takes has the GPU; if there is none, all that list the GPU.
    """
    families = {machine.family for machine in catalog.machine_types.values()}
    rows, unknown = [], set()
    for gpu, zones in places.items():
        by_region: dict[str, dict[str, set[str]]] = defaultdict(dict)
        for zone, found in zones.items():
            by_region[zone.rpartition("-")[0]][zone] = found
        for region, here in by_region.items():
            if region not in catalog.regions:
                unknown.add(region)
                continue
            usable = [zone for zone, found in here.items() if found & families]
            rows.append(
                Availability(
                    gpu=gpu,
                    region=region,
                    zones=tuple(sorted(usable or here)),
                    machine_families=tuple(sorted(set().union(*here.values()))),
                    unverified=(),
                    sources=(SOURCE,),
                )
            )
    return rows, sorted(unknown)


def _zone(scope: str) -> str:
    """`zones/us-central1-a` → `us-central1-a`."""
    return scope.rpartition("/")[2]
