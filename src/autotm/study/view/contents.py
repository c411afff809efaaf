"""What the page of a plan holds: columns of numbers for kernels, tensors, stays and moves, and words about them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from autotm.model.plan import Move, Prices, SpanPrices
from autotm.model.step import Graph, Operand, Tier
from autotm.study.view.memory_prices import MemoryPrices
from autotm.study.view.placed import Placed
from autotm.study.view.words import heading, provenance_rows, summary

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

    prices = placed.plan.certificate.prices[0] if placed.plan.certificate else None
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
        "price_us_per_mb": _short(MemoryPrices(placed.plan, count).us_per_mb) if prices else None,
        "engine_prices": _engine_prices(prices, count) if prices else None,
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


def _engine_prices(prices: Prices, kernels: int) -> list[list[float]] | None:
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

    is_priced = prices.back.prices_us or prices.out.prices_us
    return [over(prices.back), over(prices.out)] if is_priced else None
