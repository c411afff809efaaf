"""Why a plan is as it is: what binds its limit, why a tensor lives where it does, how two plans or two runs differ."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from autotm.check.plan import proven_bound_us
from autotm.model.errors import BadInputError
from autotm.model.files import load_with_provenance
from autotm.model.graph import Graph, Kernel, Tensor, Tier
from autotm.model.limit import Limit
from autotm.model.plan import Move, Plan, Status, Stay
from autotm.model.record import Record
from autotm.study.columns import columns, shorten
from autotm.study.placed import BYTES_PER_MB, MemoryPrices, Placed

# Where a limit on fast memory binds, and what more of it would save.


@dataclass(frozen=True)
class BindingKernel:
    """A kernel at which fast memory is scarce.

    Attributes:
        kernel: its index in the step.
        name, op: as in the graph file.
        live_bytes: of all tensors that are live there, wherever they are.
        fast_bytes: of those in fast memory.
        price_us_per_mb: what a megabyte there is worth.
    """

    kernel: int
    name: str
    op: str
    live_bytes: int
    fast_bytes: int
    price_us_per_mb: float


@dataclass(frozen=True)
class LimitExplanation:
    """What a limit costs, and where.

    Attributes:
        network, optimizer, limit: of the plan; the limit as asked.
        limit_bytes: of fast memory.
        peak_live_bytes: what the step needs when nothing is slow.
        predicted_us: of the step.
        bound_us: no plan of the optimizer is faster.
        all_fast_us: of the step with everything fast, predicted.
        is_optimized: whether there was a choice; without one there are no prices either.
        saved_us_per_mb: what the best step would be shorter by with 1 MB more, as far as prices hold: they
            fall as memory grows. None where the plan has no prices.
        binding: kernels whose fast memory has a price, dearest first.
    """

    network: str
    optimizer: str
    limit: Limit
    limit_bytes: int
    peak_live_bytes: int
    predicted_us: float
    bound_us: float
    all_fast_us: float
    is_optimized: bool
    saved_us_per_mb: float | None
    binding: tuple[BindingKernel, ...]

    def text(self, most: int = 10) -> str:
        """For a terminal; names the `most` dearest kernels."""
        lines = [
            f"{self.network}, {self.optimizer}, limit {self.limit}: {self.limit_bytes / 1e6:.6g} MB of fast memory.",
            f"That is {100 * self.limit_bytes / max(1, self.peak_live_bytes):.3g} % of the step's peak.",
            f"Predicted {self.predicted_us:.6g} us, {self.predicted_us / self.all_fast_us:.3f} times all fast"
            + (
                f"; no plan is faster than {self.bound_us:.6g} us." if self.is_optimized else "; nothing was optimized."
            ),
        ]
        if self.saved_us_per_mb is None:
            return "\n".join([*lines, "The plan has no prices: nothing says what more memory would save."])
        if not self.binding:
            return "\n".join([*lines, "No kernel binds the limit: more fast memory saves nothing."])
        share = 100 * self.saved_us_per_mb / self.predicted_us
        dearest = sum(one.price_us_per_mb for one in self.binding[:most])
        lines += [
            f"By the certificate's prices 1 MB more saves about {self.saved_us_per_mb:.4g} us a step ({share:.2g} %);",
            "the more memory there is, the less each further megabyte saves.",
            f"{len(self.binding)} kernels bind; of these, with {100 * dearest / self.saved_us_per_mb:.3g} % of that:",
            columns([_HEAD, *(_kernel_line(one) for one in self.binding[:most])], left=2),
        ]
        return "\n".join(lines)


_HEAD = ("kernel", "operation", "live MB", "fast MB", "us/MB")


def _kernel_line(one: BindingKernel) -> tuple[str, ...]:
    sizes = (f"{size / BYTES_PER_MB:.5g}" for size in (one.live_bytes, one.fast_bytes))
    return f"{one.kernel} {shorten(one.name)}", shorten(one.op), *sizes, f"{one.price_us_per_mb:.4g}"


def explain_limit(placed: Placed) -> LimitExplanation:
    """What binds the plan's limit."""
    step, plan = placed.step, placed.plan
    prices, fast = MemoryPrices(plan, len(step.kernels)), fast_bytes(placed)
    binding = [
        BindingKernel(index, kernel.name, kernel.op, step.live_bytes[index], fast[index], prices.us_per_mb[index])
        for index, kernel in enumerate(step.kernels)
        if prices.us_per_mb[index] > 0
    ]
    return LimitExplanation(
        step.network,
        plan.optimizer,
        plan.limit,
        plan.dram_limit_bytes,
        placed.graph.peak_live_bytes,
        plan.objective_us,
        plan.bound_us,
        placed.all_fast_us,
        plan.status is not Status.NOT_OPTIMIZED,
        prices.total_us_per_mb if prices.are_known else None,
        tuple(sorted(binding, key=lambda one: -one.price_us_per_mb)),
    )


