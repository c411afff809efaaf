"""Why a plan is as it is: what binds its limit, why a tensor lives where it does, how two plans or two runs differ."""

from __future__ import annotations

import difflib
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

from autotm.check.bound import proven_bound_us
from autotm.model.errors import BadInputError
from autotm.model.files import load_with_provenance
from autotm.model.graph import Tensor, Tier
from autotm.model.limit import Limit
from autotm.model.plan import Move, Plan, Status, Stay
from autotm.model.record import Record
from autotm.study.columns import columns, shorten
from autotm.study.placed import BYTES_PER_MB, MemoryPrices, Placed


@dataclass(frozen=True)
class BindingKernel:
    """A kernel at which fast memory is scarce.

    Attributes:
        kernel: its index in the step.
        name, op: as in the graph file.
        live_bytes: bytes of all tensors that are live there, in either memory.
        fast_bytes: bytes of those in fast memory.
        price_us_per_mb: price of a megabyte of fast memory there.
    """

    kernel: int
    name: str
    op: str
    live_bytes: int
    fast_bytes: int
    price_us_per_mb: float


@dataclass(frozen=True)
class LimitExplanation:
    """The cost of a limit, and the kernels that cause it.

    Attributes:
        network, optimizer, limit: those of the plan; the limit as asked.
        limit_bytes: bytes of fast memory.
        peak_live_bytes: bytes that the step needs when nothing is slow.
        predicted_us: predicted time of the step.
        bound_us: lower bound on that time; no plan of the optimizer is faster.
        all_fast_us: predicted time of the step with everything fast.
        is_optimized: whether there was a choice; without one there are no prices either.
        saved_us_per_mb: microseconds by which 1 MB more would shorten the best step, as far as prices hold: they
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
        """Return the explanation for a terminal; it names the `most` dearest kernels."""
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
        ]
        table = [("kernel", "operation", "live MB", "fast MB", "us/MB")]
        for one in self.binding[:most]:
            sizes = (f"{size / BYTES_PER_MB:.5g}" for size in (one.live_bytes, one.fast_bytes))
            price = f"{one.price_us_per_mb:.4g}"
            table.append((f"{one.kernel} {shorten(one.name)}", shorten(one.op), *sizes, price))
        return "\n".join([*lines, columns(table, left=2)])


def explain_limit(placed: Placed) -> LimitExplanation:
    """Return what the plan's limit costs and which kernels it binds at."""
    step, plan = placed.step, placed.plan
    prices, fast = MemoryPrices(plan, len(step.kernels)), fast_bytes(placed)
    binding = [
        BindingKernel(index, kernel.name, kernel.op, step.live_bytes[index], fast[index], prices.us_per_mb[index])
        for index, kernel in enumerate(step.kernels)
        if prices.us_per_mb[index] > 0
    ]
    return LimitExplanation(
        step.network, plan.optimizer, plan.limit, plan.dram_limit_bytes, placed.graph.peak_live_bytes,
        plan.objective_us, plan.bound_us, placed.all_fast_us, plan.status is not Status.NOT_OPTIMIZED,
        prices.total_us_per_mb if prices.are_known else None,
        tuple(sorted(binding, key=lambda one: -one.price_us_per_mb)),
    )  # fmt: skip


def fast_bytes(placed: Placed) -> list[int]:
    """Return, by kernel, the allocated bytes of what is in fast memory."""
    sizes, total = placed.step.by_name, [0] * len(placed.step.kernels)
    for stay in placed.plan.stays:
        if stay.tier is Tier.FAST:
            for kernel in range(stay.start, stay.end):
                total[kernel] += sizes[stay.tensor].allocated_bytes
    return total


