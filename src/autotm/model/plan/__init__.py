"""Plans: where tensors live and when they move, the certificate, and the program compiled from them."""

from autotm.model.plan.cache import CacheCounts, CachedPool, cached_pool
from autotm.model.plan.certificate import (
    Branch,
    Certificate,
    Cut,
    CutPrices,
    KernelPrices,
    Leaf,
    Prices,
    SlowPrices,
    SpanPrices,
    Split,
    WindowBranch,
    WorkspaceBranch,
)
from autotm.model.plan.engine import WINDOW_HALVES
from autotm.model.plan.plan import Move, Plan, Status, Stay
from autotm.model.plan.program import Address, KernelStep, Layout, MoveStep, Program, StartMoveStep, Step, WaitMoveStep
from autotm.model.plan.refusal import Refusal

__all__ = [
    "WINDOW_HALVES",
    "Address",
    "Branch",
    "CacheCounts",
    "CachedPool",
    "Certificate",
    "Cut",
    "CutPrices",
    "KernelPrices",
    "KernelStep",
    "Layout",
    "Leaf",
    "Move",
    "MoveStep",
    "Plan",
    "Prices",
    "Program",
    "Refusal",
    "SlowPrices",
    "SpanPrices",
    "Split",
    "StartMoveStep",
    "Status",
    "Stay",
    "Step",
    "WaitMoveStep",
    "WindowBranch",
    "WorkspaceBranch",
    "cached_pool",
]
