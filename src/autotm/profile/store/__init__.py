"""The kernel store: timings and tuned schedules, kept across networks and exchanged between machines."""

from autotm.profile.store.exchange import Merged, export_store, import_store
from autotm.profile.store.schedule_table import Entry, ScheduleTable, Where
from autotm.profile.store.store import KernelStore, StoreKey

__all__ = ["Entry", "KernelStore", "Merged", "ScheduleTable", "StoreKey", "Where", "export_store", "import_store"]
