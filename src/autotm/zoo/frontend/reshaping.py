"""How a value lies after a reshape."""

from __future__ import annotations

import math

Order = tuple[int, ...]
Groups = list[tuple[list[int], list[int]]]


def reshaped_order(old: Order, new: Order, order: Order) -> tuple[Order, Order]:
    """The order in which the axes of the result may lie, and the order that the source must be turned to before.

    The source is turned as little as possible: only axes that become one axis, or are divided anew, must lie together.

    Args:
        old: shape before.
        new: shape after, of as many elements.
        order: of the source: axis j of its tensor is axis order[j] of the value.
    """
    groups = _groups(old, new)
    of_axis = {axis: number for number, (olds, _) in enumerate(groups) for axis in olds}
    lying = [of_axis[axis] for axis in order if axis in of_axis]
    last = {number: place for place, number in enumerate(lying)}
    sequence = [number for place, number in enumerate(lying) if last[number] == place]
    units = [axis for axis in range(len(old)) if axis not in of_axis]
    wanted = [axis for number in sequence for axis in groups[number][0]]
    kept = [axis for axis in order if axis in of_axis]
    source = order if kept == wanted else tuple(wanted + units)
    found = [axis for number in sequence for axis in groups[number][1]]
    for axis in range(len(new)):
        if axis not in found:
            found.insert(found.index(axis - 1) + 1 if axis else 0, axis)
    return tuple(found), source


def _groups(old: Order, new: Order) -> Groups:
    """Least runs of axes, those of extent one left out, whose extents have the same product before and after."""
    olds = [axis for axis, extent in enumerate(old) if extent != 1]
    news = [axis for axis, extent in enumerate(new) if extent != 1]
    groups: Groups = []
    while olds or news:
        before, after = [olds.pop(0)], [news.pop(0)]
        while (size := math.prod(old[axis] for axis in before)) != (goal := math.prod(new[axis] for axis in after)):
            if size < goal:
                before.append(olds.pop(0))
            else:
                after.append(news.pop(0))
        groups.append((before, after))
    return groups
