"""What the bytes of a pool hold, interval by interval."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Content:
    """A tensor's data in bytes [start, end)."""

    start: int
    end: int
    tensor: str


class Memory:
    """Intervals of valid data, disjoint and ascending; writing over a part destroys the whole."""

    def __init__(self) -> None:
        self._contents: list[Content] = []
        self._starts: list[int] = []
        self._killers: dict[str, str] = {}

    def write(self, tensor: str, start: int, size_bytes: int) -> None:
        """Put a tensor's data at [start, start + size); what overlaps is gone, an older copy of the tensor too."""
        end = start + size_bytes
        first = max(0, bisect_right(self._starts, start) - 1)
        last = bisect_left(self._starts, end)
        kept = []
        for content in self._contents[first:last]:
            if content.end <= start:
                kept.append(content)
            else:
                self._killers[content.tensor] = tensor
        kept.append(Content(start, end, tensor))
        self._contents[first:last] = kept
        self._starts[first:last] = [content.start for content in kept]

    def holds(self, tensor: str, start: int, size_bytes: int) -> bool:
        """Whether exactly these bytes hold the tensor's data, whole."""
        at = bisect_left(self._starts, start)
        return at < len(self._starts) and self._contents[at] == Content(start, start + size_bytes, tensor)

    def killer(self, tensor: str) -> str | None:
        """Who last wrote over the tensor."""
        return self._killers.get(tensor)
