"""A pool whose pages Linux places, each when it is first touched, by one of its policies."""

from __future__ import annotations

import mmap
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from autotm.memory.linux.calls import NOWHERE, give_back, node_of_pages, pages_by_node
from autotm.memory.linux.page_policy import PagePolicy, apply_policy
from autotm.memory.pool import Pool
from autotm.model.files import AutotmError
from autotm.model.machine import SystemMemory
from autotm.model.step import Tier

_HUGE_PAGE_BYTES = 2 << 20


class PolicyPool(Pool):
    """`size_bytes` of plain memory, of which nothing is touched before a program does it.

    Args:
        size_bytes: may be 0.
        policy: for its pages.
        nodes: that the policy spreads them over, as `apply_policy` takes them.
        allowed: nodes that a page may be on; where Linux puts one elsewhere, `check` refuses it.
        huge_pages: whether Linux may give huge pages, as it does by itself; none are asked for.
        system: this machine's memories.

    Raises:
        BadInputError: a node does not exist or loses pages by itself.
        AutotmError: the system refuses the policy, or does not give the memory.
    """

    def __init__(
        self,
        size_bytes: int,
        policy: PagePolicy,
        nodes: Sequence[int],
        allowed: Sequence[int],
        *,
        huge_pages: bool,
        system: SystemMemory,
    ) -> None:
        self._policy, self._policy_nodes, self._allowed = policy, tuple(nodes), tuple(allowed)
        self._has_huge_pages, self._system = huge_pages, system
        super().__init__(Tier.PMEM, size_bytes, huge_pages=False)

    @property
    def page_bytes(self) -> int:
        """Of the largest page that Linux may place as one."""
        return _HUGE_PAGE_BYTES if self._has_huge_pages else mmap.PAGESIZE

    def _mapped(self, size_bytes: int) -> mmap.mmap:
        mapping = super()._mapped(size_bytes)
        if not self._has_huge_pages:
            mapping.madvise(mmap.MADV_NOHUGEPAGE)
        return mapping

    def _touch(self) -> None:
        """Only say how: the program's own first touch places a page."""
        whole = self._whole
        apply_policy(whole.ctypes.data, whole.size, self._policy, self._policy_nodes, self._system)

    def forget(self) -> None:
        """Free every page: what is touched next is placed anew. All bytes become zero."""
        give_back(self._whole.ctypes.data, self._whole.size)

    def node_of_pages(self) -> npt.NDArray[np.int32]:
        """(pages,) the node of each page, negative where it was never touched."""
        return node_of_pages(self._whole.ctypes.data, self._whole.size)

    def pages_by_node(self) -> dict[str, int]:
        """How many pages are on which memory node now, by its number, or `nowhere`: never touched."""
        return pages_by_node(self._whole.ctypes.data, self._whole.size)

    def check(self) -> None:
        """Make sure that all pages are on the machine file's nodes.

        Raises:
            AutotmError: some are not; Linux had no room on these, or another node is nearer.
        """
        found = self.pages_by_node()
        known = {NOWHERE, *map(str, self._allowed)}
        if away := {node: count for node, count in found.items() if node not in known}:
            listed = ", ".join(f"{count} on node {node}" for node, count in away.items())
            raise AutotmError(
                f"Linux placed pages on nodes that the machine file has neither as fast nor as slow ({listed}): these "
                "are nearer, or there was no room on the others; what was measured is refused. Name the nearest node "
                "as slow, or free memory on it"
            )
