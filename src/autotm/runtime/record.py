"""The record of a run: what it measured, and what its plan and program say, under the original's field names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from autotm.model.cache import CacheCounts, PageCounts, PagedPool
from autotm.model.graph import CountedGraph, Graph, Kernel, Operand, Tier
from autotm.model.links import Links
from autotm.model.machine import Machine
from autotm.model.plan import MANAGED_MEMORY, Plan, repeats
from autotm.model.profile import COMPARED_WITH, Profile
from autotm.model.program import Address, KernelStep, MoveStep, Program, StartMoveStep
from autotm.model.record import Record
from autotm.runtime.arguments import io_bytes
from autotm.runtime.linux_pages import LinuxPages
from autotm.runtime.step_times import StepParts, StepTimes


@dataclass(frozen=True)
class Measured:
    """Measurements by the executor: whole steps, their parts, steps verified, pages by tier and memory node.

    `verified_against` says with what steps were compared; `linux` says where Linux had placed pages, if it placed them.
    """

    steps: StepTimes
    parts: StepParts
    verified_steps: int
    seed: int
    verified_against: str = ""
    pages: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    linux: LinuxPages | None = None


def build_record(
    graph: CountedGraph,
    program: Program,
    plan: Plan,
    machine: Machine,
    links: Links,
    profile: Profile,
    measured: Measured,
) -> Record:
    """Put together the record of one run of a program of `graph`, the step with all implementations."""
    chosen, linux = program.step_of(graph), measured.linux
    if linux:  # measured, in place of what the plan expected
        plan = replace(plan, paged=linux.pool)
    pages = PageCounts.of(plan.paged, chosen) if plan.paged else None
    if linux and pages:
        pages = replace(pages, promoted_bytes=linux.promoted_bytes, demoted_bytes=linux.demoted_bytes)
    fast_bytes, slow_bytes = _pool_bytes(program, plan)
    configs = {
        chosen.kernels[step.kernel].name: "".join(address.tier.letter for address in step.addresses)
        for step in program.steps
        if isinstance(step, KernelStep)
    }
    total_us = sum(measured.parts.kernels_us.values())
    again_us = sum(measured.parts.kernels_us.get(chosen.kernels[at].name, 0.0) for at in repeats(program.calls))
    samples_s, is_managed = measured.steps.samples_s, program.optimizer == MANAGED_MEMORY
    attempts = plan.attempts_s or ((plan.build_s, plan.solve_s),)
    return Record(
        network=graph.network,
        scale=graph.scale,
        batch=graph.batch,
        machine=machine.name,
        threads=machine.threads,
        tier_reality=machine.reality_of(cached=plan.cached is not None),
        optimizer=program.optimizer,
        limit=program.limit,
        counts=plan.counts,
        dram_limit_bytes=program.dram_limit_bytes,
        ratio=None if program.limit.size_bytes is not None else str(program.limit),
        ratio_achieved=slow_bytes / fast_bytes if fast_bytes else None,
        io_size=io_bytes(graph),
        default_alloc_size=graph.peak_live_bytes,
        dram_alloc_size=fast_bytes,
        pmem_alloc_size=slow_bytes,
        predicted_runtime_s=plan.objective_us / 1e6,
        bound_s=plan.bound_us / 1e6,
        gap=plan.gap,
        solver_status=str(plan.status),
        creation_times=tuple(build_s for build_s, _ in attempts),
        optimization_times=tuple(solve_s for _, solve_s in attempts),
        fits=program.fits,
        actual_runtime_s=min(samples_s, default=None),
        actual_runtime_median_s=median(samples_s) if samples_s else None,
        gpu_managed_runtime_s=median(samples_s) if samples_s and is_managed else None,
        samples_s=samples_s,
        all_fast_samples_s=measured.steps.all_fast_s,
        disturbed_steps=measured.steps.disturbed,
        disturbed_steps_count=measured.steps.disturbed_count,
        disturbed_before=(*([f"kernels of {graph.network}"] if profile.is_disturbed else ()), *links.disturbed),
        compared_with=profile.provenance.get(COMPARED_WITH, "nothing"),
        kernel_times_us=measured.parts.kernels_us,
        repeated_share=again_us / total_us if total_us else 0.0,
        stall_time_us=measured.parts.stall_us,
        move_actual_us=measured.parts.moves_us if samples_s else None,
        waited_s=measured.steps.waited_s,
        all_fast_waited_s=measured.steps.all_fast_waited_s,
        all_fast_predicted_s=sum(map(profile.base_us, graph.computed_by(()).kernels)) / 1e6,
        machine_memory_mode=machine.memory_mode,
        pages_by_node={tier: dict(pages) for tier, pages in measured.pages.items() if pages},
        oracle_time_us=oracle_time_us(graph, profile, measured.parts.kernels_us),
        implementations=dict(Counter(one.implementation for one in graph.computed_by(program.implementations).kernels)),
        tensor_size_map={tensor.name: tensor.size_bytes for tensor in chosen.tensors},
        config_map=configs,
        cache=CacheCounts.of(plan.cached) if plan.cached else None,
        pages=pages,
        pages_by_node_before={str(Tier.SLOW): linux.before} if linux else {},
        verified_steps=measured.verified_steps,
        verified_against=measured.verified_against,
        seed=measured.seed,
        **_slot_counts(chosen, program) | (_page_counts(chosen, plan.paged) if plan.paged else {}),
        **_move_counts(program, links),
    )


def unfit_record(
    graph: CountedGraph, program: Program, plan: Plan, machine: Machine, links: Links, profile: Profile, seed: int
) -> Record:
    """Return the record of a program that exceeds its limit: it does not run, and nothing is measured."""
    nothing = Measured(StepTimes(()), StepParts({}, 0.0), 0, seed)
    return build_record(graph, program, plan, machine, links, profile, nothing)


def _pool_bytes(program: Program, plan: Plan) -> tuple[int, int]:
    """Return the bytes of the fast and the slow pool; of one pool for both, its most fast bytes and the rest."""
    if program.optimizer == MANAGED_MEMORY and not program.limit.is_unlimited:
        fast_bytes = min(program.fast_bytes, program.dram_limit_bytes)
        return fast_bytes, program.fast_bytes - fast_bytes
    fast_bytes = plan.one_pool.fast_bytes if plan.one_pool else program.fast_bytes
    return fast_bytes, program.slow_bytes - (fast_bytes if plan.paged else 0)


def oracle_time_us(graph: Graph, profile: Profile, kernel_times_us: Mapping[str, float]) -> float:
    """Time of the step if every kernel had all operands in fast memory and the best of its implementations.

    The least of the profiled times of a kernel's implementations and of its time in this run, summed over kernels
    (`oracle_time` of the original, which records it on GPUs only).

    Raises:
        AutotmError: the profile lacks a kernel.
    """

    def least(kernel: Kernel) -> float:
        profiled_us = profile.least_us(kernel)
        return min(profiled_us, kernel_times_us.get(kernel.name, profiled_us))

    return sum(least(kernel) for kernel in graph.kernels)


def _slot_counts(graph: Graph, program: Program) -> dict[str, Any]:
    inputs, outputs = [], []
    for step in program.steps:
        if isinstance(step, KernelStep):
            kernel = graph.kernels[step.kernel]
            slots = list(zip(kernel.operands, step.addresses, strict=True))
            inputs += slots[: len(kernel.inputs)]
            outputs += slots[len(kernel.inputs) : len(kernel.inputs) + len(kernel.outputs)]
    counts: dict[str, Any] = {"num_kernels": len(graph.kernels)}
    for side, slots in (("input", inputs), ("output", outputs)):
        fast = [slot for slot in slots if slot[1].tier is Tier.FAST]
        counts[f"num_{side}_tensors"] = len(slots)
        counts[f"num_dram_{side}_tensors"] = len(fast)
        counts[f"bytes_{side}_tensors"] = _movable_bytes(graph, slots)
        counts[f"bytes_dram_{side}_tensors"] = _movable_bytes(graph, fast)
    return counts


def _page_counts(graph: Graph, pool: PagedPool) -> dict[str, int]:
    """Return the bytes by slot in fast pages."""
    fast = {"input": 0, "output": 0}
    for kernel, slow_bytes in zip(graph.kernels, pool.slow_bytes, strict=True):
        sides = ["input"] * len(kernel.inputs) + ["output"] * len(kernel.outputs)
        for (tensor, slots), slow in zip(graph.slots_of(kernel).items(), slow_bytes, strict=True):
            for slot in slots:
                if slot < len(sides):  # a workspace is neither
                    fast[sides[slot]] += graph.by_name[tensor].size_bytes - slow
    return {f"bytes_dram_{side}_tensors": size for side, size in fast.items()}


def _movable_bytes(graph: Graph, slots: list[tuple[Operand, Address]]) -> int:
    tensors = (graph.by_name[operand.tensor] for operand, _ in slots)
    return sum(tensor.size_bytes for tensor in tensors if tensor.is_movable)


def _move_counts(program: Program, links: Links) -> dict[str, Any]:
    counts: dict[str, Any] = {"move_time_us": 0.0}
    for kind, prefix in ((MoveStep, ""), (StartMoveStep, "async_")):
        moves = [step for step in program.steps if isinstance(step, kind)]
        for tiers, infix in ((set(Tier), ""), ({Tier.FAST}, "dram_"), ({Tier.SLOW}, "pmem_")):
            sizes = [move.size_bytes for move in moves if move.destination.tier in tiers]
            counts[f"num_{infix}{prefix}move_nodes"] = len(sizes)
            counts[f"bytes_{prefix}moved_{infix}".removesuffix("_")] = sum(sizes)
        if kind is MoveStep:
            counts["move_time_us"] = sum(links.copy_us(move.destination.tier, move.size_bytes) for move in moves)
    return counts
