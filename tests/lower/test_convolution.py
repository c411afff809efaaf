"""The kernel plot's convolution: one kernel that computes what it should, timed in all eight placements."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import small_step

from autotm.kernels.library import KernelLibrary
from autotm.kernels.target import host_target
from autotm.lower.lowering import lower_convolution
from autotm.model.config import KernelPlotConfig, ProfileConfig
from autotm.model.files import load, save
from autotm.model.graph import Graph, OpClass, Role
from autotm.stages.context import Context
from autotm.stages.figures import convolution_profile_stage
from autotm.study.figures.kernel_times import OPERANDS, table_of_convolution

BATCH, IMAGE, CHANNELS = 2, 6, 16
QUICK = ProfileConfig(patience_s=0.05, min_repeats=2, max_repeats=3, kernel_s=0.0, rotation_bytes=0)


def test_it_is_one_kernel_that_convolves(tmp_path: Path) -> None:
    library = tmp_path / "kernels.so"
    graph = lower_convolution(BATCH, IMAGE, CHANNELS, "test", host_target(1), 1, tmp_path / "graph.json", library, {})
    (kernel,) = graph.kernels
    assert (kernel.op, kernel.op_class) == ("conv2d", OpClass.CONV_FORWARD)
    assert kernel.flops == 2 * BATCH * IMAGE**2 * 9 * CHANNELS**2
    assert [operand.tensor for operand in kernel.inputs + kernel.outputs] == list(OPERANDS)
    assert load(tmp_path / "graph.json", "graph", Graph) == graph
    random = np.random.default_rng(7)
    arrays = [random.standard_normal(operand.shape, dtype="float32") for operand in kernel.inputs]
    data, weight = (aligned(array.shape, array) for array in arrays)
    others = [aligned(operand.shape) for operand in kernel.outputs + kernel.workspaces]
    KernelLibrary.load(library).bind(kernel.function, [data, weight, *others])()
    np.testing.assert_allclose(others[0], convolved(data, weight), rtol=1e-4, atol=1e-4)


def test_its_profile_has_every_placement(tmp_path: Path) -> None:
    machine = small_step.machine()
    links = tmp_path / "links.json"
    save(links, "links", small_step.links(), {})
    names = ("store.sqlite", "objects", "graph.json", "library.so", "profile.parquet")
    files = {name.partition(".")[0]: tmp_path / name for name in names}
    convolution = KernelPlotConfig(image=IMAGE, channels=CHANNELS)
    context = Context(machine, small_step.DEVICES, 20)
    convolution_profile_stage(context, convolution, BATCH, "test", QUICK, links=links, **files)
    table = table_of_convolution(files["graph"], files["profile"])
    assert len(table.drop_duplicates(list(OPERANDS))) == 8
    assert (table["median_ns"] > 0).all()
    assert table["relative"].iloc[0] == 1.0
    assert table["time"].tolist() == ["measured", *["emulated"] * 7]
    assert table["weight_shape"].iloc[0] == f"3x3x{CHANNELS}x{CHANNELS}"
    step = load(files["graph"], "graph", Graph)
    assert {tensor.role for tensor in step.tensors} >= {Role.INPUT, Role.PARAMETER, Role.RESULT}


def aligned(shape: tuple[int, ...], values: np.ndarray | float = 0.0) -> np.ndarray:
    """A float32 array at an address that kernels take."""
    size = int(np.prod(shape))
    raw = np.zeros(size + 16, "float32")
    start = -raw.ctypes.data % 64 // 4
    array = raw[start : start + size].reshape(shape)
    array[...] = values
    return array


def convolved(data: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """3 x 3 convolution, padding 1, in float64."""
    padded = np.pad(data.astype("float64"), ((0, 0), (1, 1), (1, 1), (0, 0)))
    parts = (
        np.einsum("nhwc,ck->nhwk", padded[:, r : r + IMAGE, s : s + IMAGE], weight[r, s].astype("float64"))
        for r in range(3)
        for s in range(3)
    )
    return sum(parts, np.zeros(data.shape))


@pytest.mark.parametrize("image", [0, 5000])
def test_a_size_that_is_none_is_refused(image: int) -> None:
    with pytest.raises(ValueError, match="image"):
        KernelPlotConfig(image=image)
