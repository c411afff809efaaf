"""The step as calls of fused kernels: our own forms where the schedules need them, Relax's for the rest."""

from __future__ import annotations

import tvm
from tvm import relax

from autotm.lower.operators import LEGALIZE


def fused_kernels(step: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """The step as a flat list of calls to unscheduled, fused TIR functions (and reshapes)."""
    passes = [
        relax.transform.CanonicalizeBindings(),
        relax.transform.LegalizeOps(LEGALIZE),
        # Tuples of what an operator became are taken apart, or their parts would count as used outside and not fuse.
        relax.transform.CanonicalizeBindings(),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.DeadCodeElimination(["main"]),
        relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
        relax.transform.DeadCodeElimination(["main"]),
    ]
    with target, tvm.transform.PassContext(opt_level=3):
        return tvm.transform.Sequential(passes)(step)
