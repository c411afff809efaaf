"""Compiles a network's step and times its kernels."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotm import zoo
from autotm.api.training_step import Placement, TrainingStep
from autotm.kernels.library import KernelLibrary
from autotm.model.config import ProfileConfig, SolveConfig
from autotm.model.errors import BadInputError, unknown_name, validated
from autotm.model.files import cache_folder, config_folder, load_with_provenance
from autotm.model.limit import Counts, counting
from autotm.model.links import Links
from autotm.model.machine import Machine, load_machine
from autotm.model.paths import MachinePaths
from autotm.model.provenance import provenance
from autotm.model.training import Training, UpdateRule
from autotm.stages.context import Context
from autotm.stages.profile import calibrate_stage, compile_and_profile
from autotm.study.setup import require_compiler

if TYPE_CHECKING:
    from autotm.study.sweep import SweepResult


SCALE = "own"
"""Name of the scale, in records, of a network that was given from Python."""
_ONNX = ".onnx"

NetworkLike = Any
"""A Network, a function that returns one, the name of one of the zoo, a module of PyTorch with its inputs, or the path
of an ONNX file."""


def plan(
    network: NetworkLike,
    inputs: Any = None,
    limit: str | float = "4:1",
    optimizer: str = "synchronous",
    **prepared: Any,
) -> Placement:
    """Compile a step, time its kernels, and place its tensors: `prepare(network, inputs).plan(limit, optimizer)`.

    Args:
        network: as in `prepare`.
        inputs: as in `prepare`.
        limit: as in `TrainingStep.plan`.
        optimizer: as in `TrainingStep.plan`.
        prepared: further arguments of `prepare`, and those of the solver: `gap`, `time_limit_s`, `additive_tolerance`.

    Returns:
        A plan with addresses, ready to run.

    Raises:
        AutotmError: as `prepare` and `TrainingStep.plan`.
    """
    solver = {key: prepared.pop(key) for key in SolveConfig.model_fields if key in prepared}
    return prepare(network, inputs, **prepared).plan(limit, optimizer, **solver)


def sweep(
    network: NetworkLike,
    inputs: Any = None,
    limits: Sequence[str | float] | None = None,
    optimizer: str = "synchronous",
    **prepared: Any,
) -> SweepResult[Placement]:
    """Tell how little fast memory a step needs: `prepare(network, inputs).sweep(limits, optimizer)`.

    Args:
        network: as in `prepare`.
        inputs: as in `prepare`.
        limits: as in `TrainingStep.sweep`.
        optimizer: as in `TrainingStep.plan`.
        prepared: further arguments of `prepare`, those of the solver (as in `plan`), `run` and `sweep_s`
            (as in `TrainingStep.sweep`).

    Returns:
        The placements, with a table, answers and a picture.

    Raises:
        AutotmError: as `prepare` and `TrainingStep.sweep`.
    """
    taken = (*SolveConfig.model_fields, "run", "sweep_s")
    options = {key: prepared.pop(key) for key in taken if key in prepared}
    return prepare(network, inputs, **prepared).sweep(limits, optimizer, **options)


def prepare(
    network: NetworkLike,
    inputs: Any = None,
    *,
    sizes: Mapping[str, Any] | None = None,
    loss: Callable[..., Any] | str | None = None,
    targets: Sequence[Any] = (),
    training: Training | UpdateRule | Any = None,
    mode: str | None = None,
    kernels: str | None = None,
    scheduled: bool = False,
    counts: str = "all",
    machine: str | Path | Machine = "laptop",
    threads: int | None = None,
    seed: int = 20,
    profile: Mapping[str, Any] | None = None,
    results: Path | str | None = None,
    config: Path | str | None = None,
) -> TrainingStep:
    """Compile the training step of a network and time its kernels.

    Args:
        network: what a `NetworkBuilder` ended with, a function that returns it, the name of a network of the zoo, a
            module of PyTorch, or the path of an ONNX file, ending in .onnx.
        inputs: of a module or a file; this and what follows up to `mode` are as in `from_torch` and `from_onnx`.
        sizes: arguments of the function, e.g. `{"batch": 16}`; of a file its free dimensions.
        loss: of a module, or the name of a file's.
        targets: what the loss of a module takes besides.
        training: by which rules it is trained.
        mode: `train` or `inference`; by default a module is trained, a file where it is given a loss or training.
        kernels: of a module `auto`, `tvm` or `torch`, as in `from_torch`; of a file `auto` or `tvm`, as in `from_onnx`.
        scheduled: whether `Placement.step` takes a `rate_scale`, which all learning rates are multiplied by.
        counts: what limits count: `all`, or `intermediates` without parameters, inputs and results, as in the paper.
        machine: a file in config/machines without .yaml, a path, or a machine.
        threads: instead of the machine's.
        seed: of weights, data and the solver.
        profile: how kernels are timed, as under `profile` in the config, e.g. `{"kernel_s": 0.05}`.
        results: folder of the caches (timings, machine code, copies measured), which a pipeline there shares; by
            default `results` beside a `config` here, and elsewhere the user's own, $XDG_CACHE_HOME/autotm/results.
        config: the folder of machines and devices; `config` here if there is one, else autotm's own.

    Returns:
        The compiled step, to be placed as often as one likes.

    Raises:
        BadInputError: an argument is at fault, or the function.
        AutotmError: no C compiler, or kernels run on fewer threads than the machine asks for.
    """
    require_compiler()
    folder = Path(config or config_folder())
    has_config = config_folder() == Path("config")
    results = Path(results or (Path("results") if has_config else cache_folder() / "results"))
    if not isinstance(machine, Machine):
        file = Path(machine)
        machine = load_machine(file if file.suffix == ".yaml" else folder / "machines" / f"{file}.yaml", threads)
    if counts not in list(Counts):
        raise unknown_name("value of counts", counts, list(Counts))
    context = Context(machine, folder / "devices", seed, Counts(counts)).to_measure()
    options = {"loss": loss, "targets": targets, "training": training, "mode": mode, "kernels": kernels}
    built = _built(network, inputs, sizes or {}, options)
    if scheduled and built.training is None:
        raise BadInputError(f"network {built.name}: scheduled=True, but it is not trained: there is no learning rate")
    if scheduled:
        built = replace(built, training=replace(built.training, scheduled=True))
    paths = MachinePaths(results, context.machine)
    timing = validated(ProfileConfig, dict(profile or {}), "profile option")
    links = _links(context, paths.links, timing.patience_s)
    came_from = provenance(context.machine, seed, sizes=dict(sizes or {}))
    with tempfile.TemporaryDirectory(prefix="autotm-") as temporary:
        files = {"graph": Path(temporary) / "graph.json", "library": Path(temporary) / "kernels.so"}
        step, timed = compile_and_profile(context, built, SCALE, timing, links, came_from, paths, **files)
        kernels = KernelLibrary.load(files["library"])
    counted = counting(step, context.counts)
    return TrainingStep(step, counted, timed, kernels, links, context, built.origin or zoo.Origin())


def _built(network: NetworkLike, inputs: Any, sizes: Mapping[str, Any], options: Mapping[str, Any]) -> zoo.Network:
    """Return the network, built or imported where an argument only describes it."""
    # A module of PyTorch is told by the names of its classes, as importing PyTorch takes seconds.
    if any(kind.__module__.startswith("torch.nn.") for kind in type(network).__mro__):
        return _module(network, inputs, options)
    if isinstance(network, str | Path) and Path(network).suffix.lower() == _ONNX:
        return _file(network, inputs, sizes, options)
    if inputs is not None:
        raise BadInputError(
            f"inputs: {inputs!r} go with a module of PyTorch or an ONNX file, not with a {type(network).__name__}; a "
            'limit is given by name: limit="4:1"'
        )
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


def _file(path: str | Path, inputs: Any, sizes: Mapping[str, Any], options: Mapping[str, Any]) -> zoo.Network:
    from autotm.zoo import from_onnx  # noqa: PLC0415 - only where such a file is given

    keywords = {name: value for name, value in options.items() if name != "kernels" or value is not None}
    if len(keywords.pop("targets")):
        raise BadInputError(f"{path}: targets go with a module of PyTorch; a file's are inputs like others")
    if callable(keywords["loss"]):
        raise BadInputError(f"{path}: a file takes the name of a loss, such as loss='cross_entropy', not a function")
    return from_onnx(path, inputs=inputs, sizes=sizes, **keywords)


def _module(module: Any, inputs: Any, options: Mapping[str, Any]) -> zoo.Network:
    from autotm.zoo import from_torch  # noqa: PLC0415 - only for those who have PyTorch

    if inputs is None:
        raise BadInputError(
            f"{type(module).__name__}: a module of PyTorch has no shapes without inputs; give some: "
            "autotm.plan(module, inputs)"
        )
    if isinstance(options["loss"], str):
        raise BadInputError(f"loss: {options['loss']!r}: a module takes a function, such as torch's cross_entropy")
    defaults = {"mode": "train", "kernels": "auto"}
    keywords = {name: options[name] or default for name, default in defaults.items()}
    return from_torch(module, inputs, **{**options, **keywords})


def _links(context: Context, file: Path, patience_s: float) -> Links:
    """Return copies as measured before on the same cores with the same machine file; else measure them now."""
    now = provenance(context.machine, context.seed)
    if file.exists():
        links, before = load_with_provenance(file, "links", Links)
        if all(before.get(key) == now[key] for key in ("machine_file_hash", "cpus", "copying_cpus", "cpu_model")):
            return links
    calibrate_stage(context, patience_s, links=file)
    return load_with_provenance(file, "links", Links)[0]
