"""A machine file: its fast and slow memory, the cores that run kernels, and which optimizers can run on it.

Slow memory is emulated, a memory node, behind DAX, or the host's beside a GPU's, which may be modelled.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from autotm.model.cores import CoreChoice
from autotm.model.errors import BadInputError, validated
from autotm.model.files import read_yaml
from autotm.model.limit import ALL_FAST, Limit
from autotm.model.slurm import SlurmNode, allocation
from autotm.model.system import SystemMemory

Reality = Literal["real", "emulated", "modelled", "stand-in"]
"""`stand-in`: ordinary memory in the place of slow memory, nothing slower, to try autotm out."""

Node = Annotated[int, Field(ge=0)]
Nodes = Annotated[tuple[Node, ...], Field(min_length=1)]
HugePages = Literal["transparent", "reserved", "none"]
Products = Literal["float32", "tf32", "bf16"]
"""Types that factors of contractions may be rounded to on a GPU; `float32` rounds nothing. Sums are always float32."""


def size_bytes(text: str | None) -> int | None:
    """Return the bytes of a size such as 192GB; None where there is none."""
    return None if text is None else Limit.parse(text).size_bytes


def _has_bytes(text: str) -> str:
    try:
        limit = Limit.parse(text)
    except BadInputError:
        limit = ALL_FAST
    if not limit.size_bytes or limit.less_io:
        raise ValueError("it is no size; give bytes such as 192GB or 64GiB")
    return text


Size = Annotated[str, AfterValidator(_has_bytes)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class EmulatedTier(_Strict):
    """Slow memory made of DRAM and delays (`docs/emulation.md`)."""

    reality: ClassVar[Reality] = "emulated"
    fast_nodes: ClassVar[None] = None

    kind: Literal["emulated"] = Field(description="of slow memory: a module of memory/kinds")
    device: str = Field(description="name of a file in config/devices, without .yaml")
    share: Literal["balanced", "whole"] = Field(
        "balanced",
        description="balanced: the device's delays are stretched by how much slower this process computes than the "
        "original socket did; whole: the device's constants as they are",
    )


class _Addressed(_Strict):
    """Slow memory that programs address: nothing of it is emulated."""

    stand_in: bool = Field(
        default=False,
        description="true: what is named here is no slow memory, only something to try autotm with; all results say so",
    )
    capacity: Size | None = Field(
        None, description="slow memory that runs may take, such as 64GB; null = as much as there is"
    )

    @property
    def capacity_bytes(self) -> int | None:
        """Size of slow memory that runs may take, if it is limited."""
        return size_bytes(self.capacity)

    @property
    def reality(self) -> Reality:
        """Whether it is slow memory, or stands in for it."""
        return "stand-in" if self.stand_in else "real"


class NumaTier(_Addressed):
    """Slow memory that is a memory node of Linux: CXL, persistent memory as system memory, another socket's memory."""

    kind: Literal["numa"] = Field(description="of slow memory: a module of memory/kinds")
    fast_nodes: Nodes = Field(description="memory nodes that are fast; kernels run on the cores next to them")
    slow_nodes: Nodes = Field(description="memory nodes that are slow")
    huge_pages: HugePages = Field(
        "transparent",
        description="of both pools: transparent = asked for with madvise; reserved = taken from those set aside on "
        "each node (vm.nr_hugepages), an error where there are too few; none = pages of 4 KiB",
    )

    @model_validator(mode="after")
    def _a_node_is_fast_or_slow(self) -> Self:
        both = sorted(set(self.fast_nodes) & set(self.slow_nodes))
        if both and not self.stand_in:
            raise ValueError(
                f"fast_nodes and slow_nodes both name {both}: a node is one or the other "
                "(stand_in: true allows it, to try autotm without slow memory)"
            )
        return self


class DaxTier(_Addressed):
    """Slow memory behind DAX: a file system on it, or a device such as /dev/dax0.0."""

    kind: Literal["dax"] = Field(description="of slow memory: a module of memory/kinds")
    path: str = Field(
        pattern="^/",
        description="a folder of a file system mounted with DAX, or a device such as /dev/dax0.0, whose contents "
        "runs overwrite; with stand_in any folder",
    )
    fast_nodes: Nodes | None = Field(
        None,
        description="memory nodes that are fast, with the cores that kernels run on; null = memory as Linux gives it",
    )
    huge_pages: Literal["transparent", "none"] = Field(
        "transparent", description="of the fast pool; whether the slow one has them is up to its file system or device"
    )


