"""Kernel times by configuration, how predictions read them, and what a byte of slow memory costs a kernel.

Their file is `profile.parquet`, or `profile.json` where pyarrow is missing.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from autotm.model.errors import AutotmError
from autotm.model.files import SCHEMA_VERSION, damaged, read_json, require_version, write_atomically, write_json
from autotm.model.graph import (
    DEFAULT_IMPLEMENTATION,
    Configuration,
    Graph,
    Kernel,
    OpClass,
    all_fast,
    configuration,
    slow_traffic,
)

SURE_ERRORS = 2.0
"""Standard errors by which an implementation must differ from the default before the difference counts."""
TIE_NS = 1
"""Handicap of an implementation as fast as the default, ns: then only a smaller workspace speaks for it."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Repeated runs of one kernel in one configuration, in nanoseconds, after a warm-up.

    Its *reference* is, with slow operands, the same implementation all fast; all fast by another implementation than
    the default, the default all fast. The default all fast has none.

    Attributes:
        min_ns, median_ns, lower_quartile_ns, upper_quartile_ns: over the runs.
        repeats: number of runs; 0 where nothing ran: the time is modelled, or, in emulated slow memory, all fast and
            a known wait.
        beyond_ns: what it took beyond its reference, the median over rounds in which both ran; None where it has no
            reference or did not take turns with it.
        beyond_error_ns: standard error of `beyond_ns`; 0 where that is known and not measured.
        default_identity: of the kernel's default implementation, where this is another one that took turns with it.
        disturbed: whether others held the cores meanwhile, so that it is too long.
    """

    min_ns: int
    median_ns: int
    lower_quartile_ns: int
    upper_quartile_ns: int
    repeats: int
    beyond_ns: int | None = None
    beyond_error_ns: int = 0
    default_identity: str | None = None
    disturbed: bool = False


TimingKey = tuple[str, str, Configuration]
"""(kernel identity, implementation, configuration)."""


COMPARED_WITH = "compared_with"
"""The key under which provenance says what the step was compared with before it was timed."""


@dataclass(frozen=True)
class Profile:
    """Times of every distinct kernel of a graph on one machine with one thread count.

    Methods raise AutotmError where a time is missing.

    Predictions read all-fast medians, and what a configuration took beyond them in the same rounds, be it less than
    nothing: noise that counted only above zero would add up over a step. A configuration that was not measured is
    predicted additively: the all-fast time plus, for each slow tensor, what that tensor alone added when it alone was
    slow. Implementations whose all-fast times differ by less than their noise read as equally fast.
    """

    graph_hash: str
    timings: Mapping[TimingKey, Timing]
    provenance: Mapping[str, Any]

    @cached_property
    def is_disturbed(self) -> bool:
        """Whether others held the cores while some of it was timed."""
        return any(timing.disturbed for timing in self.timings.values())

    def timing(self, kernel: Kernel, config: Configuration) -> Timing | None:
        """Return the measured timing, if that configuration was measured."""
        return self.timings.get((kernel.identity, kernel.implementation, config))

    def base_us(self, kernel: Kernel) -> float:
        """Time with every operand fast."""
        return self._base_ns(kernel) / 1e3

    def least_us(self, kernel: Kernel) -> float:
        """Time with every operand fast, by the fastest of the kernel's implementations."""
        return min(self.base_us(kernel.computed_by(name)) for name in kernel.implementations)

    def extra_us(self, graph: Graph, kernel: Kernel, tensor: str) -> float:
        """Return the microseconds that `tensor` alone in slow memory adds to the kernel; noise can make them negative.

        Raises:
            AutotmError: the profile has no such timing.
        """
        extra_ns = self._beyond_ns(kernel, configuration(graph, kernel, {tensor}))
        if extra_ns is None:
            raise AutotmError(
                f"profile of kernel '{kernel.name}' lacks '{tensor}' in slow memory; rerun kernel_profile"
            )
        return extra_ns / 1e3

    def additive_us(self, graph: Graph, kernel: Kernel, slow: frozenset[str]) -> float:
        """Return the all-fast time plus the extra of each slow tensor of the kernel."""
        extras = (self.extra_us(graph, kernel, tensor) for tensor in graph.slots_of(kernel) if tensor in slow)
        return self.base_us(kernel) + sum(extras)

    def time_us(self, graph: Graph, kernel: Kernel, slow: frozenset[str]) -> float:
        """Return the time with exactly the tensors in `slow` in slow memory: measured, or else the additive reading."""
        beyond_ns = self._beyond_ns(kernel, configuration(graph, kernel, slow))
        if beyond_ns is None:
            return self.additive_us(graph, kernel, slow)
        return (self._base_ns(kernel) + beyond_ns) / 1e3

    def _base_ns(self, kernel: Kernel) -> int:
        time_ns = self._all_fast_ns.get((kernel.identity, kernel.implementation))
        if time_ns is None:
            raise AutotmError(
                f"profile has no time for kernel '{kernel.name}' ({kernel.identity}); rerun kernel_profile"
            )
        return time_ns

    @cached_property
    def _all_fast_ns(self) -> Mapping[tuple[str, str], int]:
        """All-fast time as it is read, by identity and implementation."""
        fast = {key[:2]: timing for key, timing in self.timings.items() if "P" not in key[2]}
        return {key: _read_ns(timing, fast) for key, timing in fast.items()}

    def _beyond_ns(self, kernel: Kernel, config: Configuration) -> int | None:
        """Return the nanoseconds that a configuration adds to the all-fast time; None if it was not measured."""
        timing, fast = self.timing(kernel, config), self.timing(kernel, all_fast(kernel))
        if timing is None or fast is None:
            return None
        if "P" not in config:
            return 0
        return timing.median_ns - fast.median_ns if timing.beyond_ns is None else timing.beyond_ns


