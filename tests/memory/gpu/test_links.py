"""Links of a device are measured on its streams; where threads play it, only their shape means anything."""

from __future__ import annotations

import pytest
from thread_device import Delays, ThreadDevice

from autotm.memory.gpu.links import device_links
from autotm.model.errors import BadInputError
from autotm.model.graph import OpClass, Tier

SIZES = (4096, 1 << 16, 1 << 20)


def test_every_size_direction_and_op_class() -> None:
    ran = []
    runners = {op_class: (lambda op_class=op_class: ran.append(op_class)) for op_class in OpClass}
    with ThreadDevice(1 << 20, 1 << 20, order=Delays(0, 1e-5)) as device:
        links = device_links(device, 1e12, runners, SIZES, repeats=3)
    assert [size for size, _ in links.to_fast.points] == list(SIZES)
    assert links.to_slow.destination is Tier.SLOW
    assert set(ran) == set(OpClass)
    assert links.asynchronous is not None
    assert links.transfer_us(Tier.FAST, 1 << 20) > 0
    assert links.call_us >= 0


def test_pools_that_are_too_small_are_refused() -> None:
    with ThreadDevice(1 << 20, 1 << 16) as device, pytest.raises(BadInputError, match="smaller pool's 65536 bytes"):
        device_links(device, 1e12, {}, SIZES)
