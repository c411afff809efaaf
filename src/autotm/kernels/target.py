"""The target machine as schedules know it: vector width, registers, caches, and the tile sizes that follow."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import tvm
from tvm import tirx
from tvm.target import codegen

from autotm.model.errors import BadInputError
from autotm.model.machine import Machine

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_DEFAULT_L2_BYTES = 512 << 10  # Used where Linux does not tell.


@dataclass(frozen=True)
class TargetInfo:
    """The properties of one core that tile sizes depend on."""

    lanes: int
    """float32 lanes of one vector register."""
    registers: int
    """Architectural vector registers."""
    l2_bytes: int
    """Second-level cache of one core."""


def host_target(threads: int | None = None) -> tvm.target.Target:
    """Return the LLVM target of this host's CPU; `num-cores` is `threads`, or the cores this process may use."""
    cores = threads if threads is not None else len(os.sched_getaffinity(0))
    return tvm.target.Target({"kind": "llvm", "mcpu": str(codegen.llvm_get_system_cpu()), "num-cores": cores})


def machine_target(machine: Machine) -> tvm.target.Target:
    """Return the target that a machine file names: this host's CPU, or a TVM target string.

    Raises:
        BadInputError: TVM does not know the target.
    """
    if machine.target == "host":
        return host_target(machine.threads)
    try:
        return tvm.target.Target(machine.target)
    except (ValueError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[-1]
        raise BadInputError(
            f"machine '{machine.name}': target: {machine.target!r} is not a TVM target ({reason}); give host, or e.g. "
            '\'{"kind": "llvm", "mcpu": "haswell"}\''
        ) from None


@functools.cache
def target_info(target: tvm.target.Target) -> TargetInfo:
    """Return the vector width and registers from the target's CPU features, the cache's size from the host.

    The `mcpu` decides the instruction set, so that an AVX2 target can be compiled and run on an AVX-512 host.
    """
    if codegen.target_has_features("avx512f", target):
        lanes, registers = 16, 32
    elif codegen.target_has_features("avx", target):
        lanes, registers = 8, 16
    else:
        lanes, registers = 4, 32 if "aarch64" in str(target.attrs.get("mtriple", "")) else 16
    return TargetInfo(lanes, registers, _l2_bytes())


@functools.cache
def _l2_bytes() -> int:
    for index in sorted(_CACHES.glob("index*")):
        try:
            level, kind, size = ((index / name).read_text().strip() for name in ("level", "type", "size"))
        except OSError:
            continue
        if level == "2" and kind in {"Data", "Unified"}:
            # Hypervisors may state 0: the schedules divide by this size.
            return (int(size[:-1]) * _UNITS[size[-1]] if size[-1] in _UNITS else int(size)) or _DEFAULT_L2_BYTES
    return _DEFAULT_L2_BYTES


_VECTOR_FLAGS = frozenset(
    {"pni", "ssse3", "sse4_1", "sse4_2", "avx", "avx2", "fma", "f16c", "bmi1", "bmi2", "avx512f", "avx512bw"}
    | {"avx512cd", "avx512dq", "avx512vl", "avx512ifma", "avx512vbmi"}
)
_LINUX_NAMES = {"sse4.1": "sse4_1", "sse4.2": "sse4_2", "sse3": "pni", "bmi": "bmi1"}


def cpu_flags(target: tvm.target.Target) -> list[str]:
    """Return the vector instructions that code for a CPU target may use, as Linux names them in /proc/cpuinfo.

    Of those that LLVM names otherwise, the ones that generated kernels can meet are translated.
    """
    flags = {_LINUX_NAMES.get(name, name) for name in map(str, codegen.llvm_get_cpu_features(target))}
    return sorted(flags & _VECTOR_FLAGS)


# Static cost rules: how a contraction's result is cut into register tiles. No tuning, no timing.

_FMA_PER_CYCLE = 2  # Vector multiply-add units of a core.
_LOADS_PER_CYCLE = 2  # Load ports of such a core.
_FMA_LATENCY = 4  # Cycles.
_TILE_OVERHEAD_CYCLES = 40  # Entry and exit of the loops around a tile.
CHAIN_STEPS = 1024
"""Products added one after the other into one float32 sum before it is added to a total: keeps rounding small."""


@dataclass(frozen=True)
class Cut:
    """An extent cut into `count` nearly equal pieces: the first `longer` of `size`, the rest one shorter."""

    extent: int
    count: int

    @property
    def size(self) -> int:
        """Length of the longer pieces."""
        return -(-self.extent // self.count)

    @property
    def longer(self) -> int:
        """How many pieces have the full length."""
        return self.extent - (self.size - 1) * self.count

    def counts(self) -> tuple[tuple[int, int], ...]:
        """Return the different lengths, longest first, and how many pieces have each."""
        rest = self.count - self.longer
        return ((self.size, self.longer), (self.size - 1, rest)) if rest else ((self.size, self.longer),)


def cut(extent: int, largest: int) -> Cut:
    """Return the fewest nearly equal pieces no longer than `largest`."""
    return Cut(extent, -(-extent // max(1, min(largest, extent))))


@dataclass(frozen=True)
class Tiles:
    """Register tile: `rows` x `columns` scalars of one operand times vectors of the other."""

    rows: Cut
    columns: Cut
    vectors: Cut


@functools.lru_cache(maxsize=4096)
def register_tiles(rows: int, columns: int, features: int, steps: int, info: TargetInfo) -> Tiles:
    """Return the tiles of a (rows, columns, features) result with the least estimated cycles for `steps` products."""
    vectors = -(-features // info.lanes)

    def cycles(tiles: Tiles) -> float:
        pieces = product(tiles.rows.counts(), tiles.columns.counts(), tiles.vectors.counts())
        return sum(
            down * across * count * tile_cycles(height * width, size, steps)
            for (height, down), (width, across), (size, count) in pieces
        )

    return min(_candidates(rows, columns, vectors, info), key=cycles)


def tile_cycles(scalars: int, vectors: int, steps: int) -> float:
    """Estimate the cycles of a register tile: bound by FMA units, load ports or FMA latency, plus entry and exit."""
    step = max(scalars * vectors / _FMA_PER_CYCLE, (scalars + vectors) / _LOADS_PER_CYCLE, float(_FMA_LATENCY))
    return steps * step + _TILE_OVERHEAD_CYCLES + 2 * scalars * vectors


def _candidates(rows: int, columns: int, vectors: int, info: TargetInfo) -> Iterator[Tiles]:
    for width in range(1, min(vectors, 6) + 1):
        largest = (info.registers - 1) // width - 1
        for column in {cut(columns, size).count: cut(columns, size) for size in range(1, largest + 1)}.values():
            heights = range(1, min(rows, largest // column.size) + 1) if column.count == 1 else (1,)
            for height in heights:
                yield Tiles(cut(rows, height), column, cut(vectors, width))


# Choices common to the schedules of memory-bound kernels: vector tiles, and what is worth more than one thread.

PARALLEL_BYTES = 128 << 10
"""Kernels that touch less than this stay on one thread: waking the others costs some microseconds."""

_VECTORS_PER_TILE = 4  # Registers that hold sums, at most.


@dataclass(frozen=True)
class Parallelism:
    """The target machine for schedules of memory-bound kernels: threads, and float32 lanes of a vector."""

    threads: int
    lanes: int

    def is_parallel(self, touched: Mapping[tirx.Buffer, int]) -> bool:
        """Return whether a kernel that touches so many bytes of buffers is worth waking the other threads."""
        return self.threads > 1 and sum(touched.values()) >= PARALLEL_BYTES

    def vector(self, extent: int) -> int:
        """Return how many elements of a contiguous axis are one vector: its largest divisor that a register holds."""
        return next(size for size in range(min(self.lanes, extent), 0, -1) if extent % size == 0)

    def tile(self, extent: int) -> int | None:
        """Return how many elements of an axis registers keep: a divisor of `extent`, whole vectors if possible.

        None where no divisor fills a vector at least half: such an axis is best left to the compiler in one piece.
        """
        if extent <= self.lanes:
            return extent
        limit = min(extent, self.lanes * _VECTORS_PER_TILE)
        sizes = [size for size in range(1, limit + 1) if extent % size == 0 and self.vector(size) >= self.lanes // 2]
        return max(sizes, key=lambda size: (self.vector(size), size), default=None)


def divisor_near(extent: int, wanted: float) -> int:
    """Return the divisor of `extent` nearest to `wanted` by ratio."""
    small = [size for size in range(1, math.isqrt(extent) + 1) if extent % size == 0]
    divisors = small + [extent // size for size in small]
    return min(divisors, key=lambda size: max(size / wanted, wanted / size))
