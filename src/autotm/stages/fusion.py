"""Which operators share a kernel: a step whose fusion is decided by a file, beside the step as TVM fuses it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from autotm.model.config import FusionConfig, ProfileConfig, RunConfig, StyleConfig
from autotm.model.errors import BadInputError, unknown_name
from autotm.model.files import load, require_writable, save, write_atomically
from autotm.model.fusion import FusionAudit, FusionDecisions, FusionRun, FusionSearch
from autotm.model.fusion_policy import FusionPolicies
from autotm.model.network_source import NetworkSource
from autotm.model.paths import Paths
from autotm.model.provenance import provenance
from autotm.stages.context import Context

if TYPE_CHECKING:
    from autotm.fusion.dataflow import Dataflow, Grouping
    from autotm.fusion.decisions import Requested
    from autotm.fusion.variants import Workbench

KIND, OPTIMUM, SEARCH, POLICIES = "decisions", "fusion_optimum", "fusion_search", "fusion_policies"
_LOG = logging.getLogger(__name__)


def fusion_graph_stage(context: Context, source: NetworkSource, paths: Paths, outputs: Mapping[str, Path]) -> None:
    """Write a network to be trained and for inference, for jobs that need not import what defines it.

    Args:
        context: of the machine.
        source: of the network.
        paths: of the network.
        outputs: a file for `training` and one for `inference`.

    Raises:
        BadInputError: the network is wrong, or PyTorch, which defines it, is not installed.
    """
    from autotm.fusion.variants import network_of
    from autotm.zoo import save_network

    for step, output in outputs.items():
        require_writable(output)
        network = network_of(source, context.seed, paths.values, is_inference=step == "inference")
        save_network(network, output, provenance(context.machine, context.seed, **source.provenance))


def bench_of(context: Context, graph: Path, paths: Paths) -> Workbench:
    """Return what makes variants of the step of a network in a file of `fusion_graph_stage`.

    Raises:
        AutotmError: as `load_network` and `Workbench`.
    """
    from autotm.fusion.variants import Workbench
    from autotm.zoo import load_network

    return Workbench(load_network(graph), paths.scale, context.machine, context.devices_dir, paths.objects)


def _bench_of_source(context: Context, source: NetworkSource, paths: Paths, *, is_inference: bool) -> Workbench:
    from autotm.fusion.variants import Workbench, network_of

    network = network_of(source, context.seed, paths.values, is_inference=is_inference)
    return Workbench(network, paths.scale, context.machine, context.devices_dir, paths.objects)


def fusion_run_stage(
    context: Context,
    source: NetworkSource,
    config: RunConfig,
    paths: Paths,
    given: Path | tuple[Path, str] | None,
    written: Path | None,
    *,
    is_inference: bool,
) -> FusionRun:
    """Compile a step as decisions fuse it, compare its results with the default's, and time both in turn.

    Args:
        context: of the machine.
        source: of the network.
        config: how steps are timed.
        paths: of the network.
        given: file of decisions, or file and name of a policy; without either TVM's fusion decides.
        written: where the decisions go, with what became of them.
        is_inference: whether the step is inference, of a network that is trained otherwise.

    Raises:
        BadInputError: the file's decisions are for another step, or name an operator or edge that is not there; or it
            has no such policy, or one that was learned from other features.
        WrongResultError: a result differs from the default's.
    """
    from autotm.fusion.decisions import executed, path_text
    from autotm.fusion.variants import WrongResultError
    from autotm.runtime.step_times import RunOptions

    context = context.to_measure()
    if written is not None:
        require_writable(written)
    bench = _bench_of_source(context, source, paths, is_inference=is_inference)
    flow = bench.dataflow
    is_training = bench.network.training is not None
    step = FusionDecisions(bench.network.name, paths.scale, is_training, flow.identity, {})
    if isinstance(given, Path):
        requested = _read(given, step, flow)
    else:
        requested = executed(flow, flow.default if given is None else _by_policy(*given, bench))
    resolved = bench.resolved(requested)
    decisions = replace(
        step,
        requested={path_text(flow, path): decision for path, decision in requested.items()},
        changed={path_text(flow, path): changed for path, changed in resolved.changed.items()},
        executed={path_text(flow, path): own for path, own in executed(flow, resolved.grouping).items()},
    )
    if written is not None:
        save(written, KIND, decisions, provenance(context.machine, context.seed, **source.provenance))
    variant = bench.compiled(resolved.grouping)
    (times,) = bench.compared([variant], RunOptions(**config.model_dump(), seed=context.seed))
    if isinstance(times, WrongResultError):
        raise times
    default = bench.default.graph
    return FusionRun(
        decisions,
        len(flow.operators),
        len(variant.graph.kernels),
        len(default.kernels),
        variant.graph.peak_live_bytes,
        default.peak_live_bytes,
        times,
    )


def fusion_exhaustive_stage(
    context: Context,
    source: NetworkSource,
    graph: Path,
    config: FusionConfig,
    profile: ProfileConfig,
    run: RunConfig,
    paths: Paths,
    output: Path,
) -> None:
    """Write how far TVM's fusion of a step is from the best grouping of its operators.

    Args:
        context: of the machine.
        source: of the network.
        graph: file of the network, to be trained or not.
        config: how much is searched.
        profile: how kernels are timed.
        run: how steps are timed.
        paths: of the network.
        output: file of what was found.

    Raises:
        AutotmError: nothing can be compared or timed.
    """
    from autotm.fusion.exhaustive import optimum
    from autotm.profile.kernel_timing import ProfileOptions
    from autotm.profile.store import KernelStore
    from autotm.runtime.step_times import RunOptions

    context = context.to_measure()
    require_writable(output)
    bench = bench_of(context, graph, paths)
    own = {"kernel_s": config.kernel_s, "rotation_bytes": config.rotation_bytes}
    timing = ProfileOptions(**{**profile.timing, **own}, seed=context.seed)
    options = RunOptions(**run.model_dump(), seed=context.seed)
    with KernelStore(paths.fusion_store) as store:
        found = optimum(bench, store, config, timing, options)
    save(output, OPTIMUM, found, provenance(context.machine, context.seed, **source.provenance))


def fusion_search_stage(
    context: Context,
    source: NetworkSource,
    graph: Path,
    config: FusionConfig,
    run: RunConfig,
    paths: Paths,
    output: Path,
    *,
    algorithm: str,
    search_seed: int,
) -> None:
    """Write what a search for the best grouping of a step's operators found; one that was killed goes on.

    Args:
        context: of the machine.
        source: of the network.
        graph: file of the network, to be trained or not.
        config: how long is searched.
        run: how steps are timed.
        paths: of the network.
        output: file of the search; a log of its trials lies beside it until it ends.
        algorithm: of the search.
        search_seed: of the search.

    Raises:
        AutotmError: the search cannot begin.
    """
    from autotm.fusion.trials import SearchJob, searched
    from autotm.runtime.step_times import RunOptions
    from autotm.zoo import load_network

    context = context.to_measure()
    require_writable(output)
    options = RunOptions(**{**run.model_dump(), "min_seconds": config.step_s}, seed=context.seed)
    job = SearchJob(
        source,
        graph,
        paths,
        context.machine,
        context.devices_dir,
        algorithm,
        config.trials,
        search_seed,
        options,
    )
    log = output.with_suffix(".jsonl")
    steps = tuple(searched(job, log, config.trial_s))
    is_training = load_network(graph).training is not None
    found = FusionSearch(source.name, paths.scale, is_training, algorithm, search_seed, steps)
    save(output, SEARCH, found, provenance(context.machine, context.seed, **source.provenance))
    log.unlink()


def fusion_figure_stage(style: StyleConfig, files: Mapping[str, Sequence[Path]], csv: Path) -> None:
    """Make the figure that `csv` names from files by what they hold, and print what it concludes.

    Raises:
        DamagedFileError: a file cannot be read.
    """
    from autotm.study.drawing import draw_to_files
    from autotm.study.figures.fusion import FUSION_FIGURES, summary, table_of_optima
    from autotm.study.figures.fusion_learning import LEARNING_FIGURES
    from autotm.study.figures.fusion_search import draw_search, search_summary, table_of_searches
    from autotm.study.tables import read_table, write_table

    figures = {
        **{name: (table_of_optima, draw, summary) for name, draw in FUSION_FIGURES.items()},
        "search": (table_of_searches, draw_search, search_summary),
        **LEARNING_FIGURES,
    }
    table_of, draw, conclusions = figures[csv.stem]
    write_table(table_of(**files), csv)
    table = read_table(csv)
    draw_to_files(draw, table, csv, style)
    for line in conclusions(table):
        _LOG.info("%s", line)


def fusion_audit_stage(
    context: Context,
    source: NetworkSource,
    config: FusionConfig,
    profile: ProfileConfig,
    run: RunConfig,
    paths: Paths,
    folder: Path | None,
    *,
    is_inference: bool,
    most: int,
) -> FusionAudit:
    """Return which fusions of TVM's cost a step time, and write a script for each.

    Args:
        context: of the machine.
        source: of the network.
        config: how long steps are timed.
        profile: how kernels are timed.
        run: how the step without the harmful fusions is timed.
        paths: of the network.
        folder: of the scripts; None for none.
        is_inference: whether the step is inference.
        most: fusions that are measured as whole steps.

    Raises:
        BadInputError: the network is wrong, or PyTorch, which defines it, is not installed.
        AutotmError: nothing can be compared or timed.
    """
    from autotm.fusion.audit import audited
    from autotm.fusion.replay import file_name, script_of
    from autotm.profile.kernel_timing import ProfileOptions
    from autotm.profile.store import KernelStore
    from autotm.runtime.step_times import RunOptions

    context = context.to_measure()
    # The name of a script is not known yet; only its folder counts.
    require_writable(paths.fusion_store, *([] if folder is None else [folder / "script"]))
    bench = _bench_of_source(context, source, paths, is_inference=is_inference)
    timing = ProfileOptions(**{**profile.timing, "rotation_bytes": config.rotation_bytes}, seed=context.seed)
    options = RunOptions(**run.model_dump(), seed=context.seed)
    with KernelStore(paths.fusion_store) as store:
        audit, harmful = audited(bench, store, timing, options, most=most, step_s=config.step_s)
    for place, live in harmful.items() if folder is not None else ():
        fusion = audit.fusions[place]
        about = f"Of {audit}".partition("\n")[0] + f" On machine {context.machine.slug}:\n\n{fusion}"
        text = script_of(bench.dataflow, live, fusion, about, context.machine.threads)
        path = folder / file_name(place + 1, fusion)
        write_atomically(path, lambda temporary, text=text: temporary.write_text(text, encoding="utf-8"))
        _LOG.info("%s: run it where autotm can be imported", path)
    return audit


def _by_policy(file: Path, name: str, bench: Workbench) -> Grouping:
    """Return the groups that a policy of a file makes of a step."""
    from autotm.fusion.features import Features
    from autotm.fusion.policy import grouping

    known = {policy.name: policy for policy in load(file, POLICIES, FusionPolicies).policies}
    if name not in known:
        raise unknown_name("policy", name, known)
    features = Features(bench.dataflow, bench.machine.threads)
    return grouping(known[name], bench.dataflow, features, bench.has_schedule)


def _read(file: Path, step: FusionDecisions, flow: Dataflow) -> Requested:
    """Return the decisions that a file requests for a step."""
    from autotm.fusion.decisions import path_of

    found = load(file, KIND, FusionDecisions)
    for name in ("network", "scale", "is_training", "identity"):
        if getattr(found, name) != getattr(step, name):
            raise BadInputError(
                f"{file}: decisions for another step: its {name} is {getattr(found, name)}, not {getattr(step, name)}; "
                f"write new ones with: autotm fusion run {step.network} --write FILE"
            )
    try:
        return {path_of(flow, path): decision for path, decision in found.requested.items()}
    except BadInputError as error:
        raise BadInputError(f"{file}: requested: {error}") from None
