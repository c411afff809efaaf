"""The copy engine beside memcpy, plain stores and streaming stores: each direction, size and number of threads.

Ways take turns, and every copy has other places in the pools, far from the last: what programs move has been pushed out
of near caches. The three loops (copy_loops.c) are shared out in equal parts among threads that sleep between copies, as
the engine's do; the engine also pays for being called from Python. How the engine copies is measured first, as
`autotm calibrate` does. Rates are medians, in 1e9 bytes copied a second; `/ best` is the engine's over the best of the
three with so many threads or fewer. On an emulated machine both memories are fast ones and nothing waits: the copies
themselves are compared.

    python benchmarks/links.py [--machine config/machines/laptop.yaml] [--threads N] [--rounds 21] [--csv FILE]
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import perf_counter_ns

import numpy as np
import numpy.typing as npt
import psutil

from autotm.memory.calibration import Effort, copy_curves
from autotm.memory.copies import CopyEngine, CopyMethods, caller_on, compiled, measured_methods, widest_store
from autotm.memory.opening import open_tiers
from autotm.memory.tiers import Tiers
from autotm.model.cores import Watch
from autotm.model.errors import AutotmError
from autotm.model.graph import Tier
from autotm.model.links import CopyCurve
from autotm.model.machine import load_machine
from autotm.model.provenance import provenance

ROOT = Path(__file__).parents[1]
SIZES = tuple(4096 << power for power in range(17))
LOOPS = ("memcpy", "plain", "streaming")
COLUMNS = ("to", "bytes", "threads", "engine", *LOOPS, "engine / best")
_POOL_BYTES = 512 << 20
_STRIDE_BYTES = 67 << 20
_LARGE_BYTES, _LARGE_ROUNDS = 64 << 20, 7
_FROM_BYTES = 1 << 20
_LEAST_POOL_MIB = 64
_CALIBRATED_BYTES = tuple(4096 * 4**power for power in range(8))
Copy = Callable[[npt.NDArray[np.uint8], npt.NDArray[np.uint8], Tier], int]


def main() -> int:
    """Print the table; the exit status tells whether it could be measured, never how fast anything was."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machine", type=Path, default=ROOT / "config/machines/laptop.yaml")
    parser.add_argument("--threads", type=int, help="at most (default: as the machine file says)")
    parser.add_argument("--rounds", type=int, default=21, help="copies of each size and way (default %(default)s)")
    parser.add_argument("--patience", type=float, default=60.0, help="seconds for repeating disturbed rounds")
    parser.add_argument("--pool-mib", type=int, default=_POOL_BYTES >> 20, help="of each pool (default %(default)s)")
    parser.add_argument("--csv", type=Path, help="also write the table here")
    asked = parser.parse_args()
    try:
        machine = load_machine(asked.machine, asked.threads).to_measure_on()
        pool_bytes = _pool_bytes(asked.pool_mib, asked.rounds)
        devices = asked.machine.parents[1] / "devices"
        watch = Watch(machine.cpus, asked.patience)
        with open_tiers(machine, None, pool_bytes, pool_bytes, devices, stretch=1.0) as tiers:
            for tier in Tier:  # All-zero pages may be one page for the machine below.
                tiers.pool(tier).view(0, (pool_bytes,), "uint8")[:] = 1
            with caller_on(machine.cpus[0]):
                curves = copy_curves(tiers, machine.cpus, _CALIBRATED_BYTES, Effort(), watch)
                rows = _rows(tiers, machine.cpus, curves, asked.rounds, watch)
    except AutotmError as error:
        print(error, file=sys.stderr)
        return 1
    source = provenance(machine, 0)
    print(
        f"\n{time.strftime('%Y-%m-%d')}, {source['cpu_model']}, {len(machine.cpus)} threads; a streaming store has",
        end=" ",
    )
    print(f"{widest_store()} bytes; methods of the engine with all threads:")
    for tier in Tier:
        _print_methods(tier, measured_methods(curves, tier, len(machine.cpus)))
    large = [row for row in rows if row[1] >= _FROM_BYTES]
    least = min(large, key=lambda row: row[-1])
    print(f"least engine / best from 1 MiB: {least[-1]:.2f} (to {least[0]}, {least[1]} bytes, {least[2]} threads)")
    if watch.disturbed:
        print(f"others held the cores during {len(watch.disturbed)} of {len(rows)} rows")
    if asked.csv:
        with asked.csv.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([COLUMNS, *rows])
    return 0


def _pool_bytes(pool_mib: int, rounds: int) -> int:
    if rounds < 1:
        raise AutotmError(f"--rounds {rounds}: give at least 1")
    largest = psutil.virtual_memory().available >> 21
    if not _LEAST_POOL_MIB <= pool_mib <= largest:
        raise AutotmError(
            f"--pool-mib {pool_mib}: give {_LEAST_POOL_MIB} to {largest}, half of the memory that is free"
        )
    return pool_mib << 20


