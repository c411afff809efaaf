"""Where every tensor is, re-derived from stays and moves alone."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

from autotm.check.fault import Fault, require
from autotm.model.plan import Move, Plan, Stay
from autotm.model.step import Graph, Tier


class Residence:
    """The stays of a plan by tensor and tier, and what they mean at each kernel."""

    def __init__(self, graph: Graph, plan: Plan) -> None:
        self._graph = graph
        self._plan = plan
        self._stays: dict[tuple[str, Tier], list[Stay]] = defaultdict(list)
        for stay in sorted(plan.stays, key=lambda stay: stay.start):
            self._stays[stay.tensor, stay.tier].append(stay)
        self._moves: dict[str, list[Move]] = defaultdict(list)
        for move in plan.moves:
            self._moves[move.tensor].append(move)

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
                held = any(self.usable(movable.name, tier, user) for tier in Tier)
                require(held, Fault.NOT_HELD, f"'{movable.name}' at kernel {user}")

    def holds(self, tensor: str, tier: Tier, kernel: int) -> bool:
        """Whether a stay in `tier` covers `kernel`."""
        return any(stay.start <= kernel < stay.end for stay in self._stays[tensor, tier])

    def usable(self, tensor: str, tier: Tier, kernel: int) -> bool:
        """Whether a stay in `tier` covers `kernel`, and no asynchronous move is still filling it."""
        filling = any(
            move.destination is tier and move.start <= kernel < move.before
            for move in self._moves[tensor]
            if move.is_asynchronous
        )
        return self.holds(tensor, tier, kernel) and not filling

    def slow_operands(self, kernel: int) -> frozenset[str]:
        """Movable operands that the kernel has to use in slow memory, having no copy in fast memory."""
        names = {operand.tensor for operand in self._graph.kernels[kernel].operands}
        movable = (name for name in names if self._graph.by_name[name].is_movable)
        return frozenset(name for name in movable if not self.usable(name, Tier.DRAM, kernel))

    def _check_order(self) -> None:
        stays = [(stay.start, stay.tensor, stay.tier.value) for stay in self._plan.stays]
        require(stays == sorted(stays), Fault.ORDER, "stays are not sorted by start, tensor, tier")
        moves = [(move.before, not move.is_asynchronous, move.destination is Tier.DRAM) for move in self._plan.moves]
        order = "asynchronous ones first, then those to slow memory"
        require(moves == sorted(moves), Fault.ORDER, f"moves are not in the order of completion, {order}")

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
        require(tensor.live.start < move.start < tensor.live.stop, Fault.BAD_SPAN, where)
        require(move.before < tensor.live.stop, Fault.BAD_SPAN, where)
        require(self._has_source(move), Fault.NO_SOURCE, where)
        begins = any(
            stay.start == move.start and stay.end > move.before for stay in self._stays[move.tensor, move.destination]
        )
        require(begins, Fault.NO_DESTINATION, where)
        rivals = [
            rival
            for rival in self._moves[move.tensor]
            if (rival.destination, rival.start) == (move.destination, move.start)
        ]
        require(len(rivals) == 1, Fault.ORDER, f"{where}, twice")

    def _has_source(self, move: Move) -> bool:
        """Whether one stay holds the tensor, complete, from the start of the move to its end."""
        to_slow = move.destination is Tier.PMEM
        source = Tier.DRAM if to_slow else Tier.PMEM
        blocking = (move.before - 1, move.before) if to_slow else (move.before, move.before + 1)
        start, stop = (move.start, move.before) if move.is_asynchronous else blocking
        covered = any(stay.start <= start and stop <= stay.end for stay in self._stays[move.tensor, source])
        return covered and self.usable(move.tensor, source, start)

    def _check_origin(self, stay: Stay) -> None:
        other = Tier.DRAM if stay.tier is Tier.PMEM else Tier.PMEM
        born = self._graph.by_name[stay.tensor].live.start
        if stay.start == born:
            twice = any(rival.start == born for rival in self._stays[stay.tensor, other])
            require(not twice, Fault.BORN_TWICE, f"'{stay.tensor}' at kernel {born}")
            return
        arrives = any(move.destination is stay.tier and move.start == stay.start for move in self._moves[stay.tensor])
        require(arrives, Fault.NO_ORIGIN, f"'{stay.tensor}' in {stay.tier} memory from kernel {stay.start}")
