"""What kernels find in slow pages, once a real kernel placed them: counted as the simulation counts its own."""

from __future__ import annotations

import numpy as np
import pytest
import small_step

from autotm.runtime.linux_pages import _slow_bytes
from autotm.solve.paging import PageMap, first_fit

GRAPH = small_step.graph(batch=96, width=48)


@pytest.mark.parametrize("seed", range(4))
def test_slow_bytes_are_those_of_the_simulation(seed: int) -> None:
    offsets, size_bytes = first_fit(GRAPH)
    pages = PageMap.of(GRAPH, offsets, size_bytes)
    fast = np.random.default_rng(seed).random(pages.count) < 0.5
    wanted = [tuple(touch.slow_bytes(fast, pages.page_bytes) for touch in touches) for touches in pages.kernels]
    assert _slow_bytes(GRAPH, dict(offsets), fast) == wanted
