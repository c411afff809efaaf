"""A measured step as a Chrome trace (Trace Event Format), which Perfetto and chrome://tracing open."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from autotm.model.files import write_atomically
from autotm.model.graph import Graph, Tier
from autotm.model.program import KernelStep, MoveStep, Program, StartMoveStep, WaitMoveStep
from autotm.model.timeline import StepTrace

_STEP, _TO_SLOW, _TO_FAST = 1, 2, 3
"""Threads of the trace: the one that runs the step, and one that copies in each direction."""
_PROCESS = 1
Event = dict[str, Any]


def write_trace(path: Path, step: Graph, program: Program, trace: StepTrace, source: Mapping[str, Any]) -> None:
    """Write the trace of one step of a program.

    Args:
        path: a .json file.
        step: with the program's implementations.
        program: that was traced.
        trace: what was measured.
        source: provenance: machine, threads, versions, seed; `tier_reality` of what ran.
    """
    disturbed = " Others held the cores meanwhile: all times are too long." if trace.disturbed else ""
    measured = (
        f"{step.network}, {program.optimizer}, limit {program.limit}: one step, MEASURED; slow memory "
        f"{str(source.get('tier_reality')).upper()}. Of {len(trace.traced_s)} steps the one with the median time, "
        f"{1e3 * median(trace.traced_s):.6g} ms; reading the clock between calls made them {trace.overhead:+.2%} "
        f"longer than the {len(trace.plain_s)} steps run in turn without.{disturbed}"
    )
    document = {
        "displayTimeUnit": "ns",
        "otherData": {"measured": measured, **source},
        "traceEvents": list(trace_events(step, program, trace, source)),
    }
    text = json.dumps(document, separators=(",", ":"), allow_nan=False, default=str)
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def trace_events(step: Graph, program: Program, trace: StepTrace, source: Mapping[str, Any]) -> Iterator[Event]:
    """Yield the events: kernels, waits and moves on the thread of the step, asynchronous copies on those that copy."""
    yield from _threads(step, program, source)
    for item, marks in zip(program.steps, trace.marks_ns, strict=True):
        match item:
            case KernelStep():
                yield from _kernel(step, item, marks)
            case MoveStep():
                name, facts = _move(item)
                yield _span(_STEP, "move", name, marks[0], marks[-1], facts)
            case StartMoveStep():
                yield _span(_STEP, "start", f"start {_move(item)[0]}", marks[0], marks[-1], {"move": item.move})
                yield from _copy(item, trace)
            case WaitMoveStep():
                yield _span(_STEP, "wait", f"wait for move {item.move}", marks[0], marks[-1], {"move": item.move})
                yield _arrow("f", item.move, _STEP, marks[0]) | {"bp": "e"}


def _threads(step: Graph, program: Program, source: Mapping[str, Any]) -> Iterator[Event]:
    process = f"autotm: {step.network}, {program.optimizer}, limit {program.limit} (measured)"
    yield {"ph": "M", "pid": _PROCESS, "name": "process_name", "args": {"name": process}}
    names = {_STEP: f"step: kernels on {source.get('threads')} threads, blocking moves"}
    if any(isinstance(item, StartMoveStep) for item in program.steps):
        names |= {_TO_SLOW: "copies to slow memory", _TO_FAST: "copies to fast memory"}
    for thread, name in names.items():
        where = {"ph": "M", "pid": _PROCESS, "tid": thread}
        yield where | {"name": "thread_name", "args": {"name": name}}
        yield where | {"name": "thread_sort_index", "args": {"sort_index": thread}}


def _kernel(step: Graph, item: KernelStep, marks: tuple[int, ...]) -> Iterator[Event]:
    kernel = step.kernels[item.kernel]
    places = zip(kernel.operands, item.addresses, strict=True)
    slow = dict.fromkeys(operand.tensor for operand, address in places if address.tier is Tier.SLOW)
    facts = {"kernel": item.kernel, "op": kernel.op, "implementation": kernel.implementation}
    facts |= {"slow operands": ", ".join(slow) or "none"}
    yield _span(_STEP, str(kernel.op_class), kernel.name, marks[0], marks[1], facts)
    for begun, ended in pairwise(marks[1:]):
        yield _span(_STEP, "emulated", "wait that plays slow memory", begun, ended, {"kernel": item.kernel})


def _copy(item: StartMoveStep, trace: StepTrace) -> Iterator[Event]:
    """Yield a copy on its engine's thread. A more urgent one may be served within it; it is then drawn inside."""
    times, (name, facts) = trace.copies[item.move], _move(item)
    thread = _TO_FAST if item.destination.tier is Tier.FAST else _TO_SLOW
    yield _arrow("s", item.move, _STEP, times.submitted_ns)
    yield _span(thread, "copy", name, times.begun_ns, times.ended_ns, facts)
    yield _arrow("t", item.move, thread, times.begun_ns)


def _move(item: MoveStep | StartMoveStep) -> tuple[str, dict[str, object]]:
    """Return the name of a move, and its facts."""
    facts = {"tensor": item.tensor, "bytes": item.size_bytes}
    facts |= {"from offset": item.source.offset, "to offset": item.destination.offset}
    return f"{item.tensor} to {item.destination.tier.name.lower()}", facts


def _span(thread: int, category: str, name: str, begun_ns: int, ended_ns: int, facts: Mapping[str, object]) -> Event:
    begun, ended = begun_ns / 1e3, ended_ns / 1e3
    lasted = ended - begun
    if begun + lasted > ended:
        # Viewers add the two: a rounding error more, and the next span would begin within this one.
        lasted = max(lasted - math.ulp(ended), 0.0)
    times = {"ts": begun, "dur": lasted}
    return {"ph": "X", "pid": _PROCESS, "tid": thread, "cat": category, "name": name, **times, "args": dict(facts)}


def _arrow(phase: str, move: int, thread: int, at_ns: int) -> Event:
    where = {"pid": _PROCESS, "tid": thread, "ts": at_ns / 1e3}
    return {"ph": phase, "cat": "asynchronous move", "name": "asynchronous move", "id": move, **where}
