"""Plans: where tensors live and when they move, the certificate, and the program compiled from them."""

from autotm.model.plan.cache import CacheCounts, CachedPool, amplified_bytes, cached_pool
from autotm.model.plan.calls import called, repeats
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
from autotm.model.plan.modelled_step import Engine, EngineEvent, ModelledStep
from autotm.model.plan.paging import PageCounts, PagedPool, PagedTraffic
from autotm.model.plan.plan import Move, Plan, Status, Stay
from autotm.model.plan.program import Address, KernelStep, Layout, MoveStep, Program, StartMoveStep, Step, WaitMoveStep
from autotm.model.plan.refusal import Refusal
from autotm.model.plan.rivals import (
    GPU_RIVALS,
    LRU_PAGING,
    MANAGED_MEMORY,
    RECOMPUTE,
    RUN_RIVALS,
    SAVE_ON_CPU,
    SWAP_ALL,
)

__all__ = [
    "GPU_RIVALS",
    "LRU_PAGING",
    "MANAGED_MEMORY",
    "RECOMPUTE",
    "RUN_RIVALS",
    "SAVE_ON_CPU",
    "SWAP_ALL",
    "WINDOW_HALVES",
    "Address",
    "Branch",
    "CacheCounts",
    "CachedPool",
    "Certificate",
    "Cut",
    "CutPrices",
    "Engine",
    "EngineEvent",
    "KernelPrices",
    "KernelStep",
    "Layout",
    "Leaf",
    "ModelledStep",
    "Move",
    "MoveStep",
    "PageCounts",
    "PagedPool",
    "PagedTraffic",
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
    "amplified_bytes",
    "cached_pool",
    "called",
    "repeats",
]
