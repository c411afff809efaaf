"""A plan with addresses: to be run and timed, or trained on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from autotm.api.options import options_of
from autotm.model.files import BadInputError
from autotm.model.machine import provenance
from autotm.model.measurement import Record
from autotm.model.plan import Plan, Program, Status
from autotm.model.step import RATE_SCALE, Role
from autotm.model.study import RunConfig
from autotm.runtime import RunOptions, Session, run

if TYPE_CHECKING:
    from autotm.api.training_step import TrainingStep


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
        step, config = self.training_step, options_of(RunConfig, options, "run option")
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
        from autotm.study.view import Placed, write_page  # noqa: PLC0415 - imports seaborn

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
            fed[RATE_SCALE] = self._scale(rate_scale)
        session.feed(fed)
        by_name = self.training_step.lowered.by_name
        whole = [name for name in known if np.issubdtype(by_name[name].dtype, np.integer)]
        origin.check({name: origin.back(name, session.value(name)) for name in whole})
        found = session.step()
        if "loss" in found:
            return found["loss"].item()
        return origin.outputs([self.training_step.as_given(value) for value in found.values()])

    def state_dict(self) -> dict[str, Any]:
        """Weights and running averages as they are after the steps run so far, by their names in the source.

        Of a network that came from PyTorch: what its module's `load_state_dict` takes.
        """
        session = self._session
        found = self.training_step.origin.state(session.values(), session.steps)
        return {name: self.training_step.as_given(value) for name, value in found.items()}

    def optimizer_state(self) -> dict[str, Any]:
        """What the update rules keep, as it is after the steps run so far.

        Returns:
            By parameter, named as in `state_dict`, what its rule keeps: `momentum`, or `first_moment` and
            `second_moment`, in the parameter's layout; beside them under `step`, where a rule counts steps, how many.
        """
        found = self.training_step.origin.rule_state(self._session.values(), self._parameters)
        return {
            name: {state: self.training_step.as_given(value) for state, value in kept.items()}
            if isinstance(kept, dict)
            else kept
            for name, kept in found.items()
        }

    def load_optimizer_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `optimizer_state` gave, of a placement of the same network with the same rules.

        Raises:
            BadInputError: a parameter or state that this step does not have, one left out, or another shape.
        """
        session, origin = self._session, self.training_step.origin
        given = {
            name: {key: np.asarray(value) for key, value in kept.items()} if isinstance(kept, Mapping) else kept
            for name, kept in state.items()
        }
        session.put(origin.from_rule_state(given, origin.rule_state(session.values(), self._parameters)))

    def close(self) -> None:
        """Give back the memory of the steps run by `step`; the weights are gone with it."""
        if "_session" in self.__dict__:
            self._session.close()
            del self.__dict__["_session"]

    @property
    def _parameters(self) -> list[str]:
        return [tensor.name for tensor in self.training_step.lowered.tensors if tensor.role is Role.PARAMETER]

    def _scale(self, rate_scale: float) -> npt.NDArray[np.float64]:
        if not self.training_step.is_scheduled:
            raise BadInputError(
                f"rate_scale: the learning rates of network {self.training_step.graph.network} are compiled in; "
                "prepare it with scheduled=True"
            )
        if not 0 <= rate_scale < math.inf:
            raise BadInputError(f"rate_scale: {rate_scale} is not a number of at least 0")
        return np.asarray(rate_scale, np.float64)

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
        # A plan that nothing searched for has no better one to be near to.
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
