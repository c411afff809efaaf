"""PyTorch's own operator samples, or ONNX's, imported, compiled and compared: right, refused, wrong or crashed.

    python benchmarks/conformance.py [--samples 3] [--jobs 2] [--kernels auto] [--modules] [--only NAME ...] [--list]
    python benchmarks/conformance.py --random 2000 [--first 0]
    python benchmarks/conformance.py --onnx [--jobs 2] [--only test_resize ...] [--list]

Samples are those of PyTorch's test suite in float32 (`op_db`, and with --modules `module_db`), of each operator the
first, the last and some between. One whose result has a gradient is a training step: its tensors are parameters, and
its loss and their new values are compared. Any other infers. Right is what is at most three times as far from
PyTorch's float64 as PyTorch's float32 is, besides roundings. Each sample runs in a process of its own.
With --random, modules are drawn (`random_modules.py`), and losses and states of three steps are compared.
With --onnx, the node tests that come with ONNX are judged by the values and tolerances that they bring.
Needs PyTorch, ONNX and expecttest (requirements/torch.txt).
"""

from __future__ import annotations

import argparse
import copy
import multiprocessing
import os
import signal
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_unflatten

import onnx_samples
from autotm.model.errors import AutotmError
from autotm.model.training import Sgd, Training
from autotm.zoo import from_torch
from random_modules import RandomModule

RATE = 0.1
ALLOWED, ROUNDING = 3.0, 2e-5
"""Times PyTorch's own float32 error, and relative to the largest value: sums in another order."""
PATIENCE_S = 120.0
"""A sample that takes longer counts as crashed."""
Array = np.ndarray[Any, Any]
Judge = Callable[[Any, str], tuple[str, str]]
"""A function of a sample and the name of kernels that says right, refused, wrong, random or unusable, and why."""


@dataclass(frozen=True)
class Sample:
    """One call of PyTorch.

    Attributes:
        name: of the operator or module, and the number of its sample.
        module: takes `inputs`; its parameters are the tensors that have gradients.
        inputs: the other tensors.
        steps: of descent.
        loss: of the module's output.
    """

    name: str
    module: torch.nn.Module
    inputs: tuple[torch.Tensor, ...]
    steps: int = 1
    loss: Callable[..., torch.Tensor] | None = None


@dataclass(frozen=True)
class Verdict:
    """What became of a sample: right, refused, wrong, crashed, random or unusable, and why."""

    name: str
    kind: str
    why: str
    seconds: float


class Call(torch.nn.Module):
    """A call of a function, with the tensors that want gradients as parameters."""

    def __init__(self, function: Callable[..., Any], arguments: Any) -> None:
        """`arguments` are positional ones and named ones."""
        super().__init__()
        leaves, self.spec = tree_flatten(arguments)
        self.function, self.rest, self.places = function, [], []
        for leaf in leaves:
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
                self.register_parameter(f"p{len(self.rest)}", torch.nn.Parameter(leaf.detach().clone()))
            self.rest.append(None if isinstance(leaf, torch.Tensor) else leaf)
            self.places.append("" if not isinstance(leaf, torch.Tensor) else "p" if leaf.requires_grad else "x")

    def forward(self, *inputs: torch.Tensor) -> Any:
        """Call it."""
        following = iter(inputs)
        leaves = [
            getattr(self, f"p{number}") if place == "p" else next(following) if place == "x" else rest
            for number, (place, rest) in enumerate(zip(self.places, self.rest, strict=True))
        ]
        positional, named = tree_unflatten(leaves, self.spec)
        return self.function(*positional, **named)


def operator_samples(count: int, only: Sequence[str]) -> Iterator[Sample]:
    """Yield samples of operators, `count` of each."""
    from torch.testing._internal.common_methods_invocations import op_db  # noqa: PLC0415

    for op in op_db:
        name = f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name
        if torch.float32 not in op.dtypes or (only and op.name not in only and name not in only):
            continue
        torch.manual_seed(0)
        samples = list(op.sample_inputs("cpu", torch.float32, requires_grad=op.supports_autograd))
        for number in _spread(len(samples), count):
            sample = samples[number]
            arguments = ((sample.input, *sample.args), dict(sample.kwargs))
            leaves, _ = tree_flatten(arguments)
            inputs = tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and not leaf.requires_grad)
            yield Sample(f"{name}[{number}]", Call(op.op, arguments), inputs)


