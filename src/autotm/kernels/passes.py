"""TIR to machine code: TVM's own passes for a CPU, without those for accelerators that cost most of the time."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import tvm
from tvm import s_tir, tirx

from autotm.kernels.share import share

_LOG = logging.getLogger(__name__)
GENERATED = "autotm.generated"
"""Attribute of functions whose loops were written out: nothing is left to plan, partition or unroll in them."""

_CONFIG = {"s_tir.LoopPartition": {"partition_const_loop": True}}


def machine_code(kernels: Mapping[str, tirx.PrimFunc], target: tvm.target.Target) -> tvm.runtime.Module:
    """Scheduled functions, each under its symbol, as one LLVM module."""
    with tvm.transform.PassContext(opt_level=3, config=_CONFIG):
        lowered = tvm.IRModule()
        for is_generated, passes in ((True, _WRITTEN), (False, _SCHEDULED)):
            functions = {
                symbol: func.with_attr("global_symbol", symbol)
                for symbol, func in kernels.items()
                if (GENERATED in func.attrs) == is_generated
            }
            if functions:
                bound = tirx.transform.BindTarget(target.with_host(target))(tvm.IRModule(functions))
                lowered.update(_lowered(bound, [*passes, *_HOST]))
        # A kernel's symbol holds the hash of its shapes, so its arguments need no checks, which are most of its code.
        lowered = share(tirx.transform.SkipAssert()(lowered))
        return tvm.get_global_func("target.build.llvm")(lowered, _calling(target))


def _lowered(module: tvm.IRModule, passes: list[tvm.transform.Pass]) -> tvm.IRModule:
    """Functions after all passes; of one that they fail on as it is, the loops stay without vectors."""
    try:
        return tvm.transform.Sequential(passes)(module)
    except Exception as error:
        if len(module.functions) > 1:
            whole = tvm.IRModule()
            for variable, function in module.functions.items():
                whole.update(_lowered(tvm.IRModule({variable: function}), passes))
            return whole
        plain = [_WITHOUT_VECTORS if each is _VECTORS else each for each in passes]
        if plain == passes:
            raise
        (variable,) = module.functions
        _LOG.info("kernel '%s' has no vectors: %s", variable.name_hint, str(error).strip().splitlines()[-1])
        return tvm.transform.Sequential(plain)(module)


def _calling(target: tvm.target.Target) -> tvm.target.Target:
    """The target for code whose common functions stay functions: copies of them in each caller would undo `share`."""
    found = {key: value for key, value in dict(target.export()).items() if value}
    return tvm.target.Target({**found, "cl-opt": [*found.get("cl-opt", ()), "-inline-threshold=0"]})


_VECTORS, _WITHOUT_VECTORS = tirx.transform.VectorizeLoop(), tirx.transform.VectorizeLoop(False)
_WRITTEN = [
    s_tir.transform.ConvertBlocksToOpaque(),
    s_tir.transform.LowerOpaqueBlock(),
    tirx.transform.FlattenBuffer(),
    tirx.transform.VectorizeLoop(),
    tirx.transform.StorageRewrite(),
    tirx.transform.StmtSimplify(),
]
# As tvm.s_tir.pipeline, for a CPU. Not CompactBufferAllocation: buffers have their place and size already
# (`workspace.py`), and it would take most of the time to find that out.
_SCHEDULED = [
    s_tir.transform.CanonicalizeLoop(),
    s_tir.transform.LowerInitBlock(),
    s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
    s_tir.transform.ConvertBlocksToOpaque(),
    s_tir.transform.LowerMatchBuffer(),
    s_tir.transform.StmtSimplify(),
    s_tir.transform.LowerOpaqueBlock(),
    tirx.transform.FlattenBuffer(),
    tirx.transform.NarrowDataType(32),
    s_tir.transform.LoopPartition(),
    _VECTORS,
    tirx.transform.StorageRewrite(),
    s_tir.transform.HoistIfThenElse(),
    tirx.transform.UnrollLoop(),
    s_tir.transform.RenormalizeSplitPattern(),
    tirx.transform.StmtSimplify(),
    tirx.transform.RemoveNoOp(),
    s_tir.transform.RewriteUnsafeSelect(),
    tirx.transform.CommonSubexprElim(),
]
_HOST = [
    tirx.transform.VerifyMemory(),
    tirx.transform.AnnotateEntryFunc(),
    tirx.transform.SplitHostDevice(),
    tirx.transform.MakePackedAPI(),
    tirx.transform.LowerTVMBuiltin(),
    tirx.transform.LowerIntrin(),
]
