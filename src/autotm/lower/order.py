"""Execution order: a parameter's update runs as soon as nobody needs the old value."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from autotm.lower.calls import Call


def early_updates(calls: list[Call], aliases: Mapping[str, str]) -> list[Call]:
    """`calls` reordered so that each update follows its inputs and the last other reader of its parameter.

    Autodiff leaves every update at the end, which would keep all gradients and the activations that they are made of
    alive at once. The update writes over the old parameter, so other readers of that must come before it.

    Args:
        calls: in a valid order.
        aliases: updated parameter -> parameter whose memory it takes.
    """
    producer = {output.tensor: index for index, call in enumerate(calls) for output in call.outputs}
    readers: dict[str, list[int]] = defaultdict(list)
    for index, call in enumerate(calls):
        for operand in call.inputs:
            readers[operand.tensor].append(index)

    def is_update(index: int) -> bool:
        return any(output.tensor in aliases for output in calls[index].outputs)

    position: dict[int, tuple[int, int]] = {index: (index, -1) for index in range(len(calls)) if not is_update(index)}
    for index in filter(is_update, range(len(calls))):
        written = [aliases[output.tensor] for output in calls[index].outputs if output.tensor in aliases]
        after = [producer[operand.tensor] for operand in calls[index].inputs if operand.tensor in producer]
        after += [reader for parameter in written for reader in readers[parameter] if reader != index]
        latest = max((position.get(other, (other, -1)) for other in after), default=(-1, -1))
        position[index] = (latest[0], index)
    return [calls[index] for index in sorted(position, key=position.__getitem__)]
