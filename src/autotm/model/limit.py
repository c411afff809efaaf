"""A fast-memory budget: a ratio of slow to fast, or bytes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from autotm.model.errors import BadInputError

_BYTES = re.compile(r"^(\d+(?:\.\d+)?)\s*(|[kMGT]|[KMGT]i)B$")
_RATIO = re.compile(r"^(\d+)\s*(?::|to|//)\s*(\d+)$")
_UNIT = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_ACCEPTED = "a ratio slow:fast of whole numbers such as 8:1 (not 0:0), or bytes such as 4500MB"


@dataclass(frozen=True)
class Limit:
    """Either `slow`:`fast` parts of the peak live bytes, or `size_bytes`.

    Ratio r = slow/fast allows peak / (r + 1) bytes: 0:1 is everything fast, 1:0 nothing.
    """

    slow: int | None = None
    fast: int | None = None
    size_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.size_bytes is None:
            if self.slow is None or self.fast is None or min(self.slow, self.fast) < 0 or self.slow == self.fast == 0:
                raise BadInputError(f"limit: {self.slow}:{self.fast} is not a limit; give {_ACCEPTED}")
        elif self.size_bytes < 0:
            raise BadInputError(f"limit: {self.size_bytes} bytes is negative; give {_ACCEPTED}")

    @classmethod
    def parse(cls, text: str | int) -> Limit:
        """Read `8:1`, `8to1`, `8//1`, `4500MB` (10^6 bytes each), `4GiB` (2^30 each), or a whole number of bytes.

        Raises:
            BadInputError: the text is none of these, or is 0:0.
        """
        if isinstance(text, int) and not isinstance(text, bool):
            return cls(size_bytes=text)
        stripped = str(text).strip()
        if match := _RATIO.match(stripped):
            return cls(slow=int(match[1]), fast=int(match[2]))
        if match := _BYTES.match(stripped):
            return cls(size_bytes=round(Fraction(match[1]) * _UNIT[match[2]]))
        raise BadInputError(f"limit: '{text}' is not a limit; give {_ACCEPTED}")

    @property
    def slug(self) -> str:
        """The form used in paths: `8to1`, `4500MB`, or `123B`."""
        if self.size_bytes is None:
            return f"{self.slow}to{self.fast}"
        if self.size_bytes and self.size_bytes % 10**6 == 0:
            return f"{self.size_bytes // 10**6}MB"
        return f"{self.size_bytes}B"

    def __str__(self) -> str:
        return self.slug if self.size_bytes is not None else f"{self.slow}:{self.fast}"

    def fast_bytes(self, peak_live_bytes: int) -> int:
        """The budget in bytes for a step whose movable tensors peak at `peak_live_bytes`."""
        if self.size_bytes is not None:
            return self.size_bytes
        assert self.slow is not None
        assert self.fast is not None
        return peak_live_bytes * self.fast // (self.slow + self.fast)
