"""What a search asks of whoever gives its plans addresses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from autotm.model.plan import Stay


class Packing(Protocol):
    """Whether the fast stays of a plan fit into a limit, addresses and all."""

    def __call__(
        self, stays: Sequence[Stay], implementations: Mapping[int, str], limit_bytes: int
    ) -> Sequence[Stay] | None:
        """None if they do; else a set of them, as small as may be, that was found not to fit.

        The set is empty where none was found that is small enough to be of use. `implementations` are the chosen ones
        by kernel.
        """
