"""What a machine file says of slow memory: emulated, a memory node, memory behind DAX, or the host's beside a GPU's."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from autotm.model.files import BadInputError
from autotm.model.step import Limit

Reality = Literal["real", "emulated", "modelled", "stand-in"]
"""`stand-in`: ordinary memory in the place of slow memory, nothing slower, to try autotm out."""

Node = Annotated[int, Field(ge=0)]
Nodes = Annotated[tuple[Node, ...], Field(min_length=1)]
HugePages = Literal["transparent", "reserved", "none"]
Products = Literal["float32", "tf32", "bf16"]
"""What factors of contractions may be rounded to on a GPU; float32: not at all. Sums are float32 in any case."""


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
    capacity: str | None = Field(
        None, description="slow memory that runs may take, such as 64GB; null = as much as there is"
    )

    @model_validator(mode="after")
    def _capacity_is_a_size(self) -> Self:
        if self.capacity is not None and not size_bytes(self.capacity):
            raise ValueError(f"capacity: '{self.capacity}' is no size; give bytes such as 64GB or 64GiB")
        return self

    @property
    def capacity_bytes(self) -> int | None:
        """Size of slow memory that runs may take, if it is limited."""
        return None if self.capacity is None else size_bytes(self.capacity)

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
    overhead: str | None = Field(
        None,
        description="device memory set aside for the driver and its libraries, such as 800MB; null = what is measured",
    )
    capacity: str | None = Field(
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

    @model_validator(mode="after")
    def _sizes_are_sizes(self) -> Self:
        for name, text in (("overhead", self.overhead), ("capacity", self.capacity)):
            if text is not None and not size_bytes(text):
                raise ValueError(f"{name}: '{text}' is no size; give bytes such as 800MB or 64GiB")
        return self

    @property
    def overhead_bytes(self) -> int | None:
        """Device memory set aside, if the file says so."""
        return None if self.overhead is None else size_bytes(self.overhead)

    @property
    def capacity_bytes(self) -> int | None:
        """Host memory that runs may pin, if it is limited."""
        return None if self.capacity is None else size_bytes(self.capacity)


class ModelledTier(_Strict):
    """A GPU that is not here: kernels and copies have times computed from its published facts; nothing ever runs."""

    reality: ClassVar[Reality] = "modelled"
    fast_nodes: ClassVar[None] = None

    kind: Literal["modelled"] = Field(description="of slow memory: no machine, a model of one")
    device: str = Field(description="name of a file in config/devices/gpu, without .yaml")


AnyTier = EmulatedTier | NumaTier | DaxTier | CudaTier | ModelledTier


def deciding(tier: AnyTier) -> dict[str, Any]:
    """What of it decides a measurement, as JSON: how much of it runs may take, and what they may risk, does not."""
    return tier.model_dump(mode="json", exclude={"capacity", "managed_oversubscription"})


SlowTier = Annotated[AnyTier, Field(discriminator="kind")]


def size_bytes(text: str) -> int:
    """Bytes of a size such as 192GB; 0 where it is none."""
    try:
        limit = Limit.parse(text)
    except BadInputError:
        return 0
    return 0 if limit.less_io or limit.size_bytes is None else limit.size_bytes
