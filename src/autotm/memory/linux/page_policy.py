"""Linux's own placement of pages, asked for: policies of a fresh mapping, and NUMA balancing with demotion.

Sources: mbind(2), include/uapi/linux/mempolicy.h, Documentation/admin-guide/sysctl/kernel.rst.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path

from autotm.memory.linux.calls import set_policy
from autotm.memory.linux.node_pool import check_nodes
from autotm.model.files import AutotmError, BadInputError
from autotm.model.machine import SWITCHES, SystemMemory, is_switched

_MOST_NODES = 1024


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
"""By optimizer."""


def apply_policy(
    address: int, size_bytes: int, policy: PagePolicy, nodes: Sequence[int], system: SystemMemory | None = None
) -> None:
    """Have pages of a mapping, not touched yet, placed by `policy`.

    Args:
        address: of its first byte, at the start of a page.
        size_bytes: of it.
        policy: for its pages.
        nodes: to spread them over; of `PREFERRED` one, of `LOCAL` none. Pages that these have no room for go to others.
        system: this machine's memories, if not as Linux tells.

    Raises:
        BadInputError: a node does not exist or loses pages by itself, or the policy takes another number of nodes.
        AutotmError: the system refuses; says why and what helps.
    """
    what = f"policy {policy.name.lower()}"
    few, most = {PagePolicy.LOCAL: (0, 0), PagePolicy.PREFERRED: (1, 1)}.get(policy, (1, _MOST_NODES))
    if not few <= len(nodes) <= most:
        raise BadInputError(f"{what}: {len(nodes)} nodes given; it takes {few} to {most}")
    check_nodes(system or SystemMemory(), what, nodes)
    try:
        set_policy(address, size_bytes, policy, nodes)
    except AutotmError as error:
        is_new = policy is PagePolicy.WEIGHTED_INTERLEAVE and "EINVAL" in str(error)
        hint = "; Linux 6.9 is the first that has it" if is_new else ""
        raise AutotmError(f"{what}: {error}{hint}") from None


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