class CudaTier(_Strict):
    """A GPU's memory is fast, pinned memory of its host slow; kernels run on the GPU, and use fast memory only."""

    reality: ClassVar[Reality] = "real"
    fast_nodes: ClassVar[None] = None

    kind: Literal["cuda"] = Field(description="of slow memory: a module of memory/kinds")
    device_index: int = Field(0, ge=0, description="which of the GPUs that CUDA shows to this process")
    overhead: Size | None = Field(
        None,
        description="device memory set aside for the driver and its libraries, such as 800MB; null = what is measured",
    )
    capacity: Size | None = Field(
        None, description="host memory that runs may pin, such as 64GB; null = as much as the system gives"
    )
    products: Products = Field(
        "float32",
        description="what factors of convolutions and products of matrices are rounded to: float32 = nothing; tf32, "
        "bf16 = on tensor cores, by up to 2^-11 (tf32) or 2^-8 (bf16) of a factor, where the kernels' cost rule "
        "expects this to be faster; sums are float32. All results say so",
    )
    managed_oversubscription: bool = Field(
        default=False,
        description="whether optimizer managed-memory may have a pool beyond its device memory, which can hang a GPU",
    )

    @property
    def overhead_bytes(self) -> int | None:
        """Device memory set aside, if the file says so."""
        return size_bytes(self.overhead)

    @property
    def capacity_bytes(self) -> int | None:
        """Host memory that runs may pin, if it is limited."""
        return size_bytes(self.capacity)


class ModelledTier(_Strict):
    """A GPU that is not here: kernels and copies have times computed from its published facts; nothing ever runs."""

    reality: ClassVar[Reality] = "modelled"
    fast_nodes: ClassVar[None] = None

    kind: Literal["modelled"] = Field(description="of slow memory: no machine, a model of one")
    device: str = Field(description="name of a file in config/devices/gpu, without .yaml")


AnyTier = EmulatedTier | NumaTier | DaxTier | CudaTier | ModelledTier


def deciding(tier: AnyTier) -> dict[str, Any]:
    """Return a slow tier's settings that affect measurements, as JSON: all but its capacity and the risks it allows."""
    return tier.model_dump(mode="json", exclude={"capacity", "managed_oversubscription"})


SlowTier = Annotated[AnyTier, Field(discriminator="kind")]


# The published facts of a GPU that is modelled (`config/devices/gpu/NAME.yaml`), each with its source.


class _PublishedValue(_Strict):
    source: str = Field(min_length=1, description="where the numbers are from")


class GpuMemory(_PublishedValue):
    """A size."""

    size_bytes: float = Field(gt=0, description="of memory")


class GpuCompute(_PublishedValue):
    """The highest rate of computation."""

    flop_per_s: float = Field(gt=0, description="floating-point operations of float32, flop/s")
    half_flop_per_s: float | None = Field(
        None, gt=0, description="products of float16 and bfloat16 added up in float32; without it as float32, flop/s"
    )


class GpuBandwidth(_PublishedValue):
    """The highest bandwidth of kernels to the GPU's memory."""

    bytes_per_s: float = Field(gt=0, description="read and written together, bytes/s")


class GpuLaunch(_PublishedValue):
    """Time of a kernel launch, beside the kernel's work."""

    kernel_us: float = Field(ge=0, description="from the end of one kernel to the start of the next, us")


class GpuLink(_PublishedValue):
    """Copies between the GPU's memory and pinned memory of the host, one engine each way."""

    to_device_bytes_per_s: float = Field(gt=0, description="to the GPU, bytes/s")
    to_host_bytes_per_s: float = Field(gt=0, description="to the host, bytes/s")
    latency_us: float = Field(ge=0, description="of a copy of any size, us")


class GpuManagedMemory(_PublishedValue):
    """Memory that the driver moves by page faults (cudaMallocManaged)."""

    faulted_bytes_per_s: float = Field(gt=0, description="to the GPU, while a kernel waits for faults, bytes/s")
    block_bytes: int = Field(gt=0, description="that the driver moves back to the host as a whole")


class GpuFile(_Strict):
    """A GPU as its maker and others describe it."""

    description: str = Field(description="for people")
    memory: GpuMemory = Field(description="of the device")
    overhead: GpuMemory = Field(description="of it that is not there for tensors")
    compute: GpuCompute
    bandwidth: GpuBandwidth
    launch: GpuLaunch
    link: GpuLink
    managed: GpuManagedMemory


