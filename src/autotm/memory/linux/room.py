"""How much room to leave to pages that Linux places, so that they keep a limit and, as far as possible, reach it.

What is freed does not all reach pages: the kernel keeps some on lists of its processors, up to tens of megabytes, and
not the same each time. So the room is searched.
"""

from __future__ import annotations

from collections.abc import Callable

_GRAINS = 8
"""The search ends where too little and too much room differ by this part of what is tolerated."""


class Room:
    """What pages find in fast memory, as it is searched.

    Args:
        touched: places all pages anew; returns the bytes of fast memory that the limit still leaves to them, negative
            where they are beyond it.
        give: leaves so many bytes more to pages; returns how many that were.
        take: frees all pages and takes so many bytes from them; returns how many it got.
    """

    def __init__(self, touched: Callable[[], int], give: Callable[[int], int], take: Callable[[int], int]) -> None:
        self._touched, self._give, self._take = touched, give, take
        self.given_bytes = 0
        self.left_bytes = touched()
        self.placements = 1
        """How often all pages were placed."""

    def search(self, tolerated_bytes: int) -> None:
        """Change the room until pages keep the limit, and are at most `tolerated_bytes` below it.

        It ends whatever the kernel does: doubled steps end where there is nothing more to give or take, halves where
        they are small, and after them room is only taken. `left_bytes` is negative afterwards only where nothing could
        be taken, and above what is tolerated where the kernel keeps it, or others have it.
        """
        little, much = self._bracket(tolerated_bytes)
        while little is not None and much is not None and much - little > tolerated_bytes // _GRAINS:
            if self._fits(tolerated_bytes) or not self._change((little + much) // 2 - self.given_bytes):
                break
            if self.left_bytes > 0:
                little = self.given_bytes
            else:
                much = self.given_bytes
        step = 0
        while self.left_bytes < 0:
            step = max(-self.left_bytes, 2 * step)
            if not self._change(-step):
                break

    def _bracket(self, tolerated_bytes: int) -> tuple[int | None, int | None]:
        """In doubled steps, go from too little room to too much or back; returns both, as far as it came."""
        little = much = None
        step = 0
        while not self._fits(tolerated_bytes):
            if self.left_bytes > 0:
                little = self.given_bytes
            else:
                much = self.given_bytes
            step = max(abs(self.left_bytes), 2 * step)
            if (little is not None and much is not None) or not self._change(step if much is None else -step):
                break
        return little, much

    def _fits(self, tolerated_bytes: int) -> bool:
        return 0 <= self.left_bytes <= tolerated_bytes

    def _change(self, change_bytes: int) -> bool:
        """Give or take so much and place all pages anew; whether there was anything to give or take."""
        changed = self._give(change_bytes) if change_bytes > 0 else -self._take(-change_bytes)
        self.given_bytes += changed
        self.left_bytes = self._touched()
        self.placements += 1
        return changed != 0