def _read_ns(timing: Timing, fast: Mapping[tuple[str, str], Timing]) -> int:
    """Return an implementation's all-fast time: the default's plus their difference if they took turns."""
    default = None if timing.default_identity is None else fast.get((timing.default_identity, DEFAULT_IMPLEMENTATION))
    if default is None or timing.beyond_ns is None:
        return timing.median_ns
    is_sure = abs(timing.beyond_ns) > SURE_ERRORS * timing.beyond_error_ns
    return default.median_ns + (timing.beyond_ns if is_sure else TIE_NS)


KEY_COLUMNS = {
    "identity": "of the kernel",
    "implementation": "the way it is computed",
    "configuration": "a letter for each of its slots, D fast, P slow",
}
"""Columns that identify a row, with their meanings; the other columns are the fields of `Timing`."""
_TYPES = {
    **dict.fromkeys(KEY_COLUMNS, "string"),
    "min_ns": "int64",
    "median_ns": "int64",
    "lower_quartile_ns": "int64",
    "upper_quartile_ns": "int64",
    "repeats": "int64",
    "beyond_ns": "int64",
    "beyond_error_ns": "int64",
    "default_identity": "string",
    "disturbed": "bool",
}
"""Arrow's names of the columns' types."""


def write_profile(path: Path, profile: Profile) -> None:
    """Write the table, rows sorted by key, with graph hash and provenance in the Parquet metadata.

    A path that ends with .json gets the same as JSON, which needs no library: for computers that have a bundle only.
    """
    rows = [[*key, *astuple(timing)] for key, timing in sorted(profile.timings.items(), key=lambda item: item[0])]
    facts = {"graph_hash": profile.graph_hash, "provenance": dict(profile.provenance)}
    if path.suffix == ".json":
        write_json(path, "profile", {**facts, "columns": list(_TYPES), "timings": rows})
        return
    import pyarrow as pa  # noqa: PLC0415 - who reads no profile need not wait for it
    import pyarrow.parquet as pq  # noqa: PLC0415 - as above

    metadata = {
        "kind": "profile",
        "schema_version": str(SCHEMA_VERSION),
        "graph_hash": profile.graph_hash,
        "provenance": json.dumps(facts["provenance"]),
    }
    schema = pa.schema(list(_TYPES.items()), metadata=metadata)
    table = pa.Table.from_pylist([dict(zip(_TYPES, row, strict=True)) for row in rows], schema=schema)
    write_atomically(path, lambda temporary: pq.write_table(table, temporary))


