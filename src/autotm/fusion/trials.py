"""A search for the best grouping, in a process of its own: what each trial found is a line of a log.

A trial that hangs, or whose process dies, is a line with the reason; the search goes on in a new process. A search that
was killed reads what its log holds, takes the same steps again without measuring anything, and goes on from there.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import math
import os
import pickle
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from autotm.fusion.moves import GroupingSpace
from autotm.fusion.search import SEARCHES
from autotm.fusion.variants import Workbench, WrongResultError
from autotm.model.errors import AutotmError
from autotm.model.files import content_hash
from autotm.model.fusion import SearchStep, State, Trial
from autotm.model.machine import Machine
from autotm.model.network_source import NetworkSource
from autotm.model.paths import Paths
from autotm.runtime.step_times import RunOptions
from autotm.zoo import load_network

_POLLED_S = 0.2
"""A trial takes a second or so."""
_PR_SET_PDEATHSIG = 1
_TRIAL = TypeAdapter(Trial)


@dataclass(frozen=True)
class SearchJob:
    """All that decides a search.

    Attributes:
        source: of the network.
        graph: file of the network, to be trained or not.
        paths: of the network.
        machine: runs the step.
        devices_dir: folder of the device files.
        algorithm: one of `SEARCHES`.
        steps: of the search.
        seed: of the search.
        run: how steps are timed; its seed is the network's, too.
    """

    source: NetworkSource
    graph: Path
    paths: Paths
    machine: Machine
    devices_dir: Path
    algorithm: str
    steps: int
    seed: int
    run: RunOptions

    def bench(self) -> Workbench:
        """Return what makes variants of the step.

        Raises:
            AutotmError: as `load_network` and `Workbench`.
        """
        network = load_network(self.graph)
        return Workbench(network, self.paths.scale, self.machine, self.devices_dir, self.paths.objects)

    @property
    def identity(self) -> str:
        """Hash of all that trials depend on. How many there are is left out: a search may be made longer."""
        own = TypeAdapter(SearchJob).dump_json(replace(self, steps=0))
        return content_hash({"job": own.decode(), **self.source.provenance})


def searched(job: SearchJob, log: Path, limit_s: float) -> list[SearchStep]:
    """Search, or go on where the log ends; return the steps.

    Args:
        job: what is searched, and how.
        log: of trials; that of another job is replaced.
        limit_s: a trial that takes longer is given up.

    Raises:
        AutotmError: the search cannot begin: TVM's fusion cannot be compiled, or not be compared.
    """
    if _Log(log).job != job.identity:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(f"{json.dumps({'job': job.identity})}\n", encoding="utf-8")
    while (steps := _Log(log).steps) is None or len(steps) != job.steps:
        outcome = _process(job, log, limit_s)
        lines = _Log(log)
        if lines.trying is not None:
            _append(log, trial=Trial(lines.trying, None, None, f"the process that tried it {outcome}"))
        elif lines.steps is None or len(lines.steps) != job.steps:
            raise AutotmError(lines.error or f"the process that searches {outcome} before it tried anything; see above")
    return steps


def _process(job: SearchJob, log: Path, limit_s: float) -> str:
    """Search in a new process until it ends, or a trial takes too long; say which."""
    command = [sys.executable, "-m", "autotm.fusion.trials", str(log)]
    # A session of its own, so that what it has forked can be ended with it.
    process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    try:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError), process.stdin:
            process.stdin.write(pickle.dumps(job))
        return _ended(process, log, limit_s)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _ended(process: subprocess.Popen[bytes], log: Path, limit_s: float) -> str:
    """Wait until a process ends, or a trial takes too long; say which."""
    size, since_s = -1, time.monotonic()
    while (status := process.poll()) is None:
        time.sleep(_POLLED_S)
        if (now := log.stat().st_size) != size:
            size, since_s = now, time.monotonic()
        elif time.monotonic() - since_s > limit_s and _Log(log).trying is not None:
            return f"took longer than {limit_s:g} s"
    return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with {status}"


class _Log:
    """What a log holds. A last line that is not whole was being written when the process died.

    Attributes:
        job: identity of the search; empty if there is none.
        trials: by state.
        trying: the state whose trial was begun last, if that has not ended.
        steps: of the search, if it has ended.
        error: why the search could not begin.
    """

    def __init__(self, path: Path) -> None:
        self.job, self.error = "", ""
        self.trials: dict[State, Trial] = {}
        self.trying: State | None = None
        self.steps: list[SearchStep] | None = None
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        for line in lines:
            try:
                (key, value), *_ = json.loads(line).items()
            except ValueError:
                continue
            match key:
                case "job":
                    self.job = value
                case "trying":
                    self.trying = _STATE.validate_python(value)
                case "trial":
                    trial = _TRIAL.validate_python(value)
                    self.trials[trial.state], self.trying = trial, None
                case "steps":
                    self.steps = _STEPS.validate_python(value)
                case "error":
                    self.error = value


_STATE: TypeAdapter[State] = TypeAdapter(State)
_STEPS: TypeAdapter[list[SearchStep]] = TypeAdapter(list[SearchStep])


def _append(log: Path, **line: Any) -> None:
    """Write one line, after one that was not finished too."""
    with log.open("a+b") as file:
        if file.tell() and not log.read_bytes().endswith(b"\n"):
            file.write(b"\n")
        file.write(TypeAdapter(dict[str, Any]).dump_json(line) + b"\n")


def main() -> None:
    """Search what comes by standard input, and write trials to the log whose path is the argument."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    job: SearchJob = pickle.loads(sys.stdin.buffer.read())  # noqa: S301 - Our own parent wrote it.
    log = Path(sys.argv[1])
    try:
        steps = _steps(job, log)
    except AutotmError as error:
        _append(log, error=str(error))
    else:
        _append(log, steps=steps)


def _steps(job: SearchJob, log: Path) -> list[SearchStep]:
    bench = job.bench()
    known = dict(_Log(log).trials)

    def energy(state: State) -> float:
        if state not in known:
            _append(log, trying=state)
            known[state] = _tried(bench, space, state, job.run)
            _append(log, trial=known[state])
        return known[state].energy

    space = GroupingSpace(bench, energy)
    gc.freeze()  # What is there by now stays: each trial would go through all of it before it is timed.
    if not math.isfinite(space.energy(space.initial)):
        raise AutotmError(f"TVM's fusion itself fails: {known[space.initial].failure}")
    taken = SEARCHES[job.algorithm](space, job.steps, job.seed)
    return [
        SearchStep(
            one.step, known[one.proposal], one.temperature if math.isfinite(one.temperature) else None, one.is_accepted
        )
        for one in taken
    ]


def _tried(bench: Workbench, space: GroupingSpace, state: State, run: RunOptions) -> Trial:
    """Compile a state, compare it with TVM's fusion and time both."""
    try:
        variant = bench.compiled(space.grouping(state))
        (times,) = bench.compared([variant], run)
    except AutotmError as error:
        return Trial(state, None, None, str(error))
    if isinstance(times, WrongResultError):
        return Trial(state, len(variant.graph.kernels), None, str(times))
    return Trial(state, len(variant.graph.kernels), times)


if __name__ == "__main__":
    main()
