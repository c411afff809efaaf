"""The ways a plan or program can be wrong."""

from __future__ import annotations

from enum import StrEnum

from autotm.model.files import IllegalPlanError


class Fault(StrEnum):
    """What rule is broken."""

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
    WINDOW = "an asynchronous move is beside kernels that it may not have"
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
