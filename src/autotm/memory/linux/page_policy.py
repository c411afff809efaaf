"""Linux's own placement of pages: policies of a mapping, NUMA balancing, and pools placed by them."""

from __future__ import annotations

import mmap
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path

import numpy as np
import numpy.typing as npt

from autotm.memory.linux.system_calls import NOWHERE, give_back, node_of_pages, pages_by_node, set_policy
from autotm.memory.pool import Pool
from autotm.model.errors import AutotmError, BadInputError
from autotm.model.graph import Tier
from autotm.model.machine import SWITCHES, is_switched
from autotm.model.system import SystemMemory

# Linux's own placement of pages, asked for: policies of a fresh mapping, and NUMA balancing with demotion.
#
# Sources: mbind(2), include/uapi/linux/mempolicy.h, Documentation/admin-guide/sysctl/kernel.rst.


class PagePolicy(IntEnum):
    """How a mapping's pages are spread over nodes, by the number that Linux gives it (`MPOL_...`).

    `LOCAL` takes the node of the thread that touches a page first, and is the only one of them whose pages NUMA
    balancing moves: others lack `MPOL_F_MOF`.
    """

    LOCAL = 0
    PREFERRED = 1
    INTERLEAVE = 3
    WEIGHTED_INTERLEAVE = 6


POLICIES = {
    "linux-preferred": PagePolicy.PREFERRED,
    "linux-interleave": PagePolicy.INTERLEAVE,
    "linux-weighted-interleave": PagePolicy.WEIGHTED_INTERLEAVE,
    "linux-balancing": PagePolicy.LOCAL,
}
"""Linux's policy by optimizer."""


def apply_policy(address: int, size_bytes: int, policy: PagePolicy, nodes: Sequence[int]) -> None:
    """Have pages of a mapping, not touched yet, placed by `policy`.

    Args:
        address: of its first byte, at the start of a page.
        size_bytes: of it.
        policy: for its pages.
        nodes: to spread them over, which all exist (`check_nodes`); of `PREFERRED` one, of `LOCAL` none. Pages that
            these have no room for go to others.

    Raises:
        AutotmError: the system refuses; says why and what helps.
    """
    try:
        set_policy(address, size_bytes, policy, nodes)
    except AutotmError as error:
        is_new = policy is PagePolicy.WEIGHTED_INTERLEAVE and "EINVAL" in str(error)
        hint = "; Linux 6.9 is the first that has it" if is_new else ""
        raise AutotmError(f"policy {policy.name.lower()}: {error}{hint}") from None


@contextmanager
def balancing(root: Path = Path("/")) -> Iterator[None]:
    """Switch NUMA balancing to tiered memory, and demotion on, for the whole machine; back afterwards.

    What is on already stays as it is.

    A process of its own puts the old values back when this one ends, however it does: killed, too.

    Raises:
        BadInputError: the kernel has no such switch.
        AutotmError: they may not be changed.
    """
    system, before = SystemMemory(root), {}
    for name in SWITCHES:
        text = system.setting(name)
        if text is None:
            raise BadInputError(
                f"{root / name}: not there: linux-balancing needs a Linux of 6.1 or later with NUMA balancing and "
                "demotion; simulate it on a machine whose slow memory is emulated"
            )
        if not is_switched(name, text):
            before[root / name] = text
    with _restored_after(before):
        for path in before:
            try:
                path.write_text(SWITCHES[str(path.relative_to(root))], encoding="ascii")
            except OSError as error:
                raise AutotmError(f"{path}: {error.strerror}; linux-balancing needs to be run as root") from None
        yield


@contextmanager
def _restored_after(before: dict[Path, str]) -> Iterator[None]:
    """Write values back when the block or this process ends: a pipe that nobody holds open any more tells of both."""
    words = [word for path, value in before.items() for word in (str(path), value)]
    script = 'cat >/dev/null; while [ $# -gt 0 ]; do printf %s "$2" > "$1"; shift 2; done'
    watcher = subprocess.Popen(
        ["/bin/sh", "-c", script, "sh", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert watcher.stdin is not None
    try:
        yield
    finally:
        watcher.stdin.close()
        watcher.wait()


# A pool whose pages Linux places, each when it is first touched, by one of its policies.

_HUGE_PAGE_BYTES = 2 << 20  # of x86-64, and of aarch64 with pages of 4 KiB


class PolicyPool(Pool):
    """`size_bytes` of plain memory, of which nothing is touched before a program does it.

    Args:
        size_bytes: may be 0.
        policy: for its pages.
        nodes: that the policy spreads them over, as `apply_policy` takes them.
        allowed: nodes that a page may be on; where Linux puts one elsewhere, `check` refuses it.
        huge_pages: whether Linux may give huge pages, as it does by itself; none are asked for.

    Raises:
        AutotmError: the system refuses the policy, or does not give the memory.
    """

    def __init__(
        self, size_bytes: int, policy: PagePolicy, nodes: Sequence[int], allowed: Sequence[int], *, huge_pages: bool
    ) -> None:
        self.policy, self._policy_nodes, self._allowed = policy, tuple(nodes), tuple(allowed)
        self._has_huge_pages = huge_pages
        super().__init__(Tier.SLOW, size_bytes, huge_pages=False)

    @property
    def page_bytes(self) -> int:
        """Bytes of the largest page that Linux may place as one."""
        return _HUGE_PAGE_BYTES if self._has_huge_pages else mmap.PAGESIZE

    def _mapped(self, size_bytes: int) -> mmap.mmap:
        mapping = super()._mapped(size_bytes)
        if not self._has_huge_pages:
            mapping.madvise(mmap.MADV_NOHUGEPAGE)
        return mapping

    def _touch(self) -> None:
        """Tell Linux the policy, and touch no page: the program's own first touch places it."""
        whole = self._whole
        apply_policy(whole.ctypes.data, whole.size, self.policy, self._policy_nodes)

    def forget(self) -> None:
        """Free every page: what is touched next is placed anew. All bytes become zero."""
        give_back(self._whole.ctypes.data, self._whole.size)

    def node_of_pages(self) -> npt.NDArray[np.int32]:
        """Return the node of each page (pages,), negative where it was never touched."""
        return node_of_pages(self._whole.ctypes.data, self._whole.size)

    def pages_by_node(self) -> dict[str, int]:
        """Return how many pages are on which memory node now, by its number, or `nowhere`: never touched."""
        return pages_by_node(self._whole.ctypes.data, self._whole.size)

    def check(self) -> None:
        """Make sure that all pages are on the machine file's nodes.

        Raises:
            AutotmError: some are not; Linux had no room on these, or another node is nearer.
        """
        pages = self.pages_by_node()
        known = {NOWHERE, *map(str, self._allowed)}
        if away := {node: count for node, count in pages.items() if node not in known}:
            listed = ", ".join(f"{count} on node {node}" for node, count in away.items())
            raise AutotmError(
                f"Linux placed pages on nodes that the machine file has neither as fast nor as slow ({listed}): these "
                "are nearer, or there was no room on the others; what was measured is refused. Name the nearest node "
                "as slow, or free memory on it"
            )
