"""Gradients of convolutions, pools and resized images of every form, against central differences."""

from __future__ import annotations

import numpy as np
import pytest
from central_differences import assert_gradients
from tvm import relax

nn, image = relax.op.nn, relax.op.image

CONVOLUTIONS = {
    "lines": (lambda x, w: nn.conv1d(x, w, 2, 1), [(2, 3, 9), (4, 3, 3)]),
    "lines, grouped and dilated": (
        lambda x, w: nn.conv1d(x, w, 1, (2, 1), 2, 2, "NWC", "WIO"),
        [(1, 8, 4), (3, 2, 6)],
    ),
    "images in NCHW": (lambda x, w: nn.conv2d(x, w, 2, 1), [(1, 2, 5, 6), (3, 2, 3, 3)]),
    "dilated": (
        lambda x, w: nn.conv2d(x, w, 1, (2, 1, 0, 3), (2, 3), 1, "NHWC", "HWIO"),
        [(2, 7, 6, 2), (3, 2, 2, 3)],
    ),
    "dilated with a stride": (
        lambda x, w: nn.conv2d(x, w, (2, 3), 2, (2, 1), 2, "NHWC", "HWIO"),
        [(1, 7, 6, 2), (3, 2, 1, 4)],
    ),
    "dilated, each channel by itself": (
        lambda x, w: nn.conv2d(x, w, 1, 2, 2, 3, "NHWC", "HWIO"),
        [(1, 6, 5, 3), (3, 3, 1, 3)],
    ),
    "transposed": (
        lambda x, w: nn.conv2d_transpose(x, w, 2, 1, 1),
        [(2, 3, 3, 2), (3, 2, 3, 3)],
    ),
    "transposed, grouped": (
        lambda x, w: nn.conv2d_transpose(x, w, (2, 1), (0, 1, 1, 0), 0, 1, 2),
        [(1, 4, 3, 3), (4, 3, 2, 3)],
    ),
    "transposed and dilated": (
        lambda x, w: nn.conv2d_transpose(x, w, 1, 1, 0, 2, 1, "NHWC", "HWOI"),
        [(1, 3, 4, 2), (2, 3, 3, 2)],
    ),
    "transposed lines": (lambda x, w: nn.conv1d_transpose(x, w, 2, 1, 1), [(2, 3, 4), (3, 2, 3)]),
    "volumes": (lambda x, w: nn.conv3d(x, w, (2, 1, 2), 1), [(1, 2, 4, 3, 4), (3, 2, 3, 2, 3)]),
    "volumes, grouped and dilated": (
        lambda x, w: nn.conv3d(x, w, 1, (1, 0, 1, 0, 1, 1), (2, 1, 2), 2, "NDHWC", "DHWIO"),
        [(1, 5, 3, 4, 4), (2, 2, 2, 2, 2)],
    ),
}
POOLS = {
    "largest in NCHW": (lambda x: nn.max_pool2d(x, 3, 2, 1), [(1, 2, 5, 6)]),
    "largest, to the end": (lambda x: nn.max_pool2d(x, 3, 2, 0, 1, True, layout="NHWC"), [(1, 6, 5, 2)]),
    "largest, dilated": (lambda x: nn.max_pool2d(x, (2, 3), (1, 2), (1, 2), (3, 2), layout="NHWC"), [(2, 7, 8, 1)]),
    "largest of lines": (lambda x: nn.max_pool1d(x, 3, 2, 1), [(2, 3, 8)]),
    "mean, padding counted": (
        lambda x: nn.avg_pool2d(x, 3, 2, 1, layout="NHWC", count_include_pad=True),
        [(1, 5, 6, 2)],
    ),
    "mean, to the end, padding counted": (
        lambda x: nn.avg_pool2d(x, 3, 2, 1, 1, True, layout="NCHW", count_include_pad=True),
        [(1, 2, 6, 7)],
    ),
    "mean, to the end": (lambda x: nn.avg_pool2d(x, (3, 2), (2, 3), 1, 1, True), [(1, 2, 6, 7)]),
    "mean of lines": (lambda x: nn.avg_pool1d(x, 3, 2, 1, count_include_pad=True), [(2, 3, 8)]),
    "adaptive of lines": (lambda x: nn.adaptive_avg_pool1d(x, 3), [(2, 3, 8)]),
    "adaptive of images": (lambda x: nn.adaptive_avg_pool2d(x, (3, 4)), [(2, 2, 7, 5)]),
    "adaptive, divisible": (lambda x: nn.adaptive_avg_pool2d(x, (3, 2), layout="NHWC"), [(2, 6, 8, 2)]),
    "adaptive, the same": (lambda x: nn.adaptive_avg_pool2d(x, (3, 2), layout="NHWC"), [(2, 3, 2, 2)]),
    "adaptive of volumes": (lambda x: nn.adaptive_avg_pool3d(x, (1, 2, 3)), [(1, 2, 3, 4, 5)]),
}
TALLER, *SIZES = [((4, 5), (7, 3)), ((4, 5), (8, 10)), ((6, 4), (3, 1)), ((1, 3), (5, 3))]
METHODS = [
    ("linear", "half_pixel"),
    ("linear", "align_corners"),
    ("nearest_neighbor", "half_pixel"),
    ("nearest_neighbor", "asymmetric"),
    ("cubic", "half_pixel"),
    ("cubic", "align_corners"),
]


@pytest.mark.parametrize("name", [*CONVOLUTIONS, *POOLS])
def test_windows(name: str) -> None:
    operator, shapes = {**CONVOLUTIONS, **POOLS}[name]
    generator = np.random.default_rng(0)
    assert_gradients(operator, [generator.standard_normal(shape) for shape in shapes])


@pytest.mark.parametrize(
    ("method", "mode", "size", "wanted"),
    [
        *((*method, *TALLER) for method in METHODS),
        *((*method, *size) for method in [("linear", "align_corners"), ("cubic", "half_pixel")] for size in SIZES),
    ],
    ids=str,
)
def test_resized(method: str, mode: str, size: tuple[int, int], wanted: tuple[int, int]) -> None:
    values = np.random.default_rng(0).standard_normal((2, *size, 2))
    assert_gradients(
        lambda x: image.resize2d(x, wanted, layout="NHWC", method=method, coordinate_transformation_mode=mode),
        [values],
    )
