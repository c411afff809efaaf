"""Decisions on which operators share a kernel, as a file has them: requested ones, and what became of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from autotm.model.graph import ScheduleKind


class Decision(StrEnum):
    """What becomes of an operator at a place where its value is read."""

    APPLY = "apply"
    INLINE = "inline"
    RECOMPUTE = "recompute"


class Reason(StrEnum):
    """Why another decision is executed than the requested one."""

    CIRCLE = "kernels would read one another's values"
    INSIDE = "the same kernel computes it for another reader"
    COPIED = "what a copy reads is copied, too"
    COMPARED = "its value is compared for equality, so it is computed once"
    UNSCHEDULED = "no schedule computes these operators in one kernel"
    HIDDEN = "its reader is not computed there"


@dataclass(frozen=True)
class Changed:
    """A decision that is not executed as requested.

    Attributes:
        executed: instead; None where there is nothing to decide.
        reason: why.
    """

    executed: Decision | None
    reason: Reason


@dataclass(frozen=True)
class FusionDecisions:
    """Decisions for a step, by path: the root of a tree, then operators that each is read by the one before.

    Attributes:
        network, scale: whose step it is.
        is_training: whether the step is the whole of training, or inference.
        identity: hash of the step's operators, their shapes, and which reads what.
        requested: decisions that are asked for; operators at other paths are applied.
        changed: those that are not executed as requested.
        executed: the decisions that ask for just what is executed.
    """

    network: str
    scale: str
    is_training: bool
    identity: str
    requested: Mapping[str, Decision]
    changed: Mapping[str, Changed] = field(default_factory=dict)
    executed: Mapping[str, Decision] = field(default_factory=dict)


@dataclass(frozen=True)
class FusionTimes:
    """A step as decisions fuse it beside the same by TVM's fusion, the default; all measured in turn.

    Attributes:
        step_s, default_s: medians of both.
        ratio: of these medians.
        ratio_error: its standard error, as a share of it.
        noise: the median of a second copy of the default over the default's.
        noise_error: its standard error, as a share of it.
        difference: largest difference of a result, as a share of what is allowed.
        disturbed: whether others held the cores in so many rounds that all count, and times are too long.
    """

    step_s: float
    default_s: float
    ratio: float
    ratio_error: float
    noise: float
    noise_error: float
    difference: float
    disturbed: bool


@dataclass(frozen=True)
class FusionRun:
    """A step as decisions fuse it.

    Attributes:
        decisions: requested, and what became of them.
        operators: of the step.
        kernels, default_kernels: that compute it, and that compute it by TVM's fusion.
        peak_bytes, default_peak_bytes: of tensors and workspaces, when nothing is slow.
        times: measured.
    """

    decisions: FusionDecisions
    operators: int
    kernels: int
    default_kernels: int
    peak_bytes: int
    default_peak_bytes: int
    times: FusionTimes

    def __str__(self) -> str:
        own, times = self.decisions, self.times
        kind = "training" if own.is_training else "inference"
        kept = len(own.requested) - sum(path in own.requested for path in own.changed)
        step_ms, default_ms = times.step_s * 1e3, times.default_s * 1e3
        error, noise_error = times.ratio * times.ratio_error, times.noise * times.noise_error
        lines = [
            f"{own.network} at {own.scale}, {kind}: {self.operators} operators",
            f"{kept} of {len(own.requested)} decisions executed as requested",
            *(
                f"  {path}: {own.requested.get(path, 'apply')} -> {changed.executed or 'nothing'}: {changed.reason}"
                for path, changed in own.changed.items()
            ),
            f"results equal those by TVM's fusion: largest difference {times.difference:.2g} of what is allowed",
            f"kernels {self.kernels}, by TVM's fusion {self.default_kernels}",
            f"peak {self.peak_bytes / 1e6:.4g} MB, by TVM's fusion {self.default_peak_bytes / 1e6:.4g} MB",
            f"step {step_ms:.4g} ms, by TVM's fusion {default_ms:.4g} ms, measured in turn",
            f"ratio {times.ratio:.3f} +- {error:.3f}, of TVM's fusion to itself {times.noise:.3f} +- {noise_error:.3f}",
        ]
        if times.disturbed:
            lines.append("others held the cores meanwhile: these times are too long")
        return "\n".join(lines)


@dataclass(frozen=True)
class RegionSearch:
    """Operators of a step that share kernels with one another only, and what was looked at of them.

    Attributes:
        operators: of each such region.
        edges: pairs of them that one kernel can compute.
        alike: regions of the step that have the same operators.
        groups: that one kernel can compute.
        failure: why they keep the kernels of TVM's fusion; empty if they were searched.
    """

    operators: int
    edges: int
    alike: int
    groups: int
    failure: str = ""


class Kind(StrEnum):
    """How a grouping was chosen."""

    CHEAPEST = "cheapest"
    UNFUSED = "unfused"
    RANDOM = "random"
    DEFAULT = "default"
    """TVM's own, compiled anew: the same code at another place in memory, so its ratio is noise."""


