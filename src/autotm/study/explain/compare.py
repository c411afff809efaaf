"""How two plans, or two runs, differ."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from autotm.model.files import BadInputError, load_with_provenance
from autotm.model.measurement import Record
from autotm.model.plan import Plan
from autotm.model.step import Tier
from autotm.study.tables import columns, shorten

Value = float | str | None
_SOURCE = ("machine", "cpu_model", "threads", "seed", "tier_reality", "autotm_commit")
_PLAN = ("graph_hash", "optimizer", "limit", "dram_limit_bytes", "counts", "objective_us", "bound_us", "gap", "status")
_RECORD = (
    "network", "scale", "batch", "optimizer", "limit", "dram_limit_bytes", "tier_reality", "predicted_runtime_s",
    "bound_s", "actual_runtime_median_s", "actual_runtime_s", "num_move_nodes", "num_async_move_nodes", "bytes_moved",
    "bytes_async_moved", "move_actual_us", "stall_time_us", "dram_alloc_size", "pmem_alloc_size", "disturbed_steps",
)  # fmt: skip


@dataclass(frozen=True)
class Comparison:
    """Two files side by side.

    Attributes:
        kind: `plan` or `record`.
        files: which.
        fields: by name, the value in each.
        differing: what differs most: tensors by where they live (kernels in fast memory), or kernels by their measured
            microseconds; by name, the value in each. Most first.
    """

    kind: str
    files: tuple[Path, Path]
    fields: Mapping[str, tuple[Value, Value]]
    differing: Mapping[str, tuple[Value, Value]]

    def text(self, most: int = 10) -> str:
        """For a terminal; of what differs, the `most` first."""
        lines = [f"A: {self.files[0]}", f"B: {self.files[1]}"]
        lines.append(columns([("", "A", "B", "B/A"), *(_line(*item) for item in self.fields.items())], left=1))
        what = {"plan": "kernels that tensors are in fast memory for", "record": "measured us of kernels"}[self.kind]
        if not self.differing:
            return "\n".join([*lines, f"No difference in the {what}."])
        shown = list(self.differing.items())[:most]
        lines.append(f"\nLargest differences of {len(self.differing)} in the {what}")
        lines.append(columns([("", "A", "B", "B/A"), *(_line(*item) for item in shown)], left=1))
        return "\n".join(lines)


def _line(name: str, values: tuple[Value, Value]) -> tuple[str, ...]:
    first, second = values
    are_numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    ratio = f"{second / first:.4g}" if are_numbers and first else ""  # type: ignore[operator]
    return shorten(name), *(_told(value) for value in values), ratio


def _told(value: Value) -> str:
    return "-" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def compare(first: Path, second: Path) -> Comparison:
    """Read two plans or two records, and tell them apart.

    Raises:
        BadInputError: they are of different kinds, or of neither.
        DamagedFileError: one of them cannot be read.
    """
    kinds = [_kind(path) for path in (first, second)]
    if kinds[0] != kinds[1]:
        raise BadInputError(f"{first} is a {kinds[0]}, {second} a {kinds[1]}: compare two plans, or two records")
    found = [_plan(path) if kinds[0] == "plan" else _record(path) for path in (first, second)]
    fields, details = ({name: _pair(found, part, name) for name in _names(found, part)} for part in (0, 1))
    differing = {name: values for name, values in details.items() if values[0] != values[1]}
    ordered = sorted(differing, key=lambda name: -abs((differing[name][1] or 0) - (differing[name][0] or 0)))
    return Comparison(kinds[0], (first, second), fields, {name: differing[name] for name in ordered})


def _names(found: list[tuple[dict[str, Any], dict[str, Any]]], part: int) -> Iterator[str]:
    yield from dict.fromkeys(name for one in found for name in one[part])


def _pair(found: list[tuple[dict[str, Any], dict[str, Any]]], part: int, name: str) -> tuple[Any, Any]:
    return found[0][part].get(name), found[1][part].get(name)


def _kind(path: Path) -> str:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadInputError(f"{path}: no such file; give two plan.json or two record.json") from None
    except (json.JSONDecodeError, UnicodeDecodeError, IsADirectoryError):
        document = {}
    kind = document.get("kind") if isinstance(document, dict) else None
    if kind not in {"plan", "record"}:
        raise BadInputError(f"{path}: neither a plan nor a record; give two plan.json or two record.json")
    return str(kind)


def _plan(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    plan, source = load_with_provenance(path, "plan", Plan)
    fields = {name: getattr(plan, name) for name in _PLAN}
    fields |= {"stays": len(plan.stays), "moves": len(plan.moves), "solve_s": plan.solve_s}
    fast: dict[str, float] = {}
    for stay in plan.stays:
        fast.setdefault(stay.tensor, 0)
        fast[stay.tensor] += stay.end - stay.start if stay.tier is Tier.DRAM else 0
    return _source(source) | fields, fast


def _record(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    record, source = load_with_provenance(path, "record", Record)
    values = asdict(record)
    fields = {name: values[name] for name in _RECORD}
    median_s, beside = record.actual_runtime_median_s, record.all_fast_runtime_median_s
    if median_s is not None and beside is not None:
        fields["slow-down, measured"] = median_s / beside
    return _source(source) | fields, dict(record.kernel_times_us)


def _source(source: Mapping[str, Any]) -> dict[str, Any]:
    return {name: source.get(name) for name in _SOURCE}
