"""Prices as a certificate states them, sparse, and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from autotm.model.plan import Certificate, CutPrices, KernelPrices, Leaf, Split
from autotm.model.plan import Cut as StatedCut
from autotm.model.plan import Prices as Stated
from autotm.model.plan import SlowPrices as StatedSlow
from autotm.model.plan import SpanPrices as StatedSpans
from autotm.solve.bounds.certificate import Prices, SlowPrices
from autotm.solve.bounds.cut import Cut
from autotm.solve.bounds.engine_prices import SpanPrices
from autotm.solve.problem import Floats, Table

CutUs = Mapping[Cut, Floats]

_SAME = 1e-9
"""Relative difference below which a slow operand's price is that of the first set: what is left of rounding."""


def state(prices: Prices, tables: Sequence[Table], first: Prices | None = None) -> Stated:
    """The certificate's set of these prices; slow operands are left out where they cost what they do in `first`."""
    cuts = tuple(CutPrices(cut.number, *_sparse(each)) for cut, each in prices.cut_us.items())
    known = first.slow_us if first else tuple((0.0,) * len(shares) for shares in prices.slow_us)
    told = list(_differences(tables, prices.slow_us, known))
    slow = StatedSlow(*(tuple(column) for column in zip(*told, strict=True))) if told else StatedSlow()
    out, back = (_spans(each) for each in (prices.engines.out, prices.engines.back))
    return Stated(KernelPrices(*_sparse(prices.byte_us)), cuts, slow, out, back)


def certificate_of(sets: Sequence[Stated], tree: Sequence[Split | Leaf], found: Sequence[Cut]) -> Certificate:
    """A certificate of price sets that number the cuts as they were found; it has those that are priced."""
    used = sorted({each.cut for stated in sets for each in stated.cuts})
    place = {number: n for n, number in enumerate(used)}
    prices = tuple(
        replace(stated, cuts=tuple(replace(each, cut=place[each.cut]) for each in stated.cuts)) for stated in sets
    )
    cuts = (found[number].weights for number in used)
    return Certificate(prices, tuple(tree), tuple(StatedCut(tuple(each), tuple(each.values())) for each in cuts))


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
    prices[list(stated.fast.kernels)] = stated.fast.prices_us
    return prices


def cut_prices(certificate: Certificate, sizes_bytes: Mapping[str, int], limit_bytes: int, kernels: int) -> CutUs:
    """What a certificate's first set charges by its cuts."""
    found = {}
    for each in certificate.prices[0].cuts:
        stated = certificate.cuts[each.cut]
        weights = dict(zip(stated.tensors, stated.weights, strict=True))
        prices = np.zeros(kernels)
        prices[list(each.kernels)] = each.prices_us
        found[Cut.of(each.cut, weights, sizes_bytes, limit_bytes)] = prices
    return found


def slow_prices(stated: Stated, tables: Sequence[Table]) -> SlowPrices:
    """Per table and operand, what a certificate's first set says."""
    keys = zip(stated.slow.kernels, stated.slow.tensors, strict=True)
    told = dict(zip(keys, stated.slow.prices_us, strict=True))
    return tuple(tuple(told.get((table.kernel, name), 0.0) for name in table.operands) for table in tables)


def _sparse(prices: Floats) -> tuple[tuple[int, ...], tuple[float, ...]]:
    kernels = prices.nonzero()[0]
    return tuple(kernels.tolist()), tuple(prices[kernels].tolist())


def _spans(prices: SpanPrices) -> StatedSpans:
    return StatedSpans(*(tuple(each.tolist()) for each in (prices.starts, prices.ends, prices.price_us)))


def _differences(tables: Sequence[Table], slow_us: SlowPrices, known: SlowPrices) -> Iterator[tuple[int, str, float]]:
    for table, shares, before in zip(tables, slow_us, known, strict=True):
        for name, share, old in zip(table.operands, shares, before, strict=True):
            if share != old:
                yield table.kernel, name, share
