"""The schedule of any memory-bound function: inline what can be, then each remaining block by what it does."""

from __future__ import annotations

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV, ScheduleError

from autotm.kernels.code import Machine, Nest, read_nest, top_blocks
from autotm.kernels.schedules.generic.chains import merge_chains
from autotm.kernels.schedules.generic.elementwise import schedule_elementwise
from autotm.kernels.schedules.generic.reduction import schedule_reduction


def schedule_blocks(schedule: Schedule, machine: Machine) -> None:
    """Schedule every block of the function that a plain loop nest surrounds, in place."""
    inline_intermediates(schedule)
    surround_scalars(schedule)
    chains = merge_chains(schedule)
    done = {nest.name for chain in chains.values() for nest in chain[1:]}
    for name in [schedule.get(block).name_hint for block in top_blocks(schedule)]:
        if name in done:
            continue
        block = schedule.get_sblock(name)
        nest = read_nest(schedule, block)
        if nest is None:
            continue
        if nest.reduction:
            epilogue = _epilogue(schedule, block, nest)
            if epilogue is not None:
                done.add(schedule.get(epilogue).name_hint)
            schedule_reduction(schedule, block, nest, machine, epilogue)
        else:
            schedule_elementwise(schedule, block, chains.get(name, [nest]), machine)


def surround_scalars(schedule: Schedule) -> None:
    """Put each block without loops into one of a single pass: `rfactor` loses track of a bare block next to its own."""
    for block in top_blocks(schedule):
        if not schedule.get_loops(block):
            schedule.add_unit_loop(block)


def inline_intermediates(schedule: Schedule) -> None:
    """Inline elementwise blocks into their consumers, and into their producers where that is impossible.

    A transcendental function is not inlined where it would be evaluated more than once per element.
    """
    for block in top_blocks(schedule):
        nest = read_nest(schedule, block)
        if nest is None or nest.reduction or _is_costly(schedule, block, nest):
            continue
        try:
            schedule.compute_inline(block)
        except ScheduleError:
            continue


def _is_costly(schedule: Schedule, block: SBlockRV, nest: Nest) -> bool:
    if not nest.has_call:
        return False
    consumers = schedule.get_consumers(block)
    nests = [read_nest(schedule, consumer) for consumer in consumers]
    return len(consumers) > 1 or any(other is None or other.iterations > nest.iterations for other in nests)


def _epilogue(schedule: Schedule, block: SBlockRV, nest: Nest) -> SBlockRV | None:
    """The only consumer, if it runs elementwise over the axes of the reduction's result."""
    consumers = schedule.get_consumers(block)
    if len(consumers) != 1 or len(schedule.get_producers(consumers[0])) != 1:
        return None
    other = read_nest(schedule, consumers[0])
    spatial = tuple(nest.extents[axis] for axis in nest.spatial)
    if other is None or other.reduction or other.extents != spatial:
        return None
    result = nest.stores[0].buffer
    reads = [access for access in other.loads if access.buffer.same_as(result)]
    straight = all(
        len(access.indices) == len(other.variables)
        and all(index.same_as(variable) for index, variable in zip(access.indices, other.variables, strict=True))
        for access in (*reads, *other.stores)
    )
    return consumers[0] if straight else None
