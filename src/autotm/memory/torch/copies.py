"""What copies between device and host memory, beside operators."""

from __future__ import annotations

from typing import Any, Protocol

import torch


class Copies(Protocol):
    """Two streams of copies. Each does its copies in the order in which they are started.

    A copy begins after all that was asked of the device before it was started. What is asked after `wait` comes after
    the copy.
    """

    def start_inward(self, destination: torch.Tensor, source: torch.Tensor) -> Any:
        """Begin to copy all bytes from the host to the device, and give what to wait for."""

    def start_outward(self, destination: torch.Tensor, source: torch.Tensor) -> Any:
        """Begin to copy all bytes from the device to the host, and give what to wait for."""

    def wait(self, copy: Any) -> None:
        """Order all that follows after the copy.

        Raises:
            AutotmError: it failed.
        """

    def drain(self) -> None:
        """Hold the calling thread until no copy is under way."""

    def seconds(self, copy: Any) -> float:
        """How long a copy took, from its beginning; it is complete."""

    def close(self) -> None:
        """End what copies, after what it is copying."""
