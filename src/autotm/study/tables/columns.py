"""Tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

_WIDEST, _CUT = 60, " ... "


def columns(lines: Sequence[Sequence[str]], left: int) -> str:
    """Lines of equally many words in columns: the first `left` start at the left, the others end at the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            word.ljust(width) if index < left else word.rjust(width)
            for index, (word, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def shorten(text: str) -> str:
    """A text without its middle where it is too long for a column; fused kernels may have dozens of operands."""
    half = (_WIDEST - len(_CUT)) // 2
    return text if len(text) <= _WIDEST else text[:half] + _CUT + text[-half:]
