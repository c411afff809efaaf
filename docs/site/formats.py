"""Write docs/formats.md: every file's fields, units and meanings, read off the classes that read and write the files.

    python docs/site/formats.py > docs/formats.md

Ends with 1 where a field has no meaning, or a number with a fraction no unit.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fields import Field, MeaninglessError, fields_of, in_words, inner_types, paragraphs, unit_of

from autotm.memory.emulation import DeviceFile, PublishedDevice
from autotm.model.config import ScaleFile, StudyConfig
from autotm.model.files import schema_version
from autotm.model.fusion import FusionAudit, FusionDecisions, FusionOptimum, FusionRun, FusionSearch
from autotm.model.fusion_policy import (
    FusionBench,
    FusionPolicies,
    FusionProblem,
    FusionPromises,
    FusionRewards,
    FusionSelection,
    PlacementSearch,
)
from autotm.model.graph import Graph
from autotm.model.kernel_studies import Sensitivity, TimingStudy
from autotm.model.links import Links
from autotm.model.machine import GpuFile, MachineFile
from autotm.model.plan import Plan
from autotm.model.profile import KEY_COLUMNS, Timing
from autotm.model.program import Program
from autotm.model.provenance import Provenance
from autotm.model.record import FrameworkRecord, Record
from autotm.model.step_memory import StepMemory
from autotm.model.timeline import ModelledStep, Timeline
from autotm.runtime.verify import Reference
from autotm.solve.potential import Potential
from autotm.stages.jobs import Reason
from autotm.study.columns import MEANINGS
from autotm.study.doctor import Finding
from autotm.study.explain import Comparison, LimitExplanation, TensorExplanation
from autotm.study.kernel_report import KernelReport

PAGE = Path(__file__).with_suffix(".md")
"""The page around the tables; a line such as [people] says where they go."""
_BAR = r"\|"


@dataclass(frozen=True)
class Format:
    """A kind of file.

    Attributes:
        name: of such files.
        about: where they lie, and who writes them.
        fields: of what they hold, after what every file of that kind has.
        kind: by which name `schema_version` knows it; None for files that people write.
    """

    name: str
    about: str
    fields: type[Any]
    kind: str | None = None


_BY_PEOPLE = (
    Format("config/config.yaml", "Editors know it by `config/schema.json` (`make schema`).", StudyConfig),
    Format("config/machines/NAME.yaml", "[How to write one](machines.md).", MachineFile),
    Format("config/devices/NAME.yaml", "[What its numbers do](emulation.md).", DeviceFile),
    Format(
        "config/devices/NAME.yaml, published",
        "[How constants follow from them](emulation.md#devices-from-published-numbers).",
        PublishedDevice,
    ),
    Format("config/devices/gpu/NAME.yaml", "[What it is for](machines.md#a-gpu).", GpuFile),
    Format("config/scales/NAME.yaml", "`scale` in the study names it.", ScaleFile),
)
_STEP = "results/MACHINE/SCALE/NETWORK"
_PLACED = f"{_STEP}/OPTIMIZER/LIMIT"
_FUSION = "results/MACHINE/SCALE/fusion"
_BY_AUTOTM = (
    Format("links.json", "`results/MACHINE/links.json`, by rule `calibrate`.", Links, "links"),
    Format("graph.json", f"`{_STEP}/graph.json`, by rule `kernel_profile`.", Graph, "graph"),
    Format("plan.json", f"`{_PLACED}/plan.json`, by rule `ilp_solve`.", Plan, "plan"),
    Format("program.json", f"`{_PLACED}/program.json`, by rule `compile`.", Program, "program"),
    Format("decisions", "What `autotm fusion run --write FILE` writes.", FusionDecisions, "decisions"),
    Format(
        "optimum.json",
        "`results/MACHINE/SCALE/fusion/NETWORK/STEP/optimum.json`, by rule `fusion_exhaustive`.",
        FusionOptimum,
        "fusion_optimum",
    ),
    Format(
        "ALGORITHM-SEED.json",
        "`results/MACHINE/SCALE/fusion/NETWORK/STEP/ALGORITHM-SEED.json`, by rule `fusion_search`.",
        FusionSearch,
        "fusion_search",
    ),
    Format(
        "problem.json",
        f"`{_FUSION}/NETWORK/STEP/problem.json`, by rule `fusion_problem`.",
        FusionProblem,
        "fusion_problem",
    ),
    Format(
        "rewards.json",
        f"`{_FUSION}/NETWORK/STEP/rewards.json`, by rule `fusion_rewards`.",
        FusionRewards,
        "fusion_rewards",
    ),
    Format(
        "promises.json",
        f"`{_FUSION}/NETWORK/STEP/promises.json`, by rule `fusion_promises`.",
        FusionPromises,
        "fusion_promises",
    ),
    Format(
        "selection.json", f"`{_FUSION}/selection.json`, by rule `fusion_policies`.", FusionSelection, "fusion_selection"
    ),
    Format(
        "policies.json", f"`{_FUSION}/policies.json`, by rule `fusion_policies`.", FusionPolicies, "fusion_policies"
    ),
    Format("placements.json", f"`{_STEP}/placements.json`, by rule `placements`.", PlacementSearch, "placements"),
    Format("bench.json", f"`{_FUSION}/NETWORK/STEP/bench.json`, by rule `fusion_bench`.", FusionBench, "fusion_bench"),
    Format("record.json", f"`{_PLACED}/record.json`, by rule `run`.", Record, "record"),
    Format("timeline.json", f"`{_PLACED}/timeline.json`, by rule `run` on a GPU.", Timeline, "timeline"),
    Format("torch.json", f"`{_PLACED}/torch.json`, by rule `save_on_cpu`.", FrameworkRecord, "framework_record"),
    Format(
        "modelled.json",
        f"`{_PLACED}/modelled.json`, by rule `modelled_step`.",
        ModelledStep,
        "modelled_step",
    ),
    Format("sensitivity", f"`{_STEP}/sensitivity/LIMIT.json`, by `autotm sensitivity`.", Sensitivity, "sensitivity"),
    Format("timing_study.json", f"`{_STEP}/timing_study.json`, by rule `timing_study`.", TimingStudy, "timing_study"),
    Format("reference.json", f"`{_STEP}/reference.json`, by rule `run`, for the next run.", Reference, "reference"),
    Format("failure.json", "`logs/.../NAME.failure.json`, by a job that failed; flat.", Reason, "failure"),
)

_ANSWERS = (
    Format("autotm doctor", "A list of these.", Finding),
    Format("autotm explain NETWORK OPTIMIZER LIMIT", "Why a limit costs what it does.", LimitExplanation),
    Format("autotm explain NETWORK OPTIMIZER LIMIT TENSOR", "Why a tensor lives where it does.", TensorExplanation),
    Format("autotm fusion run NETWORK", "The step, beside the same by TVM's fusion.", FusionRun),
    Format("autotm fusion audit NETWORK", "Which fusions cost the step time, and how much.", FusionAudit),
    Format("autotm fits FILE:FUNCTION", "What memory a step of PyTorch needs.", StepMemory),
    Format("autotm compare A B", "How two plans or two records differ.", Comparison),
    Format("autotm potential NETWORK LIMIT", "What lies beyond placement.", Potential),
    Format("autotm profile NETWORK", "Under `kernel_report`, beside `provenance`.", KernelReport),
)


def text() -> str:
    """docs/formats.md.

    Raises:
        MeaninglessError: a field has no meaning, or a number with a fraction no unit.
    """
    told: set[type[Any]] = set()
    tables: Mapping[str, Callable[[], Iterable[str]]] = {
        "[people]": lambda: (line for each in _BY_PEOPLE for line in _format(each, told)),
        "[provenance]": lambda: _class(Provenance),
        "[autotm]": lambda: (line for each in _BY_AUTOTM for line in _format(each, told)),
        "[answers]": lambda: (line for each in _ANSWERS for line in _format(each, told)),
        "[profile]": _profile,
        "[tables]": _columns,
    }
    lines = PAGE.read_text(encoding="utf-8").replace("[profile version]", str(schema_version("profile"))).splitlines()
    whole = [made for line in lines for made in (tables[line]() if line in tables else (line,))]
    return "\n".join(line for line, after in zip(whole, [*whole[1:], ""], strict=True) if line or after) + "\n"


def _format(each: Format, told: set[type[Any]]) -> Iterator[str]:
    """Yield a file, then the classes that its fields are made of, unless they have been told."""
    yield from (f"### `{each.name}`", "")
    yield each.about + (f" Kind `{each.kind}`, version {schema_version(each.kind)}." if each.kind else "")
    yield ""
    yield from _class(each.fields)
    told.add(each.fields)
    waiting = list(_parts(each.fields))
    while waiting:
        kind = waiting.pop(0)
        if kind not in told:
            told.add(kind)
            yield from (f"#### {kind.__name__}", "")
            yield from _class(kind)
            waiting += _parts(kind)


def _parts(kind: type[Any]) -> Iterator[type[Any]]:
    return (inner for field in fields_of(kind) for inner in inner_types(field.kind))


def _class(kind: type[Any]) -> Iterator[str]:
    yield from (paragraphs(kind), "")
    yield from _fields(fields_of(kind))


def _profile() -> Iterator[str]:
    yield from (paragraphs(Timing), "")
    keys = [Field(name, str, "", None, meaning) for name, meaning in KEY_COLUMNS.items()]
    yield from _fields([*keys, *fields_of(Timing)])


def _fields(fields: Iterable[Field]) -> Iterator[str]:
    rows = (
        (f"`{field.name}`", _holds(field), field.unit, f"`{field.default}`" if field.default else "", field.meaning)
        for field in fields
    )
    return _table(("field", "holds", "unit", "default", "meaning"), rows)


def _holds(field: Field) -> str:
    return f"{in_words(field.kind)} {field.range}".rstrip()


def _columns() -> Iterator[str]:
    return _table(("column", "unit", "meaning"), ((f"`{name}`", unit_of(name), MEANINGS[name]) for name in MEANINGS))


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    for row in (head, ("---",) * len(head), *rows):
        yield f"| {' | '.join(cell.replace('|', _BAR) for cell in row)} |"
    yield ""


if __name__ == "__main__":
    try:
        print(text(), end="")
    except MeaninglessError as error:
        sys.exit(f"docs/site/formats.py: {error}")
