"""The rows of the catalog as frozen dataclasses: an attribute is a column, `sources` the column `source`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import date

#: Status of a way to buy a machine: `contested` and `unverified` are accepted with a warning.
OFFERED = ("yes", "no", "contested", "unverified")
#: `Gpu.pytorch` of a GPU that needs nothing special.
ANY_PYTORCH = "any current build"


@dataclass(frozen=True)
class Source:
    """Where facts come from.

    Attributes:
        id: as used in the column `source` of every other file.
        what: the document or program.
        where: its address, without scheme.
        as_of: the day the facts describe; None if the source does not say.
    """

    id: str
    what: str
    where: str
    as_of: date | None


@dataclass(frozen=True, kw_only=True)
class Fact:
    """The provenance of a row, in its last two columns.

    Attributes:
        unverified: names of the other attributes that are not verified.
        sources: ids of the sources.
    """

    unverified: tuple[str, ...]
    sources: tuple[str, ...]


@dataclass(frozen=True)
class Gpu(Fact):
    """One GPU that Vertex AI training has, or had, an accelerator type for.

    Attributes:
        name: its name in a specification, e.g. `h100`.
        enum: `google.cloud.aiplatform_v1.AcceleratorType`, e.g. `NVIDIA_H100_80GB`.
        product: NVIDIA's name.
        compute_engine_name: accelerator type of Compute Engine, e.g. `nvidia-h100-80gb`.
        gke_label: value of the node label `cloud.google.com/gke-accelerator`.
        device_name: words that NVIDIA's driver has in the name of the device, e.g. `H100`.
        aliases: further names that are accepted.
        ends: day of its end of support, when its machines are shut down; None if none is announced.
        replacements: names of the GPUs to take after that.
        flex_start: whether Flex-start takes it.
        architecture: e.g. `Hopper`.
        compute_capability: e.g. `9.0`.
        memory_gb: memory of one GPU, GB.
        memory_bandwidth_gb_s: GB/s.
        bf16_tflops: dense (not sparse) tensor TFLOP/s; None before Ampere, which has no bf16.
        fp16_tflops: dense tensor TFLOP/s; None without tensor cores.
        fp32_tflops: TFLOP/s outside the tensor cores.
        nvlink: whether the GPUs of one machine are joined by NVLink.
        link_gb_s: what one GPU can send to the others of its machine, GB/s in one direction: NVLink, or PCIe.
        mfu: model FLOPs utilization that published trainings of transformers reach on it, 0 to 1.
        note: anything else to know about the hardware.
        min_cuda: first CUDA toolkit that compiles for it.
        last_cuda: last such toolkit; empty while current ones do.
        pytorch_build: the build of PyTorch it needs, e.g. `cu126`; empty if the default one runs.
        pytorch: the same in words.
        training_metric: Vertex AI quota of standard and reserved jobs.
        spot_metric: Vertex AI quota of Spot and Flex-start jobs.
        serving_metric: Vertex AI quota of predictions.
        compiled: what compiled pipelines are published for, as names of files have it: `8`, `8-4-nodes`, `2-spot`.
        most_used: those of them that are used most.
    """

    name: str
    enum: str
    product: str
    compute_engine_name: str
    gke_label: str
    device_name: str
    aliases: tuple[str, ...]
    ends: date | None
    replacements: tuple[str, ...]
    flex_start: bool
    architecture: str
    compute_capability: str
    memory_gb: int
    memory_bandwidth_gb_s: int
    bf16_tflops: float | None
    fp16_tflops: float | None
    fp32_tflops: float
    nvlink: bool
    link_gb_s: int
    mfu: float
    note: str
    min_cuda: str
    last_cuda: str
    pytorch_build: str
    pytorch: str
    training_metric: str
    spot_metric: str
    serving_metric: str
    compiled: tuple[str, ...]
    most_used: tuple[str, ...]

    def has_ended(self, today: date) -> bool:
        """Whether its machines are shut down on that day."""
        return self.ends is not None and today >= self.ends

    def cut_into(self, partition: GpuPartition) -> Gpu:
        """The GPU as a job with a partition of it sees it: less memory, and a share of the speed.

        Nobody has published how fast a training is there. Other partitions do not slow it down, as they are idle.
        """
        memory = partition.memory_gb / self.memory_gb
        scaled = {
            name: round(value * partition.share, 2)
            for name in ("bf16_tflops", "fp16_tflops", "fp32_tflops")
            if (value := getattr(self, name)) is not None
        }
        return replace(
            self,
            memory_gb=partition.memory_gb,
            memory_bandwidth_gb_s=round(self.memory_bandwidth_gb_s * min(memory, 1.0)),
            nvlink=False,
            unverified=tuple(dict.fromkeys([*self.unverified, "mfu", "memory_bandwidth_gb_s", *scaled])),
            **scaled,
        )

    @property
    def supports_bf16(self) -> bool:
        """Whether its tensor cores compute in bfloat16 (Ampere and later)."""
        return self.bf16_tflops is not None


@dataclass(frozen=True)
class GpuPartition(Fact):
    """A part that a GPU can be cut into (NVIDIA's Multi-Instance GPU).

    Attributes:
        gpu: name of the GPU.
        size: `MachineSpec.gpu_partition_size`, e.g. `1g.5gb`.
        share: of the GPU's multiprocessors, 0 to 1.
        memory_gb: memory of one partition, GB.
        partitions: number of parts that the GPU is cut into.
    """

    gpu: str
    size: str
    share: float
    memory_gb: int
    partitions: int


@dataclass(frozen=True)
class ElsewhereGpu(Fact):
    """A GPU that people ask for and Vertex AI training does not have.

    Attributes:
        name: its name in a specification, e.g. `rtx-4090`.
        product: NVIDIA's name.
        aliases: further names for it.
        kind: what sort of product it is, e.g. `consumer card`.
        memory_gb: GB.
        memory_bandwidth_gb_s: GB/s.
        bf16_tflops: dense tensor TFLOP/s with float32 accumulation.
        reason: why it is not available; empty means that Google Cloud has none at all.
        instead: names of GPUs to take; empty means that they are chosen by memory and speed.
    """

    name: str
    product: str
    aliases: tuple[str, ...]
    kind: str
    memory_gb: int
    memory_bandwidth_gb_s: int
    bf16_tflops: float
    reason: str
    instead: tuple[str, ...]


@dataclass(frozen=True)
class MachineType(Fact):
    """A machine type that Vertex AI training accepts with GPUs.

    Attributes:
        name: e.g. `a3-highgpu-8g`.
        family: name by which regions, and prices of its parts, are listed, e.g. `a3-highgpu`.
        gpu_counts: GPU name → the numbers of that GPU it takes in training.
        attached: whether GPUs of several kinds can be attached to it, paid for besides its vCPUs and memory; else a
            fixed number of one kind is part of the machine and of its price.
        vcpus: vCPUs.
        memory_gb: main memory, GB.
        local_ssd_gb: bundled local SSD, GB.
        network_gbps: greatest network bandwidth, Gbit/s; None if the facts have no figure for any GPUs.
        network_gbps_with: the same by GPU and number, if it depends on them.
        interfaces: network interfaces that it has on Google's pages; None if the facts have no figure.
        nic: type of network interface it must have, as Compute Engine names it; empty where the image may decide.
        gpudirect: network by which its GPUs reach those of other machines past the processor; empty if there is none.
        rdma: whether some of its interfaces are only for that, by RDMA.
        standard, spot, flex_start, reservation: whether it is sold that way, one of `OFFERED`.
        boot_disk: type of boot disk it starts from.
        host_architecture: `amd64` or `arm64`; what the container image must be built for.
        note: anything else to know.
    """

    name: str
    family: str
    gpu_counts: Mapping[str, tuple[int, ...]] = field(hash=False)
    attached: bool
    vcpus: int
    memory_gb: float
    local_ssd_gb: int
    network_gbps: int | None
    network_gbps_with: Mapping[tuple[str, int], int] = field(hash=False)
    interfaces: int | None
    nic: str
    gpudirect: str
    rdma: bool
    standard: str = field(metadata={"choices": OFFERED})
    spot: str = field(metadata={"choices": OFFERED})
    flex_start: str = field(metadata={"choices": OFFERED})
    reservation: str = field(metadata={"choices": OFFERED})
    boot_disk: str = field(metadata={"choices": ("pd-ssd", "hyperdisk-balanced")})
    host_architecture: str = field(metadata={"choices": ("amd64", "arm64")})
    note: str

    def network_with(self, gpu: str, count: int) -> int | None:
        """Greatest network bandwidth with that many of that GPU, Gbit/s; None if the facts have no figure."""
        return self.network_gbps_with.get((gpu, count), self.network_gbps)

    def takes(self, gpu: str, count: int) -> bool:
        """Whether training runs on this machine with that many of that GPU."""
        return count in self.gpu_counts.get(gpu, ())

    def offered(self, strategy: str) -> str:
        """Status of buying by `strategy` (`flex-start`, …), one of `OFFERED`."""
        return str(getattr(self, strategy.replace("-", "_")))


@dataclass(frozen=True)
class UnusableMachineType(Fact):
    """A GPU machine type of Compute Engine that Vertex AI training does not take.

    Attributes:
        name: e.g. `a3-edgegpu-8g`.
        family: name by which regions are listed.
        gpu: name of its GPU, which need not be in the catalog.
        gpu_count: as Compute Engine writes it; may be a fraction.
        vcpus: vCPUs.
        memory_gb: main memory, GB.
        reason: why training does not take it.
        instead: machine type to take.
    """

    name: str
    family: str
    gpu: str
    gpu_count: str
    vcpus: int
    memory_gb: float
    reason: str
    instead: str


@dataclass(frozen=True)
class HostLimit(Fact):
    """The largest machine that a number of attached GPUs can carry.

    Attributes:
        gpu: name of the GPU.
        count: number of GPUs.
        max_vcpus: most vCPUs.
        max_memory_gb: most main memory, GB.
    """

    gpu: str
    count: int
    max_vcpus: int
    max_memory_gb: float


@dataclass(frozen=True)
class Region(Fact):
    """A region of Google Cloud.

    Attributes:
        name: e.g. `europe-west4`.
        place: where it is.
        latitude, longitude: degrees, rough; used only to say which region is nearer.
        vertex_training: `yes`; `no`; or `sdk-only`: only the SDK's list has it, gcloud's does not.
    """

    name: str
    place: str
    latitude: float
    longitude: float
    vertex_training: str = field(metadata={"choices": ("yes", "no", "sdk-only")})


@dataclass(frozen=True)
class Availability(Fact):
    """A GPU in a region of Compute Engine.

    Attributes:
        gpu: name of the GPU.
        region: name of the region.
        zones: zones that have it; empty if they are not known.
        machine_families: families of machine types it is there on; empty if none is.
    """

    gpu: str
    region: str
    zones: tuple[str, ...]
    machine_families: tuple[str, ...]


@dataclass(frozen=True)
class Price(Fact):
    """A list price of Compute Engine, US dollars per hour.

    Attributes:
        item: a machine type (GPUs and bundled SSD included), a GPU, or a family whose machines have GPUs attached.
        unit: what one of `item` is: `machine`, `gpu`, `vcpu` or `memory_gb`.
        region: name of the region.
        on_demand: USD per hour on demand; None if no trustworthy figure was found.
        spot: USD per hour on Spot, which moves from month to month.
        unverified: `on_demand` or `spot` where that figure is not verified.
    """

    item: str
    unit: str = field(metadata={"choices": ("machine", "gpu", "vcpu", "memory_gb")})
    region: str
    on_demand: float | None
    spot: float | None


@dataclass(frozen=True)
class SkuName(Fact):
    """The resource of a SKU of Compute Engine's price list.

    Attributes:
        sku: beginning of its description, without `Spot Preemptible` and without the place.
        resource: `vcpu`, `memory_gb`, `gpu` or `local_ssd_gb`.
        machine_families: families of machine types that are billed by it.
        gpu: name of the GPU; empty for the others.
    """

    sku: str
    resource: str = field(metadata={"choices": ("vcpu", "memory_gb", "gpu", "local_ssd_gb")})
    machine_families: tuple[str, ...]
    gpu: str


@dataclass(frozen=True)
class CpuFamily(Fact):
    """Machine types that training takes without GPUs.

    Attributes:
        family: their names without the size, e.g. `n2-standard`.
        sizes: `any`, which is left to the service; or `listed`: those that machine_types.csv has.
    """

    family: str
    sizes: str = field(metadata={"choices": ("any", "listed")})
