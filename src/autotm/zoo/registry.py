"""Networks by name: those of the paper, of which each is a function in `paper.py`, and a user's own in a file."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from autotm.model.errors import AutotmError, BadInputError, unknown_name
from autotm.model.network_source import NetworkSource
from autotm.zoo import paper
from autotm.zoo.network import Network

# A user's own network: a function in a Python file, called like those of the zoo.

_NAME = re.compile(r"[a-z0-9_]+")


def _own_function(source: NetworkSource, file: str) -> Callable[..., Any]:
    """Run a user's own file, or import `package.module` of `root` or of what is installed; return the function."""
    address, _, name = source.function.rpartition(":")
    place, doing = (file, "running it") if source.root is None else (source.function, f"importing {address}")
    try:
        module = _module_of_file(Path(file)) if source.root is None else _module_of_root(address, source.root)
    except AutotmError:
        raise
    except Exception as error:
        where = _where(error, file) if source.root is None else ""
        raise BadInputError(f"{place}: {where}{doing} raised {_summary(error)}") from error
    function: Callable[..., Any] | None = getattr(module, name, None)
    if callable(function):
        return function
    likely = [
        other
        for other, value in vars(module).items()
        if inspect.isfunction(value) and not other.startswith("_") and value.__module__ not in sys.modules
    ]
    raise BadInputError(f"{place}: {unknown_name('function', name, likely)}")


def _module_of_file(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"autotm_own_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise BadInputError(f"{file}: is not a Python file; give one whose name ends in .py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _module_of_root(address: str, root: str) -> ModuleType:
    sys.path.insert(0, root)
    try:
        return importlib.import_module(address)
    finally:
        sys.path.remove(root)


def call(
    function: Callable[..., Any],
    sizes: Mapping[str, Any],
    name: str | None = None,
    seed: int = 0,
    *,
    is_inference: bool = False,
) -> Network:
    """Return the network that `function(**sizes)` returns, called `name`, or as it calls itself.

    The function may also return a module of PyTorch and its inputs, or a mapping of the arguments of `from_torch`; what
    PyTorch draws in it is drawn from `seed`. For inference, the training of what it returns is left out.

    Raises:
        BadInputError: a size that the function does not take, or lacks; the function raises, or returns something else;
            the network has a name that no path can hold; for inference, it came with its gradients.
    """
    try:
        file = inspect.getsourcefile(inspect.unwrap(function)) or ""
    except TypeError:
        file = ""
    source = (f"{file}: " if file else "") + getattr(function, "__name__", type(function).__name__)
    called = f"{source}({', '.join(f'{key}={value}' for key, value in sizes.items())})"
    _check_sizes(function, sizes, source)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)
    try:
        network = function(**sizes)
        network = _imported(network, is_inference=is_inference)
    except AutotmError:
        raise
    except Exception as error:
        raise BadInputError(f"{called}: {_where(error, file)}raised {_summary(error)}") from error
    if not isinstance(network, Network):
        raise BadInputError(
            f"{called} returned a {type(network).__name__}, not a network; end it with a loss, such "
            "as: return net.softmax_cross_entropy(scores), or return a module of PyTorch and its inputs"
        )
    if is_inference and network.gradients is not None:
        raise BadInputError(f"{called}: returned a network with its gradients; return the module of PyTorch instead")
    named = replace(network, name=name or network.name, training=None if is_inference else network.training)
    if not _NAME.fullmatch(named.name):
        raise BadInputError(
            f"{source}: '{named.name}' cannot name a network, since files are named after it; give small letters, "
            "digits and _"
        )
    return named


def _imported(network: Any, *, is_inference: bool) -> Any:
    """Return the network of a module of PyTorch and its inputs, or of arguments of `from_torch`; else what is given."""
    if isinstance(network, tuple) and len(network) == 2:  # noqa: PLR2004  (module and inputs)
        network = {"module": network[0], "inputs": network[1]}
    if not (isinstance(network, Mapping) and {"module", "inputs"} <= set(network)):
        return network
    from autotm.zoo.torch.network import from_torch  # noqa: PLC0415 - only for those who have PyTorch

    if is_inference:
        trained = ("loss", "targets", "training")
        network = {key: value for key, value in network.items() if key not in trained} | {"mode": "inference"}
    return from_torch(**network)


def _check_sizes(function: Callable[..., Any], sizes: Mapping[str, Any], source: str) -> None:
    known = inspect.signature(function).parameters.values()
    by_name = {p.name: p for p in known if p.kind in {p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY}}
    takes_all = any(p.kind is p.VAR_KEYWORD for p in known)
    for key in sizes:
        if key not in by_name and not takes_all:
            raise unknown_name(f"size of {source}", key, by_name)
    for parameter in by_name.values():
        if parameter.default is parameter.empty and parameter.name not in sizes:
            raise BadInputError(f"{source}: size {parameter.name} is missing")


def _summary(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _where(error: Exception, file: str) -> str:
    """Return the last line of `file` that the error passed, the one that its author can mend."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if file and Path(frame.filename) == Path(file)]
    return f"line {lines[-1]}: " if lines else ""


_FUNCTIONS: tuple[Callable[..., Network], ...] = (
    paper.densenet264, paper.dlrm, paper.inception_v4, paper.mlp, paper.mnist, paper.resnet50, paper.resnet200,
    paper.transformer, paper.vgg19, paper.vgg416,
)  # fmt: skip
_NETWORKS = {function.__name__: function for function in _FUNCTIONS} | {"test_vgg": paper.vgg_to_test}


def networks() -> tuple[str, ...]:
    """Return the registered names."""
    return tuple(sorted(_NETWORKS))


def build(name: str, sizes: Mapping[str, int]) -> Network:
    """Return the network `name` at the sizes a scale gives it, e.g. `{"batch": 8, "image": 139}`.

    Raises:
        BadInputError: unknown network or size.
    """
    if name not in _NETWORKS:
        raise unknown_name("network", name, _NETWORKS)
    factory = _NETWORKS[name]
    _check_sizes(factory, sizes, f"network {name}")
    for key, value in sizes.items():
        if not isinstance(value, int) or value < 1:
            raise BadInputError(f"network {name}: {key}: {value!r} is not a whole number of at least 1")
    return factory(**sizes)


def build_from(source: NetworkSource, seed: int = 0, *, is_inference: bool = False) -> Network:
    """Return the network of a source: the zoo's, or a user's own, which then has the source's name.

    `seed` is of what PyTorch draws while a user's own function runs: weights, data. For inference, training is left
    out.

    Raises:
        BadInputError: as `build`, or a user's own file, function or what it returns is at fault.
    """
    if source.file is None:
        network = build(source.name, source.sizes)
        return replace(network, training=None) if is_inference else network
    source.require()
    return call(_own_function(source, source.file), source.sizes, source.name, seed, is_inference=is_inference)
