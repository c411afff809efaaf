"""Work on many arrays, spread over cores: NumPy and hashlib let go of the interpreter while they work on one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def spread(work: Callable[[Item], Result], items: Iterable[Item], cpus: Sequence[int]) -> list[Result]:
    """What `work` gives for each item, in their order, with one thread for each of `cpus`; without any, in this one.

    Raises:
        Exception: what `work` raises for the first item that it fails on.
    """
    if not cpus:
        return [work(item) for item in items]
    # A thread inherits its maker's cores, and that one may be held on a single core.
    with ThreadPoolExecutor(len(cpus), initializer=os.sched_setaffinity, initargs=(0, set(cpus))) as threads:
        return list(threads.map(work, items))
