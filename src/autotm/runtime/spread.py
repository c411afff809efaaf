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
        Exception: what `work` raises for an item.
    """
    if not cpus:
        return [work(item) for item in items]
    # Threads take the next item by themselves: a future for each of thousands of small tensors costs more than work.
    left, found = iter(list(enumerate(items))), {}

    def work_on() -> None:
        for number, item in left:
            found[number] = work(item)

    # A thread inherits its maker's cores, and that one may be held on a single core.
    with ThreadPoolExecutor(len(cpus), initializer=os.sched_setaffinity, initargs=(0, set(cpus))) as threads:
        for thread in [threads.submit(work_on) for _ in cpus]:
            thread.result()
    return [found[number] for number in sorted(found)]
