"""The options and arguments that commands share, and what a shell offers to complete them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from autotm.model.files import read_yaml
from autotm.model.limit import Counts, Limit
from autotm.model.paths import Paths
from autotm.model.slurm import keep_to_allocation
from autotm.solve.options import optimizer_names
from autotm.stages.context import Context
from autotm.study.setup import Study, load_study, require_optimizer

# Completion of names by a shell, from the study's folders as far as they can be read.

Completion = Callable[[click.Context, click.Parameter, str], list[str]]


def _complete(names: Callable[[Path], Iterable[str]]) -> Completion:
    def complete(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
        config = ctx.params.get("config") or Path("config/config.yaml")
        return sorted(name for name in names(Path(config)) if name.startswith(incomplete))

    return complete


def _networks(config: Path) -> Iterable[str]:
    import yaml  # noqa: PLC0415 - nothing else here waits for it

    try:
        study = yaml.safe_load(config.read_text(encoding="utf-8"))
        scale = yaml.safe_load((config.parent / "scales" / f"{study['scale']}.yaml").read_text(encoding="utf-8"))
        return [*scale["networks"], *(study.get("own_networks") or {})]
    except (OSError, yaml.YAMLError, KeyError, TypeError):  # the command itself will say what is wrong
        return []


networks = _complete(_networks)
optimizers = _complete(lambda _: optimizer_names())
scales = _complete(lambda config: [path.stem for path in (config.parent / "scales").glob("*.yaml")])
machines = _complete(lambda config: [path.stem for path in (config.parent / "machines").glob("*.yaml")])


Command = Callable[..., Any]

OPTIMIZERS = (
    "static, synchronous, asynchronous, numa (first touch), memory-mode (2LM), all-fast, all-slow, "
    "linux-preferred, linux-interleave, linux-weighted-interleave, linux-balancing (simulated on emulated memory)"
)
FILE = click.Path(path_type=Path, dir_okay=False)
FOLDER = click.Path(path_type=Path, file_okay=False)


class _LimitType(click.ParamType):
    """Fast memory: a ratio slow:fast such as 8:1, a share such as 0.2x, or bytes such as 4500MB."""

    name = "limit"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Limit:  # noqa: ARG002
        """Parse the text of a limit."""
        return Limit.parse(value)


LIMIT = _LimitType()

_STUDY = (
    click.option(
        "--config", type=FILE, default=Path("config/config.yaml"), show_default=True, metavar="FILE", help="The study."
    ),
    click.option(
        "--results", type=FOLDER, default=Path("results"), show_default=True, metavar="FOLDER", help="Where files go."
    ),
    click.option("--scale", shell_complete=scales, help="Instead of the study's scale."),
    click.option("--machine", shell_complete=machines, help="Instead of the study's machine."),
    click.option("--threads", type=click.IntRange(min=1), help="Instead of the study's kernel threads."),
    click.option("--counts", type=click.Choice([*Counts]), help="Instead of what the study's limits count."),
)
_OVERRIDES = ("scale", "machine", "threads", "counts")
"""Options that replace the study's keys of the same names."""


def of_study(function: Command) -> Command:
    """Make a command of a function whose first argument is a study."""

    @functools.wraps(function)
    def command(*, config: Path, results: Path, **named: Any) -> Any:
        keep_to_allocation()
        overrides = {name: value for name in _OVERRIDES if (value := named.pop(name)) is not None}
        raw = read_yaml(config, "study")
        study = load_study((raw if isinstance(raw, dict) else {}) | overrides, config, config.parent, results)
        return function(study, **named)

    return functools.reduce(lambda decorated, option: option(decorated), reversed(_STUDY), command)


def of_network(function: Command) -> Command:
    """Make a command of a function of a study and the name of one of its networks: of the zoo or one's own."""
    return click.argument("network", shell_complete=networks)(of_study(function))


def of_placement(function: Command) -> Command:
    """Make a command of a function whose first argument is a `Placement`."""

    @functools.wraps(function)
    def command(study: Study, *, network: str, optimizer: str, limit: Limit, **named: Any) -> Any:
        require_optimizer(optimizer)
        return function(Placement(study, network, optimizer, paths_of(study, network), limit), **named)

    with_limit = click.argument("limit", type=LIMIT)(of_study(command))
    with_optimizer = click.argument("optimizer", shell_complete=optimizers)(with_limit)
    return click.argument("network", shell_complete=networks)(with_optimizer)


@dataclass(frozen=True)
class Placement:
    """A network placed by an optimizer within a limit, and the files of this placement."""

    study: Study
    network: str
    optimizer: str
    paths: Paths
    limit: Limit

    @property
    def plan(self) -> Path:
        """The file of the placement's plan."""
        return self.paths.plan(self.optimizer, self.limit)

    @property
    def program(self) -> Path:
        """The file of the placement's program."""
        return self.paths.program(self.optimizer, self.limit)

    def __str__(self) -> str:
        return f"{self.network} {self.optimizer} {self.limit}"


def words(text: str) -> list[str]:
    """Return the words between commas or spaces, each once."""
    return list(dict.fromkeys(text.replace(",", " ").split()))


def context_of(study: Study) -> Context:
    """Return where and with which random seed the study's stages run."""
    return Context(study.machine, study.devices_dir, study.config.seed, Counts(study.config.counts))


def paths_of(study: Study, network: str) -> Paths:
    """Return the files of a network.

    Raises:
        BadInputError: neither the study's scale nor its own networks give sizes for it.
    """
    study.network(network)
    return study.paths(network)
