"""Where every tensor is, re-derived from stays and moves alone."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise

from autotm.check.fault import Fault, require
from autotm.model.graph import Graph
from autotm.model.plan import Move, Plan, Stay
from autotm.model.tier import Tier


class Residence:
    """The stays of a plan by tensor and tier, and what they mean at each kernel."""

    def __init__(self, graph: Graph, plan: Plan) -> None:
        self._graph = graph
        self._plan = plan
        self._moves = Counter(plan.moves)
        self._stays: dict[tuple[str, Tier], list[Stay]] = defaultdict(list)
        for stay in sorted(plan.stays, key=lambda stay: stay.start):
            self._stays[stay.tensor, stay.tier].append(stay)

    def check(self) -> None:
        """Every stay has data from its first kernel on, every move a source and a destination, in the stated order."""
        self._check_order()
        for stay in self._plan.stays:
            self._check_stay(stay)
        for (tensor, tier), stays in self._stays.items():
            for before, after in pairwise(stays):
                apart = before.end <= after.start
                require(apart, Fault.DOUBLE_STAY, f"'{tensor}' in {tier} memory from {after.start}")
        for move in self._plan.moves:
            self._check_move(move)
        for stay in self._plan.stays:
            self._check_origin(stay)
        for movable in self._graph.movable:
            for user in movable.users:
                held = any(self.holds(movable.name, tier, user) for tier in Tier)
                require(held, Fault.NOT_HELD, f"'{movable.name}' at kernel {user}")

    def holds(self, tensor: str, tier: Tier, kernel: int) -> bool:
        """Whether a stay in `tier` covers `kernel`."""
        return any(stay.start <= kernel < stay.end for stay in self._stays[tensor, tier])

    def slow_operands(self, kernel: int) -> frozenset[str]:
        """Movable operands that the kernel has to use in slow memory, having no copy in fast memory."""
        names = {operand.tensor for operand in self._graph.kernels[kernel].operands}
        movable = (name for name in names if self._graph.by_name[name].is_movable)
        return frozenset(name for name in movable if not self.holds(name, Tier.DRAM, kernel))

    def _check_order(self) -> None:
        stays = [(stay.start, stay.tensor, stay.tier.value) for stay in self._plan.stays]
        require(stays == sorted(stays), Fault.ORDER, "stays are not sorted by start, tensor, tier")
        moves = [(move.before, move.destination is Tier.DRAM) for move in self._plan.moves]
        require(moves == sorted(moves), Fault.ORDER, "moves are not in execution order, to slow memory first")

    def _check_stay(self, stay: Stay) -> None:
        tensor = self._graph.by_name.get(stay.tensor)
        known = tensor is not None and tensor.is_movable
        require(known, Fault.UNKNOWN_TENSOR, f"stay of '{stay.tensor}'")
        assert tensor is not None
        inside = tensor.live.start <= stay.start < stay.end <= tensor.live.stop
        require(
            inside, Fault.BAD_SPAN, f"'{stay.tensor}' stays during [{stay.start}, {stay.end}), lives in {tensor.live}"
        )
        whole = tensor.held is None or (stay.start, stay.end) == tensor.held
        require(whole, Fault.BAD_SPAN, f"'{stay.tensor}', which the next step needs too, leaves {stay.tier} memory")

    def _check_move(self, move: Move) -> None:
        tensor = self._graph.by_name.get(move.tensor)
        known = tensor is not None and tensor.is_movable
        require(known, Fault.UNKNOWN_TENSOR, f"move of '{move.tensor}'")
        assert tensor is not None
        where = f"'{move.tensor}' to {move.destination} before kernel {move.before}"
        require(tensor.live.start < move.before < tensor.live.stop, Fault.BAD_SPAN, where)
        to_slow = move.destination is Tier.PMEM
        source = Tier.DRAM if to_slow else Tier.PMEM
        require(self.holds(move.tensor, source, move.before - 1 if to_slow else move.before), Fault.NO_SOURCE, where)
        begins = any(stay.start == move.before for stay in self._stays[move.tensor, move.destination])
        require(begins, Fault.NO_DESTINATION, where)
        require(self._moves[move] == 1, Fault.ORDER, f"{where}, twice")

    def _check_origin(self, stay: Stay) -> None:
        other = Tier.DRAM if stay.tier is Tier.PMEM else Tier.PMEM
        born = self._graph.by_name[stay.tensor].live.start
        if stay.start == born:
            twice = any(rival.start == born for rival in self._stays[stay.tensor, other])
            require(not twice, Fault.BORN_TWICE, f"'{stay.tensor}' at kernel {born}")
            return
        arrives = Move(stay.tensor, stay.tier, stay.start) in self._moves
        require(arrives, Fault.NO_ORIGIN, f"'{stay.tensor}' in {stay.tier} memory from kernel {stay.start}")
