"""In which order kernels are timed, and which of them once more because others held the cores."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from autotm.model.machine import TICK_NS, Round, Watch

Job = TypeVar("Job")
Result = TypeVar("Result")

_STRETCH_NS = 2 * TICK_NS
"""Sittings are judged together until they have lasted so long: what the hypervisor takes is told in ticks."""


def undisturbed(
    jobs: Iterable[Job], run: Callable[[Job], Round[Result]], watch: Watch
) -> Iterator[tuple[Result, bool]]:
    """What `run` makes of each job, and whether others disturbed it all the same.

    Those that were disturbed go to the end of the queue. When the patience of `watch` is spent, they are given as they
    are; and once more, if the rest went well and so long that patience lasts for more.
    """
    queue, given_up = deque(jobs), deque[Job]()
    while queue:
        stretch, lost, wall_ns = [], 0, 0
        while queue and wall_ns < _STRETCH_NS:
            job = queue.popleft()
            found = run(job)
            stretch.append((job, found.result))
            lost, wall_ns = lost + found.lost_ns, wall_ns + found.wall_ns
        is_good = watch.judge(lost, wall_ns)
        if is_good or watch.is_over:
            yield from ((result, not is_good) for _, result in stretch)
            given_up.extend(job for job, _ in stretch if not is_good)
        else:
            queue.extend(job for job, _ in stretch)
        if not queue and not watch.is_over:
            queue, given_up = given_up, deque()
    watch.disturbed.extend(["a kernel"] * len(given_up))