@dataclass(frozen=True)
class GroupingTimes:
    """A grouping of the operators of a step.

    Attributes:
        kind: how it was chosen.
        decisions: that ask for it.
        kernels: of the step.
        peak_bytes: of tensors and workspaces, when nothing is slow.
        sum_s: of its kernels, each measured alone.
        times: measured in turn with all others and with TVM's fusion; None if results were wrong.
        failure: what was wrong.
    """

    kind: Kind
    decisions: Mapping[str, Decision]
    kernels: int
    peak_bytes: int
    sum_s: float
    times: FusionTimes | None
    failure: str = ""


@dataclass(frozen=True)
class FusionOptimum:
    """How far TVM's fusion is from the best grouping of a step's operators.

    Groupings are those in which each operator is computed once. Their times are predicted by sums of kernels.

    Attributes:
        network, scale, is_training, identity: as in `FusionDecisions`.
        operators: of the step.
        default_kernels, default_peak_bytes, default_sum_s: of TVM's fusion.
        kernels_timed: different kernels that were timed alone.
        regions: of the operators; a region of a single one is left out.
        groupings: that were measured whole.
        best: the fastest of them that is no copy of TVM's fusion, measured once more, since the fastest of many is so
            by luck, too; its place in `groupings`, -1 where all were wrong.
        best_times: of that second measurement.
        failures: groups whose kernels could not be compiled, with the reason; groupings that have one are left out.
    """

    network: str
    scale: str
    is_training: bool
    identity: str
    operators: int
    default_kernels: int
    default_peak_bytes: int
    default_sum_s: float
    kernels_timed: int
    regions: tuple[RegionSearch, ...]
    groupings: tuple[GroupingTimes, ...]
    best: int
    best_times: FusionTimes | None
    failures: tuple[str, ...] = ()


State = tuple[tuple[str, Decision], ...]
"""What is not applied in a grouping: paths and decisions, by the paths. It asks for just that grouping."""


@dataclass(frozen=True)
class Trial:
    """What became of a grouping that a search tried.

    Attributes:
        state: decisions that ask for it, those that apply left out.
        kernels: of the step; None if it could not be compiled.
        times: measured in turn with TVM's fusion; None if it failed.
        failure: why.
    """

    state: State
    kernels: int | None
    times: FusionTimes | None
    failure: str = ""

    @property
    def energy(self) -> float:
        """Time over that of TVM's fusion; infinite if it failed."""
        return self.times.ratio if self.times is not None else math.inf


@dataclass(frozen=True)
class SearchStep:
    """One step of a search.

    Attributes:
        step: its number, from 0.
        trial: of the grouping that was proposed. One that was proposed before was not tried again.
        temperature: of annealing, over the time of TVM's fusion; None elsewhere.
        is_accepted: whether the search went on from the proposal.
    """

    step: int
    trial: Trial
    temperature: float | None
    is_accepted: bool


@dataclass(frozen=True)
class FusionSearch:
    """A search for groupings that take less time than TVM's fusion, from which it began.

    Attributes:
        network, scale, is_training: whose step it is.
        algorithm: `annealing`, `random_walk` or `independent` draws.
        search_seed: of the search.
        steps: of the search.
    """

    network: str
    scale: str
    is_training: bool
    algorithm: str
    search_seed: int
    steps: tuple[SearchStep, ...]


class Verdict(StrEnum):
    """What a fusion does to the time of a step, beyond the noise."""

    HARMFUL = "harmful"
    HELPFUL = "helpful"
    NEUTRAL = "no difference"
    UNMEASURED = "step not measured"


@dataclass(frozen=True)
class RegroupedStep:
    """A step of which some fusions are off, or are replaced by several kernels.

    Attributes:
        kernels: of the step.
        peak_bytes: of tensors and workspaces, when nothing is slow.
        times: measured in turn with TVM's fusion; None if results were wrong.
        failure: what was wrong.
    """

    kernels: int
    peak_bytes: int
    times: FusionTimes | None
    failure: str = ""

    def __str__(self) -> str:
        if self.times is None:
            return self.failure
        return f"{self.times.ratio:.3f} +- {self.times.ratio * self.times.ratio_error:.3f}"


