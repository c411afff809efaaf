"""A compiled step, placed as often as one likes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from autotm.api.options import options_of
from autotm.api.placement import Placement
from autotm.kernels.library import KernelLibrary
from autotm.model.files import BadInputError
from autotm.model.machine import provenance
from autotm.model.measurement import Links, Profile
from autotm.model.plan import Plan, Refusal
from autotm.model.step import RATE_SCALE, Graph, Limit, Role
from autotm.model.study import SolveConfig
from autotm.solve import SolveOptions
from autotm.stages import SWEEP_S, Context, place, place_each, program_of
from autotm.study.setup import require_optimizer
from autotm.zoo import Origin

if TYPE_CHECKING:
    from autotm.study.sweep import SweepResult


@dataclass(frozen=True)
class TrainingStep:
    """A compiled training step whose kernels have been timed on a machine; placed as often as one likes.

    Attributes:
        lowered: the step as compiled.
        graph: the same as limits see it, with or without parameters, inputs and results (`counts`).
        profile: times of its kernels by configuration.
        library: its kernels.
        links: measured copies between the two kinds of memory.
        context: machine, seed, what limits count.
        origin: the way back to where the network came from.
    """

    lowered: Graph
    graph: Graph
    profile: Profile
    library: KernelLibrary
    links: Links
    context: Context
    origin: Origin

    @property
    def peak_bytes(self) -> int:
        """Fast memory that the step needs when nothing is slow, in bytes: what ratios divide."""
        return self.graph.peak_live_bytes

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the network's inputs, in order."""
        inputs = (tensor.name for tensor in self.lowered.tensors if tensor.role is Role.INPUT)
        return tuple(name for name in inputs if name != RATE_SCALE)

    @property
    def is_scheduled(self) -> bool:
        """Whether steps take a scale of the learning rates."""
        return RATE_SCALE in self.lowered.by_name

    def as_given(self, value: npt.NDArray[Any]) -> Any:
        """A value as the network's framework has it: a tensor of PyTorch, or an array, of the same shape."""
        if not self.origin.is_torch:
            return value
        import torch  # noqa: PLC0415 - only for those who have it

        return torch.from_numpy(np.asarray(value))

    def plan(self, limit: str | float = "4:1", optimizer: str = "synchronous", **solver: Any) -> Placement:
        """Place the tensors within a limit on fast memory.

        Args:
            limit: a ratio slow:fast such as "8:1", a share of the peak such as "0.5x", or bytes: 4_500_000_000,
                "4500MB" or "4GiB".
            optimizer: static, synchronous, asynchronous, numa, all-fast or all-slow.
            solver: `gap`, `time_limit_s`, `additive_tolerance`, as under `solve` in config/config.yaml.

        Returns:
            A plan with addresses, ready to run.

        Raises:
            BadInputError: no such limit, optimizer or option.
            InfeasibleLimitError: no placement fits; names the smallest limit that one does.
        """
        options = self._solve_options(optimizer, solver)
        (placed,) = place(self.graph, self.profile, self.links, optimizer, [Limit.parse(limit)], options)
        return Placement(self, placed, program_of(self.graph, placed))

    def sweep(
        self,
        limits: Sequence[str | float] | None = None,
        optimizer: str = "synchronous",
        *,
        run: bool | Mapping[str, Any] = False,
        sweep_s: float = SWEEP_S,
        **solver: Any,
    ) -> SweepResult[Placement]:
        """As `plan` for several limits, which share one model: how little fast memory the step needs.

        Args:
            limits: as in `plan`; None for a series from all fast down to the least that can be kept.
            optimizer: as in `plan`.
            run: whether to run each placement, or the options of `Placement.run`.
            sweep_s: seconds for the placements of all limits together; what is found by then is taken, with its gap.
            solver: as in `plan`.

        Returns:
            The placements, with `.table` (a DataFrame; a row for each limit, also for those that no placement can
            keep), `.answers` and `.plot("sweep.pdf")`; as text the table and the answers.

        Raises:
            BadInputError: no such limit, optimizer or option.
            VerificationError: as `Placement.run`.
            AutotmError: as `Placement.run`.
        """
        from autotm.study.sweep import SweepPoint, SweepResult, sweep_table  # noqa: PLC0415 - imports pandas

        options = replace(self._solve_options(optimizer, solver), sweep_s=sweep_s)
        if limits is not None and (isinstance(limits, str) or not limits):
            raise BadInputError(f"limits: {limits!r}: give a list of at least one, or None for a series of them")
        asked = None if limits is None else list(dict.fromkeys(map(Limit.parse, limits)))
        found = list(place_each(self.graph, self.profile, self.links, optimizer, asked, options))
        refused = [one for one in found if isinstance(one, Refusal)]
        placed = [Placement(self, one, program_of(self.graph, one)) for one in found if isinstance(one, Plan)]
        how = dict(run) if isinstance(run, Mapping) else {}
        points = [SweepPoint(one.plan, one.program, one.run(**how) if run is not False else None) for one in placed]
        source = provenance(self.context.machine, self.context.seed)
        return SweepResult(sweep_table(self.graph, self.profile, optimizer, points, refused, source), tuple(placed))

    def _solve_options(self, optimizer: str, solver: Mapping[str, Any]) -> SolveOptions:
        require_optimizer(optimizer)
        config = options_of(SolveConfig, solver, "solver option")
        fast_only = self.context.machine.fast_operands_only
        return SolveOptions(**config.model_dump(), seed=self.context.seed, fast_operands_only=fast_only)
