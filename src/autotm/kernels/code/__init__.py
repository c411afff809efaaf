"""What generated kernels are written in, and what every schedule knows of its target."""

from autotm.kernels.code import passes, share, tir
from autotm.kernels.code.blocks import Access, Nest, read_nest, top_blocks, variables_of
from autotm.kernels.code.contraction_tiles import CHAIN_STEPS, Cut, cut, register_tiles, tile_cycles
from autotm.kernels.code.generated import OPAQUE, Code, parameters, replace_body
from autotm.kernels.code.passes import GENERATED, machine_code
from autotm.kernels.code.share import SHARED
from autotm.kernels.code.target import TargetInfo, cpu_flags, machine_target, target_info
from autotm.kernels.code.tiling import PARALLEL_BYTES, Machine, divisor_near
from autotm.kernels.code.tir import Index, extents, flat, load, loads_of, rewrite, sequence
from autotm.kernels.code.workspace import Workspace, hoist_workspaces

__all__ = [
    "CHAIN_STEPS",
    "GENERATED",
    "OPAQUE",
    "PARALLEL_BYTES",
    "SHARED",
    "Access",
    "Code",
    "Cut",
    "Index",
    "Machine",
    "Nest",
    "TargetInfo",
    "Workspace",
    "cpu_flags",
    "cut",
    "divisor_near",
    "extents",
    "flat",
    "hoist_workspaces",
    "load",
    "loads_of",
    "machine_code",
    "machine_target",
    "parameters",
    "passes",
    "read_nest",
    "register_tiles",
    "replace_body",
    "rewrite",
    "sequence",
    "share",
    "target_info",
    "tile_cycles",
    "tir",
    "top_blocks",
    "variables_of",
]
