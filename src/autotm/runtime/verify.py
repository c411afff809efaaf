"""The step without a plan, and whether a planned step computes the same, bit for bit, over several steps."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from autotm.kernels.library import KernelLibrary, pinned
from autotm.layout.packing import Blocks, pack_blocks
from autotm.memory.opening import open_tiers
from autotm.model.errors import AutotmError, DamagedFileError
from autotm.model.files import content_hash, hash_of, load, save
from autotm.model.graph import DEFAULT_IMPLEMENTATION, ChosenGraph, Graph, Role, Tier
from autotm.model.limit import Counts, Limit, counting
from autotm.model.links import Links
from autotm.model.machine import Machine, require_runnable
from autotm.model.plan import Stay
from autotm.model.program import Address, KernelStep, Program
from autotm.model.provenance import provenance
from autotm.runtime.arguments import Arguments, spread
from autotm.runtime.executor import Executor, StepExecutor, Values, poisoned, prepare

# The step without a plan: every tensor in fast memory. What plans must reproduce, and what they are compared with.


def plain_program(graph: Graph, slow: Collection[str] = ()) -> Program:
    """Return a program in which every tensor has memory of its own, so that none is overwritten too early.

    Tensors in `slow` are in slow memory for life.
    """
    offsets, total = {}, 0
    for tensor in graph.movable:
        offsets[tensor.name] = total
        total += tensor.allocated_bytes
    return _program(graph, "plain", offsets, total, slow)


def all_fast_program(graph: ChosenGraph) -> Program:
    """Return a program that reuses memory as planned ones do: once its tensor is dead. Their times compare with its."""
    stays = [Stay(tensor.name, Tier.FAST, tensor.live.start, tensor.live.stop) for tensor in graph.movable]
    blocks = Blocks.of(graph, stays)
    packed = pack_blocks(blocks)
    offsets = {stay.tensor: int(offset) for stay, offset in zip(stays, packed, strict=True)}
    return _program(graph, "all-fast", offsets, blocks.height(packed))


def _program(graph: Graph, name: str, offsets: dict[str, int], total: int, slow: Collection[str] = ()) -> Program:
    def address(tensor: str) -> Address:
        return Address(Tier.SLOW if tensor in slow else Tier.FAST, offsets.get(tensor))

    steps = tuple(
        KernelStep(index, tuple(address(operand.tensor) for operand in kernel.operands))
        for index, kernel in enumerate(graph.kernels)
    )
    return Program(hash_of(graph), "", name, Limit(0, 1), total, total, total if slow else 0, steps)


log = logging.getLogger(__name__)


class VerificationError(AutotmError):
    """A program computes something else than the plain step, or the plain step computes nothing to compare with."""


Digests = tuple[dict[str, str], ...]
"""Per step, a digest of every result (losses, outputs, updated parameters and states) by tensor name."""


@dataclass(frozen=True)
class Reference:
    """Digests of the plain step's results, in a file.

    Attributes:
        graph_hash, library_hash, threads, seed: what the digests depend on.
        digests: per step, a digest of every result (losses, outputs, updated parameters and states) by tensor name.
    """

    graph_hash: str
    library_hash: str
    threads: int
    seed: int
    digests: tuple[dict[str, str], ...]


def results(graph: Graph) -> tuple[str, ...]:
    """Return the names of the tensors that a step is run for, in graph order."""
    return tuple(tensor.name for tensor in graph.tensors if tensor.role is Role.RESULT)


def digests(graph: Graph, arguments: Values, cpus: Sequence[int] = ()) -> dict[str, str]:
    """Compute a digest of the bytes of every result, by tensor name; on `cpus` if given."""

    def digest(name: str) -> str:
        # Nobody forges tensors, and processors have instructions for this one.
        return hashlib.sha1(arguments.value(name).data, usedforsecurity=False).hexdigest()

    names = results(graph)
    return dict(zip(names, spread(digest, names, cpus), strict=True))


def digested(graph: Graph, executor: StepExecutor, seed: int, steps: int, cpus: Sequence[int] = ()) -> Digests:
    """Run plain steps and digest their results.

    Raises:
        VerificationError: a result is not finite.
    """
    return tuple(digests(graph, values, cpus) for values in finite_steps(graph, executor, seed, steps, cpus))


def finite_steps(
    graph: Graph, executor: StepExecutor, seed: int, steps: int, cpus: Sequence[int] = ()
) -> Iterator[Values]:
    """Run plain steps; yield the arguments after each, which have to be read before the next.

    Raises:
        VerificationError: a result is not finite.
    """
    executor.arguments.fill(seed, cpus)
    for number in range(1, steps + 1):
        executor.step()
        for name in results(graph):
            value = executor.arguments.value(name)
            if value.dtype.kind == "f" and not np.isfinite(value).all():
                raise VerificationError(
                    f"network '{graph.network}': plain step {number} gives values that are not finite in '{name}', so "
                    "nothing can be compared; lower its learning rate, or the values that it starts from"
                )
        yield executor.arguments


@contextmanager
def plain_executor(graph: Graph, library: KernelLibrary, machine: Machine, devices_dir: Path) -> Iterator[Executor]:
    """Yield the plain step on the host. Call inside `pinned`."""
    program = plain_program(graph)
    with open_tiers(machine, None, program.fast_bytes, 0, devices_dir, stretch=1.0) as tiers:
        yield prepare(graph, library, program, Arguments.allocate(graph, tiers=tiers), tiers)


def plain_steps(
    graph: Graph, library: KernelLibrary, machine: Machine, seed: int, steps: int, devices_dir: Path
) -> Iterator[Arguments]:
    """Run `steps` plain steps; yield arguments and results before the first and after each. Call inside `pinned`."""
    with plain_executor(graph, library, machine, devices_dir) as executor:
        executor.arguments.fill(seed, machine.cpus)
        yield executor.arguments
        for _ in range(steps):
            executor.step()
            yield executor.arguments


def reference(
    graph: Graph,
    library: KernelLibrary,
    machine: Machine,
    seed: int,
    steps: int,
    devices_dir: Path,
    cache: Path | None = None,
) -> Digests:
    """Return the digests of what the plain step computes on the host, read from or written to `cache`.

    Many programs of one graph share the cache. Call inside `pinned`.

    Each choice of implementations has a file of its own next to it, so that programs with different ones do not take
    turns in overwriting it.
    """
    names = [kernel.implementation for kernel in graph.kernels]
    if cache is not None and any(name != DEFAULT_IMPLEMENTATION for name in names):
        cache = cache.with_stem(f"{cache.stem}-{content_hash(names)[:8]}")
    wanted = (hash_of(graph), library.content_hash, machine.threads, seed)
    if cache is not None and cache.exists():
        try:
            known = load(cache, "reference", Reference)
        except DamagedFileError as error:
            log.warning("%s (made again now)", error)
        else:
            if (known.graph_hash, known.library_hash, known.threads, known.seed) == wanted and len(
                known.digests
            ) >= steps:
                return known.digests
    with plain_executor(graph, library, machine, devices_dir) as executor:
        computed = digested(graph, executor, seed, steps, machine.cpus)
    if cache is not None:
        save(cache, "reference", Reference(*wanted, computed), provenance(machine, seed))
    return computed


def verify(graph: Graph, executor: StepExecutor, expected: Digests, steps: int, cpus: Sequence[int] = ()) -> None:
    """Run `steps` steps of a program on freshly filled arguments and compare every result with the plain step's.

    Raises:
        VerificationError: a result differs; names step, program and tensor.
    """
    for number in range(1, steps + 1):
        executor.step()
        compare(graph, executor, expected, number, cpus)


def compare(graph: Graph, executor: StepExecutor, expected: Digests, number: int, cpus: Sequence[int] = ()) -> None:
    """Compare every result of a program's step, the `number`-th on its arguments, with the plain step's.

    Raises:
        VerificationError: as `verify`.
    """
    plain, planned = expected[number - 1], digests(graph, executor.arguments, cpus)
    wrong = [name for name in plain if planned[name] != plain[name]]
    if wrong:
        raise VerificationError(
            f"{executor.program.optimizer} at limit {executor.program.limit}: step {number} differs from the plain "
            f"step in {len(wrong)} of {len(plain)} results, first '{wrong[0]}'; the program reads or overwrites memory "
            "it must not. Run it with `run: poison: true`, if it was not, and report this, plan.json and program.json"
        )


def verified(
    graph: Graph,
    library: KernelLibrary,
    program: Program,
    counts: Counts,
    machine: Machine,
    links: Links,
    seed: int,
    steps: int,
    devices_dir: Path,
) -> tuple[str, ...]:
    """Run steps of the program, memory becoming NaN as soon as its tensor is dead; return what was compared.

    Raises:
        BadInputError: the machine has no such cache, or Linux cannot follow the program's policy.
        VerificationError: a result differs from the plain step's, which has the same implementations.
        AutotmError: memory is not given, or is not where it was opened.
    """
    if program.cache_traffic_bytes or program.paged_traffic:
        require_runnable(machine, program.optimizer)
    placed, chosen = program.step_of(counting(graph, counts)), graph.computed_by(program.implementations)
    with pinned(machine), open_tiers(machine, links, program.fast_bytes, program.slow_bytes, devices_dir) as tiers:
        arguments = Arguments.in_pools(chosen, placed, program, tiers)
        executor = poisoned(placed, prepare(placed, library, program, arguments, tiers))
        expected = reference(chosen, library, machine, seed, steps, devices_dir)
        arguments.fill(seed, machine.cpus)
        verify(chosen, executor, expected, steps, machine.cpus)
        tiers.check()
    return results(chosen)
