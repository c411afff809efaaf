"""One measured step, call by call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class CopyTimes:
    """An asynchronous copy in nanoseconds since its step began: handed to its engine, begun there, complete."""

    submitted_ns: int
    begun_ns: int
    ended_ns: int


@dataclass(frozen=True)
class StepTrace:
    """A step of a program in which the clock was read between all calls.

    Attributes:
        marks_ns: for each step of the program when it began and when each of its calls ended, in nanoseconds since the
            first began. A kernel whose slow operands are emulated has two calls: itself, then the wait.
        copies: asynchronous copies by the number of their move.
        traced_s: seconds of every step that was measured so; the trace is of the one with the median.
        plain_s: seconds of the steps run in turn with those without reading the clock within.
        disturbed: whether others held the cores meanwhile, so that times are too long.
    """

    marks_ns: tuple[tuple[int, ...], ...]
    copies: Mapping[int, CopyTimes]
    traced_s: tuple[float, ...]
    plain_s: tuple[float, ...]
    disturbed: bool

    @property
    def overhead(self) -> float:
        """Share by which reading the clock made the median step longer; by noise it may be less than nothing."""
        return median(self.traced_s) / median(self.plain_s) - 1
