"""Machine code that copies bytes: streaming stores, threads of its own, and no interpreter in between."""

from autotm.memory.native.build import compile_library, compiled
from autotm.memory.native.team import PLAIN, Stores, Team, copy_bytes, copy_source, streamed_bytes, widest_store
from autotm.memory.native.ways import Way, Ways, measured_ways, usual_ways

__all__ = [
    "PLAIN",
    "Stores",
    "Team",
    "Way",
    "Ways",
    "compile_library",
    "compiled",
    "copy_bytes",
    "copy_source",
    "measured_ways",
    "streamed_bytes",
    "usual_ways",
    "widest_store",
]
