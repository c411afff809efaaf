"""Values that came with a network: kept in files, where a step of any program finds them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from autotm.model.step import Given
from autotm.zoo.network.network import Fill, Network


def with_values_stored(network: Network, folder: Path) -> Network:
    """The network with its arrays in files of `folder`, each named after its content."""

    def stored(fills: Mapping[str, Fill]) -> dict[str, Fill]:
        return {
            name: Given.stored(fill, folder) if isinstance(fill, np.ndarray) else fill for name, fill in fills.items()
        }

    return replace(
        network,
        inputs=stored(network.inputs),
        parameters=stored(network.parameters),
        states=stored(network.states),
        rule_states=stored(network.rule_states),
    )
