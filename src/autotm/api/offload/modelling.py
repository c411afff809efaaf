"""Times of a step on a GPU that is not here, with nothing moved and within budgets: modelled from published rates."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.fx.node import map_arg
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from autotm.api.offload.measuring import Measured, OperatorMemory, identity_of
from autotm.api.offload.planning import Planned, Ways, place
from autotm.api.offload.step_graph import model_of
from autotm.joint_graph import Operator, Step, storage_of
from autotm.memory.torch_step import HALVES
from autotm.model.config import SolveConfig
from autotm.model.errors import BadInputError, InfeasibleLimitError
from autotm.model.graph import Tier
from autotm.model.machine import GpuFile
from autotm.model.profile import Timing
from autotm.model.provenance import commit, cpu_signature, versions
from autotm.model.step_memory import ModelledTime, StepMemory
from autotm.optimizer_updates import Update
from autotm.profile.modelled_gpu import modelled_links

REACHED = 0.4
"""Share of a GPU's rates that every operator is taken to reach, at the least.

Large models are trained at 0.2 to 0.46 of the rate of tensor cores (Chowdhery et al., arXiv:2204.02311, table 3), the
time of exchanges between GPUs included; single operators are faster.
"""
_SHARES = (0.8, 0.6, 0.4)
"""Budgets where none was asked for, in shares of what the step needs."""
_GRAIN = 512
"""Bytes to multiples of which PyTorch's allocator rounds on GPUs."""


def modelled_times(
    step: Step, gpu: GpuFile, memory: StepMemory, *, asked: bool, page: Path | None = None
) -> list[ModelledTime]:
    """Return the times of a step in which all is kept, then of plans within its budget, or some budgets.

    Args:
        step: without memory; its optimizer's updates are among its operators.
        gpu: its published rates.
        memory: of PyTorch's own step, with a budget.
        asked: whether only the budget is of interest; if not, and the step keeps it, smaller ones are.
        page: where the page of the plan within the budget goes, of a step whose operators reach `REACHED`.

    Raises:
        BadInputError: a page is asked for, and there is no plan.
    """
    slow, fast = (_measured(step, gpu, reached) for reached in (REACHED, 1.0))
    least_s, most_s = (math.fsum(timing.median_ns for timing in one.timings) / 1e9 for one in (fast, slow))
    times, plans = [ModelledTime(None, least_s, most_s)], dict[int, Planned]()
    need_bytes, budget_bytes = memory.peak.size_bytes, memory.budget_bytes
    assert budget_bytes is not None
    is_short = budget_bytes < need_bytes
    shares = () if asked or is_short else _SHARES
    for size_bytes in [budget_bytes] if is_short else [int(share * need_bytes) for share in shares]:
        try:
            one, plans[size_bytes] = _planned(step, gpu, (fast, slow), size_bytes)
            times.append(one)
        except InfeasibleLimitError as error:
            if page is not None and is_short:
                raise BadInputError(f"fits: no page: {str(error).removeprefix('offload: ')}") from error
            if error.smallest_bytes is None:  # That a budget is below the least is told elsewhere.
                times.append(ModelledTime(size_bytes, failure=str(error).removeprefix("offload: ")))
    if page is not None:
        planned = plans[budget_bytes] if is_short else _placed(step, gpu, slow, budget_bytes)
        planned.write_page(page, memory.module, step.rows, _source(gpu))
    return times


def _planned(step: Step, gpu: GpuFile, rates: Sequence[Measured], size_bytes: int) -> tuple[ModelledTime, Planned]:
    """Plan a step at both ends of the range of its operators' times; return also the plan for the slower ones."""
    found = [_placed(step, gpu, measured, size_bytes) for measured in rates]
    slow = found[1]
    # No step takes longer with faster operators: what is planned for slower ones may be the better plan.
    fast = min(found, key=lambda planned: planned.plan.objective_us)
    moved = (fast.graph.by_name[move.tensor] for move in fast.plan.moves if move.destination is Tier.SLOW)
    moved_bytes = sum(tensor.size_bytes for tensor in moved)
    again = sum(run is not None and run.wanted is not None for run in fast.runs)
    least_s, most_s = (planned.plan.objective_us / 1e6 for planned in (fast, slow))
    return ModelledTime(size_bytes, least_s, most_s, moved_bytes, again, fast.layout.slow_bytes), slow


