"""Random but valid training steps with a profile and links, for tests that need no compiler and no timing."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

from autotm.model.files import hash_of
from autotm.model.graph import (
    DEFAULT_IMPLEMENTATION,
    Graph,
    Implementation,
    Kernel,
    OpClass,
    Operand,
    Role,
    Tensor,
    Tier,
    all_fast,
    configuration,
)
from autotm.model.links import AsynchronousLinks, Contention, Link, Links
from autotm.model.profile import Profile, Timing

READ_NS_PER_BYTE = 0.021
WRITE_NS_PER_BYTE = 0.187


@dataclass(frozen=True)
class Case:
    """A step and what a solver needs to know about it."""

    graph: Graph
    profile: Profile
    links: Links

    def __iter__(self) -> Iterator[Any]:
        """What functions of solving and checking take, in their order."""
        return iter((self.graph, self.profile, self.links))


@dataclass
class StepBuilder:
    """Collects kernels and tensors, then makes the graph; a tensor's readers follow from the kernels."""

    kernels: list[Kernel] = field(default_factory=list)
    shapes: dict[str, int] = field(default_factory=dict)
    roles: dict[str, Role] = field(default_factory=dict)
    producers: dict[str, int | None] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    readers: dict[str, list[int]] = field(default_factory=dict)

    def argument(self, name: str, elements: int, role: Role = Role.PARAMETER) -> str:
        """A tensor that no kernel produces."""
        return self._tensor(name, elements, role, None)

    def kernel(
        self,
        inputs: list[str],
        outputs: dict[str, int],
        workspaces: dict[str, int] | None = None,
        role: Role = Role.INTERMEDIATE,
    ) -> None:
        """The next kernel; `outputs` and `workspaces` map new tensors to their float32 element counts."""
        index = len(self.kernels)
        for name, elements in outputs.items():
            self._tensor(name, elements, role, index)
        for name, elements in (workspaces or {}).items():
            self._tensor(name, elements, Role.WORKSPACE, index)
        for name in dict.fromkeys(inputs):
            self.readers[name].append(index)
        self.kernels.append(
            Kernel(
                name=f"kernel_{index}",
                function=f"f{index}",
                identity=f"id{index}",
                op="test",
                op_class=OpClass.ELEMENTWISE,
                flops=0,
                inputs=tuple(self._operand(name) for name in inputs),
                outputs=tuple(self._operand(name) for name in outputs),
                workspaces=tuple(self._operand(name) for name in workspaces or {}),
            )
        )

    def update(self, inputs: list[str], new: str, old: str) -> None:
        """A kernel that replaces an argument."""
        self.kernel(inputs, {new: self.shapes[old]}, role=Role.RESULT)
        self.aliases[new] = old

    def chain(self, layers: int, elements: int) -> None:
        """Layers, a loss and gradients: layer i writes `ti`, which the next layer and gradient kernel `gi` read."""
        for layer in range(layers):
            self.kernel([f"t{layer - 1}" if layer else "data"], {f"t{layer}": elements})
        self.kernel([f"t{layers - 1}"], {"loss": 1}, role=Role.RESULT)
        self.kernel([f"t{layers - 1}"], {f"g{layers - 1}": elements})
        for layer in range(layers - 2, -1, -1):
            self.kernel([f"t{layer}", f"g{layer + 1}"], {f"g{layer}": elements})

    def graph(self, network: str = "random") -> Graph:
        """The finished step."""
        tensors = tuple(
            Tensor(
                name=name,
                role=self.roles[name],
                shape=(elements,),
                dtype="float32",
                size_bytes=4 * elements,
                producer=self.producers[name],
                readers=tuple(self.readers[name]),
                alias_of=self.aliases.get(name),
            )
            for name, elements in self.shapes.items()
        )
        return Graph(network, "tiny", 1, tuple(self.kernels), tensors)

    def _tensor(self, name: str, elements: int, role: Role, producer: int | None) -> str:
        self.shapes[name] = elements
        self.roles[name] = role
        self.producers[name] = producer
        self.readers[name] = []
        return name

    def _operand(self, name: str) -> Operand:
        return Operand(name, (self.shapes[name],), "float32")


def random_case(
    seed: int, kernels: int = 6, *, max_elements: int = 400, fast_copies: bool = True, zero_extra: float = 0.1
) -> Case:
    """A random step: chains, fan-out, re-use after a while, unread outputs, workspaces, a parameter and its update.

    `fast_copies` makes moves cheap enough that reading back pays; `zero_extra` is the share of operands whose slow
    memory costs nothing.
    """
    draw = random.Random(seed)
    builder = StepBuilder()
    builder.argument("weight", draw.randint(1, max_elements))
    builder.argument("data", draw.randint(1, max_elements), Role.INPUT)
    living: list[str] = []
    for index in range(kernels):
        inputs = draw.sample(living, min(len(living), draw.randint(1, 3)))
        inputs += [name for name in ("weight", "data") if draw.random() < 0.2]
        if inputs and draw.random() < 0.1:
            inputs.append(inputs[0])
        outputs = {f"t{index}_{slot}": draw.randint(1, max_elements) for slot in range(draw.choice((1, 1, 1, 2)))}
        workspaces = {f"w{index}": draw.randint(1, max_elements)} if draw.random() < 0.3 else {}
        builder.kernel(inputs, outputs, workspaces)
        living += outputs
    builder.update(["weight", living[-1]], "weight_new", "weight")
    graph = builder.graph()
    return Case(
        graph,
        random_profile(graph, seed, zero_extra),
        make_links(*((1.0, 2.0) if fast_copies else (29.0, 12.0)), fast_copies),
    )


