"""The networks by name. Adding one is a file in `paper/` and a line here."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path

from autotm.model.files import BadInputError, unknown_name
from autotm.model.step import NetworkSource
from autotm.zoo.network import Network
from autotm.zoo.own import call, imported_function, load_function
from autotm.zoo.paper import (
    densenet264,
    dlrm,
    inception_v4,
    mlp,
    mnist,
    resnet50,
    resnet200,
    transformer,
    vgg19,
    vgg416,
    vgg_to_test,
)

_NETWORKS: dict[str, Callable[..., Network]] = {
    "densenet264": densenet264,
    "dlrm": dlrm,
    "inception_v4": inception_v4,
    "mlp": mlp,
    "mnist": mnist,
    "resnet50": resnet50,
    "resnet200": resnet200,
    "test_vgg": vgg_to_test,
    "transformer": transformer,
    "vgg19": vgg19,
    "vgg416": vgg416,
}


def networks() -> tuple[str, ...]:
    """Registered names."""
    return tuple(sorted(_NETWORKS))


def build(name: str, sizes: Mapping[str, int]) -> Network:
    """The network `name` at the sizes a scale gives it, e.g. `{"batch": 8, "image": 139}`.

    Raises:
        BadInputError: unknown network or size.
    """
    if name not in _NETWORKS:
        raise unknown_name("network", name, _NETWORKS)
    factory = _NETWORKS[name]
    known = inspect.signature(factory).parameters
    for key, value in sizes.items():
        if key not in known:
            raise unknown_name(f"size of network {name}", key, known)
        if not isinstance(value, int) or value < 1:
            raise BadInputError(f"network {name}: {key}: {value!r} is not a whole number of at least 1")
    missing = [key for key, p in known.items() if p.default is p.empty and key not in sizes]
    if missing:
        raise BadInputError(f"network {name}: size {missing[0]} is missing")
    return factory(**sizes)


def build_from(source: NetworkSource, seed: int = 0) -> Network:
    """The network of a source: the zoo's, or one's own, which then has the source's name.

    `seed` is of what PyTorch draws while one's own function runs: weights, data.

    Raises:
        BadInputError: as `build`, or one's own file, function or what it returns is at fault.
    """
    if source.file is None:
        return build(source.name, source.sizes)
    source.require()
    if source.root is not None:
        return call(imported_function(source.function, Path(source.root)), source.sizes, source.name, seed)
    return call(load_function(Path(source.file), source.function), source.sizes, source.name, seed)