def module_samples(count: int, only: Sequence[str]) -> Iterator[Sample]:
    """Yield samples of modules, `count` of each."""
    from torch.testing._internal.common_modules import module_db  # noqa: PLC0415

    for info in module_db:
        if only and info.name not in only:
            continue
        torch.manual_seed(0)
        samples = [
            item
            for item in info.module_inputs_func(info, "cpu", torch.float32, requires_grad=False, training=True)
            if item.forward_input is not None
        ]
        for number in _spread(len(samples), count):
            construction, forward = samples[number].constructor_input, samples[number].forward_input
            module = info.module_cls(*construction.args, **construction.kwargs)
            call = Call(module, (tuple(forward.args), dict(forward.kwargs)))
            leaves, _ = tree_flatten((forward.args, forward.kwargs))
            yield Sample(f"{info.name}[{number}]", call, tuple(x for x in leaves if isinstance(x, torch.Tensor)))


def random_samples(count: int, first: int) -> Iterator[Sample]:
    """Modules drawn from so many seeds."""
    for seed in range(first, first + count):
        module = RandomModule(seed)
        yield Sample(f"seed {seed}: {module!r}", module, module.inputs, steps=3, loss=lambda output, _dtype: output)


def _spread(available: int, count: int) -> list[int]:
    if not count or available <= count:
        return list(range(available))
    return sorted({round(number * (available - 1) / (count - 1)) for number in range(count)})


