"""A limit that no placement can keep."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Refusal:
    """Why a limit has no plan.

    Attributes:
        limit: as asked, e.g. `8:1`.
        smallest_bytes: the least fast memory that a placement of this optimizer can keep; None where that is not known.
        why: what does not fit, for people.
    """

    limit: str
    smallest_bytes: int | None
    why: str