def fast_bytes(placed: Placed) -> list[int]:
    """By kernel, allocated bytes of what is in fast memory."""
    sizes, found = placed.step.by_name, [0] * len(placed.step.kernels)
    for stay in placed.plan.stays:
        if stay.tier is Tier.DRAM:
            for kernel in range(stay.start, stay.end):
                found[kernel] += sizes[stay.tensor].allocated_bytes
    return found


# Why a tensor lives where a plan has it: what its uses, its bytes and its moves cost, and what else would.

_NEAR = 5


@dataclass(frozen=True)
class Use:
    """A kernel that makes or reads the tensor.

    Attributes:
        kernel: its index.
        name: as in the graph file.
        tier: where the tensor is then.
        slower_us: what it adds there if it is slow (measured by the profile).
    """

    kernel: int
    name: str
    tier: Tier
    slower_us: float


@dataclass(frozen=True)
class Gap:
    """The time between two uses that follow each other.

    Attributes:
        after, before: kernels that use the tensor.
        time_us: predicted time of the kernels in between.
        reuse_bytes: distinct bytes that kernels in between use: the reuse distance.
        held_us: holding cost, if it stayed in fast memory meanwhile.
        moved_us: blocking copies to slow memory and back.
    """

    after: int
    before: int
    time_us: float
    reuse_bytes: int
    held_us: float
    moved_us: float


@dataclass(frozen=True)
class Residency:
    """A way to keep the tensor, and what it costs.

    Attributes:
        name: of the way.
        uses_us: slower uses.
        moves_us: moves.
        held_us: holding cost of its fast memory.
        loss_us: by how much a step that keeps it so is slower than the plan's, at least, however the other tensors
            are placed (proven by the plan's certificate); None for the plan's own way, and where nothing proves it.
        fits: whether the limit leaves room for it.
    """

    name: str
    uses_us: float
    moves_us: float
    held_us: float
    loss_us: float | None = None
    fits: bool = True

    @property
    def total_us(self) -> float:
        """All three."""
        return self.uses_us + self.moves_us + self.held_us


@dataclass(frozen=True)
class TensorExplanation:
    """A tensor in a plan.

    Attributes:
        network, optimizer, limit: of the plan; the limit as asked.
        tensor: as in the graph file.
        stays, moves: those of it, as in the plan.
        uses: kernels that make or read it, in order.
        gaps: between uses that follow each other.
        has_prices: whether the plan's certificate says what fast memory is worth; else `held_us` is 0 everywhere.
        is_tabled: whether a kernel that uses it is priced by measured configurations: then uses do not simply add up.
        residencies: as planned first.
    """

    network: str
    optimizer: str
    limit: Limit
    tensor: Tensor
    stays: tuple[Stay, ...]
    moves: tuple[Move, ...]
    uses: tuple[Use, ...]
    gaps: tuple[Gap, ...]
    residencies: tuple[Residency, ...]
    has_prices: bool
    is_tabled: bool


def explain_tensor(placed: Placed, name: str) -> TensorExplanation:
    """What a plan does with a tensor, and what else it could.

    Raises:
        BadInputError: no such tensor, or one that the plan does not place.
    """
    tensor = _tensor_of(placed, name)
    step, plan = placed.step, placed.plan
    stays = tuple(stay for stay in plan.stays if stay.tensor == tensor.name)
    prices = MemoryPrices(plan, len(step.kernels))
    slower_us = _slower_us(placed, tensor)
    uses = tuple(
        Use(index, step.kernels[index].name, _tier_at(stays, index), slower_us(index)) for index in tensor.users
    )
    fast_all, held = sum(use.slower_us for use in uses), prices.held_us
    moved = [(move, us) for move, us in zip(plan.moves, placed.moves_us, strict=True) if move.tensor == tensor.name]
    size = tensor.allocated_bytes
    planned = Residency(
        "as planned",
        sum(use.slower_us for use in uses if use.tier is Tier.PMEM),
        sum(us for _, us in moved),
        sum(held(size, stay.start, stay.end) for stay in stays if stay.tier is Tier.DRAM),
    )
    held_us = held(size, tensor.live.start, tensor.live.stop)
    fits = size <= plan.dram_limit_bytes
    for_life = Residency("fast for life", 0.0, 0.0, held_us, _loss_us(placed, tensor, stays, Tier.DRAM), fits)
    never = Residency("slow for life", fast_all, 0.0, 0.0, _loss_us(placed, tensor, stays, Tier.PMEM))
    return TensorExplanation(
        step.network,
        plan.optimizer,
        plan.limit,
        tensor,
        stays,
        tuple(move for move, _ in moved),
        uses,
        _gaps(placed, tensor, prices),
        (planned, for_life, never),
        prices.are_known,
        bool(set(tensor.users) & set(plan.tabled)),
    )


