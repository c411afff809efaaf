"""A compiled training step, and a plan of it with addresses that is run, timed, or trained on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from autotm.kernels.library import KernelLibrary
from autotm.model.config import RunConfig, SolveConfig
from autotm.model.errors import BadInputError, validated
from autotm.model.graph import Graph, Role
from autotm.model.limit import Limit
from autotm.model.links import Links
from autotm.model.plan import Plan, Refusal, Status
from autotm.model.profile import Profile
from autotm.model.program import Program
from autotm.model.provenance import provenance
from autotm.model.record import Record
from autotm.model.training import RATE_SCALE
from autotm.runtime.run import run
from autotm.runtime.session import Session
from autotm.runtime.step_times import RunOptions
from autotm.solve.options import SolveOptions
from autotm.stages.context import Context
from autotm.stages.solve import options_of, place, place_each, program_of
from autotm.stages.sweep import SWEEP_S
from autotm.study.setup import require_optimizer
from autotm.zoo import Origin

if TYPE_CHECKING:
    from autotm.study.sweep import SweepResult


@dataclass(frozen=True)
class Placement:
    """A plan with addresses, ready to run; an independent checker has vouched for both.

    Attributes:
        training_step: what it places.
        plan: where each tensor is when, the moves, bound and certificate.
        program: the same with addresses.
    """

    training_step: TrainingStep
    plan: Plan
    program: Program

    @property
    def predicted_s(self) -> float:
        """Predicted time of a step in seconds, from the profile."""
        return self.plan.objective_us / 1e6

    @property
    def bound_s(self) -> float:
        """Seconds: no placement of this optimizer is predicted to take less."""
        return self.plan.bound_us / 1e6

    @property
    def gap(self) -> float:
        """Share of the predicted time that is not proven necessary, in [0, 1]."""
        return self.plan.gap

    def run(self, **options: Any) -> Record:
        """Compare the step's results with those of the plain step, bit for bit, then time it.

        Args:
            options: `min_steps`, `min_seconds`, `verify_steps`, `side_by_side` ..., as under `run` in the config.

        Returns:
            What was measured, as in record.json.

        Raises:
            BadInputError: no such option.
            VerificationError: the step computes something else than the plain step.
            AutotmError: kernels run on fewer threads than the machine asks for.
        """
        step, config = self.training_step, validated(RunConfig, options, "run option")
        return run(
            step.lowered,
            step.library,
            self.program,
            self.plan,
            step.context.machine,
            step.links,
            step.profile,
            RunOptions(**config.model_dump(), seed=step.context.seed),
            step.context.devices_dir,
        )

    def view(self, path: str | Path, record: Record | None = None) -> None:
        """Write one page that shows where each tensor is when; any browser opens it, and it needs nothing else.

        Args:
            path: an .html file.
            record: what `run` gave, to be shown beside the prediction.
        """
        from autotm.study.placed import Placed  # noqa: PLC0415 - imports pandas
        from autotm.study.view.page import write_page  # noqa: PLC0415 - imports seaborn

        step = self.training_step
        source = provenance(step.context.machine, step.context.seed)
        write_page(Placed(step.graph, step.profile, step.links, self.plan, self.program, source, record), Path(path))

    def step(self, *inputs: Any, rate_scale: float | None = None, **named: Any) -> Any:
        """Run one step with the planned program, on new data; weights stay from step to step.

        The first call allocates the memory, which `close` gives back.

        Args:
            inputs: arrays or tensors in the order of the network's inputs, those of its loss behind them; what is left
                out keeps its values.
            rate_scale: what all learning rates are multiplied by from this step on, at least 0 (1 at first); of a step
                prepared with `scheduled`.
            named: the same by name.

        Returns:
            The loss; of a network that infers, its outputs. Those of a module of PyTorch are tensors, nested as the
            module nests them.

        Raises:
            BadInputError: no such input, another shape or type, an index out of range, or a scale of rates that are
                fixed or that is none.
        """
        origin, known, session = self.training_step.origin, self.training_step.input_names, self._session
        fed = origin.fed(known, [_array(item) for item in inputs], {name: _array(item) for name, item in named.items()})
        if rate_scale is not None:
            if not self.training_step.is_scheduled:
                raise BadInputError(
                    f"rate_scale: the learning rates of network {self.training_step.graph.network} are compiled in; "
                    "prepare it with scheduled=True"
                )
            if not 0 <= rate_scale < math.inf:
                raise BadInputError(f"rate_scale: {rate_scale} is not a number of at least 0")
            fed[RATE_SCALE] = np.asarray(rate_scale, np.float64)
        session.feed(fed)
        by_name = self.training_step.lowered.by_name
        whole = [name for name in known if np.issubdtype(by_name[name].dtype, np.integer)]
        origin.check({name: origin.back(name, session.value(name)) for name in whole})
        results = session.step()
        if "loss" in results:
            return results["loss"].item()
        return origin.outputs([self.training_step.to_framework(value) for value in results.values()])

    def state_dict(self) -> dict[str, Any]:
        """Return the weights and running averages as they are after the steps run so far, by their names in the source.

        Of a network that came from PyTorch: what its module's `load_state_dict` takes.
        """
        session = self._session
        state = self.training_step.origin.state(session.values(), session.steps)
        return {name: self.training_step.to_framework(value) for name, value in state.items()}

    def optimizer_state(self) -> dict[str, Any]:
        """Return the state of the update rules after the steps run so far.

        Returns:
            By parameter, named as in `state_dict`, the state of its rule: `momentum`, or `first_moment` and
            `second_moment`, in the parameter's layout; beside them under `step`, where a rule counts steps, how many.
        """
        by_parameter = self.training_step.origin.rule_state(self._session.values(), self._parameters)
        return {
            name: {key: self.training_step.to_framework(value) for key, value in state.items()}
            if isinstance(state, dict)
            else state
            for name, state in by_parameter.items()
        }

    def load_optimizer_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `optimizer_state` returned, of a placement of the same network with the same rules.

        Raises:
            BadInputError: a parameter or state that this step does not have, one left out, or another shape.
        """
        session, origin = self._session, self.training_step.origin
        arrays = {
            name: {key: np.asarray(value) for key, value in item.items()} if isinstance(item, Mapping) else item
            for name, item in state.items()
        }
        session.put(origin.from_rule_state(arrays, origin.rule_state(session.values(), self._parameters)))

    def close(self) -> None:
        """Give back the memory of the steps run by `step`; the weights are gone with it."""
        if "_session" in self.__dict__:
            self._session.close()
            del self.__dict__["_session"]

    @property
    def _parameters(self) -> list[str]:
        return [tensor.name for tensor in self.training_step.lowered.tensors if tensor.role is Role.PARAMETER]

    @cached_property
    def _session(self) -> Session:
        step = self.training_step
        return Session(
            step.lowered,
            step.library,
            self.program,
            step.context.counts,
            step.context.machine,
            step.links,
            step.context.devices_dir,
            step.context.seed,
        )

    def __str__(self) -> str:
        placed = self.plan
        # Where no solver searched for a plan, nothing is proven of it.
        proof = "" if placed.status is Status.NOT_OPTIMIZED else f", proven within {placed.gap:.2%} of the best"
        if placed.solver_gap is not None:
            proof += f" (the solver claims {placed.solver_gap:.2%})"
        if placed.paged is not None:
            proof += f", pages {placed.paged.placed_by}"
        fast_bytes = placed.one_pool.fast_bytes if placed.one_pool else self.program.fast_bytes
        slow_bytes = self.program.slow_bytes - (fast_bytes if placed.paged else 0)
        return (
            f"{self.training_step.graph.network}, {placed.optimizer}, limit {placed.limit} "
            f"({fast_bytes / 1e6:.6g} MB fast, {slow_bytes / 1e6:.6g} MB slow memory): "
            f"{self.predicted_s:.6g} s a step predicted{proof}; {len(placed.moves)} moves"
        )


