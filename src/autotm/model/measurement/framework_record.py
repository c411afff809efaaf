"""A training step of a framework's own, on the network of a step of ours: a rival of figure 12 (`torch.json`)."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class FrameworkRecord:
    """What one run of PyTorch measured.

    Attributes:
        network, scale, batch: what ran; `batch` is samples a step.
        machine, threads: where, and how many threads of the host PyTorch may use.
        tier_reality: `real`; `stand-in` where a CPU played the device, whose times say nothing of a GPU.
        optimizer: `save-on-cpu`.
        limit: of device memory, as asked.
        counts: what the limit counts: `intermediates`, all that a step takes beside what is there before it, or `all`.
        dram_limit_bytes: the limit in bytes.
        io_size: bytes of parameters, inputs, constants and results of our step, beside the limit unless it counts them.
        peak_live_bytes: of our step when nothing leaves the device.
        seed: of weights and data.
        left_out: why nothing ran, as a caption says it; empty where something did.
        framework: its name and version.
        device: as the framework names it.
        fits: whether the step keeps the limit; one that does not was not timed.
        most_bytes: of device memory that the limit counts, the most at once, as PyTorch's allocator counts, without
            what it keeps for later; None where nothing ran, or where device memory ran out.
        losses: of the first steps.
        plain_losses: of as many plain steps of ours, from the same start; empty where they were not compared.
        exact_loss: of the first step in float64, by PyTorch.
        loss_margin: by how much the first losses may differ.
        samples_s: wall time of every timed step that counts.
        between_events_s: median time of these steps from an event before to one after, as the device's clock has it.
        disturbed_steps: timed steps kept from their cores by others for more than a tenth of their time.
        disturbed_steps_count: whether those are among the samples, for want of others; else they are left out.
        waited_s: for each timed step that counts, how long threads of the run were kept from a core by others.
    """

    network: str
    scale: str
    batch: int
    machine: str
    threads: int
    tier_reality: str
    optimizer: str
    limit: str
    counts: str
    dram_limit_bytes: int
    io_size: int
    peak_live_bytes: int
    seed: int
    left_out: str = ""
    framework: str = ""
    device: str = ""
    fits: bool = False
    most_bytes: int | None = None
    losses: tuple[float, ...] = ()
    plain_losses: tuple[float, ...] = ()
    exact_loss: float | None = None
    loss_margin: float | None = None
    samples_s: tuple[float, ...] = ()
    between_events_s: float | None = None
    disturbed_steps: int = 0
    disturbed_steps_count: bool = False
    waited_s: tuple[float, ...] = ()

    @property
    def step_s(self) -> float | None:
        """The median of `samples_s`; None if nothing was timed."""
        return median(self.samples_s) if self.samples_s else None
