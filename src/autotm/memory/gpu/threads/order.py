"""When the work at the head of a stream begins: at once, after a delay, or when nothing else can."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Order:
    """Work begins as soon as its stream comes to it; the ways below are subclasses.

    Work is known by its stream's name and its number there since the device was opened, from 0; events have none.
    """

    def delay_s(self, stream: str, number: int) -> float:
        """Seconds that work is put off for."""
        del stream, number
        return 0.0

    def rank(self, stream: str, number: int) -> float | None:
        """None, or: work begins only once the host waits and no other stream can go on; of several the least first."""
        del stream, number
        return None


@dataclass(frozen=True)
class Delays(Order):
    """Work begins after a random while, so that streams overtake each other: real concurrency.

    Attributes:
        seed: which work waits how long is drawn from it and does not depend on what the threads do.
        most_s: the longest delay.
    """

    seed: int
    most_s: float = 0.0003

    def delay_s(self, stream: str, number: int) -> float:
        """Nothing for half of all work, so that what was late is followed by what is not."""
        drawn = random.Random(f"{self.seed}:{stream}:{number}").random()  # noqa: S311 - no secret
        return max(0.0, 2 * drawn - 1) * self.most_s


@dataclass(frozen=True)
class Interleaving(Order):
    """One piece of work at a time, in an order drawn from all that events allow.

    Attributes:
        seed: gives the same order on every machine.
    """

    seed: int

    def rank(self, stream: str, number: int) -> float | None:
        """At random."""
        return random.Random(f"{self.seed}:{stream}:{number}").random()  # noqa: S311 - no secret


@dataclass(frozen=True)
class Starving(Order):
    """Some work of one stream begins as late as events allow: what does not wait for it comes before it.

    Attributes:
        stream: by name.
        number: of the work.
        period: work comes round after so many, as that of a step does; 0 where it does not.
    """

    stream: str
    number: int
    period: int = 0

    def rank(self, stream: str, number: int) -> float | None:
        """Held back only if it is the one."""
        turn = number % self.period if self.period else number
        return 0.0 if (stream, turn) == (self.stream, self.number) else None
