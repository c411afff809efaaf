"""The page of a plan: columns of numbers and words about them, in one file that loads nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from autotm.model.certificate import Certificate, SpanPrices
from autotm.model.files import write_atomically
from autotm.model.graph import Graph, Operand, Tier
from autotm.model.plan import Move, Status
from autotm.model.provenance import slow_memory_text
from autotm.study.drawing import machine_text, near_text, text_in_bytes, title
from autotm.study.placed import MemoryPrices, Placed
from autotm.study.tables import versions_text

# What a reader must know to trust the page of a plan: what it shows, how good it is, where its numbers come from.

Row = dict[str, str]
"""`label`, `value`, and `note`: what the value is, in words."""


def heading(placed: Placed) -> dict[str, str]:
    """Network, optimizer and limit, as a page's title names them."""
    plan, step = placed.plan, placed.step
    return {
        "network": title(step.network),
        "optimizer": plan.optimizer,
        "limit": plan.limit,
        "step": f"batch {step.batch}, scale {step.scale}",
    }


def summary(placed: Placed) -> list[Row]:
    """The numbers that one looks for first."""
    plan, program, peak = placed.plan, placed.program, placed.graph.peak_live_bytes
    slow_down = f"{plan.objective_us / placed.all_fast_us:.3f} times all fast" if placed.all_fast_us else ""
    rows = [
        _row("predicted step", _time(plan.objective_us), slow_down),
        _row("proven bound", *_proof(placed)),
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
        beside = sum(move.is_asynchronous for move in plan.moves)
        rows.append(_row("moves", text_in_bytes(moved), f"{len(plan.moves)} moves, {beside} of them asynchronous"))
    return rows


def provenance_rows(placed: Placed) -> list[Row]:
    """Where everything on the page comes from."""
    profile, source, plan = placed.profile.provenance, placed.source, placed.plan
    said = {key: profile.get(key, source.get(key, "?")) for key in ("machine", "cpu_model", "threads")}
    which = slow_memory_text(profile)
    disturbed = "; others held the cores meanwhile" if placed.profile.is_disturbed else ""
    kernels = "modelled" if placed.tier_reality == "modelled" else "measured"
    rows = [
        _row("machine", machine_text(said | {"tier_reality": placed.tier_reality, "slow_memory": which})),
        _row("kernel times", f"{kernels}{disturbed}; the plan's times are predicted: sums of these and of copy times"),
        _row("limit", f"{plan.limit}, {plan.dram_limit_bytes} bytes; counts {_counted(placed)}"),
        _row("plan", f"{plan.optimizer}; {_quality(placed)}; {plan.solve_s:.3g} s to solve"),
        _row("prices", _prices(placed)),
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


def _proof(placed: Placed) -> tuple[str, str]:
    if placed.plan.status is Status.NOT_OPTIMIZED:
        return "none", "nothing was optimized: there is one such plan"
    return _time(placed.plan.bound_us), f"gap {100 * placed.plan.gap:.2g} %"


def _measured(placed: Placed) -> tuple[str, str]:
    record = placed.record
    if record is None:
        return "none", "no record of a run beside the plan"
    median_s, beside = record.actual_runtime_median_s, record.all_fast_runtime_median_s
    if median_s is None:
        return "none", "the program exceeds its limit, and did not run"
    slow_down = f"{median_s / beside:.3f} times all fast; " if beside else ""
    return _time(1e6 * median_s), f"{slow_down}slow memory {record.tier_reality}"


def _counted(placed: Placed) -> str:
    return "parameters, inputs and results, too" if placed.plan.counts == "all" else "intermediates and workspaces"


def _quality(placed: Placed) -> str:
    if placed.plan.status is Status.NOT_OPTIMIZED:
        return "nothing was optimized"
    return f"{near_text(placed.plan.gap)}, status {placed.plan.status}"


def _prices(placed: Placed) -> str:
    if placed.plan.certificate is None:
        return "none: the plan has no certificate"
    return (
        "Lagrange multipliers of the plan's certificate: what a megabyte of fast memory is worth during a kernel; "
        "0 where memory is not scarce"
    )


# What the page of a plan holds: columns of numbers for kernels, tensors, stays and moves, and words about them.

Columns = dict[str, Any]
_DIGITS = 6
"""Significant digits of times and prices; offsets and sizes are whole."""


def contents(placed: Placed) -> Columns:
    """The page's data as JSON has it; tiers are 0 (fast) and 1 (slow), tensors and kernels numbers from 0.

    Raises:
        BadInputError: the program was made from another plan.
        AutotmError: the profile lacks a kernel.
    """
    step, plan = placed.step, placed.plan
    numbers = {tensor.name: number for number, tensor in enumerate(step.tensors)}
    return {
        "heading": heading(placed),
        "summary": summary(placed),
        "provenance": provenance_rows(placed),
        "limit_bytes": None if plan.one_pool else plan.dram_limit_bytes,
        "pool_bytes": [placed.program.fast_bytes, placed.program.slow_bytes],
        "kernels": _kernels(placed, numbers),
        "tensors": _tensors(step),
        "stays": {
            "tensor": [numbers[stay.tensor] for stay in plan.stays],
            "tier": [_number(stay.tier) for stay in plan.stays],
            "start": [stay.start for stay in plan.stays],
            "end": [stay.end for stay in plan.stays],
            "offset": placed.offsets,
        },
        "moves": {
            "tensor": [numbers[move.tensor] for move in plan.moves],
            "to": [_number(move.destination) for move in plan.moves],
            "before": [move.before for move in plan.moves],
            "since": [move.since for move in plan.moves],
            "us": _short(placed.moves_us),
        },
    }


def _number(tier: Tier) -> int:
    return int(tier is Tier.PMEM)


def _short(numbers: Iterable[float]) -> list[float]:
    return [float(f"{number:.{_DIGITS}g}") for number in numbers]


def _tensors(step: Graph) -> Columns:
    tensors = step.tensors
    return {
        "name": [tensor.name for tensor in tensors],
        "role": [str(tensor.role) for tensor in tensors],
        "shape": [list(tensor.shape) for tensor in tensors],
        "dtype": [tensor.dtype for tensor in tensors],
        "size_bytes": [tensor.size_bytes for tensor in tensors],
        "allocated_bytes": [tensor.allocated_bytes for tensor in tensors],
        "producer": [tensor.producer for tensor in tensors],
        "readers": [list(tensor.readers) for tensor in tensors],
    }


def _kernels(placed: Placed, numbers: dict[str, int]) -> Columns:
    kernels, count = placed.step.kernels, len(placed.step.kernels)
    measured = placed.record.kernel_times_us if placed.record else {}

    def slots(operands: Sequence[Operand]) -> list[int]:
        return [numbers[operand.tensor] for operand in operands]

    certificate = placed.plan.certificate
    return {
        "name": [kernel.name for kernel in kernels],
        "op": [kernel.op for kernel in kernels],
        "implementation": [kernel.implementation for kernel in kernels],
        "configuration": list(placed.plan.configurations),
        "inputs": [slots(kernel.inputs) for kernel in kernels],
        "outputs": [slots(kernel.outputs) for kernel in kernels],
        "workspaces": [slots(kernel.workspaces) for kernel in kernels],
        "predicted_us": _short(placed.kernels_us),
        "blocking_us": _short(_blocking_us(placed, count)),
        "beside_us": _short(_beside_us(placed, count)),
        "measured_us": _short(measured[kernel.name] for kernel in kernels) if measured else None,
        "price_us_per_mb": _short(MemoryPrices(placed.plan, count).us_per_mb) if certificate else None,
        "engine_prices": _engine_prices(certificate, count) if certificate else None,
    }


def _blocking_us(placed: Placed, kernels: int) -> list[float]:
    """By kernel, what the blocking moves just before it take."""
    found = [0.0] * kernels
    for move, took_us in zip(placed.plan.moves, placed.moves_us, strict=True):
        if not move.is_asynchronous:
            found[move.before] += took_us
    return found


def _beside_us(placed: Placed, kernels: int) -> list[float]:
    """By kernel, what asynchronous moves add to the step, spread evenly over the windows that they have."""
    found = [0.0] * kernels
    for move, took_us in zip(placed.plan.moves, placed.moves_us, strict=True):
        if move.is_asynchronous:
            window = _window(move)
            for index in window:
                found[index] += took_us / len(window)
    return found


def _window(move: Move) -> range:
    return range(move.start, move.before)


def _engine_prices(certificate: Certificate, kernels: int) -> list[list[float]] | None:
    """By direction (to fast, to slow) and kernel, what a nanosecond of the engine costs in microseconds.

    A move pays for every span of kernels that its window lies within; these are the sums of all spans over a kernel,
    the most that a move there can pay.
    """

    def over(spans: SpanPrices) -> list[float]:
        found = [0.0] * kernels
        for start, end, price_us in zip(spans.starts, spans.ends, spans.prices_us, strict=True):
            for index in range(start, end):
                found[index] += price_us
        return _short(found)

    is_priced = certificate.back.prices_us or certificate.out.prices_us
    return [over(certificate.back), over(certificate.out)] if is_priced else None


# The page of a plan: its parts put into one file that asks for nothing.

_PARTS = files("autotm.study.view") / "assets"
_SCRIPTS = ("data", "format", "index", "scale", "map", "strips", "overlay", "facts", "search", "input", "main")
"""In this order they are one module: each may use the names of those before it."""


def page_of(placed: Placed) -> str:
    """The page as one text.

    Raises:
        BadInputError: the program was made from another plan.
        AutotmError: the profile lacks a kernel.
    """
    shown = contents(placed)
    name = ", ".join((shown["heading"]["network"], shown["heading"]["optimizer"], shown["heading"]["limit"]))
    return _filled(name, json.dumps(shown, separators=(",", ":"), allow_nan=False, ensure_ascii=False))


def write_page(placed: Placed, path: Path) -> None:
    """Write the page, whole.

    Raises:
        as `page_of`.
    """
    text = page_of(placed)
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def _filled(name: str, data: str) -> str:
    """The template with style, scripts and data. No `<` of the data can end its element."""
    scripts = "\n".join(_part(f"{script}.js") for script in _SCRIPTS)
    return Template(_part("page.html")).substitute(
        title=escape(name), style=_part("page.css"), data=data.replace("<", "\\u003c"), script=scripts
    )


def _part(name: str) -> str:
    return (_PARTS / name).read_text(encoding="utf-8")
