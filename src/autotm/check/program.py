"""Whether a program does what its plan says, simulated at the level of bytes."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

from autotm.check.fault import Fault, require
from autotm.check.memory import Memory
from autotm.model.files import hash_of
from autotm.model.graph import ALIGNMENT_BYTES, Graph, Kernel
from autotm.model.limit import Limit
from autotm.model.plan import Move, Plan
from autotm.model.program import Address, KernelStep, MoveStep, Program
from autotm.model.tier import Tier


def check_program(graph: Graph, plan: Plan, program: Program) -> None:
    """Vouch for a program: pools within the limit, aligned addresses, every operand's bytes valid when used.

    `graph` is the step with all implementations, of which the program runs those that its plan chose.

    Raises:
        FaultError: the first broken rule.
    """
    _check_identity(graph, plan, program)
    chosen = graph.computed_by(program.implementations)
    _check_steps(chosen, plan, program)
    simulation = _Simulation(chosen, plan, program)
    for step in program.steps:
        if isinstance(step, KernelStep):
            simulation.kernel(step)
        else:
            simulation.move(step)
    simulation.finish()


def _check_identity(graph: Graph, plan: Plan, program: Program) -> None:
    require(program.graph_hash == plan.graph_hash == hash_of(graph), Fault.OTHER_GRAPH, f"program {program.graph_hash}")
    require(program.plan_hash == hash_of(plan), Fault.OTHER_PLAN, f"program for plan {program.plan_hash}")
    for name in ("optimizer", "limit", "dram_limit_bytes", "implementations"):
        stated, planned = getattr(program, name), getattr(plan, name)
        require(stated == planned, Fault.OTHER_PLAN, f"{name} is {stated}, the plan's is {planned}")
    named = len(program.implementations)
    require(named in {0, len(graph.kernels)}, Fault.STEPS, f"{named} implementations, {len(graph.kernels)} kernels")
    unlimited = Limit.parse(plan.limit).slow == 0
    fits = unlimited or program.fast_bytes <= plan.dram_limit_bytes
    require(fits, Fault.LIMIT, f"fast pool of {program.fast_bytes} bytes, the limit is {plan.dram_limit_bytes}")


def _check_steps(graph: Graph, plan: Plan, program: Program) -> None:
    kernels = [step.kernel for step in program.steps if isinstance(step, KernelStep)]
    require(kernels == list(range(len(graph.kernels))), Fault.STEPS, "kernels do not run once each and in order")
    found, before = [], 0
    for step in program.steps:
        if isinstance(step, KernelStep):
            before += 1
        else:
            found.append(Move(step.tensor, step.destination.tier, before))
    require(Counter(found) == Counter(plan.moves), Fault.STEPS, "moves are not those of the plan")
    order = [(move.before, move.destination is Tier.DRAM) for move in found]
    require(order == sorted(order), Fault.STEPS, "a move to fast memory comes before one to slow memory")


class _Simulation:
    """Both pools while the program runs."""

    def __init__(self, graph: Graph, plan: Plan, program: Program) -> None:
        self._graph = graph
        self._plan = plan
        self._pools = {Tier.DRAM: program.fast_bytes, Tier.PMEM: program.slow_bytes}
        self._memory = {tier: Memory() for tier in Tier}
        self._held = self._held_addresses(program)
        for tensor, address in self._held.items():
            if graph.by_name[tensor].producer is None:
                self._check_address(tensor, address, f"argument '{tensor}'")
                self._write(tensor, address)

    def _held_addresses(self, program: Program) -> dict[str, Address]:
        """Where arguments lie in the pools: at one place, throughout."""
        found: dict[str, Address] = {}
        for step in program.steps:
            if isinstance(step, KernelStep):
                for operand, address in zip(self._graph.kernels[step.kernel].operands, step.addresses, strict=False):
                    if self._graph.by_name[operand.tensor].held:
                        same = found.setdefault(operand.tensor, address) == address
                        require(same, Fault.ADDRESS, f"kernel {step.kernel}: argument '{operand.tensor}' has moved")
        return found

    def finish(self) -> None:
        """Arguments are still whole for the next step."""
        for tensor, address in self._held.items():
            self._require_valid(tensor, address, "end of the step")

    def kernel(self, step: KernelStep) -> None:
        """Read the inputs, then write outputs and workspaces."""
        kernel = self._graph.kernels[step.kernel]
        where = f"kernel {step.kernel} '{kernel.name}'"
        slots = len(kernel.operands)
        require(len(step.addresses) == slots, Fault.SLOTS, f"{where}: {len(step.addresses)} addresses, {slots} slots")
        bound: dict[str, Address] = {}
        for slot, (operand, address) in enumerate(zip(kernel.operands, step.addresses, strict=True)):
            tensor = operand.tensor
            place = f"{where}, slot {slot} '{tensor}'"
            self._check_address(tensor, address, place)
            letter = self._plan.configurations[step.kernel][slot]
            require(
                address.tier.letter == letter, Fault.ADDRESS, f"{place}: {address.tier}, configuration says {letter}"
            )
            require(bound.setdefault(tensor, address) == address, Fault.ADDRESS, f"{place}: one tensor, two addresses")
        self._check_overlap(bound, where)
        self._run(kernel, bound, where)

    def move(self, step: MoveStep) -> None:
        """Copy between the pools."""
        where = f"move of '{step.tensor}' to {step.destination.tier}"
        size = self._graph.by_name[step.tensor].size_bytes
        require(step.size_bytes == size, Fault.ADDRESS, f"{where}: {step.size_bytes} bytes, the tensor has {size}")
        require(step.source.tier is not step.destination.tier, Fault.ADDRESS, f"{where}: within one tier")
        for address in (step.source, step.destination):
            self._check_address(step.tensor, address, where)
        self._require_valid(step.tensor, step.source, where)
        self._write(step.tensor, step.destination)

    def _run(self, kernel: Kernel, bound: dict[str, Address], where: str) -> None:
        for operand in kernel.inputs:
            if bound[operand.tensor].offset is not None:
                self._require_valid(operand.tensor, bound[operand.tensor], f"{where}, input")
        for operand in kernel.outputs + kernel.workspaces:
            if bound[operand.tensor].offset is not None:
                self._write(operand.tensor, bound[operand.tensor])

    def _check_address(self, tensor: str, address: Address, where: str) -> None:
        movable = self._graph.by_name[tensor].is_movable
        if address.offset is None:
            argument = not movable and address.tier is Tier.DRAM
            require(argument, Fault.ADDRESS, f"{where}: a movable tensor needs an offset in a pool")
            return
        require(movable, Fault.ADDRESS, f"{where}: an argument has a buffer of its own, not an offset")
        require(address.offset % ALIGNMENT_BYTES == 0, Fault.ALIGNMENT, f"{where}: offset {address.offset}")
        end = address.offset + self._graph.by_name[tensor].allocated_bytes
        inside = address.offset >= 0 and end <= self._pools[address.tier]
        require(inside, Fault.POOL, f"{where}: bytes [{address.offset}, {end}) of {self._pools[address.tier]}")

    def _check_overlap(self, bound: dict[str, Address], where: str) -> None:
        spans = [
            (address.tier, address.offset, address.offset + self._graph.by_name[tensor].allocated_bytes, tensor)
            for tensor, address in bound.items()
            if address.offset is not None
        ]
        for one, other in combinations(spans, 2):
            apart = one[0] is not other[0] or one[2] <= other[1] or other[2] <= one[1]
            require(apart, Fault.OVERLAP, f"{where}: '{one[3]}' and '{other[3]}' share bytes of {one[0]} memory")

    def _require_valid(self, tensor: str, address: Address, where: str) -> None:
        assert address.offset is not None
        memory = self._memory[address.tier]
        size = self._graph.by_name[tensor].allocated_bytes
        reason = f"overwritten by '{killer}'" if (killer := memory.killer(tensor)) else "never written there"
        valid = memory.holds(tensor, address.offset, size)
        require(valid, Fault.STALE, f"{where}: '{tensor}' at {address.tier} offset {address.offset}: {reason}")

    def _write(self, tensor: str, address: Address) -> None:
        assert address.offset is not None
        self._memory[address.tier].write(tensor, address.offset, self._graph.by_name[tensor].allocated_bytes)
