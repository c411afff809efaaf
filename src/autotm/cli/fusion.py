"""The command `fusion`: which operators of a step share a kernel."""

from __future__ import annotations

import logging
from pathlib import Path

import click

from autotm.cli.command import Answer, answering
from autotm.cli.options import FILE, FOLDER, context_of, of_network, of_study, paths_of
from autotm.stages.fusion import fusion_audit_stage, fusion_run_stage
from autotm.study.columns import columns
from autotm.study.inputs import fusion_networks
from autotm.study.setup import Study

log = logging.getLogger("autotm")


@click.group()
def fusion() -> None:
    """A decision says of an operator at a place where its value is read: computed in the same kernel, or not."""


@fusion.command("list")
@of_study
@answering
def list_networks(study: Study) -> Answer:
    """List the networks that fusion is studied on: those that a policy learns from, and those that it is judged by."""
    training = study.config.fusion.training
    found = []
    for name in fusion_networks(study):
        source = study.network(name)
        found.append(
            {"network": name, "use": "training" if name in training else "held out", "sizes": dict(source.sizes)}
        )
    lines = [("network", "use", "sizes")]
    lines += [
        (str(one["network"]), str(one["use"]), ", ".join(f"{key} {value}" for key, value in one["sizes"].items()))
        for one in found
    ]
    return Answer(found, columns(lines, left=3))


@fusion.command()
@of_network
@click.option("--decisions", type=FILE, metavar="FILE", help="Decisions to follow, instead of those of TVM's fusion.")
@click.option(
    "--policy",
    type=(FILE, str),
    metavar="FILE NAME",
    help="A policy to follow: a file of several, and its name.",
)
@click.option("--write", "written", type=FILE, metavar="FILE", help="Write the decisions there, as they are executed.")
@click.option("--inference", is_flag=True, help="The step of inference, of a network of the zoo that is trained.")
@answering
def run(
    study: Study,
    network: str,
    decisions: Path | None,
    policy: tuple[Path, str] | None,
    written: Path | None,
    *,
    inference: bool,
) -> Answer:
    """Compile a step as decisions fuse it, compare its results with those of TVM's fusion, and time both in turn.

    Each decision that cannot be executed as requested is named, with the reason.
    """
    if decisions is not None and policy is not None:
        raise click.UsageError("--decisions and --policy both say how operators are fused; leave one out")
    paths, config = paths_of(study, network), study.config.run
    result = fusion_run_stage(
        context_of(study), study.network(network), config, paths, decisions or policy, written, is_inference=inference
    )
    if written is not None:
        log.info("%s: change its requests, then give it with --decisions", written)
    return Answer(result, str(result))


@fusion.command()
@of_network
@click.option("--inference", is_flag=True, help="The step of inference, of a network of the zoo that is trained.")
@click.option(
    "--most",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    metavar="N",
    help="Fusions that are measured as whole steps, those with the least gain by kernels alone first.",
)
@click.option("--export", "folder", type=FOLDER, metavar="FOLDER", help="Write a script there for each harmful fusion.")
@answering
def audit(study: Study, network: str, folder: Path | None, most: int, *, inference: bool) -> Answer:
    """Tell what each fusion by TVM does to a step: harmful, helpful, or no difference beyond the noise.

    Each fused kernel is timed alone, beside a kernel for each of its operators and the cheapest others. Then the step
    is timed with that fusion off, or replaced, in turn with TVM's.
    """
    paths, config = paths_of(study, network), study.config
    result = fusion_audit_stage(
        context_of(study),
        study.network(network),
        config.fusion,
        config.profile,
        config.run,
        paths,
        folder,
        is_inference=inference,
        most=most,
    )
    return Answer(result, str(result))
