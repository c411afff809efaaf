"""Certificate of a plan's lower bound: prices, from which the bound is computed again without a solver."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class KernelPrices:
    """What kernels charge; those that are not named charge nothing.

    Attributes:
        kernels: indices, distinct and ascending.
        prices_us: of each, >= 0, by the byte of fast memory.
    """

    kernels: tuple[int, ...] = ()
    prices_us: tuple[float, ...] = ()


@dataclass(frozen=True)
class SpanPrices:
    """What work pays that an engine has to do within spans of kernels.

    Attributes:
        starts, ends: kernel indices: span j is [`starts[j]`, `ends[j]`).
        prices_us: of each span, >= 0, by the nanosecond of work.
    """

    starts: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    prices_us: tuple[float, ...] = ()


@dataclass(frozen=True)
class Cut:
    """Weights that tensors have while they are in fast memory, and what kernels charge for them.

    At any time, what is fast weighs together at most what fits the limit: the most that tensors weigh whose bytes do
    not exceed it. That is not stated, it follows from the bytes. A fast tensor pays for its weight. The fast workspaces
    of a kernel's implementation pay together for the weight that fits the limit, but not beside them.

    Attributes:
        tensors: names, distinct.
        weights: of each, >= 1.
        kernels: indices, distinct and ascending.
        prices_us: of each kernel, >= 0, by the unit of weight.
    """

    tensors: tuple[str, ...]
    weights: tuple[int, ...]
    kernels: tuple[int, ...]
    prices_us: tuple[float, ...]


@dataclass(frozen=True)
class SlowPrices:
    """What tensors pay tabled kernels for being slow there; what is not named pays nothing.

    Attributes:
        kernels: indices; one for each price.
        tensors: names; one for each price.
        prices_us: that tensor j pays kernel j, of any sign.
    """

    kernels: tuple[int, ...] = ()
    tensors: tuple[str, ...] = ()
    prices_us: tuple[float, ...] = ()


@dataclass(frozen=True)
class Certificate:
    """Prices; the bound that follows from them holds, whatever they are.

    The bound is the sum over tensors of the cheapest path at these prices, plus the sum over kernels of the cheapest
    implementation and configuration, minus the price of the limit, of the weights that fit it and of both engines.
    Nothing is in fast memory that is larger than the limit.

    Attributes:
        fast: of bytes of fast memory, which tensors and workspaces pay for as long as they take them.
        cuts: of units of weight.
        slow: between tensors and tabled kernels.
        out, back: of the time of the engines towards slow and towards fast memory. An asynchronous move pays for every
            span that its window lies within. Empty where all moves are blocking.
    """

    fast: KernelPrices = KernelPrices()
    cuts: tuple[Cut, ...] = ()
    slow: SlowPrices = SlowPrices()
    out: SpanPrices = SpanPrices()
    back: SpanPrices = SpanPrices()
