"""One thing that a machine has or lacks."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Use(StrEnum):
    """What a finding means for a study here."""

    USED = "used"
    USABLE = "usable"
    UNUSED = "not used"
    MISSING = "missing"
    CARE = "take care"


@dataclass(frozen=True)
class Finding:
    """One thing that a machine has or lacks.

    Attributes:
        what: the thing.
        found: what there is of it.
        use: whether autotm uses it; `usable` where a machine file must name it; `missing` where it cannot work without.
        why: the reason, or the remedy; may be empty.
    """

    what: str
    found: str
    use: Use
    why: str = ""
