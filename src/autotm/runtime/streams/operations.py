"""A program as what its streams do: kernels, copies, and the bytes that each reads and writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from autotm.model.files import BadInputError
from autotm.model.measurement import Lane
from autotm.model.plan import SWAP_ALL, Address, KernelStep, MoveStep, Program, StartMoveStep, Step, WaitMoveStep
from autotm.model.step import Graph, Operand, Tier
from autotm.runtime.poison import deaths
from autotm.runtime.streams.arguments import DeviceArguments


@dataclass(frozen=True, slots=True)
class Bytes:
    """Bytes [start, stop) of the pool of a tier."""

    tier: Tier
    start: int
    stop: int

    @property
    def size_bytes(self) -> int:
        """How many."""
        return self.stop - self.start


@dataclass(frozen=True)
class Operation:
    """Work for one stream.

    Attributes:
        lane: its stream.
        name: of the kernel or the tensor.
        kernel: index of the kernel; None for copies and poison.
        reads, writes: the bytes; of a kernel one for each operand, inputs before outputs; of a copy one each.
        is_blocking: the kernels after it wait for it, and it for those before, whatever bytes they touch: a move that
            its plan has the step wait for.
        is_poison: it writes what nobody may read, to try a program out.
        after: operations of the list that it waits for whatever bytes they touch, by index.
    """

    lane: Lane
    name: str
    kernel: int | None
    reads: tuple[Bytes, ...]
    writes: tuple[Bytes, ...]
    is_blocking: bool = False
    is_poison: bool = False
    after: tuple[int, ...] = ()


def operations(graph: Graph, program: Program, arguments: DeviceArguments, *, poison: bool = False) -> list[Operation]:
    """What the streams do in one step, in program order; waits are left to whoever schedules them.

    Args:
        graph: the step with what the limit counts and the implementations that the program runs.
        program: to be run.
        arguments: where those are that it does not place.
        poison: overwrite memory as soon as its tensor is dead.

    Raises:
        BadInputError: a kernel has an operand in slow memory, which kernels of a device do not reach, or the program
            has Linux or a cache place its tensors.
    """
    if program.cache_traffic_bytes or program.paged_traffic:
        raise BadInputError(
            f"program of {program.optimizer}: a cache or Linux places its tensors; a device has neither: take one of "
            "static, synchronous and asynchronous"
        )
    listed = list(_operations(graph, program, arguments, poison=poison))
    return _waiting(listed, program) if program.optimizer == SWAP_ALL else listed


def _waiting(listed: Sequence[Operation], program: Program) -> list[Operation]:
    """The same operations; each kernel also waits for the asynchronous moves that the program waits for before it."""
    waited: dict[int | None, list[str]] = {}
    names: dict[int, str] = {}
    before: list[str] = []
    for step in program.steps:
        match step:
            case StartMoveStep():
                names[step.move] = step.tensor
            case WaitMoveStep():
                before.append(names[step.move])
            case KernelStep():
                waited[step.kernel], before = before, []
    copied: dict[str, int] = {}
    found = []
    for index, operation in enumerate(listed):
        after: tuple[int, ...] = ()
        if operation.lane is not Lane.COMPUTE:
            copied[operation.name] = index
        elif operation.kernel is not None:
            after = tuple(copied[name] for name in waited[operation.kernel])
        found.append(replace(operation, after=after))
    return found


def _operations(graph: Graph, program: Program, arguments: DeviceArguments, *, poison: bool) -> Iterator[Operation]:
    dead = deaths(graph, program) if poison else [[] for _ in program.steps]
    waits = {step.move: place for place, step in enumerate(program.steps) if isinstance(step, WaitMoveStep)}
    for step, ends in zip(_most_urgent_first(program.steps, waits), dead, strict=True):
        match step:
            case KernelStep():
                yield _kernel(graph, step, arguments)
            case MoveStep() | StartMoveStep():
                yield _copy(step)
            case WaitMoveStep():
                pass  # Who needs the bytes waits for the copy itself.
        for tier, start, size_bytes in ends:
            written = Bytes(tier, start, start + size_bytes)
            yield Operation(Lane.COMPUTE, "poison", None, (), (written,), is_poison=True)


def _most_urgent_first(steps: Sequence[Step], waits: Mapping[int, int]) -> Iterator[Step]:
    """The same steps; of moves that start between the same two kernels, those come first that are waited for first.

    A stream makes its copies in the order in which it got them. The engine of the window model serves the most urgent
    first, and interrupts others for it, which a stream cannot.
    """
    for _, group in groupby(steps, lambda step: isinstance(step, StartMoveStep)):
        yield from sorted(group, key=lambda step: waits[step.move] if isinstance(step, StartMoveStep) else 0)


def _kernel(graph: Graph, step: KernelStep, arguments: DeviceArguments) -> Operation:
    kernel = graph.kernels[step.kernel]
    used = [
        _operand(kernel.name, operand, address, arguments)
        for operand, address in zip(kernel.operands, step.addresses, strict=True)
    ]
    inputs = len(kernel.inputs)
    return Operation(Lane.COMPUTE, kernel.name, step.kernel, tuple(used[:inputs]), tuple(used[inputs:]))


def _operand(kernel: str, operand: Operand, address: Address, arguments: DeviceArguments) -> Bytes:
    tier, start = arguments.place(operand) if address.offset is None else (address.tier, address.offset)
    if tier is not Tier.DRAM:
        raise BadInputError(
            f"kernel '{kernel}': operand '{operand.tensor}' is in slow memory, which kernels of a device do not reach; "
            "solve again for a machine whose slow_tier is of kind cuda"
        )
    return Bytes(tier, start, start + operand.size_bytes)


def _copy(step: MoveStep | StartMoveStep) -> Operation:
    to, out_of = (_placed(address, step.size_bytes) for address in (step.destination, step.source))
    lane = Lane.INWARD if to.tier is Tier.DRAM else Lane.OUTWARD
    return Operation(lane, step.tensor, None, (out_of,), (to,), is_blocking=isinstance(step, MoveStep))


def _placed(address: Address, size_bytes: int) -> Bytes:
    assert address.offset is not None, "arguments never move"
    return Bytes(address.tier, address.offset, address.offset + size_bytes)


def bounds(listed: Sequence[Operation], tier: Tier) -> list[int]:
    """Every first byte and every byte after a last one in the pool of a tier, ascending and distinct."""
    touched = (one for operation in listed for one in (*operation.reads, *operation.writes) if one.tier is tier)
    return sorted({end for one in touched for end in (one.start, one.stop)})
