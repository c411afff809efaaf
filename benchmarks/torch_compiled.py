"""`torch.compile` of a network's training step, in a process of its own that can be stopped at a limit.

    python benchmarks/torch_compiled.py NETWORK [--scale laptop] [--threads 2]

Compiles, runs one step and prints as JSON how long that took. What it compiled stays in Inductor's cache (FX graphs,
AOTAutograd's results, machine code), the folder named by TORCHINDUCTOR_CACHE_DIR: the same call, or the same network in
`step_vs_pytorch.py`, takes it from there.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from autotm import zoo
from autotm.model.config import load_scale
from autotm.model.graph import Role, Tensor
from autotm.runtime.arguments import initial_value
from autotm.zoo.torch_reference import TorchNetwork

CONFIG = Path(__file__).parent.parent / "config"
CACHE_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
_LINES = 3
"""Lines of an error's text that are printed: these say what went wrong."""


class NotCompiledError(Exception):
    """`torch.compile` did not compile a step, and why."""


@dataclass(frozen=True)
class Compilation:
    """What compiling a network took, and how many graphs came from the cache and had to be compiled."""

    wall_s: float
    cpu_s: float
    cached: int
    missed: int


def compile_within(network: str, scale: str, threads: int, cache: Path, limit_s: float) -> Compilation:
    """Compile a network's step into `cache` in another process, within `limit_s` seconds.

    Raises:
        NotCompiledError: it was not done in time and has been ended, or it failed.
    """
    command = [sys.executable, __file__, network, "--scale", scale, "--threads", str(threads)]
    environment = {**os.environ, CACHE_VARIABLE: str(cache)}
    # In a session of its own, since its compilers must end with it.
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        output, errors = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        message = f"not compiled in {limit_s:.0f} s"
        raise NotCompiledError(message) from None
    finally:
        _end(process)
    if process.returncode:
        reason = " ".join(errors.strip().splitlines()[-_LINES:])
        message = f"failed (exit {process.returncode}): {reason}"
        raise NotCompiledError(message)
    return Compilation(**json.loads(output.splitlines()[-1]))


def _end(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def compiled_step(network: zoo.Network, arrays: Mapping[str, np.ndarray]) -> Callable[[], None]:
    """Return a compiled step; with gradients as large as their tables where the compiler cannot add sparse ones."""
    # What was compiled before has the same code with other sizes: Dynamo would take sizes for variables from now on.
    torch.compiler.reset()
    for sparse in (True, False):
        step = torch_step(torch.compile(TorchNetwork(network, arrays, torch.float32, sparse=sparse)), network)
        try:
            step()
        except RuntimeError:
            if not sparse:
                raise
        else:
            break
    return step


def torch_step(model: torch.nn.Module, network: zoo.Network) -> Callable[[], None]:
    """One step of plain SGD."""
    optimizer = torch.optim.SGD(model.parameters(), lr=network.training.rule.learning_rate)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        model().backward()
        optimizer.step()

    return step


def start_values(network: zoo.Network, seed: int) -> dict[str, np.ndarray]:
    """Return inputs and parameters as autotm's own step has them before it starts."""
    fills = {**network.inputs, **network.parameters}
    types = {var.name: var.ty for var in network.module["main"].params if var.name in fills}
    shapes = {name: tuple(int(extent) for extent in item.shape) for name, item in types.items()}
    dtypes = {name: str(getattr(item.dtype, "dtype", item.dtype)) for name, item in types.items()}
    return {
        name: initial_value(
            Tensor(
                name=name,
                role=Role.PARAMETER if name in network.parameters else Role.INPUT,
                shape=shapes[name],
                dtype=dtypes[name],
                size_bytes=int(np.prod(shapes[name], dtype=np.int64)) * np.dtype(dtypes[name]).itemsize,
                producer=None,
                readers=(),
                alias_of=None,
                initial=fill,
            ),
            seed,
        )
        for name, fill in fills.items()
    }


def main() -> None:
    """Compile one network and print what it took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network")
    parser.add_argument("--scale", default="laptop")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)  # Inductor's code is made for it.
    network = zoo.build(
        options.network, load_scale(CONFIG / "scales" / f"{options.scale}.yaml").networks[options.network]
    )
    arrays = start_values(network, options.seed)
    start, before = time.perf_counter(), _cpu_s()
    compiled_step(network, arrays)
    counters = torch._dynamo.utils.counters["inductor"]  # noqa: SLF001  (the only place that tells)
    compilation = Compilation(
        time.perf_counter() - start, _cpu_s() - before, counters["fxgraph_cache_hit"], counters["fxgraph_cache_miss"]
    )
    print(json.dumps(vars(compilation)))


def _cpu_s() -> float:
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(used.ru_utime + used.ru_stime for used in map(resource.getrusage, kinds))


if __name__ == "__main__":
    main()
