"""What `torch.compile` keeps for the backward pass under an activation memory budget, by an integer program.

PyTorch's own solvers count the time of each tensor that is not kept, alone. Computing one again may take others that
are not kept either, which are then computed once for all: this program counts those. Operators are timed.
"""

from __future__ import annotations

from operator import getitem
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotm.api.offload.entry import require_torch

require_torch("knapsack")
import torch  # noqa: E402 - where it is missing, the message says what to do
from torch import fx  # noqa: E402
from torch._inductor.custom_graph_pass import CustomKnapsackSolver, get_hash_for_files  # noqa: E402
from torch.utils._pytree import tree_leaves, tree_map_only  # noqa: E402

from autotm.memory.torch_device import Device, device_of  # noqa: E402
from autotm.model.errors import AutotmError  # noqa: E402
from autotm.solve.saving import kept  # noqa: E402

if TYPE_CHECKING:
    from torch._functorch.partitioners import NodeInfo

_TIMED_S = 0.003
"""For each distinct operator: it has at least three calls, and only ratios of operators matter."""


class _Knapsack(CustomKnapsackSolver):
    """The solver behind `autotm.knapsack`."""

    def __call__(
        self,
        memory: list[float],
        joint_graph: fx.Graph,
        max_memory: float,
        node_info: NodeInfo,
        all_recomputable_banned_nodes: list[fx.Node],
    ) -> tuple[list[int], list[int]]:
        """Return the places of the nodes to keep, and those of the others.

        Args:
            memory: of each candidate, in shares of what is kept without a budget.
            joint_graph: forward and backward.
            max_memory: in the same shares.
            node_info: what belongs to the forward pass.
            all_recomputable_banned_nodes: the candidates.
        """
        forward = [node for node in node_info.required_fw_nodes if node.op == "call_function"]
        numbers = {node: number for number, node in enumerate(forward)}
        inputs = [[numbers[read] for read in node.all_input_nodes if read in numbers] for node in forward]
        # What the step returns is among the output's values, and computed anyway.
        backward = (node for node in joint_graph.nodes if not node_info.is_required_fw(node) and node.op != "output")
        needed = {numbers[read] for node in backward for read in node.all_input_nodes if read in numbers}
        places = {numbers[node]: place for place, node in enumerate(all_recomputable_banned_nodes)}
        sizes = {number: memory[place] for number, place in places.items()}
        keeps = {places[number] for number in kept([*map(_Times().us, forward)], inputs, needed, sizes, max_memory)}
        return sorted(keeps), sorted({*range(len(memory))} - keeps)

    def uuid(self) -> Any:
        """Return what compiled functions are kept by in PyTorch's caches: this code."""
        return get_hash_for_files((__file__, str(Path(__file__).parents[1] / "solve" / "saving.py")))


class _Times:
    """Operators that are timed on their device, each once, with operands of zeros."""

    def __init__(self) -> None:
        self._known: dict[str, float] = {}
        self._devices: dict[torch.device, Device] = {}

    def us(self, node: fx.Node) -> float:
        """Return the median microseconds of a node; AutotmError if it cannot be called by itself."""
        values = [value for value in tree_leaves(node.meta.get("val")) if isinstance(value, torch.Tensor)]
        if node.target is getitem or not values:
            return 0.0
        given = tree_map_only(fx.Node, lambda read: read.meta["val"], (node.args, dict(node.kwargs)))
        called = tree_map_only(torch.Tensor, lambda one: (one.shape, one.stride(), one.dtype), given)
        key = f"{node.target} {called} {values[0].device}"
        if key not in self._known:
            device = self._devices.setdefault(values[0].device, device_of(values[0].device))
            args, named = tree_map_only(torch.Tensor, _zeros, given)
            assert callable(node.target)
            target = node.target
            try:
                self._known[key] = device.median_ns(lambda: target(*args, **named), _TIMED_S)[1] / 1e3
            except Exception as error:
                raise AutotmError(f"knapsack: operator '{target}' cannot be timed by itself: {error}") from error
        return self._known[key]


def _zeros(like: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device).zero_()


knapsack = _Knapsack()
"""A solver for `torch._functorch.config.activation_memory_budget_solver`.

Set it beside `activation_memory_budget`: of the tensors that `torch.compile` could compute again, it keeps those that
make the backward pass shortest within the budget. It times each distinct operator for some milliseconds.
"""
