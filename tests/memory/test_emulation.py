"""Emulated memory: device files and their faults, delays by the formulas of docs/emulation.md, exact waits."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from stand_in_clock import StandInClock

from autotm.memory.emulation import (
    _LAST_NS,
    DeviceFile,
    Emulation,
    load_device,
    measured_stretch,
    stretch_of,
    wait_until,
)
from autotm.model.errors import BadInputError
from autotm.model.graph import OpClass, Tier
from autotm.model.links import Link, Links
from autotm.model.machine import EmulatedTier, Machine


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ("first_touch_ns", "first_tuch_ns", ["first_tuch_ns", "did you mean 'first_touch_ns'?"]),
        ("to_slow_bytes_per_s", "to_slow_byte_per_s", ["moves.to_slow_byte_per_s", "'to_slow_bytes_per_s'"]),
        ("read_ns_per_byte: 0.5", "raed_ns_per_byte: 0.5", ["raed_ns_per_byte", "'read_ns_per_byte'"]),
        ("first_touch_ns: 1000", "first_touch_ns: -3", ["first_touch_ns", "-3", "greater than or equal to 0"]),
        ("to_fast_bytes_per_s: 1.0e+9", "to_fast_bytes_per_s: 0", ["moves.to_fast_bytes_per_s", "greater than 0"]),
        ("to_fast_bytes_per_s: 1.0e+9", "to_fast_bytes_per_s: 1.0e9", ["to_fast_bytes_per_s", "'1.0e9'", "number"]),
        ("write_ns_per_byte: 2.0", "write_ns_per_byte: .inf", ["write_ns_per_byte", "finite"]),
        ("  matmul:", "  matmull:", ["matmull", "matmul"]),
        ("  window_gradient: {read_ns_per_byte: 0.5, write_ns_per_byte: 2.0}\n", "", ["kernels lacks window_gradient"]),
        ("source: none\n", "", ["source", "missing"]),
        ("description: round numbers", "description: [", ["not valid YAML"]),
    ],
)
def test_faults_are_named(devices_dir: Path, old: str, new: str, parts: list[str]) -> None:
    path = devices_dir / "plain.yaml"
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(BadInputError) as caught:
        load_device(devices_dir, "plain")
    for part in ("plain.yaml", *parts):
        assert part in str(caught.value)


def test_unknown_devices_and_empty_files_are_refused(devices_dir: Path) -> None:
    with pytest.raises(BadInputError, match=r"no such device file; did you mean 'plain'\?"):
        load_device(devices_dir, "plane")
    (devices_dir / "void.yaml").write_text("", encoding="utf-8")
    with pytest.raises(BadInputError, match=r"void\.yaml"):
        load_device(devices_dir, "void")


SHIPPED = ("cxl-x16", "cxl-x8", "ddr5-beside-hbm", "remote-socket")


def _rates(**gb_per_s: float) -> dict[str, object]:
    return {key: {"bytes_per_s": rate * 1e9, "source": "made up"} for key, rate in gb_per_s.items()}


def _number(**number: float) -> dict[str, object]:
    return {**number, "source": "made up"}


@pytest.fixture
def device(devices_dir: Path) -> DeviceFile:
    """Slow memory with a lane for each direction; convolutions of `plain` show all of it, other kernels half."""
    fast = _rates(read=100.0, read_twice_written=75.0, read_as_written=80.0) | {"idle": _number(latency_ns=100.0)}
    slow = _rates(read=10.0, read_twice_written=15.0, read_as_written=16.0, written=8.0)
    document = {
        "description": "made up",
        "hidden_as": "plain",
        "contraction": _number(flop_per_s=2e12),
        "copying_thread": _number(lines_in_flight=10),
        "fast": fast,
        "slow": slow | {"idle": _number(latency_ns=400.0)},
    }
    (devices_dir / "lanes.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    return load_device(devices_dir, "lanes")


def test_kernels_pay_what_the_bus_takes_longer_and_copies_what_a_thread_can_wait_for(device: DeviceFile) -> None:
    cost = device.kernels[OpClass.CONV_FORWARD]
    assert cost.read_ns_per_byte == pytest.approx(1 / 10 - 1 / 100)
    assert cost.write_ns_per_byte == pytest.approx(2 / 16 - 2 / 80), "a plain store moves its line in and out"
    half = device.kernels[OpClass.ELEMENTWISE]
    assert half.read_ns_per_byte == pytest.approx(cost.read_ns_per_byte / 2), "as much hidden as the fitted device says"
    assert half.write_ns_per_byte == pytest.approx(cost.write_ns_per_byte / 2)
    copies = device.asynchronous_moves
    assert copies.to_fast_bytes_per_s == copies.to_slow_bytes_per_s == 10 * 64 / 400e-9


def test_a_kernel_that_reads_and_writes_pays_what_was_published_of_mixed_traffic(device: DeviceFile) -> None:
    emulation = Emulation(device, 1.0)
    size = 30_000_000
    both = emulation.kernel_delay_ns(OpClass.CONV_FORWARD, (size,), (size,)) - 2 * device.latency_ns
    assert both == pytest.approx(3 * size / 15 - 3 * size / 75, rel=1e-3)
    alone = [emulation.kernel_delay_ns(OpClass.CONV_FORWARD, *bytes_of) for bytes_of in (((size,), ()), ((), (size,)))]
    assert both < sum(alone)
    assert device.mixed_overlap_fraction != 0


def test_latency_is_waited_for_once_an_operand_and_once_a_move(device: DeviceFile) -> None:
    emulation = Emulation(device, 2.0)
    assert device.latency_ns == 300
    assert emulation.kernel_delay_ns(OpClass.MATMUL, (0,), (0,)) == 0, "nothing is read, nothing is waited for"
    one = emulation.kernel_delay_ns(OpClass.MATMUL, (4096,), ())
    assert emulation.kernel_delay_ns(OpClass.MATMUL, (2048, 2048), ()) - one == 600
    assert emulation.move_ns(Tier.FAST, 1000) == (2 * (300 + 100))
    assert emulation.move_ns(Tier.SLOW, 1000) == (2 * (300 + 125))


def changed(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    change(document)
    path.write_text(yaml.safe_dump(document), encoding="utf-8")


@pytest.mark.usefixtures("device")
def test_slow_memory_that_is_as_fast_adds_nothing(devices_dir: Path) -> None:
    changed(devices_dir / "lanes.yaml", lambda of: of["slow"].update(of["fast"]))
    same = load_device(devices_dir, "lanes")
    assert {(cost.read_ns_per_byte, cost.write_ns_per_byte) for cost in same.kernels.values()} == {(0.0, 0.0)}
    assert same.latency_ns == same.mixed_overlap_fraction == 0


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"hidden_as": "plian"}, ["plian.yaml", "did you mean 'plain'?"]),
        ({"hidden_as": "lanes"}, ["lanes.yaml: hidden_as: lanes was not fitted"]),
        ({"slow": {}}, ["lanes.yaml", "slow.read", "missing"]),
        ({"copying_thread": {"lines_in_flight": 12}}, ["copying_thread.source", "missing"]),
        ({"copying_thread": {"lines_in_flight": 0, "source": "none"}}, ["lines_in_flight", "greater than 0"]),
        ({"kernels": {}}, ["kernels"]),
    ],
)
@pytest.mark.usefixtures("device")
def test_faults_of_published_numbers_are_named(devices_dir: Path, change: dict[str, object], parts: list[str]) -> None:
    changed(devices_dir / "lanes.yaml", lambda of: of.update(change))
    with pytest.raises(BadInputError) as caught:
        load_device(devices_dir, "lanes")
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize("name", SHIPPED)
def test_every_published_number_names_where_it_is_from(repository: Path, name: str) -> None:
    document = yaml.safe_load((repository / "config" / "devices" / f"{name}.yaml").read_text(encoding="utf-8"))

    def sources(part: object) -> list[str]:
        if not isinstance(part, dict):
            return []
        return [part["source"]] if "source" in part else [each for value in part.values() for each in sources(value)]

    published = sources(document)
    assert len(published) == 11
    for source in published:
        assert any(
            word in source
            for word in ("arXiv", "github.com", "derived", "same", "as above", "as in", "optane-dcpmm", "Manual")
        ), source


def test_shipped_devices_lie_between_fast_memory_and_optane(repository: Path) -> None:
    """What the papers agree on: an expander writes much faster than Optane, and a wider one is faster."""
    devices = {name: load_device(repository / "config" / "devices", name) for name in (*SHIPPED, "optane-dcpmm")}

    def step_ns(name: str) -> int:
        reads_and_writes = (64_000_000,), (64_000_000,)
        return Emulation(devices[name], 1.0).kernel_delay_ns(OpClass.NORMALIZATION, *reads_and_writes)

    assert sorted(devices, key=step_ns) == ["ddr5-beside-hbm", "cxl-x16", "remote-socket", "cxl-x8", "optane-dcpmm"]
    assert step_ns("optane-dcpmm") > 4 * step_ns("cxl-x8")
    moves = devices["optane-dcpmm"].moves
    assert (moves.to_fast_bytes_per_s, moves.to_slow_bytes_per_s) == (29e9, 12e9)


def test_the_table_of_the_document_is_that_of_the_files(repository: Path) -> None:
    text = (repository / "docs" / "emulation.md").read_text(encoding="utf-8")
    for name in SHIPPED:
        document = yaml.safe_load((repository / "config" / "devices" / f"{name}.yaml").read_text(encoding="utf-8"))
        keys = ("read", "read_twice_written", "read_as_written", "written")
        rates = " | ".join(f"{document['slow'][key]['bytes_per_s'] / 1e9:.1f}" for key in keys)
        assert f"| `{name}` | {rates} |" in text, name


BALANCED = EmulatedTier(kind="emulated", device="plain", share="balanced")
WHOLE = EmulatedTier(kind="emulated", device="plain", share="whole")


@pytest.fixture
def emulation(devices_dir: Path) -> Emulation:
    return Emulation(load_device(devices_dir, "plain"), 1.0)


@pytest.mark.parametrize(
    ("op_class", "reads", "writes", "expected_ns"),
    [
        (OpClass.ELEMENTWISE, (1000,), (), 500),
        (OpClass.ELEMENTWISE, (), (1000,), 2000),
        (OpClass.ELEMENTWISE, (1000, 600), (100, 50), 1100),
        (OpClass.CONV_FORWARD, (1000, 600), (100, 50), 2200),
        (OpClass.REDUCTION, (1,), (), 0),
        (OpClass.REDUCTION, (3,), (), 2),
    ],
)
def test_delay_is_the_sum_over_slow_operands(
    emulation: Emulation, op_class: OpClass, reads: tuple[int, ...], writes: tuple[int, ...], expected_ns: int
) -> None:
    delay = emulation.kernel_delay_ns(op_class, reads, writes)
    assert delay == expected_ns
    assert isinstance(delay, int)


def test_first_touch_is_charged_per_written_operand_when_asked(emulation: Emulation) -> None:
    assert emulation.kernel_delay_ns(OpClass.MATMUL, (64,), (64, 64), first_touch=True) == 32 + 256 + 2000


def test_stretch_scales_delays_and_moves(devices_dir: Path) -> None:
    stretched = Emulation(load_device(devices_dir, "plain"), 2.5)
    assert stretched.kernel_delay_ns(OpClass.ELEMENTWISE, (1000,), (1000,)) == 6250
    assert stretched.move_ns(Tier.FAST, 1000) == 2500
    assert stretched.move_ns(Tier.SLOW, 1000) == 5000


def test_balanced_stretch_keeps_compute_to_memory_ratio(machine: Machine, devices_dir: Path) -> None:
    assert measured_stretch(machine, devices_dir, 0.5e12) == 4
    assert measured_stretch(machine, devices_dir, 8e12) == 0.25
    assert measured_stretch(replace(machine, slow_tier=WHOLE), devices_dir, 0.5e12) == 1


def test_stretch_comes_from_calibration() -> None:
    links = Links(Link(Tier.FAST, ((1, 1), (2, 2))), Link(Tier.SLOW, ((1, 1), (2, 2))), 1e12, 3.5)
    assert stretch_of(BALANCED, links) == 3.5
    assert stretch_of(WHOLE, None) == 1
    with pytest.raises(BadInputError, match="rule calibrate"):
        stretch_of(BALANCED, None)


TICK_NS, CALL_NS = 50, 1000


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandInClock:
    return StandInClock(TICK_NS, CALL_NS).put_into(monkeypatch, "memory.emulation")


def test_returns_at_the_first_reading_past_its_deadline(stand_in: StandInClock) -> None:
    for delay_ns in (10_020, 50_000, 3_000_001):
        deadline = stand_in.now_ns + delay_ns
        wait_until(deadline)
        assert deadline <= stand_in.now_ns < deadline + TICK_NS


def test_a_long_wait_lets_go_of_the_interpreter_until_its_last_stretch(stand_in: StandInClock) -> None:
    """Copies beside kernels need it: a loop without a system call would keep it for 5 ms at a time."""
    wait_until(1_000_000)
    calls = [0, *stand_in.called_at_ns]
    assert all(later - earlier <= CALL_NS + TICK_NS for earlier, later in itertools.pairwise(calls))
    assert 1_000_000 - _LAST_NS - CALL_NS <= calls[-1] < 1_000_000
    assert _LAST_NS <= 50_000


def test_a_past_deadline_is_seen_at_the_first_look(stand_in: StandInClock) -> None:
    stand_in.now_ns = 10**9
    wait_until(5)
    assert (len(stand_in.read_at_ns), stand_in.called_at_ns) == (2, [])
