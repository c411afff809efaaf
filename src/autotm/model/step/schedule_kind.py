"""Where the schedule of a kernel comes from: what tells that one fell back to code that nobody tuned."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

SCHEDULES_KEY = "schedules"
"""Under which key a graph file's provenance holds the kind of every symbol; it is no part of the step itself."""


class ScheduleKind(StrEnum):
    """Where a schedule comes from."""

    GENERATED = "generated"
    """Code written for its operator."""
    GENERAL = "general"
    """The rules for maps and reductions of any shape."""
    SEARCHED = "searched"
    """A search found it (`autotm tune`)."""
    VENDOR = "vendor"
    """None of ours: an algorithm of a library of the GPU's maker."""
    FRAMEWORK = "framework"
    """None of ours: an operator of PyTorch."""
    AS_WRITTEN = "as written"
    """None of these worked: compiled nearly as written, on one thread."""


def schedules_in(provenance: Mapping[str, Any]) -> dict[str, ScheduleKind]:
    """Schedule kind by kernel symbol, from the provenance of a graph file; empty where older files lack it."""
    return {symbol: ScheduleKind(kind) for symbol, kind in provenance.get(SCHEDULES_KEY, {}).items()}
