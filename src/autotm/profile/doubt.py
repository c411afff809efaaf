"""Which kernels' times are in doubt, since all together they are not what the step takes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping

from autotm.model.graph import Graph
from autotm.model.profile import Profile


def all_fast_us(graph: Graph, profile: Profile) -> float:
    """What the kernels of the step sum up to, all fast, by their default implementations."""
    return sum(map(profile.base_us, graph.computed_by(()).kernels))


def in_doubt(
    graph: Graph, profile: Profile, step_us: float, kernels_us: Mapping[str, float], settled: Collection[str]
) -> frozenset[str]:
    """Identities of the fewest kernels that explain why the sum of all is not `step_us`.

    Args:
        graph: the step.
        profile: of its kernels, each timed alone.
        step_us: what the all-fast step took.
        kernels_us: what each kernel took within it, by name.
        settled: identities that are beyond doubt.
    """
    off_us = all_fast_us(graph, profile) - step_us
    sign = 1.0 if off_us > 0 else -1.0
    share_us: dict[str, float] = defaultdict(float)
    for kernel in graph.computed_by(()).kernels:
        share_us[kernel.identity] += sign * (profile.base_us(kernel) - kernels_us[kernel.name])
    found, explained_us = set(), 0.0
    for identity in sorted(share_us.keys() - settled, key=lambda one: (-share_us[one], one)):
        if explained_us >= abs(off_us) or share_us[identity] <= 0:
            break
        found.add(identity)
        explained_us += share_us[identity]
    return frozenset(found)