def _array(value: Any) -> npt.NDArray[Any]:
    """Return an input's value as an array; a tensor of PyTorch is detached and copied to the host first."""
    return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)


# A compiled step, placed as often as one likes.


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
        origin: how the step's tensors correspond to those of the network's source.
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

    def to_framework(self, value: npt.NDArray[Any]) -> Any:
        """Convert a value to the network's framework: a tensor of PyTorch, or an array, of the same shape."""
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
        ((plan, layout),) = place(self.graph, self.profile, self.links, optimizer, [Limit.parse(limit)], options)
        return Placement(self, plan, program_of(self.graph, plan, layout))

    def sweep(
        self,
        limits: Sequence[str | float] | None = None,
        optimizer: str = "synchronous",
        *,
        run: bool | Mapping[str, Any] = False,
        sweep_s: float = SWEEP_S,
        **solver: Any,
    ) -> SweepResult[Placement]:
        """Plan for several limits, which share one model, and tell how little fast memory the step needs.

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
        outcomes = list(place_each(self.graph, self.profile, self.links, optimizer, asked, options))
        refused = [one for one in outcomes if isinstance(one, Refusal)]
        kept = [one for one in outcomes if not isinstance(one, Refusal)]
        placed = [Placement(self, plan, program_of(self.graph, plan, layout)) for plan, layout in kept]
        how = dict(run) if isinstance(run, Mapping) else {}
        points = [SweepPoint(one.plan, one.program, one.run(**how) if run is not False else None) for one in placed]
        source = provenance(self.context.machine, self.context.seed)
        return SweepResult(sweep_table(self.graph, self.profile, optimizer, points, refused, source), tuple(placed))

    def _solve_options(self, optimizer: str, solver: Mapping[str, Any]) -> SolveOptions:
        require_optimizer(optimizer)
        return options_of(self.context, validated(SolveConfig, dict(solver), "solver option"))
