"""The fitting script and the error benchmark: known constants recovered, files reproduced."""

from __future__ import annotations

import csv
import gzip
import importlib
import random
import re
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from autotm.memory.emulation import load_device
from autotm.model.graph import OpClass

COLUMNS = [
    *("kernel_id", "op", "input_shapes", "output_shapes", "input_dtypes", "output_dtypes"),
    *("is_mkl", "input_layouts", "input_config", "output_config", "time_us"),
]
TRUTH = {"Add": (0.02, 0.2), "ConvolutionBackpropData": (0.01, 0.1)}
FIRST_TOUCH_US = 100


@pytest.fixture
def scripts(repository: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The modules in benchmarks/ by name."""
    monkeypatch.syspath_prepend(str(repository / "benchmarks"))
    return {name: importlib.import_module(name) for name in ("recorded_kernels", "emulation_error", "fit_emulation")}


@pytest.fixture
def device(repository: Path, tmp_path: Path) -> Path:
    """A copy of the shipped device file that may be overwritten."""
    return Path(shutil.copy(repository / "config" / "devices" / "optane-dcpmm.yaml", tmp_path))


def _row(kernel: int, op: str, elements: int, config: str, time_us: float, **other: str) -> dict[str, Any]:
    width = f"{elements}x1x1x1"
    return {
        "kernel_id": kernel,
        "op": op,
        "input_shapes": f"{width};{width}",
        "output_shapes": width,
        "input_dtypes": "f32;f32",
        "output_dtypes": "f32",
        "is_mkl": 1,
        "input_layouts": "0;0",
        "input_config": config[:2],
        "output_config": config[2],
        "time_us": int(time_us),
    } | other


def _write(path: Path, rows: list[dict[str, Any]]) -> Path:
    with gzip.open(path, "wt", newline="") if path.suffix == ".gz" else path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    return path


def _synthetic(path: Path, outliers: float) -> Path:
    """Kernels that obey `TRUTH`, but for a share of outliers at five times their time."""
    generator = random.Random(1)
    rows = []
    for kernel in range(60):
        op = list(TRUTH)[kernel % 2]
        read, write = TRUTH[op]
        elements = generator.randrange(500_000, 20_000_000)
        base = generator.randrange(1000, 5000)
        for config in ("DDD", "DPD", "PDD", "PPD", "DDP", "DPP", "PDP", "PPP"):
            extra = 4 * elements / 1e3 * (config[:2].count("P") * read + (config[2] == "P") * write)
            extra += FIRST_TOUCH_US * (config[2] == "P")
            wrong = config != "DDD" and generator.random() < outliers
            rows.append(_row(kernel, op, elements, config, (base + extra) * (5 if wrong else 1)))
    return _write(path, rows)


@pytest.mark.parametrize("outliers", [0.0, 0.15])
def test_fit_recovers_known_constants_despite_outliers(
    scripts: dict[str, ModuleType], tmp_path: Path, outliers: float
) -> None:
    table = scripts["recorded_kernels"].read_table(_synthetic(tmp_path / "t.csv.gz", outliers))
    constants = scripts["fit_emulation"].fit(table.at_least(100))
    for op_class, (read, write) in zip((OpClass.ELEMENTWISE, OpClass.CONV_DATA_GRADIENT), TRUTH.values(), strict=True):
        assert constants[f"{op_class}.read"] == pytest.approx(read, rel=0.05)
        assert constants[f"{op_class}.write"] == pytest.approx(write, rel=0.02)
    assert constants["first_touch"] == pytest.approx(FIRST_TOUCH_US * 1e3, rel=0.1)
    assert constants["matmul.write"] == 0


def test_fit_writes_the_same_file_twice_and_check_sees_changes(
    scripts: dict[str, ModuleType], tmp_path: Path, device: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--table", str(_synthetic(tmp_path / "t.csv", 0.1)), "--device", str(device)]
    fit = scripts["fit_emulation"].main
    before = device.read_bytes()
    assert fit([*arguments, "--check"]) == 1
    assert device.read_bytes() == before
    assert fit(arguments) == 0
    first = device.read_bytes()
    assert fit(arguments) == 0
    assert device.read_bytes() == first != before
    assert fit([*arguments, "--check"]) == 0
    assert load_device(device.parent, device.stem).first_touch_ns > 0
    assert "overall" in capsys.readouterr().out


def test_shipped_constants_are_those_of_the_documented_fit(repository: Path) -> None:
    """The recording is not part of the project: a constant changed by hand differs from the fit that is documented."""
    rows = (line.strip("| ").split(" | ") for line in (repository / "docs" / "emulation.md").read_text().splitlines())
    fitted = {row[0]: (float(row[1]), float(row[2])) for row in rows if row[0] in set(OpClass) and len(row) == 8}
    shipped = load_device(repository / "config" / "devices", "optane-dcpmm").kernels
    assert {str(name): (costs.read_ns_per_byte, costs.write_ns_per_byte) for name, costs in shipped.items()} == fitted


def test_odd_rows_are_left_out_and_named(
    scripts: dict[str, ModuleType], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        _row(1, "Add", 1000, "DDD", 200),
        _row(1, "Add", 1000, "DDP", 300),
        _row(1, "Add", 1000, "DPP", 0),
        _row(2, "Add", 1000, "DDP", 900),
        _row(3, "Marvel", 1000, "DDD", 200),
        _row(3, "Marvel", 1000, "PDD", 250),
        _row(4, "Add", 1000, "DDD", 99),
        _row(4, "Add", 1000, "PDD", 250),
    ]
    assert scripts["emulation_error"].main(["--table", str(_write(tmp_path / "t.csv", rows))]) == 0
    output = capsys.readouterr().out
    assert "1 kernels without an all-DRAM row, 1 rows of 0 us" in output
    assert "unknown op type Marvel (2 rows) counted as elementwise" in output
    assert [line.split()[:3] for line in output.splitlines() if line.startswith("overall")] == [["overall", "2", "2"]]


def test_pooling_touches_byte_indices_and_not_its_forward_input(scripts: dict[str, ModuleType], tmp_path: Path) -> None:
    shapes = {"input_shapes": "100x1x1x1;100x1x1x1;100x1x1x1", "input_dtypes": "f32;f32;i32"}
    rows = [
        _row(1, "MaxPoolWithIndicesBackprop", 100, "DDD", 200, **shapes, input_config=config)
        for config in ("DDD", "PPP")
    ]
    (recording,) = scripts["recorded_kernels"].read_table(_write(tmp_path / "t.csv", rows)).recordings
    assert recording.slow_read_bytes == (0, 400, 100)


def test_contraction_rate_counts_each_direction_alike(scripts: dict[str, ModuleType], tmp_path: Path) -> None:
    image, weights, out = "8x8x16x2", "3x3x16x32", "4x4x32x2"
    rows = [
        _row(1, "ConvolutionBias", 1, "DDD", 1000, input_shapes=f"{image};{weights}", output_shapes=out),
        _row(2, "ConvolutionBackpropData", 1, "DDD", 1000, input_shapes=f"{weights};{out}", output_shapes=image),
        _row(
            3, "ConvolutionBiasBackpropFiltersBias", 1, "DDD", 1000, input_shapes=f"{image};{out}",
            output_shapes=f"{weights};32", output_dtypes="f32;f32", output_config="DD",
        ),
        _row(4, "Add", 1, "DDD", 1000),
    ]  # fmt: skip
    table = scripts["recorded_kernels"].read_table(_write(tmp_path / "t.csv", rows))
    flops = 2 * (4 * 4 * 32 * 2) * 3 * 3 * 16
    assert table.contraction_flop_per_s == pytest.approx([flops / 1e-3] * 3)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"time_us": "soon"}, r"line 3.*soon"),
        ({"input_config": "DX"}, r"line 3.*DX"),
        ({"input_dtypes": "f32"}, r"line 3.*zip"),
        ({"kernel_id": 2}, "no kernel of at least 100 us"),
    ],
)
def test_damaged_tables_are_refused_by_line(
    scripts: dict[str, ModuleType],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    change: dict[str, Any],
    error: str,
) -> None:
    path = _write(tmp_path / "t.csv", [_row(1, "Add", 10, "DDD", 20), _row(1, "Add", 10, "PDD", 200) | change])
    assert scripts["emulation_error"].main(["--table", str(path)]) == 1
    assert re.search(error, capsys.readouterr().err)
