"""What a planned step is expected to do."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class OffloadSummary:
    """A plan for a step of PyTorch, in numbers; times are predicted from operators and copies timed on the device.

    Attributes:
        device: that was timed.
        optimizer: how copies were chosen.
        budget_bytes: that were allowed.
        planned_peak_bytes: the most device memory that is in use at once.
        plain_peak_bytes: the same with nothing moved.
        least_bytes: no step of this graph needs less: the largest operator with its operands, and what never moves.
        host_bytes: of pinned memory.
        moved_out_bytes, moved_in_bytes: copied to the host and back in a step.
        predicted_s: of a step.
        plain_s: of a step with nothing moved: its operators alone.
        bound_s: no plan of this optimizer is predicted to take less.
        gap: share of the predicted time that is not proven necessary, in [0, 1].
    """

    device: str
    optimizer: str
    budget_bytes: int
    planned_peak_bytes: int
    plain_peak_bytes: int
    least_bytes: int
    host_bytes: int
    moved_out_bytes: int
    moved_in_bytes: int
    predicted_s: float
    plain_s: float
    bound_s: float
    gap: float

    def __str__(self) -> str:
        return (
            f"{self.device}, {self.optimizer}: {self.planned_peak_bytes / 1e6:.6g} MB of device memory planned, "
            f"{self.budget_bytes / 1e6:.6g} MB allowed, {self.plain_peak_bytes / 1e6:.6g} MB with nothing moved, "
            f"{self.least_bytes / 1e6:.6g} MB at the least; {self.moved_out_bytes / 1e6:.6g} MB out and "
            f"{self.moved_in_bytes / 1e6:.6g} MB back a step through {self.host_bytes / 1e6:.6g} MB of host memory; "
            f"{self.predicted_s:.6g} s a step predicted ({self.plain_s:.6g} s with nothing moved), bound "
            f"{self.bound_s:.6g} s, gap {self.gap:.2%}"
        )
