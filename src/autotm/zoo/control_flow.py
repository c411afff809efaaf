"""The seven models of control flow by name, with arguments that decide what they compute; all from one seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm

from autotm.model.errors import BadInputError, unknown_name
from autotm.zoo import branch_models, loop_models
from autotm.zoo.loop_models import Array


@dataclass(frozen=True)
class ControlModel:
    """A model of one size and batch with its arguments.

    Attributes:
        module: of Relax; its `main` takes the arguments.
        arguments: seeded.
        weights: positions of arguments that are the same in every call.
        deciding: positions of arguments that alone decide the control flow, and are known beforehand where it is
            resolved.
        decisions: returns the argument at the only position of `deciding` with which a percentage of the blocks is
            computed; None for models without branches.
    """

    module: tvm.IRModule
    arguments: list[Array]
    weights: tuple[int, ...]
    deciding: tuple[int, ...] = ()
    decisions: Callable[[int], Array] | None = None

    def at_ratio(self, ratio: int) -> list[Array]:
        """Return the arguments with which `ratio` percent of the blocks are computed.

        Raises:
            BadInputError: the model has no branches, or there is no such percentage.
        """
        if self.decisions is None:
            raise BadInputError("the model has no branches: all its blocks are computed")
        (position,) = self.deciding
        return [*self.arguments[:position], self.decisions(ratio), *self.arguments[position + 1 :]]


def _lstm(batch: int, seed: int, steps: int, cells: int, hidden: int) -> ControlModel:
    arguments = loop_models.lstm_arguments(steps, cells, batch, hidden, seed)
    return ControlModel(loop_models.lstm(steps, cells, batch, hidden), arguments, _from(1, arguments))


def _nasrnn(batch: int, seed: int, steps: int, hidden: int) -> ControlModel:
    arguments = loop_models.nasrnn_arguments(steps, batch, hidden, seed)
    return ControlModel(loop_models.nasrnn(steps, batch, hidden), arguments, _from(1, arguments))


def _attention(batch: int, seed: int, first: int, slots: int, heads: int, width: int) -> ControlModel:
    arguments = loop_models.attention_arguments(first, slots, batch, heads, width, seed)
    return ControlModel(loop_models.attention(first, slots, batch, heads, width), arguments, _from(3, arguments))


def _seq2seq(batch: int, seed: int, words: int, hidden: int, most_steps: int) -> ControlModel:
    """Sentences of 10 tokens; those of a larger batch are drawn around that."""
    drawn = np.random.default_rng(seed).normal(10, 3, batch).round().clip(2, most_steps).astype(int)
    lengths = [min(10, most_steps)] if batch == 1 else drawn.tolist()
    arguments = loop_models.decoder_arguments(lengths, most_steps, hidden, words, seed)
    return ControlModel(loop_models.decoder(most_steps, batch, hidden, words), arguments, _from(3, arguments))


def _blockdrop(
    batch: int, seed: int, image: int, blocks: int, channels: int, channels_last: bool = False
) -> ControlModel:
    """As in the original, 7 of 15 blocks are kept, every other one, if nothing else is said."""
    net = branch_models.BlockDrop(image, (blocks,) * 3, channels, channels_last=channels_last)
    count = 3 * blocks

    def kept(number: int) -> Array:
        return np.tile(_spread(count, number), (batch, 1)).astype("float32")

    arguments = net.arguments(kept(count * 7 // 15), seed)
    return ControlModel(
        net.module(batch), arguments, _from(2, arguments), (1,), lambda ratio: kept(_part(count, ratio))
    )


def _skipnet(
    batch: int, seed: int, image: int, blocks: int, channels: int, classes: int, channels_last: bool = False
) -> ControlModel:
    """As in the original, 23 of 32 gated blocks are kept if nothing else is said.

    Stages have 1, 4/3, 23/3 and 1 times `blocks`, so that 3 make a ResNet-101.
    """
    stages = (blocks, (4 * blocks) // 3, (23 * blocks) // 3, blocks)
    net = branch_models.SkipNet(image, stages, channels, classes, channels_last)
    count = sum(net.blocks) - 1

    def forced(number: int) -> Array:
        # Added before a sigmoid, so it decides; the gate of the first block is never read.
        return np.concatenate([[0.0], np.where(_spread(count, number), 5e5, -5e5)]).astype("float32")

    arguments = net.arguments(batch, forced(count * 23 // 32), seed)
    return ControlModel(
        net.module(batch), arguments, _from(2, arguments), (1,), lambda ratio: forced(_part(count, ratio))
    )


def _rae(batch: int, seed: int, width: int, leaves: int) -> ControlModel:
    """One random tree."""
    if batch != 1:
        raise BadInputError("rae encodes one tree: its batch is 1")
    arguments = loop_models.encoder_arguments(loop_models.tree(leaves, seed), width, seed)
    return ControlModel(loop_models.encoder(2 * leaves - 1, leaves, width), arguments, (3, 4), (0, 1))


MODELS: Mapping[str, Callable[..., ControlModel]] = {
    "lstm": _lstm,
    "nasrnn": _nasrnn,
    "attention": _attention,
    "seq2seq": _seq2seq,
    "blockdrop": _blockdrop,
    "skipnet": _skipnet,
    "rae": _rae,
}


def control_model(name: str, sizes: Mapping[str, Any], batch: int, seed: int) -> ControlModel:
    """Return a model.

    Raises:
        BadInputError: there is none of this name, or the sizes are not those that it takes.
    """
    if name not in MODELS:
        raise unknown_name("model", name, MODELS)
    try:
        return MODELS[name](batch, seed, **sizes)
    except TypeError as error:
        raise BadInputError(f"sizes of {name}: {error}") from None


def _from(first: int, arguments: list[Array]) -> tuple[int, ...]:
    return tuple(range(first, len(arguments)))


def _part(count: int, ratio: int) -> int:
    """Return how many of `count` blocks are a percentage of them, as the original rounds: 7.5 of 15 are 7."""
    if not 0 <= ratio <= 100:  # noqa: PLR2004
        raise BadInputError(f"{ratio} % of the blocks cannot be kept")
    return -(-(count * ratio - 50) // 100)


def _spread(count: int, kept: int) -> Array:
    """Return a row of `count` decisions, of which `kept` are true, as even as can be."""
    return np.diff(np.arange(count + 1) * kept // count).astype(bool)
