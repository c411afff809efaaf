"""What Linux does for real memories: pages bound to nodes or placed by its policies, files that are memory, locks."""

from autotm.memory.linux.capacity import check_capacity
from autotm.memory.linux.dax_pool import DaxPool, dax_bytes
from autotm.memory.linux.node_pool import NodePool, check_demotion, check_nodes, refusal
from autotm.memory.linux.page_policy import POLICIES, PagePolicy
from autotm.memory.linux.policy_pool import PolicyPool
from autotm.memory.linux.policy_tiers import BoundTiers, PolicyTiers
from autotm.memory.linux.real_tiers import RealTiers

__all__ = [
    "POLICIES",
    "BoundTiers",
    "DaxPool",
    "NodePool",
    "PagePolicy",
    "PolicyPool",
    "PolicyTiers",
    "RealTiers",
    "check_capacity",
    "check_demotion",
    "check_nodes",
    "dax_bytes",
    "refusal",
]
