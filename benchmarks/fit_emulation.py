"""Fit a device file's constants on kernels that were timed with real slow memory.

    python benchmarks/fit_emulation.py --table FILE --device config/devices/optane-dcpmm.yaml [--check]

Rewrites everything below the marker line of the device file, byte-identical for the same table, and prints the errors
of kernels that a fit has not seen (cross-validation by kernel). `docs/emulation.md` explains model and loss.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from autotm.model.files import write_atomically
from autotm.model.graph import OpClass
from emulation_error import errors, left_out, quantiles, report
from recorded_kernels import Recording, Table, read_table

MARKER = "# --- below: written by benchmarks/fit_emulation.py, do not edit ---"
MIN_US = 100
FOLDS = 5
SHARED_CONSTANTS = {
    f"{OpClass.REDUCTION}.read": f"{OpClass.ELEMENTWISE}.read",
    f"{OpClass.REDUCTION}.write": f"{OpClass.ELEMENTWISE}.write",
    f"{OpClass.MATMUL}.read": f"{OpClass.CONV_FORWARD}.read",
}
"""Constants that too few recorded operands tell of, and those that stand in: a reduction streams like an elementwise
kernel, a matrix product hides its reads behind arithmetic like a convolution."""

_KNEE = 0.02
"""Relative error above which the loss grows linearly: medians, not means, decide, and the minimum is still unique."""

_DIGITS = 3
_ACCESSES = ("read", "write")
_FIRST_TOUCH = "first_touch"
_FASTEST = 10

Array = npt.NDArray[np.float64]
Constants = dict[str, float]


def constant_of(op_class: OpClass, access: str) -> str:
    """Name of the fitted constant that `op_class` uses for `access`, which is `read` or `write`."""
    name = f"{op_class}.{access}"
    return SHARED_CONSTANTS.get(name, name)


def constant_names() -> list[str]:
    """Names of the fitted constants: at most two per op class, and the first touch."""
    return [*dict.fromkeys(constant_of(op_class, access) for op_class in OpClass for access in _ACCESSES), _FIRST_TOUCH]


def features(recording: Recording) -> Constants:
    """Return what each constant is multiplied with in the recording's predicted extra time [ns]."""
    return {
        constant_of(recording.op_class, "read"): float(sum(recording.slow_read_bytes)),
        constant_of(recording.op_class, "write"): float(sum(recording.slow_write_bytes)),
        _FIRST_TOUCH: float(len(recording.slow_write_bytes)),
    }


def fit(recordings: Sequence[Recording]) -> Constants:
    """Non-negative constants that minimise the sum of a smoothed |relative error| of the predicted times.

    Iteratively reweighted least squares on the pseudo-Huber loss sqrt(1 + (error / knee)^2).
    """
    names = constant_names()
    index = {name: position for position, name in enumerate(names)}
    matrix = np.zeros((len(recordings), len(names)))
    target = np.empty(len(recordings))
    for row, recording in enumerate(recordings):
        for name, value in features(recording).items():
            matrix[row, index[name]] = value / (recording.time_us * 1e3)
        target[row] = 1 - recording.all_fast_us / recording.time_us
    scale = np.abs(matrix).max(axis=0)
    scale[scale == 0] = 1
    solution = _reweighted(matrix / scale, target) / scale
    return {name: _rounded(float(value)) for name, value in zip(names, solution, strict=True)}


def _reweighted(matrix: Array, target: Array) -> Array:
    weights = np.ones(len(target))
    solution = np.zeros(matrix.shape[1])
    for _ in range(1000):
        previous = solution
        solution = _non_negative_least_squares(matrix, target, weights)
        if np.abs(solution - previous).max() <= 1e-9 * np.abs(solution).max():
            return solution
        weights = 1 / np.sqrt(1 + ((matrix @ solution - target) / _KNEE) ** 2)
    raise ArithmeticError("the fit did not converge in 1000 iterations")


def _non_negative_least_squares(matrix: Array, target: Array, weights: Array) -> Array:
    """Weighted least squares; constants that would turn negative, or that no row has, are zero."""
    gram = matrix.T @ (matrix * weights[:, None])
    moment = matrix.T @ (target * weights)
    solution = np.zeros(matrix.shape[1])
    free = np.flatnonzero(np.diag(gram) > 0)
    while free.size:
        solution[:] = 0
        solution[free] = np.linalg.solve(gram[np.ix_(free, free)], moment[free])
        if (solution[free] >= 0).all():
            break
        free = free[solution[free] > 0]
    return solution


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def predicted_extra_ns(constants: Constants, recording: Recording) -> float:
    """Return the fitted model's extra time of a recording, first touch included."""
    return sum(constants[name] * value for name, value in features(recording).items())


