"""Device files: what is wrong is named by file, key and value."""

from pathlib import Path

import pytest

from autotm.memory.device_file import load_device
from autotm.model.errors import BadInputError
from autotm.model.graph import OpClass


def _edited(devices_dir: Path, old: str, new: str) -> Path:
    path = devices_dir / "plain.yaml"
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    return devices_dir


def test_shipped_device_has_every_op_class(repository: Path) -> None:
    device = load_device(repository / "config" / "devices", "optane-dcpmm")
    assert set(device.constants.kernels) == set(OpClass)
    assert device.constants.moves.to_fast_bytes_per_s == 29e9
    assert device.constants.moves.to_slow_bytes_per_s == 12e9


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
    with pytest.raises(BadInputError) as caught:
        load_device(_edited(devices_dir, old, new), "plain")
    message = str(caught.value)
    assert "plain.yaml" in message
    for part in parts:
        assert part in message


def test_unknown_device_names_the_nearest(devices_dir: Path) -> None:
    with pytest.raises(BadInputError, match=r"no such device file; did you mean 'plain'\?"):
        load_device(devices_dir, "plane")


def test_empty_file_is_refused(devices_dir: Path) -> None:
    (devices_dir / "void.yaml").write_text("", encoding="utf-8")
    with pytest.raises(BadInputError, match=r"void\.yaml"):
        load_device(devices_dir, "void")
