"""Which variables of the compact formulation a flow has; the others are always zero."""

from __future__ import annotations

from autotm.solve.problem import Flow

Key = tuple[int, int]
"""(index of the flow, gadget)."""


def keys_of(index: int, flow: Flow) -> tuple[list[Key], list[Key], list[Key]]:
    """Keys of the variables `a`, `b` and `s` of a flow."""
    copied = copied_gadgets(flow)
    kept = [k for k in copied if k + 1 in copied and flow.may_read[k + 1] and flow.may_between[k]]
    born = range(_born_fast_gadgets(flow))
    return [(index, k) for k in born], [(index, k) for k in copied], [(index, k) for k in kept]


def _born_fast_gadgets(flow: Flow) -> int:
    count = 0
    while count < len(flow) and flow.may[count] and (count == 0 or flow.may_between[count - 1]):
        count += 1
    return count


def copied_gadgets(flow: Flow) -> set[int]:
    """Gadgets at which the tensor can be fast with a slow copy: read back there, or read back before and kept."""
    gadgets: set[int] = set()
    for k in range(1, len(flow)):
        if flow.may_read[k] or (k - 1 in gadgets and flow.may[k] and flow.may_between[k - 1]):
            gadgets.add(k)
    return gadgets
