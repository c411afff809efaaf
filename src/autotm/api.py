"""One's own network from Python: `autotm.plan(network, limit="4:1").run()`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from autotm import zoo
from autotm.kernels.library import KernelLibrary
from autotm.model.files import BadInputError, explain, load_with_provenance, unknown_name
from autotm.model.machine import Machine, load_machine, provenance
from autotm.model.measurement import Links, Profile, Record
from autotm.model.plan import Plan, Program, Status
from autotm.model.step import Counts, Graph, Limit, counting
from autotm.model.study import MachinePaths, ProfileConfig, RunConfig, SolveConfig, TuneConfig
from autotm.runtime import RunOptions, run
from autotm.solve import SolveOptions
from autotm.stages import Context, calibrate_stage, compile_and_profile, place, program_of
from autotm.study.setup import require_compiler, require_optimizer

SCALE = "own"
"""What records call the scale of a network that was given from Python."""
_CONFIG = Path("config")
_CHECKOUT = Path(__file__).parents[2]

NetworkLike = zoo.Network | Callable[..., zoo.Network] | str
Options = TypeVar("Options", bound=BaseModel)


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
    """

    lowered: Graph
    graph: Graph
    profile: Profile
    library: KernelLibrary
    links: Links
    context: Context

    @property
    def peak_bytes(self) -> int:
        """Fast memory that the step needs when nothing is slow: what ratios divide."""
        return self.graph.peak_live_bytes

    def plan(self, limit: str | int = "4:1", optimizer: str = "synchronous", **solver: Any) -> Placement:
        """Place the tensors within a limit on fast memory.

        Args:
            limit: a ratio slow:fast such as "8:1", or bytes: 4_500_000_000, "4500MB" or "4GiB".
            optimizer: static, synchronous, asynchronous, numa, all-fast or all-slow.
            solver: `gap`, `time_limit_s`, `additive_tolerance`, as under `solve` in config/config.yaml.

        Raises:
            BadInputError: no such limit, optimizer or option.
            InfeasibleLimitError: no placement fits; names the smallest limit that one does.
        """
        return next(self.sweep([limit], optimizer, **solver))

    def sweep(self, limits: Sequence[str | int], optimizer: str = "synchronous", **solver: Any) -> Iterator[Placement]:
        """As `plan` for each limit in turn; they share one model."""
        require_optimizer(optimizer)
        config = _options(SolveConfig, solver, "solver option")
        options = SolveOptions(**config.model_dump(), seed=self.context.seed)
        asked = [Limit.parse(limit) for limit in limits]
        for placed in place(self.graph, self.profile, self.links, optimizer, asked, options):
            yield Placement(self, placed, program_of(self.graph, placed))


@dataclass(frozen=True)
class Placement:
    """A plan with addresses, ready to run; an independent checker has vouched for both.

    Attributes:
        step: what it places.
        plan: where each tensor is when, the moves, bound and certificate.
        program: the same with addresses.
    """

    step: TrainingStep
    plan: Plan
    program: Program

    @property
    def predicted_s(self) -> float:
        """Predicted time of a step, from the profile."""
        return self.plan.objective_us / 1e6

    @property
    def bound_s(self) -> float:
        """No placement of this optimizer is predicted to take less."""
        return self.plan.bound_us / 1e6

    @property
    def gap(self) -> float:
        """Share of the predicted time that is not proven necessary."""
        return self.plan.gap

    def run(self, **options: Any) -> Record:
        """Compare the step's results with those of the plain step, bit for bit, then time it.

        Args:
            options: `min_steps`, `min_seconds`, `verify_steps`, `side_by_side` ..., as under `run` in the config.

        Raises:
            BadInputError: no such option.
            VerificationError: the step computes something else than the plain step.
            AutotmError: kernels run on fewer threads than the machine asks for.
        """
        step, config = self.step, _options(RunConfig, options, "run option")
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

    def __str__(self) -> str:
        placed = self.plan
        # A plan that nothing searched for has no better one to be near to.
        proof = "" if placed.status is Status.NOT_OPTIMIZED else f", proven within {placed.gap:.2%} of the best"
        if placed.solver_gap is not None:
            proof += f" (the solver claims {placed.solver_gap:.2%})"
        return (
            f"{self.step.graph.network}, {placed.optimizer}, limit {placed.limit} "
            f"({self.program.fast_bytes / 1e6:.6g} MB fast, {self.program.slow_bytes / 1e6:.6g} MB slow memory): "
            f"{self.predicted_s:.6g} s a step predicted{proof}; {len(placed.moves)} moves"
        )