def with_state(case: Case, seed: int) -> Case:
    """The same step with a tensor that is fetched, used in its middle, and stored as what the next kernel writes."""
    draw, kernels = random.Random(seed + 5), [*case.graph.kernels]
    used, elements = len(kernels) // 2, draw.randint(100, 400)
    old, new = (Operand(name, (elements,), "float32") for name in ("old", "new"))
    kernels[used] = replace(kernels[used], inputs=(*kernels[used].inputs, old))
    kernels[used + 1] = replace(kernels[used + 1], outputs=(*kernels[used + 1].outputs, new))
    tensors = (
        Tensor("old", Role.FETCHED, (elements,), "float32", 4 * elements, None, (0, used)),
        Tensor("new", Role.STORED, (elements,), "float32", 4 * elements, used + 1, (len(kernels) - 1,)),
    )
    graph = replace(case.graph, kernels=tuple(kernels), tensors=(*case.graph.tensors, *tensors))
    return Case(graph, random_profile(graph, seed), case.links)


def exact_case(seed: int, kernels: int = 4, *, alternatives: bool = True) -> Case:
    """As `random_case`, measured in full and far from additive, some kernels with up to three implementations."""
    plain = random_case(seed, kernels)
    draw = random.Random(seed + 3)
    graph = plain.graph
    if alternatives:
        graph = replace(graph, kernels=tuple(_with_alternatives(kernel, draw) for kernel in graph.kernels))
    return Case(graph, full_profile(graph, seed), plain.links)


def _with_alternatives(kernel: Kernel, draw: random.Random) -> Kernel:
    """None, one or two other implementations, each with its own workspaces."""
    others = []
    for rank in range(draw.choice((0, 1, 1, 2))):
        sizes = [draw.randint(50, 500) for _ in range(draw.choice((0, 1, 1, 2)))]
        spaces = [Operand(f"{kernel.name}_{rank}_{slot}", (size,), "float32") for slot, size in enumerate(sizes)]
        others.append(
            Implementation(f"other{rank}", f"{kernel.function}_{rank}", f"{kernel.identity}_{rank}", tuple(spaces))
        )
    return replace(kernel, alternatives=tuple(others))


def variants(graph: Graph) -> Iterator[tuple[int, Graph]]:
    """Every kernel with each of its implementations, in a graph that has that one."""
    for index, kernel in enumerate(graph.kernels):
        for name in kernel.implementations:
            names = [other.implementation for other in graph.kernels]
            yield index, graph.computed_by([*names[:index], name, *names[index + 1 :]])


def full_profile(graph: Graph, seed: int) -> Profile:
    """Timings of every implementation in every configuration; slow operands overlap or stand in each other's way."""
    draw = random.Random(seed + 4)
    timings = {}
    for index, variant in variants(graph):
        kernel = variant.kernels[index]
        base_ns = draw.randint(500, 4000)
        names = list(variant.slots_of(kernel))
        extras = {name: draw.uniform(0.2, 5.0) * variant.by_name[name].size_bytes for name in names}
        for count in range(len(names) + 1):
            for slow in combinations(names, count):
                factor = draw.uniform(0.4, 1.3) if count > 1 else 1.0
                time_ns = base_ns + round(factor * sum(extras[name] for name in slow))
                timings[kernel.identity, kernel.implementation, configuration(variant, kernel, slow)] = timing(time_ns)
    return Profile(hash_of(graph), timings, {})


def random_profile(graph: Graph, seed: int, zero_extra: float = 0.1) -> Profile:
    """All-fast and one-slow timings of every kernel, roughly what slow bytes cost, with noise."""
    draw = random.Random(seed + 1)

    def extra_ns(_: Kernel, name: str) -> int:
        free = draw.random() < zero_extra
        return draw.randint(-50, 0) if free else round(draw.uniform(0.2, 5.0) * graph.by_name[name].size_bytes)

    return one_slow_profile(graph, lambda _: draw.randint(500, 5000), extra_ns)


def one_slow_profile(graph: Graph, base_ns: Callable[[Kernel], int], extra_ns: Callable[[Kernel, str], int]) -> Profile:
    """Timings of every kernel all fast, and with each tensor slow by itself."""
    timings = {}
    for kernel in graph.kernels:
        ns, key = base_ns(kernel), (kernel.identity, DEFAULT_IMPLEMENTATION)
        timings[*key, all_fast(kernel)] = timing(ns)
        for name in graph.slots_of(kernel):
            timings[*key, configuration(graph, kernel, {name})] = timing(ns + extra_ns(kernel, name))
    return Profile(hash_of(graph), timings, {})


