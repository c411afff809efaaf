"""Memory of PyTorch's steps on a CPU: an arena in which each tensor has the place that a plan states.

PyTorch takes a CPU's memory from the C library, piece by piece. What is lost between the pieces is memory of the
process all the same, and may be as much as a plan saves. `torch_arena.cpp` is an allocator in the place of PyTorch's.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import weakref
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch

from autotm.memory.copies import compiled
from autotm.model.errors import AutotmError

log = logging.getLogger(__name__)

_SOURCE = Path(__file__).with_name("torch_arena.cpp")
_OPTIONS = ("-x", "c++", "-std=c++17", "-O2", "-shared", "-fPIC")


OUTSIDE = (1 << 64) - 1
"""In the place of an offset: not in the arena."""


class Place(NamedTuple):
    """Where an allocation goes.

    Attributes:
        size_bytes: as PyTorch asks for.
        offset: in the arena, or `OUTSIDE`.
    """

    size_bytes: int
    offset: int


class Allocation(NamedTuple):
    """Memory that a call took.

    Attributes:
        size_bytes: as PyTorch asked for.
        address: where it was.
        begin, end: it was there from one event, an allocation or the end of one, until another; `end` is None where
            it was there when the call ended.
    """

    size_bytes: int
    address: int
    begin: int
    end: int | None


@functools.cache
def _library() -> ctypes.CDLL | None:
    """Compile, load and install the allocator; None where that is impossible."""
    folder = Path(torch.__file__).parent
    # Named among the options, the version has the library compiled anew for another PyTorch in the same folder.
    options = (*_OPTIONS, f"-I{folder / 'include'}", f'-DAUTOTM_TORCH="{torch.__version__}"')
    try:
        library = compiled(_SOURCE, options, (f"-L{folder / 'lib'}", "-lc10", "-lstdc++"))
    except (AutotmError, OSError) as error:
        log.warning("offload: PyTorch's allocator chooses addresses; it loses memory between tensors: %s", error)
        return None
    pointer, number = ctypes.c_void_p, ctypes.c_uint64
    for name, result, arguments in (
        ("autotm_install", ctypes.c_int, ()),
        ("autotm_arena", pointer, (number, pointer, number)),
        ("autotm_base", pointer, (pointer,)),
        ("autotm_enter", None, (pointer,)),
        ("autotm_places", None, (number, number)),
        ("autotm_leave", None, ()),
        ("autotm_close", None, (pointer,)),
        ("autotm_trim", None, ()),
        ("autotm_record", None, ()),
        ("autotm_recorded", number, (pointer, number)),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    if not library.autotm_install():
        log.warning("offload: another allocator than PyTorch's chooses addresses; it may lose memory between tensors")
        return None
    return library


def has_arenas() -> bool:
    """Return whether tensors can have places in an arena: PyTorch's allocator can be replaced, and nobody else did."""
    return _library() is not None


class Arena:
    """One piece of memory for what a step allocates.

    Within it, as a context, what the calling thread allocates goes to the places of the point that was named last, in
    their order. Memory of other sizes, or whose place is taken, is allocated as if there were no arena.

    Args:
        size_bytes: of the arena.
        points: the places of each point of a step.

    Raises:
        AutotmError: the system has not so much memory.
    """

    def __init__(self, size_bytes: int, points: Sequence[Sequence[Place]]) -> None:
        library = _library()
        assert library is not None
        self.size_bytes = size_bytes
        self._library = library
        self._bounds = list(pairwise(accumulate(map(len, points), initial=0)))
        places = np.array([place for point in points for place in point], np.uint64).reshape(-1, 2)
        self._arena = library.autotm_arena(size_bytes, places.ctypes.data, len(places))
        if not self._arena:
            raise AutotmError(f"offload: the system has not {size_bytes} bytes of memory; give a smaller budget")
        self._base = library.autotm_base(self._arena)
        # Its memory goes back once the last tensor in it is freed.
        self.close = weakref.finalize(self, library.autotm_close, self._arena)

    def __enter__(self) -> Self:
        self._library.autotm_enter(self._arena)
        return self

    def __exit__(self, *error: object) -> None:
        self._library.autotm_leave()

    def make_room(self) -> None:
        """Return to the system what is left of freed memory, such as that of measuring and planning."""
        self._library.autotm_trim()

    def holds(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor's memory is in the arena."""
        return self._base <= tensor.untyped_storage().data_ptr() < self._base + self.size_bytes

    def at(self, point: int) -> None:
        """Name the point of the step whose allocations are next."""
        self._library.autotm_places(*self._bounds[point])


def recorded(call: Callable[[], Any]) -> tuple[Any, list[Allocation]]:
    """Return the call's result, and what its thread allocated, in order; only where there are arenas."""
    library = _library()
    assert library is not None
    library.autotm_record()
    try:
        result = call()
    finally:
        count = library.autotm_recorded(None, 0)
        events = np.zeros((count, 2), np.uint64)
        library.autotm_recorded(events.ctypes.data, count)
    allocations: list[Allocation] = []
    live: dict[int, int] = {}
    for number, (size_bytes, address) in enumerate(events.tolist()):
        if size_bytes:
            live[address] = len(allocations)
            allocations.append(Allocation(size_bytes, address, number, None))
        elif (index := live.pop(address, None)) is not None:
            allocations[index] = allocations[index]._replace(end=number)
    return result, allocations
