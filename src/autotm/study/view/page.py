"""The page of a plan: columns of numbers and words about them, in one file that loads nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from autotm.model.files import write_atomically
from autotm.model.graph import Tier
from autotm.model.plan import Certificate, Status
from autotm.model.provenance import slow_memory_text
from autotm.study.drawing import gap_text, machine_text, text_in_bytes, title
from autotm.study.placed import MemoryPrices, Placed
from autotm.study.tables import fields_of, versions_text

Row = dict[str, str]
"""`label`, `value`, and `note`: what the value is, in words."""


def _summary(placed: Placed) -> list[Row]:
    """Return the numbers that one looks for first."""
    plan, program, peak = placed.plan, placed.program, placed.graph.peak_live_bytes
    slow_down = f"{plan.objective_us / placed.all_fast_us:.3f} times all fast" if placed.all_fast_us else ""
    proof = _time(plan.bound_us), f"gap {100 * plan.gap:.2g} %"
    if plan.status is Status.NOT_OPTIMIZED:
        proof = "none", "nothing was optimized: there is one such plan"
    rows = [
        _row("predicted step", _time(plan.objective_us), slow_down),
        _row("proven bound", *proof),
        _row("measured step", *_measured(placed)),
        _row(
            "fast memory",
            text_in_bytes(plan.one_pool.fast_bytes if plan.one_pool else program.fast_bytes),
            "pages of the one pool"
            if plan.paged
            else "a cache in front of the one pool"
            if plan.cached
            else f"of {text_in_bytes(plan.dram_limit_bytes)} allowed, {text_in_bytes(peak)} at peak",
        ),
        _row("slow memory", text_in_bytes(program.slow_bytes), f"{len(plan.stays)} stays in all"),
    ]
    if plan.moves:
        sizes = placed.step.by_name
        moved = sum(sizes[move.tensor].size_bytes for move in plan.moves)
        overlapped = sum(move.is_asynchronous for move in plan.moves)
        rows.append(_row("moves", text_in_bytes(moved), f"{len(plan.moves)} moves, {overlapped} of them asynchronous"))
    return rows


def _provenance(placed: Placed) -> list[Row]:
    """Return where everything on the page comes from."""
    profile, source, plan = placed.profile.provenance, placed.source, placed.plan
    machine = {key: profile.get(key, source.get(key, "?")) for key in ("machine", "cpu_model", "threads")}
    machine |= {"tier_reality": placed.tier_reality, "slow_memory": slow_memory_text(profile)}
    disturbed = "; others held the cores meanwhile" if placed.profile.is_disturbed else ""
    kernels = "modelled" if placed.tier_reality == "modelled" else "measured"
    counted = "parameters, inputs and results, too" if plan.counts == "all" else "intermediates and workspaces"
    quality = f"{gap_text(plan.gap)}, status {plan.status}"
    if plan.status is Status.NOT_OPTIMIZED:
        quality = "nothing was optimized"
    prices = (
        "none: the plan has no certificate"
        if plan.certificate is None
        else "Lagrange multipliers of the plan's certificate: what a megabyte of fast memory is worth during a kernel; "
        "0 where memory is not scarce"
    )
    rows = [
        _row("machine", machine_text(machine)),
        _row("kernel times", f"{kernels}{disturbed}; the plan's times are predicted: sums of these and of copy times"),
        _row("limit", f"{plan.limit}, {plan.dram_limit_bytes} bytes; counts {counted}"),
        _row("plan", f"{plan.optimizer}; {quality}; {plan.solve_s:.3g} s to solve"),
        _row("prices", prices),
    ]
    if (record := placed.record) is not None:
        count, held = len(record.samples_s), record.disturbed_steps_count
        note = ", others held the cores meanwhile: too long" if held else ""
        rows.append(_row("run", f"median of {count} steps; {record.verified_steps} compared bit for bit{note}"))
    if plan.cached is not None:
        rows.append(_row("memory mode", "hits and misses of the cache are modelled for the addresses shown"))
    if plan.paged is not None:
        steady = "steady" if plan.paged.is_steady else "not steady"
        rows.append(
            _row(
                "pages",
                f"their placement by Linux is {plan.paged.placed_by}, for the addresses shown",
                f"pages of {text_in_bytes(plan.paged.page_bytes)}; {steady} after {plan.paged.steps} steps",
            )
        )
    return [*rows, _row("versions", f"seed {source.get('seed', '?')}; {versions_text(source)}")]


def _row(label: str, value: str, note: str = "") -> Row:
    return {"label": label, "value": value, "note": note}


def _time(microseconds: float) -> str:
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if microseconds >= size:
            return f"{microseconds / size:.4g} {unit}"
    return f"{microseconds:.4g} µs"


def _measured(placed: Placed) -> tuple[str, str]:
    """Return the measured time of the step and a note; or that there is none, and why."""
    record = placed.record
    if record is None:
        return "none", "no record of a run beside the plan"
    median_s, all_fast_s = record.actual_runtime_median_s, record.all_fast_runtime_median_s
    if median_s is None:
        return "none", "the program exceeds its limit, and did not run"
    slow_down = f"{median_s / all_fast_s:.3f} times all fast; " if all_fast_s else ""
    return _time(1e6 * median_s), f"{slow_down}slow memory {record.tier_reality}"


Columns = dict[str, Any]
_DIGITS = 6
"""Significant digits of times and prices; offsets and sizes are whole."""


def contents(placed: Placed) -> Columns:
    """Return the page's data as JSON has it; tiers are 0 (fast) and 1 (slow), tensors and kernels numbers from 0.

    Raises:
        BadInputError: the program was made from another plan.
        AutotmError: the profile lacks a kernel.
    """
    step, plan = placed.step, placed.plan
    numbers = {tensor.name: number for number, tensor in enumerate(step.tensors)}
    return {
        "heading": {
            "network": title(step.network),
            **fields_of(plan, "optimizer", "limit"),
            "step": f"batch {step.batch}, scale {step.scale}",
        },
        "summary": _summary(placed),
        "provenance": _provenance(placed),
        "limit_bytes": None if plan.one_pool else plan.dram_limit_bytes,
        "pool_bytes": [placed.program.fast_bytes, placed.program.slow_bytes],
        "kernels": _kernels(placed, numbers),
        "tensors": _attributes(
            step.tensors, *("name", "role", "shape", "dtype", "size_bytes", "allocated_bytes", "producer", "readers")
        ),
        "stays": {
            "tensor": [numbers[stay.tensor] for stay in plan.stays],
            "tier": [int(stay.tier is Tier.SLOW) for stay in plan.stays],
            **_attributes(plan.stays, "start", "end"),
            "offset": placed.offsets,
        },
        "moves": {
            "tensor": [numbers[move.tensor] for move in plan.moves],
            "to": [int(move.destination is Tier.SLOW) for move in plan.moves],
            **_attributes(plan.moves, "before", "since"),
            "us": _short(placed.moves_us),
        },
    }


def _attributes(items: Sequence[object], *names: str) -> Columns:
    return {name: [getattr(item, name) for item in items] for name in names}


def _short(numbers: Iterable[float]) -> list[float]:
    return [float(f"{number:.{_DIGITS}g}") for number in numbers]


def _kernels(placed: Placed, numbers: dict[str, int]) -> Columns:
    kernels, count = placed.step.kernels, len(placed.step.kernels)
    measured = placed.record.kernel_times_us if placed.record else {}
    certificate = placed.plan.certificate
    # What blocking moves just before a kernel take; what asynchronous ones add, spread evenly over their windows.
    blocking_us, overlapped_us = [0.0] * count, [0.0] * count
    for move, took_us in zip(placed.plan.moves, placed.moves_us, strict=True):
        if not move.is_asynchronous:
            blocking_us[move.before] += took_us
            continue
        window = range(move.start, move.before)
        for index in window:
            overlapped_us[index] += took_us / len(window)
    return {
        **_attributes(kernels, "name", "op", "implementation"),
        "configuration": list(placed.plan.configurations),
        **{
            side: [[numbers[operand.tensor] for operand in getattr(kernel, side)] for kernel in kernels]
            for side in ("inputs", "outputs", "workspaces")
        },
        "predicted_us": _short(placed.kernels_us),
        "blocking_us": _short(blocking_us),
        "beside_us": _short(overlapped_us),
        "measured_us": _short(measured[kernel.name] for kernel in kernels) if measured else None,
        "price_us_per_mb": _short(MemoryPrices(placed.plan, count).us_per_mb) if certificate else None,
        "engine_prices": _engine_prices(certificate, count) if certificate else None,
    }


def _engine_prices(certificate: Certificate, kernels: int) -> list[list[float]] | None:
    """Return, by direction (to fast, to slow) and kernel, the price in microseconds of a nanosecond of the engine.

    A move pays for every span of kernels that its window lies within; these are the sums of all spans over a kernel,
    the most that a move there can pay.
    """
    engines = (certificate.back, certificate.out)
    total = np.zeros((len(engines), kernels))
    for engine, spans in enumerate(engines):
        for start, end, price_us in zip(spans.starts, spans.ends, spans.prices_us, strict=True):
            total[engine, start:end] += price_us
    return [_short(row) for row in total] if any(spans.prices_us for spans in engines) else None


_PARTS = files("autotm.study.view") / "assets"
_SCRIPTS = ("data", "format", "index", "scale", "map", "strips", "overlay", "facts", "search", "input", "main")
"""They are one module in this order: each may use the names of those before it."""


def write_page(placed: Placed, path: Path) -> None:
    """Write the page, whole.

    Raises:
        as `contents`.
    """
    shown = contents(placed)
    name = ", ".join((shown["heading"]["network"], shown["heading"]["optimizer"], shown["heading"]["limit"]))
    data = json.dumps(shown, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    scripts = "\n".join(_part(f"{script}.js") for script in _SCRIPTS)
    # An escaped `<` cannot end the element that holds the data.
    text = Template(_part("page.html")).substitute(
        title=escape(name), style=_part("page.css"), data=data.replace("<", "\\u003c"), script=scripts
    )
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def _part(name: str) -> str:
    return (_PARTS / name).read_text(encoding="utf-8")