@dataclass(frozen=True)
class AuditedFusion:
    """Operators that TVM's fusion computes by one kernel, wherever the step has that kernel.

    Times of kernels are medians of each kernel measured alone, and sums of these.

    Attributes:
        operators: names of those of its first occurrence, in the order of the step.
        shapes: of their results.
        occurrences: kernels of the step with the same code.
        on_s: of the fused kernel.
        off_s: of a kernel for each operator.
        partial_s: of the cheapest other kernels of these operators; None if no others take less than `off_s`.
        partial: operators of each of these kernels.
        is_exhaustive: whether all other kernels were looked at. Where there are too many, only single cuts were: an
            operator and what it depends on in one kernel, the rest in others.
        saved_bytes: that one occurrence does not write to memory, or does not read from there.
        schedule: where that of the fused kernel comes from; `as written` where there is none, and it has one thread.
        off, partial_step: the step with all occurrences off, or replaced; None if it was not measured.
        again: the faster of these steps, measured in a run of its own, if the fusion seemed harmful.
        verdict: on the fusion, by these steps.
        remedy: `off` or `partial`, the faster, if the fusion is harmful; else empty.
    """

    operators: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    occurrences: int
    on_s: float
    off_s: float
    partial_s: float | None
    partial: tuple[tuple[str, ...], ...]
    is_exhaustive: bool
    saved_bytes: int
    schedule: ScheduleKind
    off: RegroupedStep | None = None
    partial_step: RegroupedStep | None = None
    again: RegroupedStep | None = None
    verdict: Verdict = Verdict.UNMEASURED
    remedy: str = ""

    @property
    def title(self) -> str:
        """What it computes, such as `conv2d + add + silu`."""
        return _joined(self.operators)

    @property
    def gain_s(self) -> float:
        """What the step gains without the fusion, by sums of kernels; negative where it loses."""
        return self.occurrences * (self.on_s - min(self.off_s, self.partial_s or self.off_s))

    def __str__(self) -> str:
        first = f"{self.operators[0]} {list(self.shapes[0])}"
        written = ", as written, for want of a schedule" if self.schedule is ScheduleKind.AS_WRITTEN else ""
        alone = f"alone: on {_us(self.on_s)}{written}, off {_us(self.off_s)}"
        if self.partial_s is not None:
            searched = "" if self.is_exhaustive else ", of single cuts"
            alone += f", partial {_us(self.partial_s)} ({'; '.join(map(_joined, self.partial))}{searched})"
        elif not self.is_exhaustive:
            alone += ", no single cut takes less"
        steps = [
            f"step, {name}: {step} of TVM's fusion's time, peak {step.peak_bytes / 1e6:.4g} MB"
            for name, step in (("off", self.off), ("partial", self.partial_step), ("the faster again", self.again))
            if step is not None
        ]
        times = "once" if self.occurrences == 1 else f"{self.occurrences} times"
        head = f"{self.title}: {self.verdict}{f', best {self.remedy}' if self.remedy else ''}"
        saved = f"saves {self.saved_bytes / 1e6:.4g} MB of writes and reads each time"
        return "\n  ".join([head, f"{times}, first at {first}; {saved}", alone, *steps])


def _joined(operators: Sequence[str]) -> str:
    return " + ".join(name.rpartition(".")[0] for name in operators)


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.4g} us"


@dataclass(frozen=True)
class FusionAudit:
    """What each fusion by TVM does to a step.

    Attributes:
        network, scale, is_training, identity: as in `FusionDecisions`.
        operators: of the step.
        default_kernels, default_peak_bytes: of TVM's fusion.
        kernels_timed: different kernels that were timed alone.
        fusions: those first without which the step gains most by kernels alone. Of these as many as were asked for were
            measured as whole steps.
        mended: the step without the harmful ones, measured in a run of its own; None if there are none.
    """

    network: str
    scale: str
    is_training: bool
    identity: str
    operators: int
    default_kernels: int
    default_peak_bytes: int
    kernels_timed: int
    fusions: tuple[AuditedFusion, ...]
    mended: RegroupedStep | None

    def __str__(self) -> str:
        kind = "training" if self.is_training else "inference"
        kernels = sum(one.occurrences for one in self.fusions)
        head = (
            f"{self.network} at {self.scale}, {kind}: {self.operators} operators in {self.default_kernels} kernels, "
            f"{kernels} of them fused, {len(self.fusions)} different; peak {self.default_peak_bytes / 1e6:.4g} MB"
        )
        lines = [
            head,
            *(f"{number}. {one}" for number, one in enumerate(self.fusions, 1)),
            ", ".join(f"{verdict}: {sum(one.verdict is verdict for one in self.fusions)}" for verdict in Verdict),
        ]
        if self.mended is not None:
            lines.append(
                f"step without the harmful ones, measured again: {self.mended} of TVM's fusion's time, "
                f"kernels {self.mended.kernels}, peak {self.mended.peak_bytes / 1e6:.4g} MB"
            )
            if (times := self.mended.times) is not None:
                error = times.noise * times.noise_error
                lines.append(f"TVM's fusion to itself meanwhile: {times.noise:.3f} +- {error:.3f}")
        measured = [step for one in self.fusions for step in (one.off, one.partial_step, one.again) if step is not None]
        if any(step.times is not None and step.times.disturbed for step in (*measured, self.mended) if step):
            lines.append("others held the cores meanwhile: these times are too long")
        return "\n".join(lines)
