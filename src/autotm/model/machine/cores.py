"""Whether this process had its cores to itself while it measured, and how long it tries again where it had not."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter_ns
from typing import Generic, TypeVar

T = TypeVar("T")
Result = TypeVar("Result")

DISTURBED = 0.1
"""What was timed is disturbed when it lost more than this share of its cores' time; Snakemake beside it takes some."""
PATIENCE_S = 30.0
"""Longer than a neighbour's burst of work, short beside what a study measures."""
_AS_LONG = 3
"""Where good rounds have taken long, disturbed ones are repeated for so many times as long."""
TICK_NS = 10_000_000
"""The grain in which Linux tells what the hypervisor took."""

_STEAL_FIELD = 8


def lost_ns(cpus: Sequence[int]) -> int:
    """Nanoseconds that this process was kept from `cpus`: waited for others to leave them, or lost to the hypervisor.

    Meaningful as a difference over a stretch of time; the hypervisor's part comes in steps of `TICK_NS`. 0 where Linux
    does not count.
    """
    return _waiting_ns() + _stolen_ns(cpus)


@dataclass(frozen=True, slots=True)
class Round(Generic[Result]):
    """What a round gave, nanoseconds of its cores' time that others took meanwhile, and those that it lasted."""

    result: Result
    lost_ns: int
    wall_ns: int


class Watch:
    """Judges rounds of one measurement, and ends it when others disturb it for too long.

    Attributes:
        disturbed: what was measured in disturbed rounds after all, in words.
    """

    def __init__(self, cpus: Sequence[int], patience_s: float) -> None:
        """Watch over rounds on `cpus`.

        Disturbed ones may take `patience_s` seconds together, or three times as long as the good ones, if that is more.
        """
        self._cpus = tuple(cpus)
        self._patience_ns = patience_s * 1e9
        self._good_ns = self._disturbed_ns = 0
        self.disturbed: list[str] = []

    def judge(self, lost: int, wall_ns: int) -> bool:
        """Whether a round that took `wall_ns` is good, of whose cores' time others took `lost` nanoseconds."""
        is_good = lost <= DISTURBED * len(self._cpus) * wall_ns
        if is_good:
            self._good_ns += wall_ns
        else:
            self._disturbed_ns += wall_ns
        return is_good

    def timed(self, run: Callable[[], T]) -> Round[T]:
        """Run a round."""
        lost, start_ns = lost_ns(self._cpus), perf_counter_ns()
        result = run()
        wall_ns = perf_counter_ns() - start_ns
        return Round(result, lost_ns(self._cpus) - lost, wall_ns)

    def rounds(self, run: Callable[[], T], count: int, what: str) -> list[T]:
        """What `run` gives in `count` good rounds; where patience ends first, in all rounds, and `what` is noted."""
        return self.until(run, lambda found: len(found) >= count, what)

    def until(self, run: Callable[[], T], is_enough: Callable[[Sequence[T]], bool], what: str) -> list[T]:
        """What `run` gives in as many good rounds as are enough; where patience ends first, in all rounds, as above.

        `is_enough` is asked before each round.
        """
        good: list[T] = []
        every: list[T] = []
        while not is_enough(good):
            if self.is_over and is_enough(every):
                self.disturbed.append(what)
                return every
            found = self.timed(run)
            every.append(found.result)
            if self.judge(found.lost_ns, found.wall_ns):
                good.append(found.result)
        return good

    @property
    def is_over(self) -> bool:
        """Whether disturbed rounds are no longer repeated."""
        return self._disturbed_ns >= max(self._patience_ns, _AS_LONG * self._good_ns)


def _waiting_ns() -> int:
    """Nanoseconds that this process's threads were ready to run but had no core."""
    total = 0
    for file in Path("/proc/self/task").glob("*/schedstat"):
        try:
            total += int(file.read_text(encoding="ascii").split()[1])
        except (OSError, IndexError, ValueError):
            continue
    return total


def _stolen_ns(cpus: Sequence[int]) -> int:
    try:
        lines = Path("/proc/stat").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    wanted = {f"cpu{cpu}" for cpu in cpus}
    rows = (line.split() for line in lines if line.split(" ", 1)[0] in wanted)
    ticks = sum(int(fields[_STEAL_FIELD]) for fields in rows if len(fields) > _STEAL_FIELD)
    return ticks * (1_000_000_000 // os.sysconf("SC_CLK_TCK"))
