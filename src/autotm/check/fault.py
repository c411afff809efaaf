"""Faults of plans and programs, and the rules that both checks share: of calls, and of each optimizer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from autotm.model.errors import IllegalPlanError
from autotm.model.graph import Graph, Tier
from autotm.model.limit import storage_of
from autotm.model.plan import Plan


class Fault(StrEnum):
    """The rule that a plan or program breaks."""

    OTHER_GRAPH = "made for another graph"
    OTHER_PLAN = "made from another plan"
    UNKNOWN_TENSOR = "unknown or immovable tensor"
    BAD_SPAN = "stay or move outside the tensor's life"
    ORDER = "wrong order"
    DOUBLE_STAY = "two stays of one tensor in one tier meet"
    NO_ORIGIN = "a stay begins with no data"
    BORN_TWICE = "a tensor is born in both tiers"
    NO_SOURCE = "a move reads memory that does not hold the tensor"
    NO_DESTINATION = "a move writes memory that no stay holds"
    NOT_HELD = "an operand is in no memory"
    IMPLEMENTATION = "an implementation does not exist"
    CALLS = "kernels are called in a way that changes what they compute"
    CONFIGURATION = "a configuration is not what the stays imply"
    LIMIT = "the limit is exceeded"
    LIMIT_BYTES = "the limit in bytes is not the limit asked"
    MOVES_FORBIDDEN = "this optimizer does not move tensors"
    WINDOW = "an asynchronous move overlaps kernels that it may not"
    ENGINE = "a copying engine has more to do than it can"
    WRONG_TIER = "this optimizer allows one tier only"
    OBJECTIVE = "the objective is not what the profile says"
    BOUND = "the bound is not what its proof gives"
    GAP = "bound, gap and status contradict each other"
    CERTIFICATE = "the certificate is malformed"
    STEPS = "steps are missing, repeated or out of order"
    SLOTS = "a kernel step has another number of slots"
    ADDRESS = "an address is not what the operand needs"
    ALIGNMENT = "an address is not aligned"
    POOL = "an address lies outside its pool"
    OVERLAP = "two operands of one kernel share bytes"
    STALE = "memory does not hold the tensor any more"
    CACHE = "what the cache is said to miss is not what the addresses give"
    PAGES = "what is in slow pages is not what the policy gives"
    IN_FLIGHT = "memory of a move that is under way is used"


class FaultError(IllegalPlanError):
    """A broken rule, with where it is broken."""

    def __init__(self, fault: Fault, where: str) -> None:
        super().__init__(f"{fault}: {where}")
        self.fault = fault


def require(condition: bool, fault: Fault, where: str) -> None:
    """Raise `fault` unless `condition` holds.

    Raises:
        FaultError: naming the place.
    """
    if not condition:
        raise FaultError(fault, where)


def called_kernels(graph: Graph, plan: Plan) -> Sequence[int]:
    """Return the kernel of each call of a plan."""
    return plan.calls or range(len(graph.kernels))


def check_calls(graph: Graph, plan: Plan) -> None:
    """Check that kernels first run in the graph's order, and that no call finds another value of an argument.

    The memory of an argument has a version: how many kernels have written to it. Every call of a kernel has to find
    the versions that the kernel finds where each runs once, and leave those that it leaves there.

    Raises:
        FaultError: the first broken rule.
    """
    calls = called_kernels(graph, plan)
    count = len(graph.kernels)
    first = list(dict.fromkeys(calls))
    require(first == list(range(count)), Fault.CALLS, f"they do not call {count} kernels for the first time in order")
    plain: Counter[str] = Counter()
    once = [_touched(graph, index, plain) for index in range(count)]
    versions: Counter[str] = Counter()
    for number, index in enumerate(calls):
        where = f"call {number}, of kernel {index} '{graph.kernels[index].name}'"
        read, left = _touched(graph, index, versions)
        for name, version in once[index][0].items():
            require(read[name] == version, Fault.CALLS, f"{where}: '{name}' was overwritten before")
        for name, version in once[index][1].items():
            require(left[name] == version, Fault.CALLS, f"{where}: it writes '{name}', which it may do once")


def _touched(graph: Graph, index: int, versions: Counter[str]) -> tuple[dict[str, int], dict[str, int]]:
    """Return the versions of arguments that a kernel finds and leaves, by name; `versions` are then those after it."""
    kernel = graph.kernels[index]
    read, written = (
        {storage_of(graph, one.tensor) for one in operands if not graph.by_name[one.tensor].role.is_movable}
        for operands in (kernel.inputs, kernel.outputs)
    )
    before = {name: versions[name] for name in read}
    versions.update(written)
    return before, {name: versions[name] for name in written}


class Rules(NamedTuple):
    """The abilities of an optimizer, written down a second time: nothing here is shared with `solve`.

    Attributes:
        tiers: that it may use.
        moves: whether it moves tensors.
        async_moves: whether moves may be asynchronous.
        searched: whether its plans state a bound; those of all others state their own time, and prove nothing.
        cached: whether fast memory is a cache.
        paged: whether Linux places pages.
        unlimited: whether its plans may exceed the limit. Such a program does not run, but for the managed one.
        repeats: whether it may call kernels again.
        waits: whether its asynchronous moves overlap one kernel each, and the next one waits for them, as on a GPU.
    """

    tiers: frozenset[Tier]
    moves: bool = False
    async_moves: bool = False
    searched: bool = False
    cached: bool = False
    paged: bool = False
    unlimited: bool = False
    repeats: bool = False
    waits: bool = False


_FAST, _SLOW, _BOTH = frozenset({Tier.FAST}), frozenset({Tier.SLOW}), frozenset(Tier)
RULES = {
    "all-fast": Rules(_FAST),
    "all-slow": Rules(_SLOW),
    "memory-mode": Rules(_SLOW, cached=True),
    "numa": Rules(_BOTH),
    "linux-preferred": Rules(_SLOW, paged=True),
    "linux-interleave": Rules(_SLOW, paged=True),
    "linux-weighted-interleave": Rules(_SLOW, paged=True),
    "linux-balancing": Rules(_SLOW, paged=True),
    "static": Rules(_BOTH, searched=True),
    "synchronous": Rules(_BOTH, moves=True, searched=True),
    "asynchronous": Rules(_BOTH, moves=True, async_moves=True, searched=True),
    "managed-memory": Rules(_FAST, unlimited=True),
    "lru-paging": Rules(_BOTH, moves=True, unlimited=True),
    "swap-all": Rules(_BOTH, moves=True, async_moves=True, unlimited=True, waits=True),
    "recompute": Rules(_FAST, unlimited=True, repeats=True),
}

UNLIMITED = frozenset(name for name, rules in RULES.items() if rules.unlimited)
