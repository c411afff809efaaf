"""A heap as allocators see it: free stretches of addresses, in order."""

from __future__ import annotations

from bisect import insort


class Heap:
    """`size_bytes` of free memory; neighbours are joined when freed."""

    def __init__(self, size_bytes: int) -> None:
        self._free = [(0, size_bytes)] if size_bytes else []

    def take_best(self, size_bytes: int) -> int | None:
        """A block in the smallest stretch that is large enough; None where there is none."""
        fitting = [(end - start, start, end) for start, end in self._free if end - start >= size_bytes]
        return self._take(size_bytes, *min(fitting)[1:]) if fitting else None

    def take_first(self, size_bytes: int) -> int | None:
        """A block in the lowest stretch that is large enough; None where there is none."""
        fitting = next(((start, end) for start, end in self._free if end - start >= size_bytes), None)
        return self._take(size_bytes, *fitting) if fitting else None

    def _take(self, size_bytes: int, start: int, end: int) -> int:
        self._free.remove((start, end))
        if start + size_bytes < end:
            insort(self._free, (start + size_bytes, end))
        return start

    def free(self, start: int, size_bytes: int) -> None:
        """Give a block back."""
        end = start + size_bytes
        before = next((stretch for stretch in self._free if stretch[1] == start), None)
        after = next((stretch for stretch in self._free if stretch[0] == end), None)
        for stretch in (before, after):
            if stretch is not None:
                self._free.remove(stretch)
        insort(self._free, (before[0] if before else start, after[1] if after else end))