def _print_methods(tier: Tier, methods: CopyMethods) -> None:
    for method, starts in itertools.groupby(methods.from_bytes, methods.method):
        start = next(starts)
        kind = f"streaming, {method.stores.ahead_bytes} bytes ahead" if method.stores.width_bytes else "memcpy"
        print(f"  to {tier} from {start} bytes: {kind}, {method.threads} threads")


def _rows(tiers: Tiers, cpus: Sequence[int], curves: Sequence[CopyCurve], rounds: int, watch: Watch) -> list[tuple]:
    print(("{:>6}{:>12}{:>9}" + "{:>11}" * 5).format(*COLUMNS[:-1], "/ best"), flush=True)
    counts = sorted({*(1 << power for power in range(len(cpus).bit_length())), len(cpus)})
    engines = [CopyEngine(tuple(cpus[:threads])) for threads in counts]
    chosen = [{tier: measured_methods(curves, tier, threads) for tier in Tier} for threads in counts]
    loops = [_Loops(cpus[1:threads]) for threads in counts]
    copies = [
        copy
        for engine, methods, loop in zip(engines, chosen, loops, strict=True)
        for copy in (_timed(engine, methods), *(loop.copy_by(kind) for kind in range(len(LOOPS))))
    ]
    rows = []
    for destination, size in itertools.product((Tier.FAST, Tier.SLOW), SIZES):
        if size > tiers.fast.size_bytes:
            continue
        count = min(rounds, _LARGE_ROUNDS) if size >= _LARGE_BYTES else rounds
        rates = _rates(tiers, destination, size, copies, count, watch)
        best = 0.0
        each = len(LOOPS) + 1
        for place, threads in enumerate(counts):
            engine, *others = rates[place * each : (place + 1) * each]
            best = max(best, *others)
            rows.append((str(destination), size, threads, engine, *others, engine / best))
            print(("{:>6}{:>12}{:>9}" + "{:>11.2f}" * 5).format(*rows[-1]), flush=True)
    for opened in (*engines, *loops):
        opened.close()
    return rows


def _rates(
    tiers: Tiers, destination: Tier, size_bytes: int, functions: Sequence[Copy], rounds: int, watch: Watch
) -> list[float]:
    """Median bytes a nanosecond of each copy function; 0 for those that need instructions this processor lacks."""
    source = Tier.SLOW if destination is Tier.FAST else Tier.FAST
    copies = itertools.count()

    def one_round() -> list[int]:
        elapsed = [0] * len(functions)
        turn = next(copies)
        for index in (*range(turn % len(functions), len(functions)), *range(turn % len(functions))):
            place = next(copies) * _STRIDE_BYTES // size_bytes % (tiers.fast.size_bytes // size_bytes) * size_bytes
            to, out_of = (tiers.pool(tier).view(place, (size_bytes,), "uint8") for tier in (destination, source))
            elapsed[index] = functions[index](to, out_of, destination)
        return elapsed

    one_round()
    rounds_ns = watch.rounds(one_round, rounds, f"{size_bytes} bytes to {destination}")
    medians = [statistics.median(times) for times in zip(*rounds_ns, strict=True)]
    return [max(size_bytes / ns, 0.0) for ns in medians]


def _timed(engine: CopyEngine, methods: Mapping[Tier, CopyMethods]) -> Copy:
    def copy(to: npt.NDArray[np.uint8], out_of: npt.NDArray[np.uint8], destination: Tier) -> int:
        start_ns = perf_counter_ns()
        engine.copy(to, out_of, methods[destination].method(to.nbytes))
        return perf_counter_ns() - start_ns

    return copy


class _Loops:
    """The three loops on the calling thread and one on each of `helpers`."""

    def __init__(self, helpers: Sequence[int]) -> None:
        self._c = compiled(Path(__file__).with_name("copy_loops.c"))
        pointer = ctypes.c_void_p
        self._c.loops_open.restype = pointer
        self._c.loops_copy_ns.restype = ctypes.c_int64
        self._c.loops_copy_ns.argtypes = (pointer, ctypes.c_int, pointer, pointer, ctypes.c_size_t)
        self._c.loops_close.argtypes = (pointer,)
        self._opened = self._c.loops_open((ctypes.c_int * len(helpers))(*helpers), len(helpers))
        if not self._opened:
            raise AutotmError(f"no threads on cores {list(helpers)}")

    def copy_by(self, kind: int) -> Copy:
        """One of the loops, by its place in `LOOPS`."""

        def copy(to: npt.NDArray[np.uint8], out_of: npt.NDArray[np.uint8], destination: Tier) -> int:
            del destination
            return int(self._c.loops_copy_ns(self._opened, kind, to.ctypes.data, out_of.ctypes.data, to.nbytes))

        return copy

    def close(self) -> None:
        """End the threads."""
        self._c.loops_close(self._opened)


if __name__ == "__main__":
    sys.exit(main())
