"""A machine file: which memory is fast, which is slow and how real it is, which cores run the kernels."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from autotm.model.files import BadInputError, explain, no_such_file, parsed_yaml
from autotm.model.machine.core_choice import CoreChoice
from autotm.model.machine.slow_tier import AnyTier, CudaTier, ModelledTier, Products, Reality, SlowTier, size_bytes
from autotm.model.machine.slurm import SlurmNode, allocation

MODELLED_MACHINE = "modelled-"
"""How names of machines begin on which nothing runs."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class MachineFile(_Strict):
    """The contents of config/machines/NAME.yaml."""

    description: str = Field(description="for people")
    threads: Literal["auto"] | Annotated[int, Field(ge=1)] = Field(
        "auto",
        description="kernel threads; auto = as many as cores allow, see threads_per_core, or all of `cpus`",
    )
    threads_per_core: int = Field(
        1, ge=1, le=8, description="kernel threads on a physical core: 1 leaves its other hardware threads idle"
    )
    socket: int | None = Field(None, ge=0, description="only cores of this socket, counted from 0")
    numa_node: int | None = Field(None, ge=0, description="only cores next to this memory node, counted from 0")
    cpus: Literal["auto"] | tuple[int, ...] = Field(
        "auto", description="hardware threads to pin to, by number, the first `threads` of them; auto = as above"
    )
    target: str = Field("host", description="TVM target of the kernels; host = this CPU")
    slow_tier: SlowTier = Field(description="what is slow memory, or plays it")
    slurm: SlurmNode | None = Field(
        None, description="of a machine that is a kind of node of a Slurm cluster: how jobs ask for one"
    )
    memory_mode: bool = Field(
        default=False,
        description="whether this machine was started in memory mode (2LM): its DRAM is a cache of persistent memory, "
        "all that programs see; optimizer memory-mode then runs the plain step and waits for nothing",
    )
    cache: str | None = Field(
        None, description="with memory_mode: size of that DRAM, such as 192GB; memory-mode is then solved for no other"
    )

    @model_validator(mode="after")
    def _one_way_to_choose(self) -> Self:
        others = self.model_fields_set & {"threads_per_core", "socket", "numa_node"}
        if self.cpus != "auto" and others:
            raise ValueError(f"cpus names the cores itself: leave out {', '.join(sorted(others))}, or cpus")
        return self

    @model_validator(mode="after")
    def _nodes_have_a_thread_count(self) -> Self:
        if self.slurm is not None and self.threads == "auto":
            raise ValueError("threads: auto cannot be counted from where jobs are sent; give a number beside slurm")
        return self

    @model_validator(mode="after")
    def _memory_mode_hides_slow_memory(self) -> Self:
        if self.memory_mode and self.slow_tier.kind != "emulated":
            raise ValueError("memory_mode: its slow memory is behind a cache; give slow_tier kind emulated, or false")
        return self

    @model_validator(mode="after")
    def _cache_has_a_size(self) -> Self:
        if self.cache is not None:
            if not self.memory_mode:
                raise ValueError(
                    "cache is the DRAM of a machine in memory mode: leave it out, or set memory_mode: true"
                )
            if not self.cache_bytes:
                raise ValueError(f"cache: '{self.cache}' is no size; give bytes such as 192GB or 192GiB")
        return self

    @property
    def cache_bytes(self) -> int | None:
        """Size of the real cache, if it is known."""
        return None if self.cache is None else size_bytes(self.cache)


