"""How far the emulated device is from kernels that were timed on the real one, given their all-DRAM times.

    python benchmarks/emulation_error.py --table FILE [--device FILE] [--min-us 100]

Predicted time = recorded all-DRAM time + emulated extra; error = |predicted - recorded| / recorded, over every recorded
configuration with at least one slow operand, of kernels that take at least `--min-us` in DRAM.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from autotm.memory.emulation import Emulation, load_device
from autotm.model.errors import AutotmError
from recorded_kernels import Recording, Table, read_table

REPOSITORY = Path(__file__).resolve().parent.parent
DEFAULT_DEVICE = REPOSITORY / "config" / "devices" / "optane-dcpmm.yaml"

ExtraNs = Callable[[Recording], float]


def errors(recordings: Iterable[Recording], extra_ns: ExtraNs) -> list[float]:
    """Relative error of each recording's predicted time."""
    return [abs(r.all_fast_us + extra_ns(r) / 1e3 - r.time_us) / r.time_us for r in recordings]


def extra_of(emulation: Emulation, *, first_touch: bool) -> ExtraNs:
    """Return the emulated extra of a recording, in nanoseconds."""
    return lambda r: emulation.kernel_delay_ns(
        r.op_class, r.slow_read_bytes, r.slow_write_bytes, first_touch=first_touch
    )


def quantiles(values: Sequence[float]) -> tuple[float, float]:
    """Median and 90th percentile, in percent."""
    ninth = statistics.quantiles(values, n=10, method="inclusive")[-1] if len(values) > 1 else values[0]
    return statistics.median(values) * 100, ninth * 100


def report(recordings: Sequence[Recording], columns: dict[str, Sequence[float]]) -> list[str]:
    """One line per op class and an `overall` line: kernels, configurations, then median and p90 of each column."""
    heading = "".join(f"{f'{name} median %':>27}{'p90 %':>8}" for name in columns)
    lines = [f"{'op class':24}{'kernels':>8}{'configs':>9}{heading}"]
    for name in [*sorted({r.op_class for r in recordings}), "overall"]:
        chosen = [i for i, r in enumerate(recordings) if name in {r.op_class, "overall"}]
        line = f"{name:24}{len({recordings[i].kernel for i in chosen}):8}{len(chosen):9}"
        for values in columns.values():
            median, ninth = quantiles([values[i] for i in chosen])
            line += f"{median:27.1f}{ninth:8.1f}"
        lines.append(line)
    return lines


def left_out(table: Table) -> list[str]:
    """Return what of the table the comparison cannot use."""
    notes = [f"left out: {table.kernels_without_base} kernels without an all-DRAM row, {table.zero_rows} rows of 0 us"]
    notes += [f"unknown op type {op} ({rows} rows) counted as elementwise" for op, rows in table.unknown_ops.items()]
    return notes


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the comparison; 1 when there is nothing to compare."""
    parser = argparse.ArgumentParser(description="error of the emulated device against recorded kernels")
    parser.add_argument("--table", type=Path, required=True, help="csv or csv.gz in the format of docs/emulation.md")
    parser.add_argument("--device", type=Path, default=DEFAULT_DEVICE, help="device file")
    parser.add_argument("--min-us", type=float, default=100.0, help="shortest all-DRAM time that counts")
    options = parser.parse_args(arguments)
    try:
        emulation = Emulation(load_device(options.device.parent, options.device.stem), stretch=1.0)
        table = read_table(options.table)
    except (AutotmError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    recordings = table.at_least(options.min_us)
    if not recordings:
        print(f"error: {options.table}: no kernel of at least {options.min_us:g} us", file=sys.stderr)
        return 1
    columns = {
        "|error|": errors(recordings, extra_of(emulation, first_touch=True)),
        "no first touch": errors(recordings, extra_of(emulation, first_touch=False)),
    }
    print(f"emulated {options.device.stem} against {options.table}, kernels >= {options.min_us:g} us in DRAM")
    print("\n".join(left_out(table) + report(recordings, columns)))
    print("no first touch: what programs wait for; the recording includes the first touch of each written operand")
    return 0


if __name__ == "__main__":
    sys.exit(main())