def load_gpu(devices_dir: Path, name: str) -> GpuFile:
    """Read `gpu/NAME.yaml` of the folder of device files.

    Raises:
        BadInputError: no such file, not YAML, an unknown key or a bad value.
    """
    path = devices_dir / "gpu" / f"{name}.yaml"
    return validated(GpuFile, read_yaml(path, "GPU"), path)


MODELLED_MACHINE = "modelled-"
"""How names of machines begin on which nothing runs."""


class MachineFile(_Strict):
    """The contents of config/machines/NAME.yaml."""

    description: str = Field(description="for people")
    threads: Literal["auto"] | Annotated[int, Field(ge=1)] = Field(
        "auto",
        description="kernel threads; auto = as many as cores allow, see threads_per_core, or all of `cpus`",
    )
    threads_per_core: int = Field(
        1, ge=1, le=8, description="kernel threads on a physical core: 1 leaves its other hardware threads idle"
    )
    socket: int | None = Field(None, ge=0, description="only cores of this socket, counted from 0")
    numa_node: int | None = Field(None, ge=0, description="only cores next to this memory node, counted from 0")
    cpus: Literal["auto"] | tuple[int, ...] = Field(
        "auto", description="hardware threads to pin to, by number, the first `threads` of them; auto = as above"
    )
    target: str = Field("host", description="TVM target of the kernels; host = this CPU")
    slow_tier: SlowTier = Field(description="what is slow memory, or plays it")
    slurm: SlurmNode | None = Field(
        None, description="of a machine that is a kind of node of a Slurm cluster: how jobs ask for one"
    )
    memory_mode: bool = Field(
        default=False,
        description="whether this machine was started in memory mode (2LM): its DRAM is a cache of persistent memory, "
        "all that programs see; optimizer memory-mode then runs the plain step and waits for nothing",
    )
    cache: Size | None = Field(
        None, description="with memory_mode: size of that DRAM, such as 192GB; memory-mode is then solved for no other"
    )

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        others = self.model_fields_set & {"threads_per_core", "socket", "numa_node"}
        if self.cpus != "auto" and others:
            raise ValueError(f"cpus names the cores itself: leave out {', '.join(sorted(others))}, or cpus")
        if self.slurm is not None and self.threads == "auto":
            raise ValueError("threads: auto cannot be counted from where jobs are sent; give a number beside slurm")
        if self.memory_mode and self.slow_tier.kind != "emulated":
            raise ValueError("memory_mode: its slow memory is behind a cache; give slow_tier kind emulated, or false")
        if self.cache is not None and not self.memory_mode:
            raise ValueError("cache is the DRAM of a machine in memory mode: leave it out, or set memory_mode: true")
        return self

    @property
    def cache_bytes(self) -> int | None:
        """Size of the real cache, if it is known."""
        return size_bytes(self.cache)


