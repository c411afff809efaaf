"""What a reader must know to trust the page of a plan: what it shows, how good it is, where its numbers come from."""

from __future__ import annotations

from autotm.model.machine import slow_memory_text
from autotm.model.plan import Status
from autotm.study.drawing import machine_text, near_text, text_in_bytes, title
from autotm.study.tables import versions_text
from autotm.study.view.placed import Placed

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
        "Lagrange multipliers of the certificate's first set: what a megabyte of fast memory is worth during a kernel; "
        "0 where memory is not scarce"
    )
