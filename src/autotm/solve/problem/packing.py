"""What a search asks of whoever gives its plans addresses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, Self

from autotm.model.plan import Stay


class Addresses(Protocol):
    """Addresses of stays within a limit, while a few stays are exchanged for others."""

    @property
    def left_out(self) -> Sequence[Stay]:
        """The stays that got none."""

    def copy(self) -> Self:
        """The same, to be changed by itself."""

    def remove(self, stay: Stay) -> None:
        """Forget a stay, whether it has an address or not."""

    def has_hole(self, stay: Stay, size_bytes: int) -> bool:
        """Whether a stay could be given an address."""

    def put(self, stay: Stay, size_bytes: int) -> bool:
        """Give a stay one beside the others; `False` if there is none."""


class Packing(Protocol):
    """Whether the fast stays of a plan fit into a limit, addresses and all.

    Attributes:
        end_s: reading of `time.perf_counter` from which on only what is quick is tried.
    """

    end_s: float

    def fits(self, stays: Sequence[Stay], implementations: Mapping[int, str], limit_bytes: int) -> bool:
        """Whether they do; `implementations` are the chosen ones by kernel."""

    def conflict(self, stays: Sequence[Stay], implementations: Mapping[int, str], limit_bytes: int) -> Sequence[Stay]:
        """A set of stays, as small as may be, that was found not to fit; empty where none is small enough for use."""

    def addresses(
        self, stays: Sequence[Stay], implementations: Mapping[int, str], limit_bytes: int
    ) -> Iterator[Addresses]:
        """Those that the fast stays get, as far as they fit, in several ways."""

    def settle(
        self, stays: Sequence[Stay], implementations: Mapping[int, str], limit_bytes: int, addresses: Any
    ) -> bool:
        """Keep addresses that `addresses` returned for fast stays; `False` if some have none and find none."""