def loss_of(output: Any, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return a number of that type that depends on every real element of an output, on each otherwise."""
    total: torch.Tensor | None = None
    for part in _tensors(output):
        values = torch.view_as_real(part.resolve_conj()) if part.is_complex() else part
        if values.is_floating_point() and values.numel():
            weights = torch.arange(values.numel(), dtype=values.dtype).cos().reshape(values.shape)
            added = (values * weights).mean().to(dtype)
            total = added if total is None else total + added
    if total is None:
        raise ValueError("no real output")
    return total.to(dtype)


def _tensors(output: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_flatten(output)[0] if isinstance(leaf, torch.Tensor)]


def judge(sample: Sample, kernels: str) -> tuple[str, str]:
    """Compute a sample here and by PyTorch."""
    warnings.simplefilter("ignore")
    try:
        single, trains = by_pytorch(sample, torch.float32, seed=1)
        other, _ = by_pytorch(sample, torch.float32, seed=2)
    except Exception as error:  # noqa: BLE001 - whatever PyTorch says
        return ("random" if isinstance(error, _RandomError) else "unusable"), f"PyTorch itself: {error}"
    if not all(map(_is_same, single, other)) or not any(value.size for value in single):
        return ("random" if any(value.size for value in single) else "unusable"), "nothing to compare"
    try:
        exact, _ = by_pytorch(sample, torch.float64, seed=1)
    except Exception:  # noqa: BLE001 - some operators have no float64
        exact = single
    try:
        computed = here(sample, kernels, trains=trains)
    except AutotmError as error:
        return "refused", str(error)
    for number, (ours, theirs, wanted) in enumerate(zip(computed, single, exact, strict=True)):
        if text := difference(ours, theirs, wanted):
            return "wrong", f"{'step' if trains else 'inference'}, value {number}: {text}"
    return "right", ""


class _RandomError(Exception):
    """A sample draws random numbers."""


class _Deterministic(TorchDispatchMode):
    """Refuses operators that draw random numbers: ours are others."""

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        if torch.Tag.nondeterministic_seeded in operator.tags:
            raise _RandomError
        return operator(*args, **(kwargs or {}))


def by_pytorch(sample: Sample, dtype: torch.dtype, seed: int) -> tuple[list[Array], bool]:
    """Losses of steps of descent, and the state after them; or the outputs, if there is nothing to train."""
    torch.manual_seed(seed)
    own = copy.deepcopy(sample.module).to(dtype)
    values = [value.to(dtype) if value.dtype == torch.float32 else value.clone() for value in sample.inputs]
    losses = []
    for _ in range(sample.steps):
        with _Deterministic():
            output = own(*values)
        parts = _tensors(output)
        if not any(part.requires_grad and part.numel() for part in parts):
            parts = _tensors(copy.deepcopy(sample.module).to(dtype).eval()(*values))  # As `inference` has it.
            return [_array(part) for part in parts], False
        loss = (sample.loss or loss_of)(output, dtype)
        own.zero_grad()
        loss.backward()
        torch.optim.SGD(own.parameters(), RATE).step()
        losses.append(_array(loss))
    return [*losses, *map(_array, _state(own))], True


def _state(module: torch.nn.Module) -> list[torch.Tensor]:
    """Parameters and real buffers, each once."""
    return [*module.parameters(), *(item for item in module.buffers() if item.is_floating_point())]


def here(sample: Sample, kernels: str, *, trains: bool) -> list[Array]:
    """Compute the same by plain steps of ours."""
    loss = sample.loss
    descending = (lambda output: loss(output, torch.float32)) if loss else loss_of
    options: dict[str, Any] = {"loss": descending, "training": Training(Sgd(RATE))} if trains else {"mode": "inference"}
    network = from_torch(sample.module, sample.inputs, kernels=kernels, name="sample", **options)
    _, *after = onnx_samples.results_of(network, sample.steps if trains else 1)
    values = after[-1]
    if not trains:
        outputs = [values[name] for name in network.results]
        return [_array(part) for part in _tensors(network.origin.outputs([torch.from_numpy(item) for item in outputs]))]
    names = {id(item): name for name, item in sample.module.state_dict(keep_vars=True).items()}
    changed = {name.removesuffix(".new"): value for name, value in values.items() if name.endswith(".new")}
    state = network.origin.state({**_start(network), **changed}, sample.steps)
    return [*(each["loss"] for each in after), *(state[names[id(item)]] for item in _state(sample.module))]


def _start(network: Any) -> dict[str, Array]:
    fills = {**network.parameters, **network.states}
    return {name: fill for name, fill in fills.items() if isinstance(fill, np.ndarray)}


def _array(value: torch.Tensor) -> Array:
    value = value.detach().resolve_conj().resolve_neg()
    array: Array = value.numpy()
    return array


def _is_same(some: Array, other: Array) -> bool:
    return some.shape == other.shape and np.array_equal(some, other, equal_nan=some.dtype.kind in "fc")


def difference(ours: Array, theirs: Array, wanted: Array) -> str:
    """How a value differs from PyTorch's beyond roundings, in words; nothing where it does not."""
    if ours.shape != theirs.shape:
        return f"shape {list(ours.shape)}, PyTorch's is {list(theirs.shape)}"
    if ours.dtype != theirs.dtype:
        return f"{ours.dtype}, PyTorch's is {theirs.dtype}"
    if theirs.dtype.kind not in "fc":
        return "" if np.array_equal(ours, theirs) else f"{ours.flatten()[:6]}, PyTorch's is {theirs.flatten()[:6]}"
    with np.errstate(all="ignore"):
        odd = ~np.isfinite(theirs)
        if not np.array_equal(ours[odd], theirs[odd], equal_nan=True) or not np.isfinite(ours[~odd]).all():
            return f"{ours.flatten()[:6]}, PyTorch's is {theirs.flatten()[:6]}: infinities or NaN elsewhere"
        kept = ~odd & np.isfinite(wanted)
        ours, theirs, wanted = (item[kept].astype(np.complex128) for item in (ours, theirs, wanted))
        size = np.abs(wanted).max(initial=0.0)
        allowed = ALLOWED * np.abs(theirs - wanted).max(initial=0.0) + ROUNDING * np.abs(wanted) + 1e-5 * max(size, 1.0)
        error = np.abs(ours - wanted)
        if (error <= allowed).all():
            return ""
        worst = int((error - allowed).argmax())
        return f"{ours[worst].real:.6g}, PyTorch's is {theirs[worst].real:.6g} (of at most {size:.3g})"


def _in_child(sample: Any, judge: Judge, kernels: str, answer: Connection) -> None:
    """Judge a sample and send the verdict; what it prints is of no use."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    signal.alarm(int(PATIENCE_S))
    try:
        answer.send(judge(sample, kernels))
    except Exception as error:  # noqa: BLE001 - that is what is counted
        place = traceback.extract_tb(error.__traceback__)[-1]
        answer.send(("crashed", f"{type(error).__name__}: {error} ({Path(place.filename).name}:{place.lineno})"))


def verdicts(samples: Iterator[Any], judge: Judge, kernels: str, jobs: int) -> Iterator[Verdict]:
    """Judge samples, some at a time, each in a fork of this process, which never computes in parallel itself."""
    fork = multiprocessing.get_context("fork")
    running: dict[Connection, tuple[str, Any, float]] = {}

    def ended() -> Iterator[Verdict]:
        for answer in wait(list(running)):
            assert isinstance(answer, Connection)
            name, process, begun = running.pop(answer)
            try:
                kind, why = answer.recv()
            except EOFError:
                kind, why = "crashed", "the process died"
            process.join()
            if kind == "crashed" and process.exitcode:
                why += f" (exit {process.exitcode})"
            yield Verdict(name, kind, why, perf_counter() - begun)

    for sample in samples:
        while len(running) >= jobs:
            yield from ended()
        receive, send = fork.Pipe(duplex=False)
        process = fork.Process(target=_in_child, args=(sample, judge, kernels, send))
        process.start()
        send.close()
        running[receive] = (sample.name, process, perf_counter())
    while running:
        yield from ended()


def main() -> None:
    """Judge samples, and count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=3, help="of each operator; 0 for all (default: 3)")
    parser.add_argument("--jobs", type=int, default=2, help="samples at a time (default: 2)")
    parser.add_argument("--kernels", default="auto", choices=("auto", "tvm", "torch"))
    parser.add_argument("--modules", action="store_true", help="samples of modules instead of operators")
    parser.add_argument("--random", type=int, default=0, metavar="N", help="modules drawn at random instead")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="of the first of these (default: 0)")
    parser.add_argument("--only", nargs="*", default=(), metavar="NAME", help="names; beginnings of ONNX's")
    parser.add_argument("--list", action="store_true", help="print every sample that is not right")
    parser.add_argument("--onnx", action="store_true", help="ONNX's own node tests instead")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    own_judge: Judge = judge
    samples: Iterator[Any]
    if options.onnx:
        samples, own_judge = onnx_samples.node_tests(options.only), onnx_samples.judge
    elif options.random:
        samples = random_samples(options.random, options.first)
    else:
        samples = (module_samples if options.modules else operator_samples)(options.samples, options.only)
    kinds: Counter[str] = Counter()
    for verdict in verdicts(samples, own_judge, options.kernels, options.jobs):
        kinds[verdict.kind] += 1
        if options.list and verdict.kind != "right":
            first = verdict.why.strip().splitlines()[0] if verdict.why.strip() else ""
            print(f"{verdict.kind:9}{verdict.name:44}{verdict.seconds:6.1f} s  {first[:300]}", flush=True)
    judged = sum(kinds[kind] for kind in ("right", "refused", "wrong", "crashed"))
    for kind in ("right", "refused", "wrong", "crashed"):
        print(f"{kind:9}{kinds[kind]:7}{kinds[kind] / max(judged, 1):8.1%}")
    unusable = "types that no step takes" if options.onnx else "PyTorch refuses them, or they give nothing"
    print(f"not compared: {kinds['random']} draw random numbers, {kinds['unusable']} cannot be: {unusable}")
    sys.exit(1 if kinds["wrong"] or kinds["crashed"] else 0)


if __name__ == "__main__":
    main()
