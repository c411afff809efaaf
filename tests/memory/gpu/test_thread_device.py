"""The device of threads keeps what a GPU promises: order within a stream, events between them, real overlap."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest
from thread_device import Delays, Interleaving, Order, RaceError, Starving, ThreadDevice

from autotm.memory.gpu.cuda_memory import Span
from autotm.memory.gpu.links import StreamTimer, links_of
from autotm.model.errors import AutotmError
from autotm.model.graph import OpClass, Tier

BYTES = 256


@pytest.fixture
def device() -> Iterator[ThreadDevice]:
    with ThreadDevice(4 * BYTES, 4 * BYTES, races=True) as opened:
        yield opened


def spans(device: ThreadDevice) -> tuple[Span, Span]:
    return Span(device.device_pool, 0, BYTES), Span(device.host_pool, BYTES, BYTES)


def test_work_returns_before_it_is_done_and_events_hold_back_other_streams(device: ThreadDevice) -> None:
    go, done, seen = threading.Event(), device.event(), []
    device.compute.launch(lambda: (go.wait(), seen.append("kernel")))
    device.compute.record(done)
    device.outward.wait(done)
    device.outward.launch(lambda: seen.append("copy"))
    device.inward.launch(lambda: seen.append("other"))
    device.inward.synchronize()
    assert seen == ["other"]
    go.set()
    device.synchronize()
    assert seen == ["other", "kernel", "copy"]


def test_memory_that_nobody_wrote_is_nan(device: ThreadDevice) -> None:
    assert np.isnan(device.device_pool.view(0, (4,), "float32")).all()


def test_a_wait_is_for_the_point_that_the_event_had_then(device: ThreadDevice) -> None:
    event, go = device.event(), threading.Event()
    device.inward.wait(event)  # Nothing recorded: it waits for nothing, as in CUDA.
    device.compute.record(event)
    device.inward.wait(event)
    device.compute.launch(go.wait)
    device.compute.record(event)
    device.inward.synchronize()
    go.set()
    event.synchronize()
    assert device.elapsed_ns(event, event) == 0


def test_time_between_events(device: ThreadDevice) -> None:
    start, end = device.event(timed=True), device.event(timed=True)
    with pytest.raises(AutotmError, match="not recorded"):
        device.elapsed_ns(start, end)
    device.compute.record(start)
    device.compute.launch(lambda: None)
    device.compute.record(end)
    device.synchronize()
    assert device.elapsed_ns(start, end) > 0
    assert device.elapsed_ns(end, start) < 0


def test_what_is_missing_between_two_streams_is_a_race(device: ThreadDevice) -> None:
    fast, slow = spans(device)
    device.compute.launch(lambda: None, (), (fast,))
    with pytest.raises(RaceError, match=r"outward stream: work 1 reads bytes \[0, 256\) of the device pool"):
        device.outward.copy(slow, fast)


def test_ordered_work_is_no_race_even_by_way_of_a_third_stream(device: ThreadDevice) -> None:
    fast, slow = spans(device)
    first, second = device.event(), device.event()
    device.compute.launch(lambda: None, (), (fast,))
    device.compute.record(first)
    device.inward.wait(first)
    device.inward.record(second)
    device.outward.wait(second)
    device.outward.copy(slow, fast)
    device.synchronize()
    device.inward.copy(fast, slow)  # The host has waited in between.


def test_readers_do_not_race(device: ThreadDevice) -> None:
    fast, slow = spans(device)
    device.compute.launch(lambda: None, (fast,))
    device.outward.copy(slow, fast)


@pytest.mark.parametrize("order", [Order(), Delays(1), Interleaving(1), Starving("compute", 0)])
def test_every_order_keeps_to_events(order: Order) -> None:
    seen = []
    with ThreadDevice(BYTES, BYTES, order=order) as device:
        event = device.event()
        for number in range(5):
            device.compute.launch(lambda number=number: seen.append(number))
            device.compute.record(event)
            device.inward.wait(event)
            device.inward.launch(lambda number=number: seen.append(10 + number))
        device.synchronize()
    assert len(seen) == 10
    assert all(seen.index(number) < seen.index(10 + number) for number in range(5))


def test_starved_work_comes_after_all_that_does_not_wait_for_it() -> None:
    seen = []
    with ThreadDevice(BYTES, BYTES, order=Starving("compute", 0)) as device:
        device.compute.launch(lambda: seen.append("starved"))
        for _ in range(20):
            device.inward.launch(lambda: seen.append("in"))
        device.synchronize()
    assert seen == ["in"] * 20 + ["starved"]


def test_interleavings_differ_by_seed_and_come_again() -> None:
    def run(seed: int) -> list[str]:
        seen: list[str] = []
        with ThreadDevice(BYTES, BYTES, order=Interleaving(seed)) as device:
            for _ in range(5):
                for stream in (device.compute, device.inward, device.outward):
                    stream.launch(lambda name=stream.name: seen.append(name))
            device.synchronize()
        return seen

    assert run(3) == run(3)
    assert len({tuple(run(seed)) for seed in range(4)}) > 1


class CopiesLast(Order):
    """All work is held back, and copies in begin after kernels."""

    def rank(self, stream: str, number: int) -> float:
        del number
        return float(stream == "inward")


def test_poison_is_there_before_the_work_is() -> None:
    seen = []
    with ThreadDevice(BYTES, BYTES, order=CopiesLast(), poison=True) as device:
        fast, slow = Span(device.device_pool, 0, BYTES), Span(device.host_pool, 0, BYTES)
        for span in (fast, slow):
            device.write(span, np.zeros(BYTES, np.uint8))
        device.inward.copy(fast, slow)
        device.compute.launch(lambda: seen.append(device.read(fast)[0]), (fast,))
        device.synchronize()
        assert device.read(fast)[0] == 0
    assert seen == [0xFF]


def test_a_failure_reaches_the_host_and_ends_what_follows(device: ThreadDevice) -> None:
    seen = []

    def fail() -> None:
        raise ValueError("no such kernel")

    device.compute.launch(fail)
    device.compute.launch(lambda: seen.append(1))
    with pytest.raises(AutotmError, match="no such kernel"):
        device.synchronize()
    assert not seen


# Links of a device are measured on its streams; where threads play it, only their shape means anything.

SIZES = (4096, 1 << 16, 1 << 20)


def test_every_size_direction_and_op_class() -> None:
    ran = []
    runners = {op_class: (lambda op_class=op_class: ran.append(op_class)) for op_class in OpClass}
    with ThreadDevice(1 << 20, 1 << 20, order=Delays(0, 1e-5)) as device:
        timer = StreamTimer(device)
        links = links_of(timer, 1e12, runners, SIZES, 3, timer.call_us())
    assert [size for size, _ in links.to_fast.points] == list(SIZES)
    assert links.to_slow.destination is Tier.SLOW
    assert set(ran) == set(OpClass)
    assert links.asynchronous is not None
    assert links.transfer_us(Tier.FAST, 1 << 20) > 0
    assert links.call_us >= 0