def _tensor_of(placed: Placed, name: str) -> Tensor:
    known = placed.step.by_name
    if name not in known:
        near = difflib.get_close_matches(name, known, n=_NEAR) or [each for each in known if name in each][:_NEAR]
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        raise BadInputError(f"unknown tensor '{name}'{hint} (autotm view shows all {len(known)})")
    tensor = known[name] if (shared := known[name].alias_of) is None else known[shared]
    if not tensor.is_movable:
        raise BadInputError(
            f"tensor '{name}' ({tensor.role}) is in fast memory for good: the limit does not count it. With "
            "--counts all, in solving and here, plans place it, too"
        )
    return tensor


def _loss_us(placed: Placed, tensor: Tensor, stays: tuple[Stay, ...], tier: Tier) -> float | None:
    """By how much keeping the tensor in one tier for life makes the step slower at least."""
    plan = placed.plan
    has_room = tier is Tier.PMEM or tensor.allocated_bytes <= plan.dram_limit_bytes
    if plan.certificate is None or not has_room or all(stay.tier is tier for stay in stays):
        return None
    least_us = proven_bound_us(placed.graph, placed.profile, placed.links, plan, fixed={tensor.name: tier})
    return max(0.0, least_us - plan.objective_us)


def _tier_at(stays: tuple[Stay, ...], kernel: int) -> Tier:
    """A tensor in both tiers is used in fast memory."""
    fast = any(stay.tier is Tier.DRAM and stay.start <= kernel < stay.end for stay in stays)
    return Tier.DRAM if fast else Tier.PMEM


def _slower_us(placed: Placed, tensor: Tensor) -> Callable[[int], float]:
    """What the tensor adds to a kernel where it is slow; of its default implementation, as plans are priced."""
    own = tensor.producer is not None and tensor.name not in placed.graph.computed_by(()).by_name
    step: Graph = placed.step if own else placed.graph.computed_by(())

    def found(index: int) -> float:
        kernel: Kernel = step.kernels[index]
        return placed.profile.extra_us(step, kernel, tensor.name)

    return found


def _gaps(placed: Placed, tensor: Tensor, prices: MemoryPrices) -> tuple[Gap, ...]:
    step, links = placed.step, placed.links
    both = sum(links.copy_us(tier, tensor.size_bytes) for tier in (Tier.PMEM, Tier.DRAM))
    found = []
    for after, before in pairwise(tensor.users):
        between = range(after + 1, before)
        used = {name for index in between for name in step.slots_of(step.kernels[index])}
        found.append(
            Gap(
                after,
                before,
                sum(placed.kernels_us[index] for index in between),
                sum(step.by_name[name].size_bytes for name in used),
                prices.held_us(tensor.allocated_bytes, after + 1, before),
                both,
            )
        )
    return tuple(found)


# The explanation of a tensor, for a terminal.

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


# How two plans, or two runs, differ.

Value = float | str | None
_SOURCE = ("machine", "cpu_model", "threads", "seed", "tier_reality", "autotm_commit")
_PLAN = ("graph_hash", "optimizer", "limit", "dram_limit_bytes", "counts", "objective_us", "bound_us", "gap", "status")
_RECORD = (
    "network", "scale", "batch", "optimizer", "limit", "dram_limit_bytes", "tier_reality", "predicted_runtime_s",
    "bound_s", "actual_runtime_median_s", "actual_runtime_s", "num_move_nodes", "num_async_move_nodes", "bytes_moved",
    "bytes_async_moved", "move_actual_us", "stall_time_us", "dram_alloc_size", "pmem_alloc_size", "disturbed_steps",
)  # fmt: skip


