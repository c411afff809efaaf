"""A machine file: which memory is fast, which is slow and how real it is, which cores run the kernels."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from autotm.model.config_errors import explain
from autotm.model.errors import BadInputError

Reality = Literal["real", "emulated", "modelled"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class EmulatedTier(_Strict):
    """Slow memory made of DRAM and delays (`docs/emulation.md`)."""

    kind: Literal["emulated"]
    device: str = Field(description="name of a file in config/devices, without .yaml")
    share: Literal["balanced", "whole"] = Field(
        "balanced",
        description="balanced: the device's delays are stretched by how much slower this process computes than the "
        "original socket did; whole: the device's constants as they are",
    )


class MachineFile(_Strict):
    """The contents of config/machines/NAME.yaml."""

    description: str
    threads: Literal["auto"] | Annotated[int, Field(ge=1)] = Field(
        "auto", description="kernel threads; auto = physical cores this process may use"
    )
    cpus: Literal["auto"] | tuple[int, ...] = Field(
        "auto", description="cores to pin to, `threads` of them; auto = one hardware thread of each physical core first"
    )
    target: str = Field("host", description="TVM target of the kernels; host = this CPU")
    slow_tier: EmulatedTier
    memory_mode: bool = Field(
        default=False,
        description="whether this machine was started in memory mode (2LM): its DRAM is a cache of persistent memory, "
        "all that programs see; optimizer memory-mode then runs the plain step and waits for nothing",
    )


@dataclass(frozen=True)
class Machine:
    """A machine file with everything automatic resolved.

    Attributes:
        name: the file's name without .yaml.
        threads: kernel threads.
        cpus: the cores they are pinned to, `threads` of them.
        target: `host` or a TVM target string.
        slow_tier: what plays slow memory.
        file_hash: hash of the machine file's text.
        memory_mode: whether its fast memory really is a cache of its slow memory (2LM).
    """

    name: str
    threads: int
    cpus: tuple[int, ...]
    target: str
    slow_tier: EmulatedTier
    file_hash: str
    memory_mode: bool = False

    @property
    def slug(self) -> str:
        """The `{machine}` of paths: name and threads, so that thread counts stand side by side."""
        return f"{self.name}-{self.threads}t"

    @property
    def tier_reality(self) -> Reality:
        """Whether slow memory is `real`, `emulated` or `modelled`."""
        return "emulated"

    def reality_of(self, *, cached: bool) -> Reality:
        """As `tier_reality`; where a program's fast memory is a cache (`cached`), whether that cache is real."""
        return "real" if cached and self.memory_mode else self.tier_reality


def usable_cpus() -> tuple[int, ...]:
    """Cores this process may run on, ascending."""
    return tuple(sorted(os.sched_getaffinity(0)))


def one_per_core(cpus: Sequence[int]) -> tuple[int, ...]:
    """The first hardware thread of each physical core, then the others: pinned threads should not share a core."""
    firsts: dict[str, int] = {}
    for cpu in cpus:
        firsts.setdefault(_siblings(cpu), cpu)
    chosen = set(firsts.values())
    return (*firsts.values(), *(cpu for cpu in cpus if cpu not in chosen))


def _siblings(cpu: int) -> str:
    try:
        return Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text(encoding="ascii")
    except OSError:
        return str(cpu)


def default_threads() -> int:
    """Physical cores this process may use."""
    return len({_siblings(cpu) for cpu in usable_cpus()})


def load_machine(path: Path, threads: int | None = None) -> Machine:
    """Read a machine file; `threads` overrides its thread count.

    Raises:
        BadInputError: no such file, an unknown key, a bad value, or more threads than usable cores.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        known = ", ".join(sorted(file.stem for file in path.parent.glob("*.yaml")))
        raise BadInputError(f"{path}: no such machine file (known: {known or 'none'})") from None
    try:
        parsed = MachineFile.model_validate(yaml.safe_load(text))
    except yaml.YAMLError as error:
        raise BadInputError(f"{path}: not valid YAML: {error}") from None
    except ValidationError as error:
        raise BadInputError(explain(path, error, MachineFile)) from None
    count = threads or (default_threads() if parsed.threads == "auto" else parsed.threads)
    cpus = one_per_core(usable_cpus()) if parsed.cpus == "auto" else parsed.cpus
    if absent := sorted(set(cpus) - set(usable_cpus())):
        raise BadInputError(f"{path}: cpus: this process may not use {absent}; give cores among {list(usable_cpus())}")
    if len(cpus) < count:
        raise BadInputError(
            f"{path}: threads: {count} is more than the {len(cpus)} usable cores; give 1 to {len(cpus)}"
        )
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return Machine(path.stem, count, tuple(cpus[:count]), parsed.target, parsed.slow_tier, digest, parsed.memory_mode)