def make_links(to_fast_gb_per_s: float, to_slow_gb_per_s: float, tiny: bool = False) -> Links:
    """Links of constant bandwidth (and, unless `tiny`, 2 us for anything up to 4 KiB)."""
    small = 64 if tiny else 4096

    def link(destination: Tier, rate: float) -> Link:
        return Link(
            destination, tuple((size, round(size / rate) + (20 if tiny else 2000)) for size in (small, 10**6, 10**9))
        )

    return Links(link(Tier.FAST, to_fast_gb_per_s), link(Tier.SLOW, to_slow_gb_per_s), 1e12, 1.0)


def with_engines(
    case: Case, slower: float = 3.0, contention: float = 0.1, call_us: float = 0.01, to_copy: float = 0.2
) -> Case:
    """The same step with copy engines `slower` times as slow as blocking copies, and with kernels of all op classes.

    Contention between kernels and copies differs by op class, with `contention` and `to_copy` as the largest values.
    """

    def engine(link: Link) -> Link:
        return Link(link.destination, tuple((size, round(slower * time_ns)) for size, time_ns in link.points))

    links, classes = case.links, tuple(OpClass)
    by_class = {name: Contention(contention / (1 + n % 3), to_copy * (n % 4) / 3) for n, name in enumerate(classes)}
    asynchronous = AsynchronousLinks(engine(links.to_fast), engine(links.to_slow), by_class, by_class, call_us)
    kernels = (replace(kernel, op_class=classes[n % len(classes)]) for n, kernel in enumerate(case.graph.kernels))
    graph = replace(case.graph, kernels=tuple(kernels))
    profile = replace(case.profile, graph_hash=hash_of(graph))
    return replace(case, graph=graph, profile=profile, links=replace(links, asynchronous=asynchronous))


def training_step_case(layers: int = 100, seed: int = 0, branches: int = 4, mean_elements: int = 500_000) -> Case:
    """A step shaped like a branching convolutional network: forward, backward in reverse order, one update a layer.

    A layer has `branches` convolutions that read the block's input, and a concatenation; the backward pass reads the
    activations again in reverse order, sums the branches' gradients, and makes one short-lived weight gradient each.
    """
    draw = random.Random(seed)
    builder = StepBuilder()
    builder.argument("data", mean_elements, Role.INPUT)
    previous, tape = "data", []
    for layer in range(layers):
        width = max(16, round(mean_elements * draw.lognormvariate(0, 0.4) * (1.5 - layer / layers)))
        parts = []
        for branch in range(branches):
            name = f"{layer}.{branch}"
            builder.argument(f"weight{name}", 2000)
            workspace = {f"pad{name}": width // 3} if draw.random() < 0.2 else {}
            builder.kernel([previous, f"weight{name}"], {f"conv{name}": width // branches}, workspace)
            builder.kernel([f"conv{name}"], {f"norm{name}": width // branches, f"mean{name}": 64})
            parts.append(name)
        builder.kernel([f"norm{name}" for name in parts], {f"block{layer}": width})
        tape.append((layer, previous, parts, width))
        previous = f"block{layer}"
    builder.kernel([previous], {"gradient": builder.shapes[previous]})
    gradient = "gradient"
    for layer, source, parts, width in reversed(tape):
        shares = []
        for name in parts:
            builder.kernel([gradient], {f"slice{name}": width // branches})
            builder.kernel([f"slice{name}", f"conv{name}", f"mean{name}"], {f"dnorm{name}": width // branches})
            builder.kernel([f"dnorm{name}", source], {f"dweight{name}": 2000})
            builder.update([f"dweight{name}", f"weight{name}"], f"new{name}", f"weight{name}")
            if source != "data":
                builder.kernel([f"dnorm{name}", f"weight{name}"], {f"dsource{name}": builder.shapes[source]})
                shares.append(f"dsource{name}")
        if source != "data":
            builder.kernel(shares, {f"dblock{layer}": builder.shapes[source]})
            gradient = f"dblock{layer}"
    graph = builder.graph("synthetic")
    return Case(graph, roofline_profile(graph, seed), make_links(29.0, 12.0))


def roofline_profile(graph: Graph, seed: int) -> Profile:
    """Times of a memory-bound machine (50 GB/s) whose slow memory costs what Optane does, with lognormal noise."""
    draw = random.Random(seed + 2)

    def base_ns(kernel: Kernel) -> int:
        moved = sum(graph.by_name[operand.tensor].size_bytes for operand in kernel.operands)
        return 3000 + round(moved / 50 * draw.lognormvariate(0.5, 0.5))

    def extra_ns(kernel: Kernel, name: str) -> int:
        is_read = any(operand.tensor == name for operand in kernel.inputs)
        rate = READ_NS_PER_BYTE if is_read else WRITE_NS_PER_BYTE
        return round(rate * graph.by_name[name].size_bytes * draw.lognormvariate(0, 0.5))

    return one_slow_profile(graph, base_ns, extra_ns)


def timing(median_ns: int) -> Timing:
    """A timing whose five runs all took `median_ns`."""
    return Timing(median_ns, median_ns, median_ns, median_ns, 5)
