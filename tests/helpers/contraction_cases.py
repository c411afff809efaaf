"""Contractions of many extents, and the same in float64."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Window:
    """One convolution's extents."""

    x: Shape
    w: Shape
    stride: tuple[int, int]
    padding: tuple[int, int, int, int]

    @property
    def y(self) -> Shape:
        """Shape of the result."""
        top, left, bottom, right = self.padding
        rows = (self.x[1] + top + bottom - self.w[0]) // self.stride[0] + 1
        columns = (self.x[2] + left + right - self.w[1]) // self.stride[1] + 1
        return self.x[0], rows, columns, self.w[3]

    def parts(self, x: np.ndarray) -> list[tuple[int, int, np.ndarray]]:
        """(r, s, the pixels of the padded input that this tap meets)."""
        top, left, bottom, right = self.padding
        padded = np.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0)))
        _, rows, columns, _ = self.y
        down, across = self.stride
        return [
            (r, s, padded[:, r : r + rows * down : down, s : s + columns * across : across][:, :rows, :columns])
            for r in range(self.w[0])
            for s in range(self.w[1])
        ]

    def forward(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        """Convolution in float64."""
        return sum(pixels.astype(np.float64) @ w[r, s].astype(np.float64) for r, s, pixels in self.parts(x))

    def weight_gradient(self, x: np.ndarray, dy: np.ndarray) -> np.ndarray:
        """Gradient by the weights in float64."""
        result = np.zeros(self.w)
        flat = dy.reshape(-1, self.w[3]).astype(np.float64)
        for r, s, pixels in self.parts(x):
            result[r, s] = pixels.reshape(-1, self.w[2]).astype(np.float64).T @ flat
        return result

    def data_gradient(self, dy: np.ndarray, w: np.ndarray) -> np.ndarray:
        """Gradient by the input in float64."""
        top, left, bottom, right = self.padding
        batch, height, width, channels = self.x
        padded = np.zeros((batch, height + top + bottom, width + left + right, channels))
        _, rows, columns, _ = self.y
        down, across = self.stride
        for r in range(self.w[0]):
            for s in range(self.w[1]):
                part = padded[:, r : r + rows * down : down, s : s + columns * across : across][:, :rows, :columns]
                part += dy.astype(np.float64) @ w[r, s].astype(np.float64).T
        return padded[:, top : top + height, left : left + width]


WINDOWS = [
    Window((1, 147, 9, 3), (3, 3, 3, 32), (2, 2), (0, 0, 0, 0)),
    Window((2, 35, 35, 16), (3, 3, 16, 24), (1, 1), (1, 1, 1, 1)),
    Window((2, 17, 17, 24), (1, 7, 24, 40), (1, 1), (0, 3, 0, 3)),
    Window((1, 17, 17, 40), (7, 1, 40, 24), (1, 1), (3, 0, 3, 0)),
    Window((2, 8, 8, 33), (1, 1, 33, 50), (1, 1), (0, 0, 0, 0)),
    Window((1, 8, 8, 16), (1, 1, 16, 10), (2, 2), (0, 0, 0, 0)),
    Window((1, 5, 7, 3), (2, 3, 3, 5), (3, 2), (1, 2, 0, 1)),
    Window((3, 1, 1, 16), (1, 1, 16, 16), (1, 1), (0, 0, 0, 0)),
    Window((2, 2, 2, 8), (3, 3, 8, 16), (1, 1), (1, 1, 1, 1)),
    Window((1, 9, 9, 4), (7, 7, 4, 8), (2, 2), (3, 3, 3, 3)),
    Window((8, 3, 3, 48), (1, 3, 48, 112), (1, 1), (0, 1, 0, 1)),
    Window((2, 11, 10, 8), (3, 3, 8, 16), (1, 1), (0, 0, 0, 0)),
    Window((1, 6, 6, 8), (3, 3, 8, 16), (2, 2), (0, 0, 1, 1)),
    Window((2, 5, 5, 300), (3, 3, 300, 72), (1, 1), (1, 1, 1, 1)),
    Window((8, 14, 14, 40), (1, 1, 40, 200), (1, 1), (0, 0, 0, 0)),
    Window((2, 5, 6, 24), (1, 1, 24, 32), (1, 1), (1, 2, 0, 1)),
]

# Window of the whole convolution (weights of one group), groups: narrow, merged, wide, strided, 1 x 1, odd padding.
GROUPED = [
    (Window((2, 9, 8, 12), (3, 3, 4, 18), (1, 1), (1, 1, 1, 1)), 3),
    (Window((1, 7, 7, 32), (3, 3, 4, 32), (2, 2), (1, 1, 1, 1)), 8),
    (Window((2, 5, 6, 6), (3, 2, 2, 15), (1, 2), (1, 0, 1, 1)), 3),
    (Window((1, 8, 8, 40), (1, 1, 20, 80), (1, 1), (0, 0, 0, 0)), 2),
    (Window((3, 6, 5, 70), (3, 3, 35, 34), (1, 1), (1, 1, 1, 1)), 2),
    (Window((1, 5, 5, 8), (1, 1, 1, 8), (1, 1), (1, 1, 1, 1)), 8),
    (Window((2, 20, 20, 64), (3, 3, 4, 64), (1, 1), (1, 1, 1, 1)), 16),
]
DEPTHWISE = [
    Window((2, 9, 8, 24), (3, 3, 1, 24), (1, 1), (1, 1, 1, 1)),
    Window((1, 8, 11, 7), (3, 3, 1, 7), (2, 2), (1, 1, 1, 1)),
    Window((2, 6, 6, 5), (2, 3, 1, 10), (1, 1), (0, 1, 1, 0)),
    Window((1, 7, 7, 1), (5, 5, 1, 3), (1, 2), (2, 2, 2, 2)),
    Window((1, 12, 10, 33), (3, 1, 1, 33), (3, 1), (0, 0, 0, 0)),
    Window((4, 17, 17, 64), (3, 3, 1, 64), (1, 1), (1, 1, 1, 1)),
    Window((2, 4, 4, 20), (1, 1, 1, 20), (1, 1), (0, 0, 0, 0)),
]


def random_windows(count: int) -> list[Window]:
    """Windows of any extents, strides and padding."""
    generator = np.random.default_rng(7)
    windows = []
    while len(windows) < count:
        kernel = generator.integers(1, 5, 2)
        padding = tuple(int(p) for p in generator.integers(0, 3, 4))
        height, width, batch = (int(v) for v in generator.integers(1, [20, 20, 4]))
        channels, features = (int(v) for v in generator.integers(1, 70, 2))
        window = Window(
            (batch, height, width, channels),
            (int(kernel[0]), int(kernel[1]), channels, features),
            tuple(int(s) for s in generator.integers(1, 4, 2)),
            padding,
        )
        if min(window.y) > 0:
            windows.append(window)
    return windows


def random_array(shape: Shape, seed: int) -> np.ndarray:
    """Standard normal values in 64-byte aligned memory."""
    array = aligned(shape)
    array[...] = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
    return array


def aligned(shape: Shape) -> np.ndarray:
    """64-byte aligned memory, filled with a value that shows what was never written."""
    raw = np.full(int(np.prod(shape)) + 16, np.nan, np.float32)
    start = (-raw.ctypes.data // 4) % 16
    return raw[start : start + int(np.prod(shape))].reshape(shape)


def error(actual: np.ndarray, expected: np.ndarray) -> float:
    """Largest difference, relative to the largest expected value."""
    return float(np.abs(actual - expected).max() / max(np.abs(expected).max(), 1e-30))
