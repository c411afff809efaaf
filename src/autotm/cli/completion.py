"""What a shell offers where a name is wanted: names in the study's folders, as far as they can be read."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable
from pathlib import Path

import click

Completion = Callable[[click.Context, click.Parameter, str], list[str]]


def _offering(names: Callable[[Path], Iterable[str]]) -> Completion:
    def offered(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
        config = ctx.params.get("config") or Path("config/config.yaml")
        return sorted(name for name in names(Path(config)) if name.startswith(incomplete))

    return offered


def _networks(config: Path) -> Iterable[str]:
    import yaml  # noqa: PLC0415 - nothing else here waits for it

    try:
        study = yaml.safe_load(config.read_text(encoding="utf-8"))
        scale = yaml.safe_load((config.parent / "scales" / f"{study['scale']}.yaml").read_text(encoding="utf-8"))
        return [*scale["networks"], *(study.get("own_networks") or {})]
    except (OSError, yaml.YAMLError, KeyError, TypeError):  # the command itself will say what is wrong
        return []


def _optimizers(_: Path) -> Iterable[str]:
    package = Path(__file__).parents[1] / "solve" / "optimizers"
    modules = pkgutil.iter_modules([str(package), str(package / "gpu_rivals")])
    return [module.name.replace("_", "-") for module in modules if not module.ispkg]


networks = _offering(_networks)
optimizers = _offering(_optimizers)
scales = _offering(lambda config: [path.stem for path in (config.parent / "scales").glob("*.yaml")])
machines = _offering(lambda config: [path.stem for path in (config.parent / "machines").glob("*.yaml")])
