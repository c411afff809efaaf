"""Terms of asynchronous moves that planning and checking agree on (`docs/formulation.md` §9)."""

from __future__ import annotations

WINDOW_HALVES = (2, 3, 5, 8)
"""A window lasts at least so many halves of its transfer time: 1, 1.5, 2.5 and 4 times as long."""
