from __future__ import annotations

from autotm.solve import optimizers
from autotm.study.setup import optimizer_names


def test_names_read_off_modules_are_the_registered_ones() -> None:
    assert optimizer_names() == optimizers()
