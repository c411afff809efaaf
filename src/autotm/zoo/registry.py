"""Networks by name: those of the paper (a function in `paper.py`, a line here), and one's own in a Python file."""

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

# One's own network: a function in a Python file, called like those of the zoo.

_NAME = re.compile(r"[a-z0-9_]+")


def load_function(file: Path, function: str) -> Callable[..., Any]:
    """The function of that name in a Python file, which is run.

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
    found = getattr(module, function, None)
    if not callable(found):
        raise BadInputError(f"{file}: {unknown_name('function', function, _functions(module))}")
    return found  # type: ignore[no-any-return]


def imported_function(address: str, root: Path) -> Callable[..., Any]:
    """The function `package.module:function` of an installed package, or of one in the folder `root`.

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
    if not callable(getattr(found, function, None)):
        raise BadInputError(f"{address}: {unknown_name('function', function, _functions(found))}")
    return getattr(found, function)  # type: ignore[no-any-return]


def call(function: Callable[..., Any], sizes: Mapping[str, Any], name: str | None = None, seed: int = 0) -> Network:
    """The network that `function(**sizes)` returns, called `name`, or as it calls itself.

    The function may also return a module of PyTorch and its inputs, or a mapping of the arguments of `from_torch`; what
    PyTorch draws in it is drawn from `seed`.

    Raises:
        BadInputError: a size that the function does not take, or lacks; the function raises, or returns something else;
            the network has a name that no path can hold.
    """
    source = _source(function)
    _check_sizes(function, sizes, source)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)
    try:
        network = _from_torch(function(**sizes))
    except AutotmError:
        raise
    except Exception as error:
        where = _where(error, inspect.getsourcefile(inspect.unwrap(function)) or "")
        raise BadInputError(f"{source}({_listed(sizes)}): {where}raised {_what(error)}") from error
    if not isinstance(network, Network):
        raise BadInputError(
            f"{source}({_listed(sizes)}) returned a {type(network).__name__}, not a network; end it with a loss, such "
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
    """What was returned, as a network where it is a module of PyTorch with its inputs."""
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


def _source(function: Callable[..., Any]) -> str:
    named = getattr(function, "__name__", type(function).__name__)
    try:
        file = inspect.getsourcefile(inspect.unwrap(function))
    except TypeError:
        file = None
    return f"{file}: {named}" if file else named


def _listed(sizes: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in sizes.items())


def _what(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _where(error: Exception, file: str) -> str:
    """The last line of `file` that the error passed, the one that its author can mend."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if file and Path(frame.filename) == Path(file)]
    return f"line {lines[-1]}: " if lines else ""


def _functions(module: ModuleType) -> list[str]:
    """What in a module could have been meant."""
    return [
        name
        for name, value in vars(module).items()
        if inspect.isfunction(value) and not name.startswith("_") and value.__module__ not in sys.modules
    ]


# The networks by name. Adding one is a file in `paper/` and a line here.

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