def _placed(step: Step, gpu: GpuFile, measured: Measured, size_bytes: int) -> Planned:
    graph, profile = model_of(step, measured, gpu.description, _GRAIN)
    ways = Ways(moves=True, recomputes=True, host_bytes=sys.maxsize)
    return place(step, graph, profile, modelled_links(gpu), ways, size_bytes, SolveConfig())


def _source(gpu: GpuFile) -> dict[str, Any]:
    """Return where the times of a page come from."""
    return {
        "machine": f"{gpu.description}, operators at {REACHED:g} of its rates",
        "cpu_model": f"planned on {cpu_signature()}",
        "threads": torch.get_num_threads(),
        "tier_reality": "modelled",
        "versions": versions(),
        "autotm_commit": commit(),
    }


def _measured(step: Step, gpu: GpuFile, reached: float) -> Measured:
    """Return what timing the step would, by the roofline of so much of the GPU's rates; no workspaces are known."""
    states = [_state_bytes(operator) for operator in step.operators]
    times_ns = [
        round(1e3 * gpu.launch.kernel_us + 1e9 * _roofline_s(step, operator, state_bytes, gpu) / reached)
        for operator, state_bytes in zip(step.operators, states, strict=True)
    ]
    return Measured(
        tuple(Timing(ns, ns, ns, ns, 0) for ns in times_ns),
        tuple(map(identity_of, step.operators)),
        tuple(OperatorMemory(0) for _ in times_ns),
        tuple(storage.size_bytes for storage in step.storages),
        tuple(states),
        tuple(None for _ in times_ns),
    )


def _roofline_s(step: Step, operator: Operator, state_bytes: int, gpu: GpuFile) -> float:
    """Return the least seconds of an operator: what it computes or what it reads and writes, whichever takes longer."""
    node = operator.node
    given = map_arg((node.args, dict(node.kwargs)), lambda read: read.meta["val"])
    tensors = [value for value in tree_leaves(given) if isinstance(value, torch.Tensor)]
    read_bytes = sum({_key(value): _bytes(value) for value in tensors}.values())
    if isinstance(node.target, Update):
        # Parameters are read and written, and so is the state; gradients, which are as many, are read.
        return (1.5 * read_bytes + 2 * state_bytes) / gpu.bandwidth.bytes_per_s
    written_bytes = sum(step.storages[place].size_bytes for place in operator.outputs)
    if node.target is torch.ops.aten.embedding.default:
        read_bytes = written_bytes  # Of the table so many rows.
    moved_bytes = read_bytes + written_bytes
    flops, rate = 0.0, gpu.compute.flop_per_s
    count = flop_registry.get(getattr(node.target, "_overloadpacket", None))
    if count is not None:
        flops = float(count(*given[0], **given[1], out_val=node.meta["val"]))
        if {value.dtype for value in tensors} & HALVES and gpu.compute.half_flop_per_s is not None:
            rate = gpu.compute.half_flop_per_s
    return max(flops / rate, moved_bytes / gpu.bandwidth.bytes_per_s)


def _key(value: torch.Tensor) -> tuple[object, ...]:
    """Return what views of the same numbers have in common."""
    return storage_of(value), value.storage_offset(), value.numel()


def _bytes(value: torch.Tensor) -> int:
    """Return the bytes that are read of a tensor, each once, however often a view repeats them."""
    return min(value.numel() * value.element_size(), value.untyped_storage().nbytes())


def _state_bytes(operator: Operator) -> int:
    target: Any = operator.node.target
    return target.state_bytes if isinstance(target, Update) else 0
