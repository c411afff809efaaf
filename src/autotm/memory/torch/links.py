"""Copy times of a device, alone and beside operators, as the placement problem takes them."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch

from autotm.memory.torch.device import Copies, Device, median_ns
from autotm.model.measurement import AsynchronousLinks, Contention, Link, Links
from autotm.model.step import OpClass, Tier

_SIZES = (4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20)
_ROUNDS = 5
_SIDE = 512
"""Of the matrices whose product is the operator that computes; as many bytes are what the other one reads."""
_PRODUCTS = {OpClass.CONV_FORWARD, OpClass.CONV_DATA_GRADIENT, OpClass.CONV_WEIGHT_GRADIENT, OpClass.MATMUL}


def measured_links(device: Device, budget_bytes: int) -> Links:
    """Time copies of the device, and what they and operators beside them take from each other.

    Args:
        device: to be timed.
        budget_bytes: of device memory; no more than a quarter of it is used.
    """
    sizes = [size for size in _SIZES if size <= max(budget_bytes // 4, _SIZES[1])]
    here = torch.empty(sizes[-1], dtype=torch.uint8, device=device.torch).zero_()
    there = device.host_pool(sizes[-1]).zero_()
    copies = device.copies()
    try:
        ends: dict[Tier, Callable[[int], Any]] = {
            Tier.DRAM: lambda size: copies.start_inward(here[:size], there[:size]),
            Tier.PMEM: lambda size: copies.start_outward(there[:size], here[:size]),
        }
        blocking = {tier: _link(device, copies, tier, start, sizes) for tier, start in ends.items()}
        alone = {tier: _alone(copies, tier, start, sizes) for tier, start in ends.items()}
        rate, operators = _operators(device)
        beside = {
            tier: {kind: _contention(device, copies, start, sizes[-1], call) for kind, call in operators.items()}
            for tier, start in ends.items()
        }
    finally:
        copies.close()
    least_us = min(blocking[tier].points[0][1] - alone[tier].points[0][1] for tier in Tier) / 1e3
    of_class = {
        tier: {op_class: found[op_class in _PRODUCTS] for op_class in OpClass} for tier, found in beside.items()
    }
    between = AsynchronousLinks(
        alone[Tier.DRAM], alone[Tier.PMEM], of_class[Tier.DRAM], of_class[Tier.PMEM], max(least_us, 0.0)
    )
    return Links(blocking[Tier.DRAM], blocking[Tier.PMEM], rate, 1.0, between)


def _link(device: Device, copies: Copies, tier: Tier, start: Callable[[int], Any], sizes: list[int]) -> Link:
    """Copies that the step waits for."""
    times = [median_ns(device, lambda size=size: copies.wait(start(size)), 0.01)[1] for size in sizes]
    return Link(tier, tuple(zip(sizes, times, strict=True)))


def _alone(copies: Copies, tier: Tier, start: Callable[[int], Any], sizes: list[int]) -> Link:
    """From the beginning of a copy to its end."""
    return Link(tier, tuple((size, max(1, round(_copy_s(copies, start, size) * 1e9))) for size in sizes))


def _copy_s(copies: Copies, start: Callable[[int], Any], size: int) -> float:
    times = []
    for _ in range(_ROUNDS):
        copy = start(size)
        copies.wait(copy)
        times.append(copies.seconds(copy))
    return statistics.median(times)


def _operators(device: Device) -> tuple[float, dict[bool, Callable[[], object]]]:
    """The rate of products, and an operator that computes and one that is bound by memory."""
    one, other, made = (torch.ones(_SIDE, _SIDE, device=device.torch) for _ in range(3))
    operators: dict[bool, Callable[[], object]] = {
        True: lambda: torch.mm(one, other, out=made),
        False: lambda: torch.add(one, other, out=made),
    }
    _, median, *_ = median_ns(device, operators[True], 0.02)
    return 2.0 * _SIDE**3 / (median / 1e9), operators


def _contention(
    device: Device, copies: Copies, start: Callable[[int], Any], size: int, operator: Callable[[], object]
) -> Contention:
    """What a copy adds to operators, and they to it, over its time alone; the operators outlast the copy."""
    copy_s = _copy_s(copies, start, size)
    calls = max(1, int(3 * copy_s / max(device.seconds(operator, 3) / 3, 1e-7)))
    to_kernels, to_copy = [], []
    for _ in range(_ROUNDS):
        plain_s = device.seconds(operator, calls)
        copy = start(size)
        beside_s = device.seconds(operator, calls)
        copies.wait(copy)
        to_kernels.append((beside_s - plain_s) / copy_s)
        to_copy.append(copies.seconds(copy) / copy_s - 1)
    return Contention(max(0.0, statistics.median(to_kernels)), max(0.0, statistics.median(to_copy)))
