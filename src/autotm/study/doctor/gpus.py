"""GPUs: what their driver tells, whether a machine of kind cuda could be one of them, and NVIDIA's libraries there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from autotm.kernels.vendor import VENDORS, Vendor, VendorMissingError
from autotm.memory.gpu import PAPER_BYTES, GpuFacts, GpuRefusedError, gpu_facts, measured_context, require_gpu
from autotm.model.files import AutotmError
from autotm.study.doctor.finding import Finding, Use


def gpu_findings(
    root: Path,
    told: Callable[[], list[GpuFacts]] = gpu_facts,
    measured: Callable[[GpuFacts], tuple[int, int]] = measured_context,
) -> Iterator[Finding]:
    """A line for each GPU, and one for those who share it; why there is none.

    Args:
        root: where /proc is.
        told: what the driver tells; raises where there is none.
        measured: CUDA's number of a GPU, and what a context takes of it.
    """
    try:
        found = told()
    except AutotmError as error:
        seen = sorted(path.name for path in (root / "proc/driver/nvidia/gpus").glob("*"))
        yield Finding("GPU", ", ".join(seen) or "none", Use.UNUSED, str(error))
        return
    for index, facts in enumerate(found):
        what = "GPU" if len(found) == 1 else f"GPU {index}"
        yield _gpu(what, facts, measured)
        if facts.processes:
            pids = ", ".join(str(process.pid) for process in facts.processes)
            yield Finding(
                f"{what}'s processes", pids, Use.CARE, "runs are refused beside others: end them (nvidia-smi)"
            )


def vendor_findings(
    gpus: Sequence[Finding], libraries: Mapping[str, Callable[[], Vendor]] = VENDORS
) -> Iterator[Finding]:
    """A line for each library whose algorithms plans may choose, where there is a GPU to ask it for.

    Args:
        gpus: what was found of GPUs; the last usable one is current.
        libraries: each opens one on the GPU that is current.
    """
    if not any(found.use is Use.USABLE for found in gpus):
        return
    for name, opened in libraries.items():
        try:
            version = opened().version
        except VendorMissingError as error:
            yield Finding(name, "not installed", Use.UNUSED, str(error))
        except AutotmError as error:
            yield Finding(name, "cannot be used", Use.UNUSED, str(error))
        else:
            yield Finding(name, version, Use.USABLE, "its algorithms beside our own (profile: implementations: all)")


def _gpu(what: str, facts: GpuFacts, measured: Callable[[GpuFacts], tuple[int, int]]) -> Finding:
    said = (
        f"{facts.name}, {facts.architecture}, {facts.total_bytes / 1e9:.4g} GB, {facts.free_bytes / 1e9:.4g} GB free, "
        f"driver {facts.driver} (CUDA {facts.cuda[0]}.{facts.cuda[1]})"
    )
    try:
        require_gpu(facts, 0, alone=False)
        index, overhead_bytes = measured(facts)
    except GpuRefusedError as error:
        return Finding(what, said, Use.UNUSED, str(error))
    except AutotmError as error:
        return Finding(what, said, Use.UNUSED, f"it cannot be opened: {error}")
    said += f"; a context takes {overhead_bytes / 1e9:.3g} GB (measured)"
    why = f"fast memory, in a machine file: slow_tier: {{kind: cuda, device_index: {index}}}"
    if facts.free_bytes - overhead_bytes < PAPER_BYTES:
        why += f"; less than the {PAPER_BYTES / 1e9:.3g} GB that the paper's plans were made for"
    return Finding(what, said, Use.USABLE, why)