def read_profile(path: Path) -> Profile:
    """Read what `write_profile` wrote; files from before configurations were paired lack their differences.

    Raises:
        DamagedFileError: the file is missing or cut.
        FileVersionError: it is of another schema version.
    """
    if path.suffix == ".json":
        return _read_text(path)
    import pyarrow as pa  # noqa: PLC0415 - who reads no profile need not wait for it
    import pyarrow.parquet as pq  # noqa: PLC0415 - as above

    try:
        table = pq.ParquetFile(path).read()  # `pq.read_table` imports pandas.
        metadata = {key.decode(): value.decode() for key, value in (table.schema.metadata or {}).items()}
        version = metadata.get("schema_version", "")
        require_version(path, "profile", int(version) if version.isdecimal() else version)
        timings = {tuple(row.pop(name) for name in KEY_COLUMNS): Timing(**row) for row in table.to_pylist()}
        return Profile(metadata["graph_hash"], timings, json.loads(metadata["provenance"]))
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
        raise damaged(path, "profile", str(error)) from None


def _read_text(path: Path) -> Profile:
    document = read_json(path, "profile")
    try:
        rows = [dict(zip(document["columns"], row, strict=True)) for row in document["timings"]]
        timings = {tuple(row.pop(name) for name in KEY_COLUMNS): Timing(**row) for row in rows}
        return Profile(document["graph_hash"], timings, document["provenance"])
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(path, "profile", str(error)) from None


# Time that a byte of slow memory adds to a kernel, derived from a profile. Misses of a cache are charged at this rate.


@dataclass(frozen=True, slots=True)
class SlowRates:
    """Microseconds that a byte read from, or written to, slow memory adds to a kernel."""

    read_us_per_byte: float
    write_us_per_byte: float

    def extra_us(self, read_bytes: int, written_bytes: int) -> float:
        """Return the microseconds that these bytes of slow memory add to a kernel."""
        return read_bytes * self.read_us_per_byte + written_bytes * self.write_us_per_byte


def slow_rates(graph: Graph, profile: Profile) -> Mapping[OpClass, SlowRates]:
    """Return, by op class, the time per byte that tensors that alone were slow added to kernels, at the median byte.

    A median, and of differences that may be negative, because small extras of long kernels drown in noise. Only tensors
    that a kernel reads and does not write, or the reverse, tell. A class without such a one takes the rate of all
    classes together; 0 where the profile has no slow tensor at all.
    """
    rates: dict[tuple[OpClass | None, bool], list[tuple[float, int]]] = defaultdict(list)
    for op_class, is_write, extra_us, size_bytes in _extras(graph, profile):
        for which in (op_class, None):
            rates[which, is_write].append((extra_us / size_bytes, size_bytes))

    def rate(op_class: OpClass, *, is_write: bool) -> float:
        ascending = sorted(rates.get((op_class, is_write)) or rates.get((None, is_write)) or [(0.0, 1)])
        bytes_so_far = np.cumsum([size_bytes for _, size_bytes in ascending])
        return max(0.0, ascending[int(np.searchsorted(bytes_so_far, bytes_so_far[-1] / 2))][0])

    return {each: SlowRates(rate(each, is_write=False), rate(each, is_write=True)) for each in OpClass}


def _extras(graph: Graph, profile: Profile) -> Iterator[tuple[OpClass, bool, float, int]]:
    """Yield the class, whether it was written, added microseconds and bytes of each tensor that alone was slow."""
    seen = set()
    for kernel in graph.kernels:
        slots = graph.slots_of(kernel)
        if profile.timing(kernel, all_fast(kernel)) is None or (kernel.identity, tuple(slots.values())) in seen:
            continue
        seen.add((kernel.identity, tuple(slots.values())))
        for tensor in slots:
            config = configuration(graph, kernel, {tensor})
            read_bytes, written_bytes = (sum(sizes) for sizes in slow_traffic(graph, kernel, config))
            if profile.timing(kernel, config) is not None and (read_bytes > 0) != (written_bytes > 0):
                extra_us = profile.extra_us(graph, kernel, tensor)
                yield kernel.op_class, written_bytes > 0, extra_us, read_bytes + written_bytes