def cross_validated_errors(recordings: Sequence[Recording], seed: int = 0) -> list[float]:
    """Relative error of each recording under a fit that saw no configuration of its kernel."""
    kernels = sorted({recording.kernel for recording in recordings})
    random.Random(seed).shuffle(kernels)  # noqa: S311 - folds, not secrets
    fold_of = {kernel: position % FOLDS for position, kernel in enumerate(kernels)}
    fitted = {
        fold: fit([recording for recording in recordings if fold_of[recording.kernel] != fold]) for fold in range(FOLDS)
    }
    return errors(recordings, lambda r: predicted_extra_ns(fitted[fold_of[r.kernel]], r))


def contraction_flop_per_s(table: Table) -> float:
    """Rate of the fastest recorded convolutions: the median of the fastest ten."""
    return float(f"{np.median(table.contraction_flop_per_s[-_FASTEST:]):.2g}")


def fitted_section(table: Table, recordings: Sequence[Recording], validated: Sequence[float]) -> str:
    """Return the part of the device file below the marker."""
    constants = fit(recordings)
    median, ninth = quantiles(validated)
    counts = _kernel_counts(recordings)
    lines = [
        f"# {len(recordings)} configurations of {len({r.kernel for r in recordings})} kernels >= {MIN_US} us;",
        f"# error on kernels the fit has not seen: median {median:.1f} %, 90th percentile {ninth:.1f} %",
        f"contraction_flop_per_s: {_yaml_float(contraction_flop_per_s(table))}",
        f"first_touch_ns: {_yaml_float(constants[_FIRST_TOUCH])}",
        "kernels:",
    ]
    for op_class in OpClass:
        read, write = (_yaml_float(constants[constant_of(op_class, access)]) for access in _ACCESSES)
        remark = ", ".join([f"{counts.get(op_class, 0)} kernels", *_borrowed(op_class)])
        lines.append(f"  {op_class}: {{read_ns_per_byte: {read}, write_ns_per_byte: {write}}} # {remark}")
    return "\n".join(lines) + "\n"


def _borrowed(op_class: OpClass) -> list[str]:
    shared = {access: SHARED_CONSTANTS.get(f"{op_class}.{access}") for access in _ACCESSES}
    return [f"{access} as {name.split('.')[0]}" for access, name in shared.items() if name]


def _kernel_counts(recordings: Sequence[Recording]) -> Mapping[OpClass, int]:
    kernels: dict[OpClass, set[int]] = {}
    for recording in recordings:
        kernels.setdefault(recording.op_class, set()).add(recording.kernel)
    return {op_class: len(numbers) for op_class, numbers in kernels.items()}


def _yaml_float(value: float) -> str:
    """Return a plain decimal, or the one scientific form that YAML 1.1 reads as a number."""
    if value == 0 or 1e-4 <= abs(value) < 1e6:  # noqa: PLR2004 - beyond, zeros hide the number
        return repr(value)
    exponent = math.floor(math.log10(abs(value)))
    return f"{float(f'{value / 10**exponent:.{_DIGITS}g}')}e{exponent:+d}"


def refitted(text: str, section: str) -> str:
    """Return the device file's text with the part below the marker replaced.

    Raises:
        ValueError: the text has no marker line.
    """
    head, marker, _ = text.partition(MARKER)
    if not marker:
        raise ValueError(f"no line '{MARKER}'")
    return f"{head}{MARKER}\n{section}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Fit, report, write; with --check, write nothing and return 1 when the file would change."""
    parser = argparse.ArgumentParser(description="fit a device file on recorded kernels")
    parser.add_argument("--table", type=Path, required=True, help="csv or csv.gz in the format of docs/emulation.md")
    parser.add_argument("--device", type=Path, required=True, help="device file to rewrite")
    parser.add_argument("--check", action="store_true", help="only tell whether the file is what the table gives")
    options = parser.parse_args(arguments)
    try:
        table = read_table(options.table)
        recordings = table.at_least(MIN_US)
        validated = cross_validated_errors(recordings)
        before = options.device.read_text(encoding="utf-8")
        after = refitted(before, fitted_section(table, recordings, validated))
    except (OSError, ValueError, ArithmeticError) as error:
        print(f"error: {options.device}: {error}", file=sys.stderr)
        return 1
    print("\n".join(left_out(table) + report(recordings, {"cross-validated": validated})))
    if options.check:
        print(f"{options.device}: {'as fitted' if before == after else 'differs from the fit'}")
        return int(before != after)
    write_atomically(options.device, lambda temporary: temporary.write_text(after, encoding="utf-8"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
