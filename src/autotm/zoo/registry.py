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
from autotm.zoo.network import Network
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

# A user's own network: a function in a Python file, called like those of the zoo.

_NAME = re.compile(r"[a-z0-9_]+")


def load_function(file: Path, function: str) -> Callable[..., Any]:
    """Run a Python file, and return its function of that name.

    Raises:
        BadInputError: running the file raises, or it has no such function.
    """
    spec = importlib.util.spec_from_file_location(f"autotm_own_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise BadInputError(f"{file}: is not a Python file; give one whose name ends in .py")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except AutotmError:
        raise
    except Exception as error:
        raise BadInputError(f"{file}: {_where(error, str(file))}running it raised {_what(error)}") from error
    return _function_of(module, function, str(file))


def imported_function(address: str, root: Path) -> Callable[..., Any]:
    """Return the function `package.module:function` of an installed package, or of one in the folder `root`.

    Raises:
        BadInputError: the module cannot be imported, or has no such function.
    """
    module, _, function = address.partition(":")
    sys.path.insert(0, str(root))
    try:
        found = importlib.import_module(module)
    except AutotmError:
        raise
    except Exception as error:
        raise BadInputError(f"{address}: importing {module} raised {_what(error)}") from error
    finally:
        sys.path.remove(str(root))
    return _function_of(found, function, address)


def _function_of(module: ModuleType, name: str, place: str) -> Callable[..., Any]:
    function: Callable[..., Any] | None = getattr(module, name, None)
    if callable(function):
        return function
    likely = [
        other
        for other, value in vars(module).items()
        if inspect.isfunction(value) and not other.startswith("_") and value.__module__ not in sys.modules
    ]
    raise BadInputError(f"{place}: {unknown_name('function', name, likely)}")


def call(function: Callable[..., Any], sizes: Mapping[str, Any], name: str | None = None, seed: int = 0) -> Network:
    """Return the network that `function(**sizes)` returns, called `name`, or as it calls itself.

    The function may also return a module of PyTorch and its inputs, or a mapping of the arguments of `from_torch`; what
    PyTorch draws in it is drawn from `seed`.

    Raises:
        BadInputError: a size that the function does not take, or lacks; the function raises, or returns something else;
            the network has a name that no path can hold.
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
        network = _from_torch(function(**sizes))
    except AutotmError:
        raise
    except Exception as error:
        raise BadInputError(f"{called}: {_where(error, file)}raised {_what(error)}") from error
    if not isinstance(network, Network):
        raise BadInputError(
            f"{called} returned a {type(network).__name__}, not a network; end it with a loss, such "
            "as: return net.softmax_cross_entropy(scores), or return a module of PyTorch and its inputs"
        )
    named = replace(network, name=name or network.name)
    if not _NAME.fullmatch(named.name):
        raise BadInputError(
            f"{source}: '{named.name}' cannot name a network, since files are named after it; give small letters, "
            "digits and _"
        )
    return named


def _from_torch(found: object) -> object:
    """Make a network of what was returned where it is a module of PyTorch with its inputs."""
    if isinstance(found, tuple) and len(found) == 2:  # noqa: PLR2004  (module and inputs)
        found = {"module": found[0], "inputs": found[1]}
    if not (isinstance(found, Mapping) and {"module", "inputs"} <= set(found)):
        return found
    from autotm.zoo import from_torch  # noqa: PLC0415 - only for those who have PyTorch

    return from_torch(**found)


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


def _what(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _where(error: Exception, file: str) -> str:
    """Return the last line of `file` that the error passed, the one that its author can mend."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if file and Path(frame.filename) == Path(file)]
    return f"line {lines[-1]}: " if lines else ""


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


def build_from(source: NetworkSource, seed: int = 0) -> Network:
    """Return the network of a source: the zoo's, or a user's own, which then has the source's name.

    `seed` is of what PyTorch draws while a user's own function runs: weights, data.

    Raises:
        BadInputError: as `build`, or a user's own file, function or what it returns is at fault.
    """
    if source.file is None:
        return build(source.name, source.sizes)
    source.require()
    if source.root is not None:
        function = imported_function(source.function, Path(source.root))
    else:
        function = load_function(Path(source.file), source.function)
    return call(function, source.sizes, source.name, seed)
