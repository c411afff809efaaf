"""Checks whether a program does what its plan says, by simulation at the level of bytes."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from itertools import combinations

from autotm.check.fault import UNLIMITED, Fault, called_kernels, check_calls, require
from autotm.check.one_pool import check_one_pool_program
from autotm.model.files import hash_of
from autotm.model.graph import ALIGNMENT_BYTES, ChosenGraph, CountedGraph, Tier
from autotm.model.plan import Move, Plan
from autotm.model.program import Address, Instruction, KernelStep, MoveStep, Program, StartMoveStep, WaitMoveStep


class Memory:
    """Valid data in a pool; writing over a part of a tensor's data destroys the whole.

    Attributes:
        killers: by tensor that was overwritten, the one whose data did it last.
    """

    def __init__(self) -> None:
        self.killers: dict[str, str] = {}
        self._contents: list[tuple[int, int, str]] = []
        """Disjoint and ascending: bytes [start, end) hold the data of a tensor."""

    def write(self, tensor: str, start: int, size_bytes: int) -> None:
        """Put a tensor's data at [start, start + size); what overlaps is gone, an older copy of the tensor too."""
        end = start + size_bytes
        first = max(0, bisect_left(self._contents, (start + 1, 0, "")) - 1)
        last = bisect_left(self._contents, (end, 0, ""))
        near = self._contents[first:last]
        self.killers |= {name: tensor for _, reach, name in near if reach > start}
        self._contents[first:last] = [*(content for content in near if content[1] <= start), (start, end, tensor)]

    def holds(self, tensor: str, start: int, size_bytes: int) -> bool:
        """Return whether exactly these bytes hold the tensor's data, whole."""
        at = bisect_left(self._contents, (start, 0, ""))
        return self._contents[at : at + 1] == [(start, start + size_bytes, tensor)]


def check_program(graph: CountedGraph, plan: Plan, program: Program) -> None:
    """Vouch for a program: pools within the limit where it has to keep one, aligned addresses, operands' bytes valid.

    `graph` is the step with all implementations, of which the program runs those that its plan chose. What a kernel
    reads has to hold the tensor of that graph that it is for, whichever call of the tensor's producer put it there.

    Raises:
        FaultError: the first broken rule.
    """
    _check_identity(graph, plan, program)
    chosen = graph.computed_by(program.implementations)
    check_calls(graph, plan)
    _check_steps(chosen, plan, program)
    check_one_pool_program(chosen, plan, program)
    simulation = _Simulation(chosen, plan, program)
    for step in program.steps:
        simulation.run(step)
    simulation.finish()


def _check_identity(graph: CountedGraph, plan: Plan, program: Program) -> None:
    require(program.graph_hash == plan.graph_hash == hash_of(graph), Fault.OTHER_GRAPH, f"program {program.graph_hash}")
    require(program.plan_hash == hash_of(plan), Fault.OTHER_PLAN, f"program for plan {program.plan_hash}")
    for name in ("optimizer", "limit", "dram_limit_bytes", "implementations", "calls"):
        stated, planned = getattr(program, name), getattr(plan, name)
        require(stated == planned, Fault.OTHER_PLAN, f"{name} is {stated}, the plan's is {planned}")
    named = len(program.implementations)
    require(named in {0, len(graph.kernels)}, Fault.STEPS, f"{named} implementations, {len(graph.kernels)} kernels")
    unlimited = plan.optimizer in UNLIMITED or plan.limit.is_unlimited
    fits = unlimited or program.fast_bytes <= plan.dram_limit_bytes
    require(fits, Fault.LIMIT, f"fast pool of {program.fast_bytes} bytes, the limit is {plan.dram_limit_bytes}")


