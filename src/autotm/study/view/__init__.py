"""A plan to look into: as a page, as buffers that packers read, and as a measured step that trace viewers open."""

from autotm.study.view.memory_prices import BYTES_PER_MB, MemoryPrices
from autotm.study.view.page import page_of, write_page
from autotm.study.view.placed import Placed
from autotm.study.view.stays import write_stays
from autotm.study.view.trace import write_trace

__all__ = ["BYTES_PER_MB", "MemoryPrices", "Placed", "page_of", "write_page", "write_stays", "write_trace"]
