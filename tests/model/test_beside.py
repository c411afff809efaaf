"""What asynchronous moves and kernels take from each other, by the op classes of the kernels in a window."""

from __future__ import annotations

from dataclasses import replace

import pytest
from random_graphs import Case, random_case, with_engines

from autotm.model.graph import OpClass, Tier
from autotm.model.links import BesideKernels, Contention
from autotm.model.plan import Move


def case_of(to_kernels: float, to_copy: float, **other: Contention) -> Case:
    """Contention to and from all op classes, but for some."""
    case = with_engines(random_case(3, kernels=8))
    beside = dict.fromkeys(OpClass, Contention(to_kernels, to_copy))
    beside |= {OpClass(name): each for name, each in other.items()}
    links = case.links
    assert links.asynchronous is not None
    measured = replace(links.asynchronous, beside_to_fast=beside, beside_to_slow=beside)
    return replace(case, links=replace(links, asynchronous=measured))


def test_equal_classes_give_their_share_in_every_window() -> None:
    case = case_of(0.25, 0.5)
    beside, alone_us = BesideKernels(case.graph, case.profile, case.links), case.links.transfer_us(Tier.SLOW, 10**6)
    for span in ((0, 1), (2, 5), (0, 8)):
        assert beside.added_us(Tier.SLOW, 10**6, *span) == pytest.approx(0.25 * alone_us + case.links.call_us)
        assert beside.work_ns(Tier.SLOW, 10**6, *span) == pytest.approx(1.5e3 * alone_us, rel=1e-2)


def test_a_window_costs_what_its_own_kernels_lose() -> None:
    case = case_of(0.0, 0.0, conv_forward=Contention(1.0, 2.0))
    assert [case.graph.kernels[place].op_class for place in (0, 1)] == [
        OpClass.CONV_FORWARD,
        OpClass.CONV_DATA_GRADIENT,
    ]
    beside, alone_us = BesideKernels(case.graph, case.profile, case.links), case.links.transfer_us(Tier.FAST, 10**6)
    one, other = beside.kernel_ns[:2]
    share = one / (one + other)
    assert beside.added_us(Tier.FAST, 10**6, 0, 1) == pytest.approx(alone_us + case.links.call_us)
    assert beside.added_us(Tier.FAST, 10**6, 1, 2) == pytest.approx(case.links.call_us)
    assert beside.added_us(Tier.FAST, 10**6, 0, 2) == pytest.approx(share * alone_us + case.links.call_us)
    assert beside.work_ns(Tier.FAST, 10**6, 0, 2) == pytest.approx((1 + 2 * share) * 1e3 * alone_us, rel=1e-3)
    assert beside.least_added_us(Tier.FAST, 10**6) == pytest.approx(case.links.call_us)


def test_a_blocking_move_costs_its_copy() -> None:
    case = case_of(0.25, 0.5)
    beside = BesideKernels(case.graph, case.profile, case.links)
    assert beside.move_us(Move("any", Tier.FAST, 3), 4096) == case.links.copy_us(Tier.FAST, 4096)
    assert beside.move_us(Move("any", Tier.FAST, 3, 1), 4096) == beside.added_us(Tier.FAST, 4096, 1, 3)


def test_contention_is_never_negative_and_of_every_class() -> None:
    with pytest.raises(ValueError, match="must not be negative"):
        Contention(-0.1, 0.0)
    links = case_of(0.0, 0.0).links.asynchronous
    assert links is not None
    with pytest.raises(ValueError, match="contention with matmul is missing"):
        replace(links, beside_to_fast={name: each for name, each in links.beside_to_fast.items() if name != "matmul"})
