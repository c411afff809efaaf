"""Proofs that no clock cuts short: on a loaded computer a tree would end before it proves what it can."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from autotm.solve import tree

LEAST_S = 10.0
"""Seconds that a tree may grow, instead of one; those of the tests need a tenth of a second of a core."""


@pytest.fixture(scope="package", autouse=True)
def grown_trees() -> Iterator[None]:
    """For the tests of the folder whose conftest imports it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tree, "_LEAST_S", LEAST_S)
        yield
