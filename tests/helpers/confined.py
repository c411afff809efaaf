"""Refuse this process what Docker refuses containers: to bind pages to nodes, and to ask where they are."""

from __future__ import annotations

import ctypes
import errno
import struct

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _MODE_FILTER = 38, 22, 2
_LOAD_WORD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000
_MEMORY_CALLS = (237, 238, 239, 256, 279)
"""mbind, set_mempolicy, get_mempolicy, migrate_pages, move_pages on x86-64. Docker allows them with CAP_SYS_NICE only:
docs.docker.com/engine/security/seccomp."""


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def confine() -> None:
    """For the rest of this process and those that it starts."""
    last = len(_MEMORY_CALLS)
    lines = [
        (_LOAD_WORD, 0, 0, 0),  # seccomp_data.nr
        *((_JUMP_IF_EQUAL, last - place, 0, call) for place, call in enumerate(_MEMORY_CALLS)),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _FAIL | errno.EPERM),
    ]
    program = _Program(len(lines), b"".join(struct.pack("=HBBI", *line) for line in lines))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl.argtypes = (ctypes.c_int, *(ctypes.c_ulong,) * 4)
    for option, value, pointer in (
        (_PR_SET_NO_NEW_PRIVS, 1, 0),
        (_PR_SET_SECCOMP, _MODE_FILTER, ctypes.addressof(program)),
    ):
        if libc.prctl(option, value, pointer, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl")
