"""Kernels of groups that nobody has compiled before: the compiler may refuse them, die of them, or never end."""

from __future__ import annotations

import contextlib
import ctypes
import json
import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from autotm.kernels.compiler import KernelCompiler, KernelFacts, Request
from autotm.model.errors import AutotmError

_PATIENCE_S = 120.0
"""Seconds in which the compiler has to finish something. A kernel takes a tenth of one, and they are finished by 48 at
most; TVM takes ten minutes for six exponentials in a chain."""
_POLLED_S = 0.1
_PR_SET_PDEATHSIG = 1


def attempted(
    compiler: KernelCompiler, requests: Sequence[Request], patience_s: float = _PATIENCE_S
) -> list[KernelFacts | str]:
    """Compile kernels in another process; return their facts, or the first line of the reason where there are none.

    A kernel that the compiler dies of, or that it does not end with within `patience_s` seconds, has a reason, too.

    Raises:
        AutotmError: the process failed, and no kernel is to blame.
    """
    keys = compiler.keys(requests)
    missing = compiler.missing(keys, requests)
    refused: dict[str, str] = {}
    if missing:
        refused = dict(zip(missing, _reasons(compiler, [*missing.values()], patience_s), strict=True))
    reasons = [refused.get(key, "") for key in keys]
    facts = iter(compiler.make([request for request, reason in zip(requests, reasons, strict=True) if not reason]))
    return [reason or next(facts) for reason in reasons]


def _reasons(compiler: KernelCompiler, requests: Sequence[Request], patience_s: float) -> list[str]:
    """Return why each kernel cannot be compiled; an empty text where it was."""
    with tempfile.TemporaryDirectory(prefix="autotm-") as folder:
        path = Path(folder) / "reasons.json"

        def work() -> None:
            path.write_text(json.dumps(_refusals(compiler, requests)), encoding="utf-8")

        death = _in_process(work, compiler.folder, patience_s)
        if not death:
            return [str(reason) for reason in json.loads(path.read_text(encoding="utf-8"))]
    if len(requests) == 1:
        return [f"the compiler {death}"]
    # What has been compiled until then is not compiled again.
    return [reason for request in requests for reason in _reasons(compiler, [request], patience_s)]


def _refusals(compiler: KernelCompiler, requests: Sequence[Request]) -> list[str]:
    """Compile kernels; return the errors that the compiler raises."""
    try:
        compiler.make(requests)
    except OSError:  # Such as a full disk: no kernel is to blame.
        raise
    except Exception as error:  # noqa: BLE001 - TVM raises errors of many kinds.
        if len(requests) == 1:
            return [next(iter(str(error).splitlines()), type(error).__name__)]
    else:
        return [""] * len(requests)
    # One of them fails, and nothing says which. What has been compiled is not compiled again.
    half = len(requests) // 2
    return _refusals(compiler, requests[:half]) + _refusals(compiler, requests[half:])


def _in_process(work: Callable[[], None], folder: Path, patience_s: float) -> str:
    """Call `work` in a fork of this process; say how that ended if a signal, or a lack of patience, ended it.

    Patience begins anew with each file in `folder`.

    Raises:
        AutotmError: it ended with an error, which is on standard error.
    """

    def alone() -> None:
        os.setsid()  # So that what it forks can be ended with it.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        work()

    process = multiprocessing.get_context("fork").Process(target=alone)
    process.start()
    try:
        files, since_s = -1, time.monotonic()
        while process.exitcode is None:
            process.join(_POLLED_S)
            if (now := sum(1 for _ in folder.iterdir())) != files:
                files, since_s = now, time.monotonic()
            elif process.exitcode is None and time.monotonic() - since_s > patience_s:
                return f"took longer than {patience_s:g} s"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid or 0, signal.SIGKILL)
        process.join()
    if process.exitcode < 0:
        return f"was killed by {signal.Signals(-process.exitcode).name}"
    if process.exitcode:
        raise AutotmError(f"the process that compiles kernels ended with {process.exitcode}; see above")
    return ""
