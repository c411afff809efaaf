"""Where a limit on fast memory binds, and what more of it would save."""

from __future__ import annotations

from dataclasses import dataclass

from autotm.model.plan import Status
from autotm.model.step import Tier
from autotm.study.tables import columns, shorten
from autotm.study.view import BYTES_PER_MB, MemoryPrices, Placed


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
    limit: str
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
            columns([_HEAD, *(_line(one) for one in self.binding[:most])], left=2),
        ]
        return "\n".join(lines)


_HEAD = ("kernel", "operation", "live MB", "fast MB", "us/MB")


def _line(one: BindingKernel) -> tuple[str, ...]:
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