@dataclass(frozen=True)
class Machine:
    """A machine file with everything automatic resolved.

    Attributes:
        name: the file's name without .yaml.
        threads: kernel threads.
        cpus: the hardware threads they are pinned to, `threads` of them; none where `cores` is still to be chosen.
        target: `host` or a TVM target string.
        slow_tier: what is slow memory, or plays it.
        file_hash: hash of the machine file's text.
        memory_mode: whether its fast memory really is a cache of its slow memory (2LM).
        cache_bytes: size of that cache, if it is known.
        spare_cpus: the best of the hardware threads that the file allows beside `cpus`, if any.
        slurm: the kind of node of a Slurm cluster that it is, if it is one.
        cores: how `cpus` are chosen, where that waits for a job on such a node.
    """

    name: str
    threads: int
    cpus: tuple[int, ...]
    target: str
    slow_tier: AnyTier
    file_hash: str
    memory_mode: bool = False
    cache_bytes: int | None = None
    spare_cpus: tuple[int, ...] = ()
    slurm: SlurmNode | None = None
    cores: CoreChoice | None = None

    @property
    def copying_cpus(self) -> tuple[int, ...]:
        """Hardware threads for copies beside kernels: those without a kernel thread, or all where there are none."""
        return self.spare_cpus or self.cpus

    @property
    def slug(self) -> str:
        """The `{machine}` of paths: name and threads, so that thread counts stand side by side."""
        return f"{self.name}-{self.threads}t"

    @property
    def is_modelled(self) -> bool:
        """Whether the machine is a model, on which nothing runs and nothing is measured."""
        return isinstance(self.slow_tier, ModelledTier)

    @property
    def fast_operands_only(self) -> bool:
        """Whether kernels can use fast memory only (GPUs): tensors are slow between kernels."""
        return isinstance(self.slow_tier, CudaTier | ModelledTier)

    @property
    def products(self) -> Products:
        """The type that contractions may round their factors to."""
        return self.slow_tier.products if isinstance(self.slow_tier, CudaTier) else "float32"

    def to_measure_on(self) -> Machine:
        """Return the machine with cores of this computer, on which nothing but this job runs.

        Raises:
            BadInputError: it is a model; or a kind of Slurm node and this is no job, other jobs may run beside this
                one, or it has too few cores.
        """
        if self.is_modelled:
            raise BadInputError(
                f"config/machines/{self.name}.yaml: this machine is modelled: its times are computed, and nothing runs "
                "or is measured on it; ask for a machine with a GPU (kind: cuda), or for modelled.json"
            )
        job, file = allocation(), f"config/machines/{self.name}.yaml"
        if job is not None and job.is_shared and not (self.slurm and self.slurm.shared):
            raise BadInputError(
                f"Slurm job {job.job} has {job.cpus} of the {job.node_cpus} CPUs of node {job.node}, and other "
                "jobs may run beside it: their work would be timed as ours. Ask for a node of its own (slurm_extra: "
                "--exclusive, as profiles/slurm does for all that measures; sbatch --exclusive without Snakemake), or "
                f"allow it in {file}: slurm: {{shared: true}}"
            )
        if self.cores is None:
            return self
        if job is None:
            raise BadInputError(
                f"{file}: this machine is a kind of Slurm node, and this process no job on one: measure with "
                "snakemake --workflow-profile profiles/slurm, or within srun --exclusive; docs/cluster.md tells how"
            )
        cpus, spare = self.cores.here(self.threads, f"Slurm job {job.job} ({job.cpus} CPUs of {job.node})")
        return replace(self, cpus=cpus, spare_cpus=spare, cores=None)

    @property
    def tier_reality(self) -> Reality:
        """Whether slow memory is `real`, `emulated`, or ordinary memory that is its `stand-in`."""
        return self.slow_tier.reality

    def reality_of(self, *, cached: bool) -> Reality:
        """Return `tier_reality`, or `real` if a program's fast memory is a cache (`cached`) that the hardware has."""
        return "real" if cached and self.memory_mode else self.tier_reality


def load_machine(path: Path, threads: int | None = None, asked_in: object = None) -> Machine:
    """Read a machine file; `threads`, which `asked_in` asks for, overrides its thread count.

    Cores of a kind of Slurm node are chosen where its jobs run (`Machine.to_measure_on`).

    Raises:
        BadInputError: no such file, an unknown key, a bad value, or cores that this process may not use.
    """
    parsed = validated(MachineFile, read_yaml(path, "machine"), path)
    if (parsed.slow_tier.kind == "modelled") != path.stem.startswith(MODELLED_MACHINE):
        raise BadInputError(
            f"{path}: a machine of kind modelled, and no other, has a name that begins with {MODELLED_MACHINE}, so "
            "that every path says that its times were computed; rename the file, or give another kind"
        )
    count = threads or (None if parsed.threads == "auto" else parsed.threads)
    cores = CoreChoice(
        str(path),
        None if parsed.cpus == "auto" else parsed.cpus,
        parsed.threads_per_core,
        parsed.socket,
        parsed.numa_node,
        parsed.slow_tier.fast_nodes,
    )
    if parsed.slurm is not None and (count or 0) > (parsed.slurm.cpus or count or 0):
        raise BadInputError(
            f"{asked_in or path}: threads: {count} is not allowed: {path} says that such a node has "
            f"{parsed.slurm.cpus} CPUs (slurm: cpus)"
        )
    here = parsed.slurm is None
    cpus, spare = cores.here(count, (asked_in or path) if threads else path) if here else ((), ())
    return Machine(
        name=path.stem,
        threads=len(cpus) if here else count or 0,
        cpus=cpus,
        target=parsed.target,
        slow_tier=parsed.slow_tier,
        file_hash=hashlib.sha256(path.read_text(encoding="utf-8").encode()).hexdigest()[:16],
        memory_mode=parsed.memory_mode,
        cache_bytes=parsed.cache_bytes,
        spare_cpus=spare,
        slurm=parsed.slurm,
        cores=None if here else cores,
    )


