"""The stage that compares an imported step with its source, before anything is timed."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import psutil

from autotm.model.errors import AutotmError
from autotm.model.paths import MachinePaths
from autotm.stages.context import Context

if TYPE_CHECKING:
    import tvm

    from autotm.zoo import Network
    from autotm.zoo.network import Origin, Reference, ReferenceMode


_LOG = logging.getLogger(__name__)
Array = npt.NDArray[Any]
Values = Mapping[str, Array]
NOTHING = "nothing"
"""The record's entry for a step that was compared with no source."""
STEPS = 2
_ALLOWED = 3.0
"""Largest allowed error, as a multiple of the error of the source's own float32."""
_ROUNDING = 1e-5
"""Error allowed for sums in another order, as a share of a result's norm and of the gradients' typical size."""
_LARGE = 0.5
"""Relative errors beyond come from no roundings: results that are taken for each other, say. Roundings that decide
whether a ReLU lets a value through made 0.07 of a gradient (Inception v3, batch norm over four values)."""
_TIMES_PEAK = 6
"""A step in float64 takes twice the step's peak, and both steps' arguments and results are held as well."""
_MOVED = 0.01
"""Share of the norm of all parameters by which they move between the steps."""


class DifferentStepError(AutotmError):
    """A step here computes something else than its source."""


@dataclass(frozen=True)
class _PlainSteps:
    """Compiles networks, and runs plain steps of them, as `compare_with_source` was told to."""

    context: Context
    target: tvm.target.Target
    caches: MachinePaths

    def of(self, network: Network, origin: Origin) -> tuple[list[tuple[Values, Values]], int]:
        """Return the arguments and results of each step, in the source's layouts, and the peak of a step in bytes."""
        from autotm.kernels.library import KernelLibrary, pinned
        from autotm.lower.lowering import lower_network
        from autotm.model.graph import Role
        from autotm.runtime.verify import plain_steps
        from autotm.zoo import with_values_stored

        # Trained, its gradients would be gone.
        whole = with_values_stored(replace(network, training=None, rule_states={}), self.caches.values)
        context, machine, pairs = self.context, self.context.machine, []
        # Without gradients or states a second step would be the first again.
        count = STEPS if network.gradients or network.states else 1
        with tempfile.TemporaryDirectory(prefix="autotm-") as folder:
            files = Path(folder) / "graph.json", Path(folder) / "kernels.so"
            graph = lower_network(whole, "compared", self.target, machine.threads, *files, {}, self.caches.objects)
            library = KernelLibrary.load(files[1])
        arguments = [*network.inputs, *network.parameters, *network.states]
        results = [tensor.name for tensor in graph.tensors if tensor.role is Role.RESULT]
        with pinned(machine):
            before: Values = {}
            for memory in plain_steps(graph, library, machine, context.seed, count, context.devices_dir):
                known = [name for name in arguments if name in graph.by_name]
                if before:
                    ours = {name: origin.back(_owner(name), memory.value(name).copy()) for name in results}
                    pairs.append((before, ours))
                    _move({name: memory.value(name) for name in network.parameters if name in graph.by_name}, memory)
                before = {name: origin.back(name, memory.value(name).copy()) for name in known}
        return pairs, graph.peak_live_bytes


def compare_with_source(context: Context, network: Network, target: tvm.target.Target, caches: MachinePaths) -> str:
    """Compare two plain steps of a network with its source: outputs or loss, gradients, new states.

    Between the steps the parameters move along their gradients.

    Args:
        context: machine, seed and folder of devices.
        network: with an origin.
        target: of the machine.
        caches: of machine code, which the step itself takes from there afterwards, and of values that came with the
            network.

    Returns:
        A description of the comparison, or the reason why there was none.

    Raises:
        DifferentStepError: a result is further from the source's float64 than the source's float32 allows; the text
            names the first different operator and its line of the source.
    """
    from autotm.zoo.network import NotComputedError

    origin = network.origin
    reference = origin.reference if origin is not None else None
    if origin is None or reference is None:
        return NOTHING
    plain_steps = _PlainSteps(context, target, caches)
    steps, peak_bytes = plain_steps.of(network, origin)
    # Where float64 does not fit, two orders of float32 show what roundings make of the step.
    fits = psutil.virtual_memory().available > _TIMES_PEAK * peak_bytes
    worst = 0.0
    for number, (before, ours) in enumerate(steps, 1):
        try:
            single = reference.step(before, "float32")
        except NotComputedError as error:
            return f"{NOTHING}: {error}"
        other = "float64" if fits else "another order"
        exact = _computed(reference, before, other) or single
        if number == 1:
            _check_capture(network, reference, single)
        error, name = _worst(ours, single, exact)
        if error > 1.0:
            relative = _distance(ours[name], exact[name]) / max(_norm(exact[name]), np.finfo(np.float32).tiny)
            # Its operators are looked at in the first step, which is where `_explain` starts again.
            _explain(plain_steps, network, origin, reference, steps[0][0], name, relative)
        worst = max(worst, error)
    return (
        f"{reference.name}: {len(steps[0][1])} results of each of {len(steps)} steps are at most "
        f"{worst * _ALLOWED:.2g} times as far from its {'float64' if fits else 'float32 in another order'} as its own "
        "float32, or roundings"
    )