@dataclass(frozen=True)
class Machine:
    """A machine file with everything automatic resolved.

    Attributes:
        name: the file's name without .yaml.
        threads: kernel threads.
        cpus: the hardware threads they are pinned to, `threads` of them; none where `cores` is still to be chosen.
        target: `host` or a TVM target string.
        slow_tier: what is slow memory, or plays it.
        file_hash: hash of the machine file's text.
        memory_mode: whether its fast memory really is a cache of its slow memory (2LM).
        cache_bytes: size of that cache, if it is known.
        spare_cpus: the best of the hardware threads that the file allows beside `cpus`, if any.
        slurm: the kind of node of a Slurm cluster that it is, if it is one.
        cores: how `cpus` are chosen, where that waits for a job on such a node.
    """

    name: str
    threads: int
    cpus: tuple[int, ...]
    target: str
    slow_tier: AnyTier
    file_hash: str
    memory_mode: bool = False
    cache_bytes: int | None = None
    spare_cpus: tuple[int, ...] = ()
    slurm: SlurmNode | None = None
    cores: CoreChoice | None = None

    @property
    def copying_cpus(self) -> tuple[int, ...]:
        """Hardware threads for copies beside kernels: those without a kernel thread, or all where there are none."""
        return self.spare_cpus or self.cpus

    @property
    def slug(self) -> str:
        """The `{machine}` of paths: name and threads, so that thread counts stand side by side."""
        return f"{self.name}-{self.threads}t"

    @property
    def is_modelled(self) -> bool:
        """Whether it is a model, on which nothing runs and nothing is measured."""
        return isinstance(self.slow_tier, ModelledTier)

    @property
    def fast_operands_only(self) -> bool:
        """Whether kernels can use fast memory only (GPUs): tensors are slow between kernels."""
        return isinstance(self.slow_tier, CudaTier | ModelledTier)

    @property
    def products(self) -> Products:
        """What contractions may round their factors to."""
        return self.slow_tier.products if isinstance(self.slow_tier, CudaTier) else "float32"

    def to_measure_on(self) -> Machine:
        """The machine with cores of this computer, on which nothing but this job runs.

        Raises:
            BadInputError: it is a model; or a kind of Slurm node and this is no job, other jobs may run beside this
                one, or it has too few cores.
        """
        if self.is_modelled:
            raise BadInputError(
                f"config/machines/{self.name}.yaml: this machine is modelled: its times are computed, and nothing runs "
                "or is measured on it; ask for a machine with a GPU (kind: cuda), or for modelled.json"
            )
        given, file = allocation(), f"config/machines/{self.name}.yaml"
        if given is not None and not (self.slurm and self.slurm.shared):
            given.require_whole_node(file)
        if self.cores is None:
            return self
        if given is None:
            raise BadInputError(
                f"{file}: this machine is a kind of Slurm node, and this process no job on one: measure with "
                "snakemake --workflow-profile profiles/slurm, or within srun --exclusive; docs/cluster.md tells how"
            )
        cpus, spare = self.cores.here(self.threads, f"Slurm job {given.job} ({given.cpus} CPUs of {given.node})")
        return replace(self, cpus=cpus, spare_cpus=spare, cores=None)

    @property
    def tier_reality(self) -> Reality:
        """Whether slow memory is `real`, `emulated`, or ordinary memory that is its `stand-in`."""
        return self.slow_tier.reality

    def reality_of(self, *, cached: bool) -> Reality:
        """As `tier_reality`; where a program's fast memory is a cache (`cached`), whether that cache is real."""
        return "real" if cached and self.memory_mode else self.tier_reality


def load_machine(path: Path, threads: int | None = None, asked_in: object = None) -> Machine:
    """Read a machine file; `threads`, which `asked_in` asks for, overrides its thread count.

    Cores of a kind of Slurm node are chosen where its jobs run (`Machine.to_measure_on`).

    Raises:
        BadInputError: no such file, an unknown key, a bad value, or cores that this process may not use.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise no_such_file("machine", path) from None
    except UnicodeDecodeError as error:
        raise BadInputError(f"{path}: not valid YAML: {error}") from None
    try:
        parsed = MachineFile.model_validate(parsed_yaml(text))
    except yaml.YAMLError as error:
        raise BadInputError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    except ValidationError as error:
        raise BadInputError(explain(path, error, MachineFile)) from None
    if (parsed.slow_tier.kind == "modelled") != path.stem.startswith(MODELLED_MACHINE):
        raise BadInputError(
            f"{path}: a machine of kind modelled, and no other, has a name that begins with {MODELLED_MACHINE}, so "
            "that every path says that its times were computed; rename the file, or give another kind"
        )
    count = threads or (None if parsed.threads == "auto" else parsed.threads)
    cores = CoreChoice(
        str(path),
        None if parsed.cpus == "auto" else parsed.cpus,
        parsed.threads_per_core,
        parsed.socket,
        parsed.numa_node,
        parsed.slow_tier.fast_nodes,
    )
    if parsed.slurm is not None and (count or 0) > (parsed.slurm.cpus or count or 0):
        raise BadInputError(
            f"{asked_in or path}: threads: {count} is not allowed: {path} says that such a node has "
            f"{parsed.slurm.cpus} CPUs (slurm: cpus)"
        )
    here = parsed.slurm is None
    cpus, spare = cores.here(count, (asked_in or path) if threads else path) if here else ((), ())
    return Machine(
        name=path.stem,
        threads=len(cpus) if here else count or 0,
        cpus=cpus,
        target=parsed.target,
        slow_tier=parsed.slow_tier,
        file_hash=hashlib.sha256(text.encode()).hexdigest()[:16],
        memory_mode=parsed.memory_mode,
        cache_bytes=parsed.cache_bytes,
        spare_cpus=spare,
        slurm=parsed.slurm,
        cores=None if here else cores,
    )
