"""The integer program as published (Hildebrand et al., ASPLOS 2020): reference of tests, yardstick of benchmarks.

Per tensor a flow over the vertices A (fast, never copied), B (fast, with a slow copy) and C (slow) of its gadgets;
indicators y and z with AND/OR rows; one binary per kernel, implementation and configuration with AND rows; one dense
capacity row per kernel, in which the fast workspaces of the implementation count. Sizes are exact bytes; the time of a
configuration is measured, or additive (`exact`), and workspaces may be slow.

Asynchronous moves as published: every kernel within `reach` places of a user is a gadget too, at which a tensor may
move beside that one kernel, and a kernel takes as long as it or the sum of the moves beside it, whichever is longer.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, combinations, product
from typing import Any

import pyomo.environ as pyo
from pyomo.contrib.solver.solvers.highs import Highs

from autotm.model.graph import Graph, Tensor, Tier
from autotm.model.links import Links
from autotm.model.profile import Profile

Edge = tuple[tuple[str, int], tuple[str, int]]
_TIGHT = {"mip_feasibility_tolerance": 1e-9, "primal_feasibility_tolerance": 1e-9, "mip_abs_gap": 1e-9}
_KILOBYTE = 1e3


@dataclass(frozen=True)
class Instance:
    """A step and what a solver needs to know about it."""

    graph: Graph
    profile: Profile
    links: Links


@dataclass(frozen=True)
class Published:
    """How far a solve of the published model came, in microseconds of step time; None where it found nothing."""

    objective_us: float | None
    bound_us: float | None


def solve_published(
    case: Instance,
    limit_bytes: int,
    *,
    moves: bool,
    reach: int = 0,
    exact: bool = False,
    gap: float = 0.0,
    time_limit_s: float | None = None,
) -> Published:
    """Build the published model and let HiGHS solve it to a relative gap.

    With `reach` above 0 tensors may also move beside single kernels up to that many places from a user (AutoTM: 15).
    """
    results = Highs().solve(
        published_model(case, limit_bytes, moves=moves, reach=reach, exact=exact),
        rel_gap=gap,
        threads=1,
        time_limit=time_limit_s,
        solver_options=_TIGHT,
        raise_exception_on_nonoptimal_result=False,
        load_solutions=False,
    )
    return Published(results.incumbent_objective, results.objective_bound)


def published_model(case: Instance, limit_bytes: int, *, moves: bool, reach: int = 0, exact: bool) -> pyo.ConcreteModel:
    """Return the model, in microseconds; `exact` reads every configuration's time instead of adding operands up."""
    model = pyo.ConcreteModel()
    model.rows = pyo.ConstraintList()
    model.terms = []
    model.kernel_terms = [[] for _ in case.graph.kernels]
    model.move_terms = [[] for _ in case.graph.kernels]
    fast: dict[tuple[str, int], Any] = {}
    own = {operand.tensor for kernel in case.graph.kernels if kernel.alternatives for operand in kernel.workspaces}
    tensors = [tensor for tensor in case.graph.movable if tensor.name not in own]
    for tensor in tensors:
        _tensor_flow(model, case, tensor, _gadgets(tensor, moves, reach), fast)
    for index in range(len(case.graph.kernels)):
        workspaces = _kernel_configurations(model, case, index, fast, exact)
        live = [tensor for tensor in tensors if index in tensor.live]
        _capacity(model, index, limit_bytes, live, fast, workspaces)
    for index in range(len(case.graph.kernels)):
        model.terms.append(_kernel_time(model, index))
    model.time = pyo.Objective(expr=sum(model.terms), sense=pyo.minimize)
    return model


def _kernel_time(model: Any, index: int) -> Any:
    """Section 1.5, rule 8: the longer of the kernel and of the moves beside it."""
    kernel, moves = sum(model.kernel_terms[index]), sum(model.move_terms[index])
    if not model.move_terms[index]:
        return kernel
    longer = pyo.Var(domain=pyo.NonNegativeReals)
    model.add_component(f"tau_{index}", longer)
    model.rows.add(longer >= kernel)
    model.rows.add(longer >= moves)
    return longer


def _gadgets(tensor: Tensor, moves: bool, reach: int) -> list[int]:
    """Section 1.2: the producer alone; every user; or every user and the kernels near one, within the tensor's life."""
    if not moves:
        return [tensor.users[0]]
    near = {user + offset for user in tensor.users for offset in range(-reach, reach + 1)}
    return sorted(near & set(tensor.live) | set(tensor.users))


def _tensor_flow(
    model: Any, case: Instance, tensor: Tensor, gadgets: list[int], fast: dict[tuple[str, int], Any]
) -> None:
    edges = _edges(len(gadgets))
    model.add_component(f"x_{tensor.name}", pyo.Var(range(len(edges)), domain=pyo.Binary))
    x = dict(zip(edges, model.component(f"x_{tensor.name}").values(), strict=True))
    for vertex in {vertex for edge in edges for vertex in edge}:
        out = sum(x[edge] for edge in edges if edge[0] == vertex)
        into = sum(x[edge] for edge in edges if edge[1] == vertex)
        if vertex[0] == "source":
            model.rows.add(out == 1)
        elif vertex[0] == "sink":
            model.rows.add(into == 1)
        else:
            model.rows.add(out - into == 0)
    at, after = _indicators(model, tensor, gadgets, x)
    for kernel in tensor.live:
        last = max(k for k, gadget in enumerate(gadgets) if gadget <= kernel)
        fast[tensor.name, kernel] = at[last] if gadgets[last] == kernel else after[last]
    _moves(model, case, tensor, gadgets, x)