def _owner(result: str) -> str:
    """Return the argument whose layout a result has."""
    return result.removesuffix(".gradient").removesuffix(".new")


def _move(parameters: Mapping[str, Array], memory: Any) -> None:
    """Move parameters along their gradients, in place."""
    slopes = {
        name: memory.value(f"{name}.gradient") for name in parameters if f"{name}.gradient" in memory.graph.by_name
    }
    length, slope = (float(np.sqrt(sum(float(np.sum(np.square(item, dtype=np.float64))) for item in items)))
                     for items in (parameters.values(), slopes.values()))  # fmt: skip
    if slope > 0 and np.isfinite(slope):
        for name, value in slopes.items():
            parameters[name][...] -= np.float32(_MOVED * max(length, 1e-3) / slope) * value


def _computed(reference: Reference, before: Values, mode: ReferenceMode) -> Values | None:
    """Return the source's step in a mode; None where it fails."""
    try:
        return reference.step(before, mode)
    except (RuntimeError, TypeError, MemoryError) as error:
        _LOG.info("%s computes no step in %s: %s", reference.name, mode, error)
        return None


def _check_capture(network: Network, reference: Reference, single: Values) -> None:
    """Compare the source's graph with the source itself, on its own values."""
    if reference.eager is None:
        return
    eager = reference.eager()
    typical = _typical(single, ".gradient")
    for name in sorted(eager.keys() & single.keys()):
        size = _norm(eager[name]) + (typical * np.sqrt(eager[name].size) if name.endswith(".gradient") else 0.0)
        if _distance(single[name], eager[name]) > _LARGE * size:
            raise DifferentStepError(
                f"network {network.name}: {reference.name} itself computes another {name} than the graph that it was "
                "captured as; please report it with the module"
            )


def _worst(ours: Values, single: Values, exact: Values) -> tuple[float, str]:
    """Return the largest error of a result, as a share of the allowed error, and the name of the result."""
    shares = {}
    typical = {kind: _typical(exact, kind) for kind in (".gradient", ".new")}
    for name, wanted in exact.items():
        allowed = _ALLOWED * _distance(single[name], wanted) + _ROUNDING * _norm(wanted[np.isfinite(wanted)])
        # Some gradients and running means are only roundings: the size of the others counts for them too.
        allowed += (
            _ROUNDING * np.sqrt(wanted.size) * next((typical[kind] for kind in typical if name.endswith(kind)), 0.0)
        )
        # Where the source's own float32 is not finite and its float64 is, nothing can be asked.
        share = _distance(ours[name], wanted) / max(allowed, np.finfo(np.float32).tiny)
        shares[name] = share if np.isfinite(allowed) else 0.0
    name = max(shares, key=shares.__getitem__)
    return float(shares[name]), name


def _typical(results: Values, kind: str) -> float:
    """Return the root mean square of all real numbers of the results whose names end in `kind`."""
    several = [value for name, value in results.items() if name.endswith(kind) and value.dtype.kind == "f"]
    elements = sum(item.size for item in several)
    return float(np.sqrt(sum(_norm(item) ** 2 for item in several) / max(elements, 1)))


def _distance(ours: Array, wanted: Array) -> float:
    """Return the norm of a difference; infinite where a value is not finite in only one of the two."""
    if ours.shape != wanted.shape:
        return float("inf")
    with np.errstate(all="ignore"):
        same = (ours == wanted) | (np.isnan(ours.astype(np.float64)) & np.isnan(wanted.astype(np.float64)))
        return _norm(np.where(same, 0.0, ours.astype(np.float64) - wanted.astype(np.float64)))


def _norm(values: Array) -> float:
    norm = float(np.sqrt(np.sum(np.square(values.astype(np.float64)))))
    return float("inf") if np.isnan(norm) else norm


def _explain(
    plain_steps: _PlainSteps,
    network: Network,
    origin: Origin,
    reference: Reference,
    before: Values,
    name: str,
    error: float,
) -> None:
    """Raise DifferentStepError with the first different operator; log a small difference that no operator explains."""
    from autotm.zoo.network import Network

    imported, operators = reference.in_detail()
    lying = replace(origin, turned=imported.turned, reference=None)
    detailed = Network(
        network.name, network.batch, imported.module, imported.inputs, imported.parameters, None, imported.states, lying
    )
    ((arguments, ours), *_), _ = plain_steps.of(detailed, lying)
    outputs = [ours[result] for result in detailed.results]
    first = reference.first_difference({**before, **arguments}, dict(zip(operators, outputs, strict=True)))
    if first is None and error <= _LARGE:
        _LOG.warning(
            "network %s: %s differs from %s by %.2g of its size, more than roundings usually make; no operator is off",
            *(network.name, name, reference.name, error),
        )
        return
    difference = first or f"its {name} is off by {error:.2g} of its size, though no operator is by itself"
    other = "kernels='torch' has PyTorch compute the step, and " if origin.is_torch else ""
    raise DifferentStepError(
        f"network {network.name}: it computes something else than {reference.name}: {difference}; please report it. "
        f"{other}profile={{'compare': False}} leaves the comparison out"
    )