@dataclass(frozen=True)
class Comparison:
    """Two files side by side.

    Attributes:
        kind: `plan` or `record`.
        files: which.
        fields: by name, the value in each.
        differing: what differs most: tensors by where they live (kernels in fast memory), or kernels by their measured
            microseconds; by name, the value in each. Most first.
    """

    kind: str
    files: tuple[Path, Path]
    fields: Mapping[str, tuple[Value, Value]]
    differing: Mapping[str, tuple[Value, Value]]

    def text(self, most: int = 10) -> str:
        """For a terminal; of what differs, the `most` first."""
        lines = [f"A: {self.files[0]}", f"B: {self.files[1]}"]
        lines.append(columns([("", "A", "B", "B/A"), *(_field_line(*item) for item in self.fields.items())], left=1))
        what = {"plan": "kernels that tensors are in fast memory for", "record": "measured us of kernels"}[self.kind]
        if not self.differing:
            return "\n".join([*lines, f"No difference in the {what}."])
        shown = list(self.differing.items())[:most]
        lines.append(f"\nLargest differences of {len(self.differing)} in the {what}")
        lines.append(columns([("", "A", "B", "B/A"), *(_field_line(*item) for item in shown)], left=1))
        return "\n".join(lines)


def _field_line(name: str, values: tuple[Value, Value]) -> tuple[str, ...]:
    first, second = values
    are_numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    ratio = f"{second / first:.4g}" if are_numbers and first else ""  # type: ignore[operator]
    return shorten(name), *(_value_text(value) for value in values), ratio


def _value_text(value: Value) -> str:
    return "-" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def compare(first: Path, second: Path) -> Comparison:
    """Read two plans or two records, and tell them apart.

    Raises:
        BadInputError: they are of different kinds, or of neither.
        DamagedFileError: one of them cannot be read.
    """
    kinds = [_kind(path) for path in (first, second)]
    if kinds[0] != kinds[1]:
        raise BadInputError(f"{first} is a {kinds[0]}, {second} a {kinds[1]}: compare two plans, or two records")
    found = [_plan(path) if kinds[0] == "plan" else _record(path) for path in (first, second)]
    fields, details = ({name: _pair(found, part, name) for name in _names(found, part)} for part in (0, 1))
    differing = {name: values for name, values in details.items() if values[0] != values[1]}
    ordered = sorted(differing, key=lambda name: -abs((differing[name][1] or 0) - (differing[name][0] or 0)))
    return Comparison(kinds[0], (first, second), fields, {name: differing[name] for name in ordered})


def _names(found: list[tuple[dict[str, Any], dict[str, Any]]], part: int) -> Iterator[str]:
    yield from dict.fromkeys(name for one in found for name in one[part])


def _pair(found: list[tuple[dict[str, Any], dict[str, Any]]], part: int, name: str) -> tuple[Any, Any]:
    return found[0][part].get(name), found[1][part].get(name)


def _kind(path: Path) -> str:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadInputError(f"{path}: no such file; give two plan.json or two record.json") from None
    except (json.JSONDecodeError, UnicodeDecodeError, IsADirectoryError):
        document = {}
    kind = document.get("kind") if isinstance(document, dict) else None
    if kind not in {"plan", "record"}:
        raise BadInputError(f"{path}: neither a plan nor a record; give two plan.json or two record.json")
    return str(kind)


def _plan(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    plan, source = load_with_provenance(path, "plan", Plan)
    fields = {name: getattr(plan, name) for name in _PLAN}
    fields |= {"stays": len(plan.stays), "moves": len(plan.moves), "solve_s": plan.solve_s}
    fast: dict[str, float] = {}
    for stay in plan.stays:
        fast.setdefault(stay.tensor, 0)
        fast[stay.tensor] += stay.end - stay.start if stay.tier is Tier.DRAM else 0
    return _source(source) | fields, fast


def _record(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    record, source = load_with_provenance(path, "record", Record)
    values = asdict(record)
    fields = {name: values[name] for name in _RECORD}
    median_s, beside = record.actual_runtime_median_s, record.all_fast_runtime_median_s
    if median_s is not None and beside is not None:
        fields["slow-down, measured"] = median_s / beside
    return _source(source) | fields, dict(record.kernel_times_us)


def _source(source: Mapping[str, Any]) -> dict[str, Any]:
    return {name: source.get(name) for name in _SOURCE}
