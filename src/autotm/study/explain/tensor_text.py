"""The explanation of a tensor, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from autotm.model.step import Tier
from autotm.study.explain.tensor import Gap, Residency, TensorExplanation, Use
from autotm.study.tables import columns, shorten

_TIERS = {Tier.DRAM: "fast", Tier.PMEM: "slow"}
_NO_TIME_US = 5e-4


def tensor_text(found: TensorExplanation) -> str:
    """Where it lives, what its uses and gaps cost, and what other residencies would."""
    return "\n".join(_parts(found))


def _parts(found: TensorExplanation) -> Iterator[str]:
    tensor = found.tensor
    shape = "x".join(map(str, tensor.shape)) or "scalar"
    yield (
        f"{tensor.name}: {tensor.role}, {tensor.size_bytes / 1e6:.6g} MB ({tensor.dtype} {shape}); "
        f"{found.network}, {found.optimizer}, limit {found.limit}"
    )
    for stay in found.stays:
        yield f"in {_TIERS[stay.tier]} memory during kernels {stay.start} to {stay.end - 1}"
    for move in found.moves:
        how = f"beside kernels {move.since} to {move.before - 1}" if move.is_asynchronous else "while the step waits"
        yield f"copied to {_TIERS[move.destination]} memory before kernel {move.before}, {how}"
    yield "\nUses (what slow memory would add: measured alone, by the profile)"
    yield columns([("kernel", "is then", "if slow us"), *map(_use, found.uses)], left=2)
    if found.gaps:
        yield "\nBetween uses (predicted)"
        yield columns([_GAP_HEAD, *map(_gap, found.gaps)], left=1)
    yield "\nWhat it costs the step, by the prices of the plan's certificate (predicted us)"
    yield columns(
        [
            ("residency", "slow uses", "moves", "holding cost", "in all", "step slower by"),
            *map(_way, found.residencies),
        ],
        left=1,
    )
    yield _verdict(found)


_WAY_HEAD = ("residency", "slow uses", "moves", "holding cost", "in all", "step slower by")
_GAP_HEAD = ("kernels", "time us", "reuse distance MB", "holding cost us", "out and back us")


def _use(use: Use) -> tuple[str, ...]:
    return f"{use.kernel} {shorten(use.name)}", _TIERS[use.tier], f"{use.slower_us:.4g}"


def _gap(gap: Gap) -> tuple[str, ...]:
    numbers = (gap.time_us, gap.reuse_bytes / 1e6, gap.held_us, gap.moved_us)
    return f"{gap.after} to {gap.before}", *(f"{number:.4g}" for number in numbers)


def _way(way: Residency) -> tuple[str, ...]:
    costs = (f"{number:.4g}" for number in (way.uses_us, way.moves_us, way.held_us, way.total_us))
    return way.name, *costs, _loss(way)


def _loss(way: Residency) -> str:
    if not way.fits:
        return "does not fit"
    return "" if way.loss_us is None else f"at least {way.loss_us:.4g}"


def _verdict(found: TensorExplanation) -> str:
    if not found.has_prices:
        return "The plan has no prices: its optimizer has one plan, whatever tensors cost."
    planned, *others = found.residencies
    best = min((way for way in others if way.fits), key=lambda way: way.total_us)
    less = planned.total_us - best.total_us
    if less <= _NO_TIME_US:
        text = "No other of these is cheaper: the plan keeps it where its bytes are worth most."
    else:
        text = (
            f"{best.name.capitalize()} would be {less:.4g} us cheaper at these prices. They are the relaxation's: "
            "whole tensors do not fill the limit exactly, and the plan's gap bounds what all of that can save."
        )
    if found.is_tabled:
        text += (
            " A kernel that uses it is priced by measured configurations, in which slow operands do not simply add up."
        )
    return text