# Which optimizers can run on a machine: real slow memory is no cache, and a kernel follows the policies that it has.
#
# Sources, of Linux: admin-guide/sysctl/kernel.rst (numa_balancing), ABI/testing/sysfs-kernel-mm-numa
# and sysfs-kernel-mm-mempolicy-weighted-interleave.

SWITCHES = {"proc/sys/kernel/numa_balancing": "2", "sys/kernel/mm/numa/demotion_enabled": "1"}
"""Settings that NUMA balancing of tiered memory requires: files below the root, and the value of each."""

_ON_GPUS = frozenset({"managed-memory", "lru-paging", "swap-all", "recompute", "save-on-cpu"})
_ELSEWHERE = "take another optimizer, or a machine whose slow memory is emulated"


def cannot_run(machine: Machine, optimizer: str, system: SystemMemory | None = None) -> str | None:
    """Return why programs of an optimizer cannot run on a machine's slow memory, and what helps; None where they can.

    Args:
        machine: of which only what its file says counts where its jobs run elsewhere (Slurm).
        optimizer: by name.
        system: the machine's memories, if not this computer's.
    """
    tier = machine.slow_tier
    if optimizer in _ON_GPUS:
        on_gpu, why = isinstance(tier, CudaTier), f"that is for GPUs, slow memory here is of kind {tier.kind}"
        return None if on_gpu else f"{why}; take another optimizer, or a machine of kind cuda"
    if isinstance(tier, EmulatedTier):
        return None
    if optimizer == "memory-mode":
        return f"fast memory is no cache of slow memory of kind {tier.kind}; {_ELSEWHERE}"
    return _of_linux(machine, tier, optimizer, system) if optimizer.startswith("linux-") else None


def _of_linux(machine: Machine, tier: AnyTier, optimizer: str, system: SystemMemory | None) -> str | None:
    if not isinstance(tier, NumaTier):
        where = "memory behind DAX" if isinstance(tier, DaxTier) else f"slow memory of kind {tier.kind}"
        return f"Linux places no pages in {where}; {_ELSEWHERE}"
    if both := sorted(set(tier.fast_nodes) & set(tier.slow_nodes)):
        return f"node {both[0]} is fast and slow (stand_in), which leaves Linux nothing to choose; {_ELSEWHERE}"
    if tier.huge_pages == "reserved":
        return "Linux places no huge pages that are set aside by these policies; huge_pages: transparent or none"
    return None if machine.cores is not None else kernel_lacks(optimizer, system or SystemMemory())


def kernel_lacks(optimizer: str, system: SystemMemory) -> str | None:
    """Return why the kernel of this computer cannot follow a policy, and what helps; None where it can."""
    if optimizer == "linux-weighted-interleave" and not system.knows_weights:
        return (
            "this kernel has no /sys/kernel/mm/mempolicy/weighted_interleave, Linux 6.9 is the first that has; "
            f"{_ELSEWHERE}"
        )
    if optimizer != "linux-balancing":
        return None
    for name, wanted in SWITCHES.items():
        text = system.setting(name)
        if text is None:
            return f"this kernel has no /{name}: it needs NUMA balancing and demotion, Linux 6.1 or later; {_ELSEWHERE}"
        if not is_switched(name, text) and not system.may_set(name):
            return (
                f"/{name} is {text}, it needs {wanted}, and this process may not write it; run as root: it is set for "
                "each run, and put back after it"
            )
    return None


def is_switched(name: str, text: str) -> bool:
    """Return whether a switch of `SWITCHES` with value `text` is on; bit 2 of NUMA balancing is tiered memory."""
    if name.endswith("numa_balancing"):
        return text.isdigit() and bool(int(text) & 2)
    return text in {"true", "1"}


def require_runnable(machine: Machine, optimizer: str) -> None:
    """Refuse what `cannot_run`.

    Raises:
        BadInputError: names optimizer and machine, and says why.
    """
    if reason := cannot_run(machine, optimizer):
        raise BadInputError(f"{optimizer} cannot run on config/machines/{machine.name}.yaml: {reason}")
