"""Prices as a certificate states them, sparse, and back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from autotm.model.certificate import KernelPrices, PortionPrices
from autotm.model.certificate import Prices as Stated
from autotm.model.certificate import SlowPrices as StatedSlow
from autotm.solve.certificate import Prices, SlowPrices
from autotm.solve.table import Floats, Table

_SAME = 1e-9
"""Relative difference below which a slow operand's price is that of the first set: what is left of rounding."""


def state(prices: Prices, tables: Sequence[Table], first: Prices | None = None) -> Stated:
    """The certificate's set of these prices; slow operands are left out where they cost what they do in `first`."""
    portions = {1: prices.byte_us, **prices.rounded}
    fast = tuple(PortionPrices(divisor, *_sparse(each)) for divisor, each in portions.items() if each.any())
    known = first.slow_us if first else tuple((0.0,) * len(shares) for shares in prices.slow_us)
    told = list(_differences(tables, prices.slow_us, known))
    slow = StatedSlow(*(tuple(column) for column in zip(*told, strict=True))) if told else StatedSlow()
    engines = prices.engines
    return Stated(fast, slow, KernelPrices(*_sparse(engines.out_us)), KernelPrices(*_sparse(engines.back_us)))


def like(first: Prices, prices: Prices) -> Prices:
    """The same prices, those of slow operands that differ from the first set by rounding only set to theirs."""
    slow_us = tuple(
        tuple(old if abs(new - old) <= _SAME * abs(old) else new for new, old in zip(news, olds, strict=True))
        for news, olds in zip(prices.slow_us, first.slow_us, strict=True)
    )
    return replace(prices, slow_us=slow_us)


def byte_prices(stated: Stated, kernels: int) -> Floats:
    """(kernels,) Price of a byte."""
    prices = np.zeros(kernels)
    for each in stated.fast:
        if each.divisor_bytes == 1:
            prices[list(each.kernels)] = each.prices_us
    return prices


def slow_prices(stated: Stated, tables: Sequence[Table]) -> SlowPrices:
    """Per table and operand, what a certificate's first set says."""
    keys = zip(stated.slow.kernels, stated.slow.tensors, strict=True)
    told = dict(zip(keys, stated.slow.prices_us, strict=True))
    return tuple(tuple(told.get((table.kernel, name), 0.0) for name in table.operands) for table in tables)


def _sparse(prices: Floats) -> tuple[tuple[int, ...], tuple[float, ...]]:
    kernels = prices.nonzero()[0]
    return tuple(kernels.tolist()), tuple(prices[kernels].tolist())


def _differences(tables: Sequence[Table], slow_us: SlowPrices, known: SlowPrices) -> Iterator[tuple[int, str, float]]:
    for table, shares, before in zip(tables, slow_us, known, strict=True):
        for name, share, old in zip(table.operands, shares, before, strict=True):
            if share != old:
                yield table.kernel, name, share