def plan(network: NetworkLike, limit: str | int = "4:1", optimizer: str = "synchronous", **prepared: Any) -> Placement:
    """Compile a training step, time its kernels, and place its tensors: `prepare(...).plan(limit, optimizer)`.

    `prepared` are the arguments of `prepare`, and those of the solver: `gap`, `time_limit_s`, `additive_tolerance`.
    """
    solver = {key: prepared.pop(key) for key in SolveConfig.model_fields if key in prepared}
    return prepare(network, **prepared).plan(limit, optimizer, **solver)


def prepare(
    network: NetworkLike,
    *,
    sizes: Mapping[str, Any] | None = None,
    counts: str = "all",
    machine: str | Path | Machine = "laptop",
    threads: int | None = None,
    seed: int = 20,
    profile: Mapping[str, Any] | None = None,
    results: Path | str = "results",
    config: Path | str | None = None,
) -> TrainingStep:
    """Compile the training step of a network and time its kernels.

    Args:
        network: what a `NetworkBuilder` ended with, a function that returns it, or the name of a network of the zoo.
        sizes: arguments of the function, e.g. `{"batch": 16}`.
        counts: what limits count: `all`, or `intermediates` without parameters, inputs and results, as in the paper.
        machine: a file in config/machines without .yaml, a path, or a machine.
        threads: instead of the machine's.
        seed: of weights, data and the solver.
        profile: how kernels are timed, as under `profile` in the config, e.g. `{"kernel_s": 0.05}`.
        results: folder of the caches (timings, machine code, copies measured), which a pipeline there shares.
        config: the folder of machines and devices; `config` here if there is one, else autotm's own.

    Raises:
        BadInputError: an argument is at fault, or the function.
        AutotmError: no C compiler, or kernels run on fewer threads than the machine asks for.
    """
    require_compiler()
    folder = _config_folder(config)
    on = machine if isinstance(machine, Machine) else load_machine(_machine_file(machine, folder), threads)
    if counts not in list(Counts):
        raise unknown_name("value of counts", counts, list(Counts))
    context = Context(on, folder / "devices", seed, Counts(counts))
    built = _network(network, sizes or {})
    paths = MachinePaths(Path(results), on)
    timing = _options(ProfileConfig, profile or {}, "profile option")
    links = _links(context, paths.links, timing.patience_s)
    came_from = provenance(on, seed, sizes=dict(sizes or {}))
    with tempfile.TemporaryDirectory(prefix="autotm-") as made:
        files = {"graph": Path(made) / "graph.json", "library": Path(made) / "kernels.so"}
        caches = {"store": paths.store, "objects": paths.objects, "values": paths.values}
        gain = TuneConfig().min_gain
        step, timed = compile_and_profile(context, built, SCALE, timing, gain, links, came_from, **caches, **files)
        kernels = KernelLibrary.load(files["library"])
    return TrainingStep(step, counting(step, context.counts), timed, kernels, links, context)


def _network(network: NetworkLike, sizes: Mapping[str, Any]) -> zoo.Network:
    if isinstance(network, str):
        return zoo.build(network, sizes)
    if isinstance(network, zoo.Network):
        if sizes:
            raise BadInputError(f"network {network.name}: has its sizes; they go to a function that returns a network")
        return network
    if callable(network):
        return zoo.call(network, sizes)
    raise BadInputError(
        f"a {type(network).__name__} is no network: give a Network, a function that returns one, or a name of the zoo"
    )


def _config_folder(config: Path | str | None) -> Path:
    if config is not None:
        return Path(config)
    return _CONFIG if (_CONFIG / "machines").is_dir() else _CHECKOUT / _CONFIG


def _machine_file(machine: str | Path, folder: Path) -> Path:
    path = Path(machine)
    return path if path.suffix == ".yaml" else folder / "machines" / f"{machine}.yaml"


def _links(context: Context, file: Path, patience_s: float) -> Links:
    """Copies as measured before on the same cores with the same machine file, or now."""
    now = provenance(context.machine, context.seed)
    if file.exists():
        links, before = load_with_provenance(file, "links", Links)
        if all(before.get(key) == now[key] for key in ("machine_file_hash", "cpus", "copying_cpus", "cpu_model")):
            return links
    calibrate_stage(context, patience_s, links=file)
    return load_with_provenance(file, "links", Links)[0]


def _options(kind: type[Options], given: Mapping[str, Any], what: str) -> Options:
    try:
        return kind.model_validate(dict(given))
    except ValidationError as error:
        raise BadInputError(explain(what, error, kind)) from None