def _check_steps(graph: ChosenGraph, plan: Plan, program: Program) -> None:
    kernels = [step.kernel for step in program.steps if isinstance(step, KernelStep)]
    calls = len(called_kernels(graph, plan))
    require(kernels == list(range(calls)), Fault.STEPS, "kernels do not run as the plan calls them, in order")
    moves: list[Move] = []
    order: list[tuple[int, int]] = []
    async_moves: dict[int, tuple[StartMoveStep, int]] = {}
    before = 0
    for step in program.steps:
        match step:
            case KernelStep():
                before += 1
                continue
            case WaitMoveStep():
                require(step.move in async_moves, Fault.STEPS, f"move {step.move} is waited for, but not under way")
                start, since = async_moves.pop(step.move)
                require(since < before, Fault.STEPS, f"move {step.move} is started and waited for at once")
                moves.append(Move(start.tensor, start.destination.tier, before, since))
                order.append((before, 0))
            case MoveStep():
                moves.append(Move(step.tensor, step.destination.tier, before))
                order.append((before, 1 if step.destination.tier is Tier.SLOW else 2))
            case StartMoveStep():
                require(step.move not in async_moves, Fault.STEPS, f"move {step.move} is started twice")
                async_moves[step.move] = (step, before)
                order.append((before, 3))
    require(not async_moves, Fault.STEPS, f"moves {sorted(async_moves)} are never waited for")
    require(Counter(moves) == Counter(plan.moves), Fault.STEPS, "moves are not those of the plan")
    right = "waits, moves to slow memory, moves to fast memory, starts"
    require(order == sorted(order), Fault.STEPS, f"between two kernels the order is not: {right}")


