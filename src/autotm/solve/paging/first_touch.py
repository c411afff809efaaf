"""Memory policies that choose a page's node when it is first touched, and never again.

`MPOL_PREFERRED` takes the preferred node while it has room, then the next; `MPOL_INTERLEAVE` deals the pages of a
mapping out in turn, by their place in it; `MPOL_WEIGHTED_INTERLEAVE` (Linux 6.9) deals each node as many in turn as its
weight. A node without room passes its page on. Sources: set_mempolicy(2);
Documentation/admin-guide/mm/numa_memory_policy.rst; mm/mempolicy.c.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from autotm.solve.paging.pages import Fast, PageMap, Touch

_WEIGHTINESS = 32
"""mm/mempolicy.c: weights of all nodes add up to about this, before common factors are taken out."""


def touch_order(pages: PageMap) -> npt.NDArray[np.int64]:
    """Pages in the order in which a program first touches them: its arguments, then kernel by kernel."""
    touched = [np.arange(pages.count)[each.pages] for each in _touches(pages)]
    everything = np.concatenate([*touched, np.arange(pages.count)])
    found, first = np.unique(everything, return_index=True)
    return found[np.argsort(first, kind="stable")]


def preferred(pages: PageMap, fast_pages: int) -> Fast:
    """(pages,) whether each is fast: the first ones touched, until fast memory is full."""
    fast = np.zeros(pages.count, np.bool_)
    fast[touch_order(pages)[:fast_pages]] = True
    return fast


def interleaved(pages: PageMap, fast_pages: int, weights: tuple[int, int]) -> Fast:
    """(pages,) whether each is fast: dealt out by place, `weights[0]` to fast and `weights[1]` to slow memory in turn.

    When fast memory is full, the pages that are touched later are slow.
    """
    order = touch_order(pages)
    dealt = order[order % sum(weights) < weights[0]]
    fast = np.zeros(pages.count, np.bool_)
    fast[dealt[:fast_pages]] = True
    return fast


def interleave_weights(fast_bytes_per_s: float, slow_bytes_per_s: float) -> tuple[int, int]:
    """The weights that Linux 6.16 sets for two nodes of these bandwidths (`reduce_interleave_weights`).

    Each node gets its share of 32, rounded down, at least 1; then the greatest common factor is taken out.
    """
    both = fast_bytes_per_s + slow_bytes_per_s
    fast, slow = (max(1, int(_WEIGHTINESS * each / both)) for each in (fast_bytes_per_s, slow_bytes_per_s))
    shared = math.gcd(fast, slow)
    return fast // shared, slow // shared


def _touches(pages: PageMap) -> Iterator[Touch]:
    yield from pages.before
    for touches in pages.kernels:
        yield from touches
