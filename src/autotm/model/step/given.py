"""Values that a person gave for a tensor: weights, data."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from autotm.model.files import DamagedFileError, write_atomically

Array = npt.NDArray[Any]
_DIGITS = 16


@dataclass(frozen=True, slots=True)
class Given:
    """A tensor's value before the first step, in a file named after its content.

    Attributes:
        file: in NumPy's format; relative to the folder that autotm runs in, or absolute.
    """

    file: str

    @classmethod
    def stored(cls, value: Array, folder: Path) -> Given:
        """The value in a file of `folder`, which is written unless it is there."""
        value = np.asarray(value, order="C")
        digest = hashlib.sha256(f"{value.dtype}{value.shape}".encode())
        digest.update(value.data)
        path = folder / f"{digest.hexdigest()[:_DIGITS]}.npy"
        if not path.exists():
            write_atomically(path, lambda temporary: np.save(temporary, value))
        return cls(str(path))

    def read(self, tensor: str, shape: tuple[int, ...], dtype: str) -> Array:
        """The value, mapped from its file.

        Raises:
            DamagedFileError: the file is gone or cut, or holds another shape or type.
        """
        remedy = "lower the network again: remove its graph.json, or call autotm.prepare again"
        try:
            value: Array = np.load(self.file, mmap_mode="r")
        except (OSError, ValueError, EOFError) as error:
            raise DamagedFileError(
                f"{self.file}: value of tensor '{tensor}' cannot be read ({error}); {remedy}"
            ) from None
        if value.shape != shape or value.dtype != np.dtype(dtype):
            raise DamagedFileError(
                f"{self.file}: value of tensor '{tensor}' is {value.dtype}{list(value.shape)}, not "
                f"{dtype}{list(shape)}; {remedy}"
            )
        return value