class _Simulation:
    """Both pools while the program runs."""

    def __init__(self, graph: ChosenGraph, plan: Plan, program: Program) -> None:
        self._graph = graph
        self._plan = plan
        self._kernels = [graph.kernels[index] for index in called_kernels(graph, plan)]
        self._pools = {Tier.FAST: program.fast_bytes, Tier.SLOW: program.slow_bytes}
        self._memory = {tier: Memory() for tier in Tier}
        self._sizes = {tensor.name: tensor.allocated_bytes for tensor in graph.tensors}
        self._async_moves: dict[int, StartMoveStep] = {}
        self._held: dict[str, Address] = {}
        """Address of each argument in a pool; it must stay the same throughout the step."""
        for step in program.steps:
            if isinstance(step, KernelStep):
                for operand, address in zip(self._kernels[step.kernel].operands, step.addresses, strict=False):
                    if graph.by_name[operand.tensor].held:
                        same = self._held.setdefault(operand.tensor, address) == address
                        require(same, Fault.ADDRESS, f"kernel {step.kernel}: argument '{operand.tensor}' has moved")
        for tensor, address in self._held.items():
            if graph.by_name[tensor].producer is None:
                self._check_address(tensor, address, f"argument '{tensor}'")
                self._write(tensor, address)

    def finish(self) -> None:
        """Check that arguments are still whole for the next step."""
        for tensor, address in self._held.items():
            self._require_valid(tensor, address, "end of the step")

    def _kernel(self, step: KernelStep) -> None:
        """Read the inputs, then write outputs and workspaces."""
        kernel = self._kernels[step.kernel]
        where = f"kernel {step.kernel} '{kernel.name}'"
        slots = len(kernel.operands)
        require(len(step.addresses) == slots, Fault.SLOTS, f"{where}: {len(step.addresses)} addresses, {slots} slots")
        bound: dict[str, Address] = {}
        for slot, (operand, address) in enumerate(zip(kernel.operands, step.addresses, strict=True)):
            tensor = operand.tensor
            place = f"{where}, slot {slot} '{tensor}'"
            self._check_address(tensor, address, place)
            letter = self._plan.configurations[step.kernel][slot]
            same = address.tier.letter == letter
            require(same, Fault.ADDRESS, f"{place}: {address.tier}, configuration says {letter}")
            require(bound.setdefault(tensor, address) == address, Fault.ADDRESS, f"{place}: one tensor, two addresses")
        for (one, here), (other, there) in combinations(bound.items(), 2):
            if here.offset is not None and there.offset is not None:
                apart = not self._meet(one, here, other, there)
                require(apart, Fault.OVERLAP, f"{where}: '{one}' and '{other}' share bytes of {here.tier} memory")
        for operand in kernel.inputs:
            if bound[operand.tensor].offset is not None:
                self._require_valid(operand.tensor, bound[operand.tensor], f"{where}, input")
        for operand in kernel.outputs + kernel.workspaces:
            if bound[operand.tensor].offset is not None:
                self._write(operand.tensor, bound[operand.tensor])

    def run(self, step: Instruction) -> None:
        """Do what a step does, if it may."""
        match step:
            case KernelStep():
                self._kernel(step)
            case MoveStep():
                self._read_source(step, f"move of '{step.tensor}' to {step.destination.tier}")
                self._write(step.tensor, step.destination)
            case StartMoveStep():  # What the destination held is gone, the source must stay as it is.
                self._read_source(step, f"start of move {step.move}, of '{step.tensor}' to {step.destination.tier}")
                self._write(f"move {step.move}", step.destination, step.tensor)
                self._async_moves[step.move] = step
            case WaitMoveStep():  # The copy is complete.
                async_move = self._async_moves.pop(step.move)
                self._require_valid(async_move.tensor, async_move.source, f"end of move {step.move}")
                self._write(async_move.tensor, async_move.destination)

    def _read_source(self, step: MoveStep | StartMoveStep, where: str) -> None:
        size = self._graph.by_name[step.tensor].size_bytes
        require(step.size_bytes == size, Fault.ADDRESS, f"{where}: {step.size_bytes} bytes, the tensor has {size}")
        require(step.source.tier is not step.destination.tier, Fault.ADDRESS, f"{where}: within one tier")
        for address in (step.source, step.destination):
            self._check_address(step.tensor, address, where)
        self._require_valid(step.tensor, step.source, where)

    def _check_address(self, tensor: str, address: Address, where: str) -> None:
        movable = self._graph.by_name[tensor].is_movable
        if address.offset is None:
            argument = not movable and address.tier is Tier.FAST
            require(argument, Fault.ADDRESS, f"{where}: a movable tensor needs an offset in a pool")
            return
        require(movable, Fault.ADDRESS, f"{where}: an argument has a buffer of its own, not an offset")
        require(address.offset % ALIGNMENT_BYTES == 0, Fault.ALIGNMENT, f"{where}: offset {address.offset}")
        end = address.offset + self._sizes[tensor]
        inside = address.offset >= 0 and end <= self._pools[address.tier]
        require(inside, Fault.POOL, f"{where}: bytes [{address.offset}, {end}) of {self._pools[address.tier]}")

    def _require_valid(self, tensor: str, address: Address, where: str) -> None:
        assert address.offset is not None
        for number, async_move in self._async_moves.items():
            apart = not self._meet(tensor, address, async_move.tensor, async_move.destination)
            reads = f"{where}: reads what move {number} of '{async_move.tensor}' is writing"
            require(apart, Fault.IN_FLIGHT, reads)
        memory = self._memory[address.tier]
        reason = f"overwritten by '{killer}'" if (killer := memory.killers.get(tensor)) else "never written there"
        valid = memory.holds(tensor, address.offset, self._sizes[tensor])
        require(valid, Fault.STALE, f"{where}: '{tensor}' at {address.tier} offset {address.offset}: {reason}")

    def _write(self, content: str, address: Address, tensor: str | None = None) -> None:
        """Put `content` where it takes as many bytes as `tensor`, which is the same unless given."""
        assert address.offset is not None
        sized = tensor or content
        for number, async_move in self._async_moves.items():
            for place in (async_move.source, async_move.destination):
                apart = not self._meet(sized, address, async_move.tensor, place)
                where = f"'{content}' overwrites memory of move {number} of '{async_move.tensor}'"
                require(apart, Fault.IN_FLIGHT, where)
        self._memory[address.tier].write(content, address.offset, self._sizes[sized])

    def _meet(self, one: str, here: Address, other: str, there: Address) -> bool:
        """Return whether tensor `one` at `here` and tensor `other` at `there` share bytes."""
        assert here.offset is not None
        assert there.offset is not None
        ends = here.offset + self._sizes[one], there.offset + self._sizes[other]
        return here.tier is there.tier and here.offset < ends[1] and there.offset < ends[0]
