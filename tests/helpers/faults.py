"""What a checker refuses, by the rule that is broken."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from autotm.check.fault import Fault, FaultError


@contextmanager
def refused(fault: Fault) -> Iterator[None]:
    with pytest.raises(FaultError) as caught:
        yield
    assert caught.value.fault is fault
    assert str(caught.value).startswith(f"{fault}: ")