_NEAR = 5
"""Names that the message about an unknown tensor suggests."""


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
    """Return what a plan does with a tensor, and what other residencies would cost.

    Raises:
        BadInputError: no such tensor, or one that the plan does not place.
    """
    tensor = _tensor_of(placed, name)
    step, plan = placed.step, placed.plan
    stays = tuple(stay for stay in plan.stays if stay.tensor == tensor.name)
    prices = MemoryPrices(plan, len(step.kernels))
    # Plans are priced by default implementations; a tensor that these lack, such as a workspace, by the plan's own.
    default = placed.graph.computed_by(())
    priced = step if tensor.producer is not None and tensor.name not in default.by_name else default
    uses = []
    for index in tensor.users:
        # Where the tensor is in both tiers, it is used in fast memory.
        is_fast = any(stay.tier is Tier.FAST and stay.start <= index < stay.end for stay in stays)
        slower_us = placed.profile.extra_us(priced, priced.kernels[index], tensor.name)
        uses.append(Use(index, step.kernels[index].name, Tier.FAST if is_fast else Tier.SLOW, slower_us))
    moved = [(move, us) for move, us in zip(plan.moves, placed.moves_us, strict=True) if move.tensor == tensor.name]
    size = tensor.allocated_bytes
    planned = Residency(
        "as planned",
        sum(use.slower_us for use in uses if use.tier is Tier.SLOW),
        sum(us for _, us in moved),
        sum(prices.held_us(size, stay.start, stay.end) for stay in stays if stay.tier is Tier.FAST),
    )
    held_us, fits = prices.held_us(size, tensor.live.start, tensor.live.stop), size <= plan.dram_limit_bytes
    for_life = Residency("fast for life", 0.0, 0.0, held_us, _loss_us(placed, tensor, stays, Tier.FAST), fits)
    slow_us = sum(use.slower_us for use in uses)
    never = Residency("slow for life", slow_us, 0.0, 0.0, _loss_us(placed, tensor, stays, Tier.SLOW))
    return TensorExplanation(
        step.network, plan.optimizer, plan.limit, tensor, stays, tuple(move for move, _ in moved), tuple(uses),
        tuple(_gaps(placed, tensor, prices)), (planned, for_life, never), prices.are_known,
        bool(set(tensor.users) & set(plan.tabled)),
    )  # fmt: skip


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
    """Return by how many microseconds keeping the tensor in one tier for life makes the step slower at least."""
    plan = placed.plan
    fits = tier is Tier.SLOW or tensor.allocated_bytes <= plan.dram_limit_bytes
    if plan.certificate is None or not fits or all(stay.tier is tier for stay in stays):
        return None
    least_us = proven_bound_us(placed.graph, placed.profile, placed.links, plan, fixed={tensor.name: tier})
    return max(0.0, least_us - plan.objective_us)


def _gaps(placed: Placed, tensor: Tensor, prices: MemoryPrices) -> Iterator[Gap]:
    step, links = placed.step, placed.links
    both_us = sum(links.copy_us(tier, tensor.size_bytes) for tier in (Tier.SLOW, Tier.FAST))
    for after, before in pairwise(tensor.users):
        between = range(after + 1, before)
        used = {name for index in between for name in step.slots_of(step.kernels[index])}
        time_us = sum(placed.kernels_us[index] for index in between)
        reuse_bytes = sum(step.by_name[name].size_bytes for name in used)
        held_us = prices.held_us(tensor.allocated_bytes, after + 1, before)
        yield Gap(after, before, time_us, reuse_bytes, held_us, both_us)


_NO_TIME_US = 5e-4
"""A smaller saving is rounding of the prices."""


def tensor_text(explanation: TensorExplanation) -> str:
    """Return where the tensor lives, what its uses and gaps cost, and what other residencies would cost."""
    tensor = explanation.tensor
    shape = "x".join(map(str, tensor.shape)) or "scalar"
    size = f"{tensor.size_bytes / 1e6:.6g} MB ({tensor.dtype} {shape})"
    plan = f"{explanation.network}, {explanation.optimizer}, limit {explanation.limit}"
    lines = [f"{tensor.name}: {tensor.role}, {size}; {plan}"]
    lines += [
        f"in {stay.tier.name.lower()} memory during kernels {stay.start} to {stay.end - 1}"
        for stay in explanation.stays
    ]
    for move in explanation.moves:
        how = f"beside kernels {move.since} to {move.before - 1}" if move.is_asynchronous else "while the step waits"
        lines.append(f"copied to {move.destination.name.lower()} memory before kernel {move.before}, {how}")
    uses = [
        (f"{use.kernel} {shorten(use.name)}", use.tier.name.lower(), f"{use.slower_us:.4g}") for use in explanation.uses
    ]
    lines.append("\nUses (what slow memory would add: measured alone, by the profile)")
    lines.append(columns([("kernel", "is then", "if slow us"), *uses], left=2))
    if explanation.gaps:
        gaps = [("kernels", "time us", "reuse distance MB", "holding cost us", "out and back us")]
        for gap in explanation.gaps:
            numbers = (gap.time_us, gap.reuse_bytes / 1e6, gap.held_us, gap.moved_us)
            gaps.append((f"{gap.after} to {gap.before}", *(f"{number:.4g}" for number in numbers)))
        lines += ["\nBetween uses (predicted)", columns(gaps, left=1)]
    residencies = [("residency", "slow uses", "moves", "holding cost", "in all", "step slower by")]
    for one in explanation.residencies:
        loss = "" if one.loss_us is None else f"at least {one.loss_us:.4g}"
        costs = (f"{cost_us:.4g}" for cost_us in (one.uses_us, one.moves_us, one.held_us, one.total_us))
        residencies.append((one.name, *costs, loss if one.fits else "does not fit"))
    lines.append("\nWhat it costs the step, by the prices of the plan's certificate (predicted us)")
    return "\n".join([*lines, columns(residencies, left=1), _verdict(explanation)])