def _moves(model: Any, case: Instance, tensor: Tensor, gadgets: list[int], x: dict[Edge, Any]) -> None:
    """Price the moves: beside a kernel if the gadget that the edge leaves is no user; else the step waits."""
    reads = [edge for edge in x if edge[0][0] == "C" and edge[1][0] == "B"]
    writes = [edge for edge in x if edge[0][0] == "A" and edge[1][0] == "C"]
    for edges, tier in ((reads, Tier.FAST), (writes, Tier.SLOW)):
        for edge in edges:
            kernel = gadgets[edge[0][1] - 1]
            if kernel not in tensor.users:
                model.move_terms[kernel].append(case.links.transfer_us(tier, tensor.size_bytes) * x[edge])
            elif tier is Tier.FAST:
                model.terms.append(case.links.copy_us(tier, tensor.size_bytes) * x[edge])
    writes = [edge for edge in writes if gadgets[edge[0][1] - 1] in tensor.users]
    if writes:
        written = pyo.Var(domain=pyo.Binary)
        model.add_component(f"w_{tensor.name}", written)
        for edge in writes:
            model.rows.add(written >= x[edge])
        model.rows.add(written <= sum(x[edge] for edge in writes))
        model.terms.append(case.links.copy_us(Tier.SLOW, tensor.size_bytes) * written)


def _edges(count: int) -> list[Edge]:
    """Section 1.3's table; gadgets are numbered from 1."""
    edges: list[Edge] = [(("source", 0), ("A", 1)), (("source", 0), ("C", 1))]
    for k in range(1, count + 1):
        if k > 1:
            edges.append((("C", k), ("B", k)))
        if k < count:
            edges += [(("A", k), ("A", k + 1)), (("A", k), ("C", k + 1)), (("C", k), ("C", k + 1))]
            edges += [(("B", k), ("B", k + 1)), (("B", k), ("C", k + 1))] if k > 1 else []
        else:
            edges += [((row, k), ("sink", 0)) for row in ("A", "B", "C") if row != "B" or k > 1]
    assert len(edges) == (6 * count - 3 if count > 1 else 4)
    return edges


def _indicators(model: Any, tensor: Tensor, gadgets: list[int], x: dict[Edge, Any]) -> tuple[list[Any], list[Any]]:
    """y: in fast memory while the gadget's kernel runs; z: remains there afterwards."""
    at, after = [], []
    for k in range(1, len(gadgets) + 1):
        rows = {("A", k), ("B", k)}
        into = [x[edge] for edge in x if edge[1] in rows]
        onward = [x[edge] for edge in x if edge[0] in rows and edge[1][0] in {"A", "B", "sink"}]
        for name, edges, indicators in ((f"y_{tensor.name}_{k}", into, at), (f"z_{tensor.name}_{k}", onward, after)):
            indicator = pyo.Var(domain=pyo.Binary)
            model.add_component(name, indicator)
            for edge in edges:
                model.rows.add(indicator >= edge)
            model.rows.add(indicator <= sum(edges))
            indicators.append(indicator)
    return at, after


def _kernel_configurations(
    model: Any, case: Instance, index: int, fast: dict[tuple[str, int], Any], exact: bool
) -> list[tuple[int, Any]]:
    """Binaries with their AND rows; returns the bytes of fast workspaces that each brings."""
    graphs = _variants(case.graph, index)
    own = [{operand.tensor for operand in graph.kernels[index].workspaces} for graph in graphs]
    names = list(graphs[0].slots_of(graphs[0].kernels[index]))
    if len(graphs) > 1:
        names = [name for name in names if name not in own[0]]
    else:
        own = [set()]
    model.add_component(f"c_{index}", pyo.VarList(domain=pyo.Binary))
    chosen = model.component(f"c_{index}")
    workspaces = []
    for tiers in product((True, False), repeat=len(names)):
        wanted = [
            fast[name, index] if is_fast else 1 - fast[name, index] for name, is_fast in zip(names, tiers, strict=True)
        ]
        slow = frozenset(name for name, is_fast in zip(names, tiers, strict=True) if not is_fast)
        here = []
        for graph, spaces in zip(graphs, own, strict=True):
            for spilled in chain.from_iterable(combinations(sorted(spaces), n) for n in range(len(spaces) + 1)):
                c = chosen.add()
                here.append(c)
                workspaces.append((sum(graph.by_name[name].allocated_bytes for name in spaces - set(spilled)), c))
                kernel = graph.kernels[index]
                time_us = case.profile.time_us if exact else case.profile.additive_us
                model.kernel_terms[index].append(time_us(graph, kernel, slow | set(spilled)) * c)
                for term in wanted:
                    model.rows.add(c <= term)
        model.rows.add(sum(here) + len(names) >= 1 + sum(wanted))
    model.rows.add(sum(chosen.values()) == 1)
    return workspaces


def _variants(graph: Graph, index: int) -> list[Graph]:
    """Return the step with each implementation of one kernel."""
    if not graph.kernels[index].alternatives:
        return [graph]
    names = [kernel.implementation for kernel in graph.kernels]
    others = graph.kernels[index].implementations
    return [graph.computed_by([*names[:index], name, *names[index + 1 :]]) for name in others]


def _capacity(
    model: Any,
    index: int,
    limit_bytes: int,
    live: list[Tensor],
    fast: dict[tuple[str, int], Any],
    workspaces: list[tuple[int, Any]],
) -> None:
    used = sum(tensor.allocated_bytes / _KILOBYTE * fast[tensor.name, index] for tensor in live)
    used += sum(size / _KILOBYTE * c for size, c in workspaces)
    if live or any(size for size, _ in workspaces):
        model.rows.add(used <= limit_bytes / _KILOBYTE)
