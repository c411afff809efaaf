"""What a GPU is asked for, and what is said where it cannot be had; threads in its place keep what it promises."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest
from played_cudart import Codes, PlayedRuntime, plug_in
from thread_device import Delays, Interleaving, Order, Starving, ThreadDevice

from autotm.memory.gpu.cuda_device import CudaDevice
from autotm.memory.gpu.cuda_memory import Span, load_runtime
from autotm.memory.gpu.links import StreamTimer, links_of
from autotm.model.errors import AutotmError
from autotm.model.graph import OpClass, Tier

BYTES = 1024


@pytest.fixture
def played() -> PlayedRuntime:
    return PlayedRuntime()


@pytest.fixture(params=["cuda", "threads"])
def device(request: pytest.FixtureRequest) -> Iterator[CudaDevice | ThreadDevice]:
    """Either: what one promises, the other keeps."""
    size = 4 * BYTES, 2 * BYTES
    with opened(PlayedRuntime(), *size) if request.param == "cuda" else ThreadDevice(*size, races=True) as device:
        yield device


def opened(played: PlayedRuntime, device_bytes: int = BYTES, host_bytes: int = BYTES, index: int = 0) -> CudaDevice:
    with pytest.MonkeyPatch.context() as patch:
        plug_in(patch, played)
        return CudaDevice(index, device_bytes, host_bytes)


def test_two_allocations_three_streams_and_all_given_back(played: PlayedRuntime) -> None:
    free = dict(played.free)
    with opened(played, 4 * BYTES, 2 * BYTES) as device:
        assert device.name == "a played GPU"
        assert sorted(memory.nbytes for _, memory in played.memory.values()) == [2 * BYTES, 4 * BYTES]
        assert len({device.compute.handle, device.inward.handle, device.outward.handle}) == 3
        device.event()
    assert played.free == free
    assert not played.streams
    assert not played.events
    assert not played.memory


def test_values_go_there_and_come_back_by_copies_on_streams(device: CudaDevice | ThreadDevice) -> None:
    fast, slow = Span(device.device_pool, BYTES, BYTES), Span(device.host_pool, BYTES, BYTES)
    device.write(fast, np.arange(BYTES // 4, dtype=np.int32))
    done = device.event()
    device.outward.copy(slow, fast)
    device.outward.record(done)
    device.inward.wait(done)
    device.inward.fill(fast, 3)
    done.synchronize()
    device.synchronize()
    np.testing.assert_array_equal(device.read(slow).view(np.int32), np.arange(BYTES // 4))
    assert set(device.read(fast)) == {3}


def test_an_event_holds_a_stream_back() -> None:
    with opened(PlayedRuntime(order=Starving("outward", 0, 9))) as device:
        fast, slow = Span(device.device_pool, 0, BYTES), Span(device.host_pool, 0, BYTES)
        device.write(fast, np.full(BYTES, 1, np.uint8))
        done = device.event()
        device.outward.copy(slow, fast)
        device.outward.record(done)
        device.compute.wait(done)
        device.compute.fill(fast, 2)
        device.synchronize()
        assert set(device.read(slow)) == {1}


def test_time_between_timed_events_only(played: PlayedRuntime) -> None:
    with opened(played) as device:
        start, end, other = device.event(timed=True), device.event(timed=True), device.event()
        for event in (start, end, other):
            device.compute.record(event)
        device.synchronize()
        assert device.elapsed_ns(start, end) >= 0
        with pytest.raises(AutotmError, match="cudaEventElapsedTime"):
            device.elapsed_ns(start, other)


def test_views_are_addresses_in_the_pool(played: PlayedRuntime) -> None:
    with opened(played, 4 * BYTES) as device:
        assert device.device_pool.view(64, (3, 4), "float32") == device.device_pool.address + 64
        with pytest.raises(AutotmError, match=r"bytes \[4032, 4112\) leave its 4096 bytes"):
            device.device_pool.view(4032, (5, 4), "float32")
        with pytest.raises(AutotmError, match="multiple of 64"):
            device.device_pool.view(32, (1,), "float32")


def test_too_little_device_memory() -> None:
    with pytest.raises(AutotmError, match=r"GPU 0: 0.000 GB are not to be had .*nvidia-smi"):
        opened(PlayedRuntime(device_bytes=BYTES), 4 * BYTES)


def test_pinned_memory_refused_gives_the_rest_back() -> None:
    played = PlayedRuntime(host_bytes=BYTES)
    with pytest.raises(AutotmError, match=r"pinned memory: .*cudaErrorMemoryAllocation.*ulimit -l unlimited"):
        opened(played, BYTES, 2 * BYTES)
    assert not played.memory
    with pytest.raises(AutotmError, match="GB of the host's memory are free"):
        opened(played, BYTES, 1 << 50)


def test_no_such_gpu(played: PlayedRuntime) -> None:
    with pytest.raises(AutotmError, match=r"cudaErrorInvalidDevice.*device_index"):
        opened(played, index=1)


def test_spans_that_leave_their_pool_are_refused(device: CudaDevice | ThreadDevice) -> None:
    fast, slow = Span(device.device_pool, 4 * BYTES, 1), Span(device.host_pool, 0, 1)
    for call in (
        lambda: device.inward.copy(fast, slow),
        lambda: device.read(fast),
        lambda: device.inward.fill(fast, 0),
    ):
        with pytest.raises(AutotmError, match="leave its 4096 bytes"):
            call()
    with pytest.raises(AutotmError, match="1 bytes for a span of 4"):
        device.write(Span(device.device_pool, 0, 4), np.zeros(1, np.uint8))
    with pytest.raises(AutotmError, match="copy of 1 bytes into 2"):
        device.inward.copy(Span(device.device_pool, 0, 2), slow)


def test_without_a_driver_nothing_is_opened() -> None:
    pytest.importorskip("cuda.bindings")
    runtime = load_runtime()
    if runtime.module.cudaGetDeviceCount()[0] == runtime.module.cudaError_t.cudaSuccess:
        pytest.skip("there is a GPU")
    with pytest.raises(AutotmError, match="no NVIDIA driver, or one older"):
        CudaDevice(0, BYTES, BYTES)


def test_the_played_calls_are_nvidias() -> None:
    runtime = pytest.importorskip("cuda.bindings.runtime")
    names = [name for name in vars(PlayedRuntime) if name.startswith("cuda")]
    assert [name for name in names if not hasattr(runtime, name)] == []
    assert {code.name: code.value for code in Codes} == {
        code.name: int(code) for code in runtime.cudaError_t if code.name in Codes.__members__
    }


@pytest.fixture
def threads() -> Iterator[ThreadDevice]:
    with ThreadDevice(4 * BYTES, 4 * BYTES, races=True) as opened:
        yield opened


def test_work_returns_before_it_is_done_and_events_hold_back_other_streams(threads: ThreadDevice) -> None:
    go, done, seen = threading.Event(), threads.event(), []
    threads.compute.launch(lambda: (go.wait(), seen.append("kernel")))
    threads.compute.record(done)
    threads.outward.wait(done)
    threads.outward.launch(lambda: seen.append("copy"))
    threads.inward.launch(lambda: seen.append("other"))
    threads.inward.synchronize()
    assert seen == ["other"]
    go.set()
    threads.synchronize()
    assert seen == ["other", "kernel", "copy"]


def test_a_wait_is_for_the_point_that_the_event_had_then(threads: ThreadDevice) -> None:
    event, go = threads.event(), threading.Event()
    threads.inward.wait(event)  # Nothing recorded: it waits for nothing, as in CUDA.
    threads.compute.record(event)
    threads.inward.wait(event)
    threads.compute.launch(go.wait)
    threads.compute.record(event)
    threads.inward.synchronize()
    go.set()
    event.synchronize()
    assert threads.elapsed_ns(event, event) == 0


def test_time_between_events(threads: ThreadDevice) -> None:
    start, end = threads.event(timed=True), threads.event(timed=True)
    with pytest.raises(AutotmError, match="not recorded"):
        threads.elapsed_ns(start, end)
    threads.compute.record(start)
    threads.compute.launch(lambda: None)
    threads.compute.record(end)
    threads.synchronize()
    assert threads.elapsed_ns(start, end) > 0
    assert threads.elapsed_ns(end, start) < 0


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
        assert np.isnan(device.device_pool.view(0, (4,), "float32")).all(), "nobody wrote there"
        fast, slow = Span(device.device_pool, 0, BYTES), Span(device.host_pool, 0, BYTES)
        for span in (fast, slow):
            device.write(span, np.zeros(BYTES, np.uint8))
        device.inward.copy(fast, slow)
        device.compute.launch(lambda: seen.append(device.read(fast)[0]), (fast,))
        device.synchronize()
        assert device.read(fast)[0] == 0
    assert seen == [0xFF]


def test_a_failure_reaches_the_host_and_ends_what_follows(threads: ThreadDevice) -> None:
    seen = []

    def fail() -> None:
        raise ValueError("no such kernel")

    threads.compute.launch(fail)
    threads.compute.launch(lambda: seen.append(1))
    with pytest.raises(AutotmError, match="no such kernel"):
        threads.synchronize()
    assert not seen


def test_links_of_a_device_have_every_size_direction_and_op_class() -> None:
    """Where threads play the device, only their shape means anything."""
    ran, sizes = [], [4096, 1 << 16, 1 << 20]
    runners = {op_class: (lambda op_class=op_class: ran.append(op_class)) for op_class in OpClass}
    with ThreadDevice(1 << 20, 1 << 20, order=Delays(0, 1e-5)) as device:
        timer = StreamTimer(device)
        links = links_of(timer, 1e12, runners, sizes, 3, timer.call_us())
    assert [size for size, _ in links.to_fast.points] == sizes
    assert links.to_slow.destination is Tier.SLOW
    assert set(ran) == set(OpClass)
    assert links.asynchronous is not None
    assert links.transfer_us(Tier.FAST, 1 << 20) > 0
    assert links.call_us >= 0
