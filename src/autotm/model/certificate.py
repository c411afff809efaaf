"""Certificate of a plan's lower bound, which is checked without a solver.

It holds prices, and a tree of cases that covers all placements.
"""

from __future__ import annotations

from dataclasses import dataclass

from autotm.model.graph import Tier


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
    """Weights that tensors have while they are in fast memory.

    At any time, what is fast weighs together at most what fits the limit: the most that tensors weigh whose bytes do
    not exceed it. That is not stated, it follows from the bytes.

    Attributes:
        tensors: names, distinct.
        weights: of each, >= 1.
    """

    tensors: tuple[str, ...]
    weights: tuple[int, ...]


@dataclass(frozen=True)
class CutPrices:
    """Prices of a unit of weight by a cut, as `KernelPrices`.

    A fast tensor pays for its weight. The fast workspaces of a kernel's implementation pay together for the weight that
    fits the limit, but not beside them.

    Attributes:
        cut: its number in the certificate.
        kernels: indices, distinct and ascending.
        prices_us: of each, >= 0, by the unit of weight.
    """

    cut: int
    kernels: tuple[int, ...]
    prices_us: tuple[float, ...]


@dataclass(frozen=True)
class SlowPrices:
    """What tensors pay tabled kernels for being slow there.

    Attributes:
        kernels: indices; one for each price.
        tensors: names; one for each price.
        prices_us: that tensor j pays kernel j, of any sign.
    """

    kernels: tuple[int, ...] = ()
    tensors: tuple[str, ...] = ()
    prices_us: tuple[float, ...] = ()


@dataclass(frozen=True)
class Prices:
    """One set of prices.

    Attributes:
        fast: of bytes of fast memory, which tensors and workspaces pay for as long as they take them.
        cuts: of units of weight, each cut once.
        slow: between tensors and tabled kernels. Where the first set of a certificate says nothing, the price is 0;
            where another says nothing, it is that of the first.
        out, back: of the time of the engines towards slow and towards fast memory. An asynchronous move pays for every
            span that its window lies within. Empty where all moves are blocking.
    """

    fast: KernelPrices = KernelPrices()
    cuts: tuple[CutPrices, ...] = ()
    slow: SlowPrices = SlowPrices()
    out: SpanPrices = SpanPrices()
    back: SpanPrices = SpanPrices()


@dataclass(frozen=True)
class Branch:
    """Two cases, which follow in this order: `tensor` is in fast memory at `kernel`, or it is not.

    A kernel that uses the tensor finds it in fast memory or not. At a kernel between two that use it, next to each
    other, fast means that it stays so from the one to the other. For a tensor that never moves, the kernel is the first
    of its life, and stands for all of it.

    Attributes:
        tensor: by name.
        kernel: its index.
    """

    tensor: str
    kernel: int


@dataclass(frozen=True)
class WindowBranch:
    """Two cases: where a tensor is copied over a gap, it is so beside kernels [start, end) of it, or in another way.

    The first case has no other copy over that gap, the second not this one; neither says that there is one.

    Attributes:
        copied: the tensor, by name.
        destination: tier that it is copied to.
        start, end: kernel indices.
    """

    copied: str
    destination: Tier
    start: int
    end: int


@dataclass(frozen=True)
class WorkspaceBranch:
    """Two cases: the workspaces of a kernel take at most so much fast memory, or more.

    Attributes:
        during: the kernel's index.
        most_bytes: of fast memory.
    """

    during: int
    most_bytes: int


Split = Branch | WindowBranch | WorkspaceBranch
"""A node of the tree that has two cases."""


@dataclass(frozen=True)
class Leaf:
    """A case that a set of prices bounds.

    Attributes:
        prices: number of the set in the certificate.
    """

    prices: int


@dataclass(frozen=True)
class Certificate:
    """Prices, and a tree whose leaves they bound; whatever both are, the least of the leaves' bounds holds.

    A leaf's bound is the sum over tensors of the cheapest path at its prices, plus the sum over kernels of the cheapest
    implementation and configuration, minus the price of the limit, of the weights that fit it and of both engines.
    Paths keep to the leaf's case, and nothing is in fast memory that is larger than what the case's fast tensors leave
    of the limit; where these alone exceed it, the case is empty and counts for nothing.

    Attributes:
        prices: the first set is that of the whole problem, used or not.
        tree: in preorder: a branch, then its first case, then its second.
        cuts: which the sets have prices for.
    """

    prices: tuple[Prices, ...]
    tree: tuple[Split | Leaf, ...] = (Leaf(0),)
    cuts: tuple[Cut, ...] = ()
