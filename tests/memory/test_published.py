"""Devices of published numbers: constants follow by the formulas of docs/emulation.md, each number has a source."""

from pathlib import Path

import pytest
import yaml

from autotm.memory.device_file import Device, load_device
from autotm.memory.emulation import Emulation
from autotm.model.errors import BadInputError
from autotm.model.graph import OpClass, Tier

SHIPPED = ("cxl-x16", "cxl-x8", "ddr5-beside-hbm", "remote-socket")


def _rates(**gb_per_s: float) -> dict[str, object]:
    return {key: {"bytes_per_s": rate * 1e9, "source": "made up"} for key, rate in gb_per_s.items()}


def _number(**number: float) -> dict[str, object]:
    return {**number, "source": "made up"}


@pytest.fixture
def device(devices_dir: Path) -> Device:
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


def test_kernels_pay_what_the_bus_takes_longer(device: Device) -> None:
    cost = device.constants.kernels[OpClass.CONV_FORWARD]
    assert cost.read_ns_per_byte == pytest.approx(1 / 10 - 1 / 100)
    assert cost.write_ns_per_byte == pytest.approx(2 / 16 - 2 / 80), "a plain store moves its line in and out"
    half = device.constants.kernels[OpClass.ELEMENTWISE]
    assert half.read_ns_per_byte == pytest.approx(cost.read_ns_per_byte / 2), "as much hidden as the fitted device says"
    assert half.write_ns_per_byte == pytest.approx(cost.write_ns_per_byte / 2)


def test_a_kernel_that_reads_and_writes_pays_what_was_published_of_mixed_traffic(device: Device) -> None:
    emulation = Emulation(device, 1.0)
    size = 30_000_000
    both = emulation.kernel_delay_ns(OpClass.CONV_FORWARD, (size,), (size,)) - 2 * device.constants.latency_ns
    assert both == pytest.approx(3 * size / 15 - 3 * size / 75, rel=1e-3)
    alone = [emulation.kernel_delay_ns(OpClass.CONV_FORWARD, *bytes_of) for bytes_of in (((size,), ()), ((), (size,)))]
    assert both < sum(alone)
    assert not emulation.is_additive


def test_latency_is_waited_for_once_an_operand_and_once_a_move(device: Device) -> None:
    emulation = Emulation(device, 2.0)
    assert device.constants.latency_ns == 300
    assert emulation.kernel_delay_ns(OpClass.MATMUL, (0,), (0,)) == 0, "nothing is read, nothing is waited for"
    one = emulation.kernel_delay_ns(OpClass.MATMUL, (4096,), ())
    two = emulation.kernel_delay_ns(OpClass.MATMUL, (2048, 2048), ())
    assert two - one == 600
    assert emulation.move_ns(Tier.FAST, 1000) == (2 * (300 + 100))
    assert emulation.move_ns(Tier.SLOW, 1000) == (2 * (300 + 125))


def test_one_copying_thread_is_bound_by_the_lines_it_waits_for(device: Device) -> None:
    beside = device.constants.asynchronous_moves
    assert beside.to_fast_bytes_per_s == beside.to_slow_bytes_per_s == 10 * 64 / 400e-9


def test_a_slower_fast_memory_adds_nothing(devices_dir: Path, device: Device) -> None:
    path = devices_dir / "lanes.yaml"
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    document["slow"] = document["fast"] | {"written": document["slow"]["written"]}
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    same = load_device(devices_dir, "lanes").constants
    assert {(cost.read_ns_per_byte, cost.write_ns_per_byte) for cost in same.kernels.values()} == {(0.0, 0.0)}
    assert same.latency_ns == same.mixed_overlap_fraction == 0
    assert device.constants.latency_ns > 0


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
def test_faults_are_named(devices_dir: Path, device: Device, change: dict[str, object], parts: list[str]) -> None:
    assert device.name == "lanes"
    path = devices_dir / "lanes.yaml"
    document = yaml.safe_load(path.read_text(encoding="utf-8")) | change
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
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

    found = sources(document)
    assert len(found) == 11
    for source in found:
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

    ordered = ["ddr5-beside-hbm", "cxl-x16", "remote-socket", "cxl-x8", "optane-dcpmm"]
    assert sorted(devices, key=step_ns) == ordered
    assert step_ns("optane-dcpmm") > 4 * step_ns("cxl-x8")


def test_the_table_of_the_document_is_that_of_the_files(repository: Path) -> None:
    text = (repository / "docs" / "emulation.md").read_text(encoding="utf-8")
    for name in SHIPPED:
        document = yaml.safe_load((repository / "config" / "devices" / f"{name}.yaml").read_text(encoding="utf-8"))
        keys = ("read", "read_twice_written", "read_as_written", "written")
        rates = " | ".join(f"{document['slow'][key]['bytes_per_s'] / 1e9:.1f}" for key in keys)
        assert f"| `{name}` | {rates} |" in text, name
