"""System calls that Python lacks: bind pages, query their nodes, query a file's type.

They are made directly: libnuma need not be installed, and py-libnuma binds whole processes only (and crashes on nodes
that do not exist). All raise AutotmError where the system refuses, which says why and what helps.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from autotm.model.errors import AutotmError

_NUMBERS = {
    "x86_64": {
        "mbind": 237, "move_pages": 279, "statx": 332, "mlock2": 325, "munlock": 150, "madvise": 28,
        "set_mempolicy": 238,
    },
    "aarch64": {
        "mbind": 235, "move_pages": 239, "statx": 291, "mlock2": 284, "munlock": 229, "madvise": 233,
        "set_mempolicy": 237,
    },
}  # fmt: skip
_MPOL_DEFAULT, _MPOL_PREFERRED, _MPOL_BIND = 0, 1, 2  # include/uapi/linux/mempolicy.h
_MLOCK_ONFAULT = 1  # include/uapi/asm-generic/mman-common.h
_MASK_BITS = 1024  # nodes of a mask: the most that Linux can be built for
_PAGES_AT_ONCE = 1 << 18  # pages of a call: 1 GiB of memory
_AT_EMPTY_PATH = 0x1000  # include/uapi/linux/fcntl.h
_STATX_BYTES = 256  # sizeof(struct statx), include/uapi/linux/stat.h
_ATTRIBUTES, _ATTRIBUTES_KNOWN = slice(8, 16), slice(56, 64)  # stx_attributes and its mask, bytes of that structure
_STATX_ATTR_DAX = 0x200000  # include/uapi/linux/stat.h

NOWHERE = "nowhere"
"""Instead of a node: the page is not in memory (swapped out, or never touched)."""

_REMEDIES = {
    errno.EPERM: "containers forbid it by default: docker run --cap-add SYS_NICE",
    errno.ENOSYS: "this system has no such call: slow memory can only be emulated here",
}


def bind(address: int, size_bytes: int, nodes: Iterable[int]) -> None:
    """Have the pages of [address, address + size_bytes), page aligned and not touched yet, come from `nodes` alone."""
    set_policy(address, size_bytes, _MPOL_BIND, nodes)


def set_policy(address: int, size_bytes: int, mode: int, nodes: Iterable[int]) -> None:
    """Set any policy for pages like those of `bind`: `mode` is one of `MPOL_...` (include/uapi/linux/mempolicy.h)."""
    _call("mbind", _pointer(address), _long(size_bytes), mode, _mask(nodes), _long(_MASK_BITS + 1), 0)


def prefer(node: int | None) -> None:
    """Have this thread, and those that it starts, take memory without a policy of its own from `node` first.

    Without a node: from the nearest, as ever.
    """
    if node is None:
        _call("set_mempolicy", _MPOL_DEFAULT, None, _long(0))
    else:
        _call("set_mempolicy", _MPOL_PREFERRED, _mask([node]), _long(_MASK_BITS + 1))


def _mask(nodes: Iterable[int]) -> ctypes.Array[ctypes.c_ulong]:
    """Return a mask with the bits of these nodes set; Linux reads one bit less than the length it is told."""
    mask = (ctypes.c_ulong * (_MASK_BITS // 64))()
    for node in nodes:
        mask[node // 64] |= 1 << (node % 64)
    return mask


def pages_by_node(address: int, size_bytes: int) -> dict[str, int]:
    """Count the pages of [address, address + size_bytes) by the number of their node as text, or `NOWHERE`."""
    nodes, counts = np.unique(np.maximum(node_of_pages(address, size_bytes), -1), return_counts=True)
    return {NOWHERE if node < 0 else str(node): int(count) for node, count in zip(nodes, counts, strict=True)}


def node_of_pages(address: int, size_bytes: int) -> npt.NDArray[np.int32]:
    """Return the node of each page of [address, address + size_bytes) (pages,), negative where it is not in memory."""
    starts = np.arange(address, address + size_bytes, mmap.PAGESIZE, dtype=np.uint64)
    nodes = np.empty(starts.size, np.int32)
    for first in range(0, starts.size, _PAGES_AT_ONCE):
        pages, part = (each[first : first + _PAGES_AT_ONCE] for each in (starts, nodes))
        _call("move_pages", 0, _long(pages.size), _pointer(pages.ctypes.data), None, _pointer(part.ctypes.data), 0)
    return nodes


def lock(address: int, size_bytes: int) -> None:
    """Keep pages of [address, address + size_bytes) in memory, on the node that they are on; later ones, too.

    Pages that were never touched stay untouched.
    """
    try:
        _call("mlock2", _pointer(address), _long(size_bytes), _MLOCK_ONFAULT)
    except AutotmError as error:
        raise AutotmError(
            f"{error}: this process may not lock {size_bytes / 1e9:.3f} GB more; run as root, or raise what it may "
            "lock (ulimit -l unlimited; containers: docker run --ulimit memlock=-1)"
        ) from None


def give_back(address: int, size_bytes: int) -> None:
    """Free the pages of [address, address + size_bytes), locked or not; the next touch takes a fresh one."""
    _call("munlock", _pointer(address), _long(size_bytes))
    _call("madvise", _pointer(address), _long(size_bytes), mmap.MADV_DONTNEED)


def is_dax(file: int) -> bool:
    """Return whether an open file's mapping reads and writes the memory behind it, without a page cache."""
    status = ctypes.create_string_buffer(_STATX_BYTES)
    _call("statx", file, ctypes.c_char_p(b""), _AT_EMPTY_PATH, 0, status)
    attributes, known = (int.from_bytes(status.raw[part], "little") for part in (_ATTRIBUTES, _ATTRIBUTES_KNOWN))
    return bool(attributes & known & _STATX_ATTR_DAX)


_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_pointer, _long = ctypes.c_void_p, ctypes.c_ulong


def _call(name: str, *arguments: object) -> None:
    number = _NUMBERS.get(platform.machine(), {}).get(name)
    if number is not None and _libc.syscall(ctypes.c_long(number), *arguments) >= 0:
        return
    code = errno.ENOSYS if number is None else ctypes.get_errno()
    remedy = f"; {_REMEDIES[code]}" if code in _REMEDIES else ""
    raise AutotmError(f"{name}: {os.strerror(code)} ({errno.errorcode.get(code, code)}){remedy}")