def _verdict(explanation: TensorExplanation) -> str:
    if not explanation.has_prices:
        return "The plan has no prices: its optimizer has one plan, whatever tensors cost."
    planned, *others = explanation.residencies
    best = min((one for one in others if one.fits), key=lambda one: one.total_us)
    less = planned.total_us - best.total_us
    if less <= _NO_TIME_US:
        text = "No other of these is cheaper: the plan keeps it where its bytes are worth most."
    else:
        text = (
            f"{best.name.capitalize()} would be {less:.4g} us cheaper at these prices. They are the relaxation's: "
            "whole tensors do not fill the limit exactly, and the plan's gap bounds what all of that can save."
        )
    if explanation.is_tabled:
        text += (
            " A kernel that uses it is priced by measured configurations, in which slow operands do not simply add up."
        )
    return text


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
        differing: largest differences first: tensors by their kernels in fast memory, or kernels by their measured
            microseconds; by name, the value in each file.
    """

    kind: str
    files: tuple[Path, Path]
    fields: Mapping[str, tuple[Value, Value]]
    differing: Mapping[str, tuple[Value, Value]]

    def text(self, most: int = 10) -> str:
        """Return a text for a terminal, with the `most` largest differences."""
        lines = [f"A: {self.files[0]}", f"B: {self.files[1]}", _side_by_side(self.fields)]
        unit = {"plan": "kernels that tensors are in fast memory for", "record": "measured us of kernels"}[self.kind]
        if not self.differing:
            return "\n".join([*lines, f"No difference in the {unit}."])
        lines.append(f"\nLargest differences of {len(self.differing)} in the {unit}")
        return "\n".join([*lines, _side_by_side(dict(islice(self.differing.items(), most)))])


def _side_by_side(fields: Mapping[str, tuple[Value, Value]]) -> str:
    lines = [("", "A", "B", "B/A")]
    for name, values in fields.items():
        first, second = values
        are_numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
        ratio = f"{second / first:.4g}" if are_numbers and first else ""  # type: ignore[operator]
        texts = (
            "-" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value) for value in values
        )
        lines.append((shorten(name), *texts, ratio))
    return columns(lines, left=1)


def compare(first: Path, second: Path) -> Comparison:
    """Read two plans or two records, and compare them.

    Raises:
        BadInputError: they are of different kinds, or of neither.
        DamagedFileError: one of them cannot be read.
    """
    kind, other = (_kind(path) for path in (first, second))
    if kind != other:
        raise BadInputError(f"{first} is a {kind}, {second} a {other}: compare two plans, or two records")
    read = _plan if kind == "plan" else _record
    fields, details = (
        {name: (a.get(name), b.get(name)) for name in {**a, **b}}
        for a, b in zip(read(first), read(second), strict=True)
    )
    differing = [(name, (a, b)) for name, (a, b) in details.items() if a != b]
    differing.sort(key=lambda item: -abs((item[1][1] or 0) - (item[1][0] or 0)))
    return Comparison(kind, (first, second), fields, dict(differing))


def _kind(path: Path) -> str:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadInputError(f"{path}: no such file; give two plan.json or two record.json") from None
    except (ValueError, IsADirectoryError):
        document = {}
    kind = document.get("kind") if isinstance(document, dict) else None
    if kind not in {"plan", "record"}:
        raise BadInputError(f"{path}: neither a plan nor a record; give two plan.json or two record.json")
    return str(kind)


def _plan(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the plan's fields, and for how many kernels each tensor is in fast memory."""
    plan, source = load_with_provenance(path, "plan", Plan)
    fields = {name: source.get(name) for name in _SOURCE} | {name: getattr(plan, name) for name in _PLAN}
    fields |= {"stays": len(plan.stays), "moves": len(plan.moves), "solve_s": plan.solve_s}
    fast: dict[str, Any] = defaultdict(int)
    for stay in plan.stays:
        fast[stay.tensor] += stay.end - stay.start if stay.tier is Tier.FAST else 0
    return fields, fast


def _record(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the record's fields, and the measured microseconds of each kernel."""
    record, source = load_with_provenance(path, "record", Record)
    fields = {name: source.get(name) for name in _SOURCE} | {name: getattr(record, name) for name in _RECORD}
    median_s, all_fast_s = record.actual_runtime_median_s, record.all_fast_runtime_median_s
    if median_s is not None and all_fast_s is not None:
        fields["slow-down, measured"] = median_s / all_fast_s
    return fields, dict(record.kernel_times_us)
