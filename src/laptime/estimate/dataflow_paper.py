"""The paper's worked example of data flow (002…txt, IV.B), and its way of counting.

The paper ends a phase where the GPU's own next turn on the link begins, so the 0.253968 s of that turn are in
no phase: 65.62 % of the time is computing. `flow` counts them: a step lasts until all four GPUs have been
served, 1.015873 s, of which 49.22 % is computing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from laptime.estimate.dataflow import Flow, flow
from laptime.hardware import link


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """GPUs that one link serves in turn, in seconds, counted as the paper counts."""

    one_s: float
    all_s: float
    compute_s: float

    @property
    def others_s(self) -> float:
        """While the others are served."""
        return self.all_s - self.one_s

    @property
    def idle_s(self) -> float:
        """Of every phase: the others are still being served, and the GPU has computed all it has."""
        return max(0.0, self.others_s - self.compute_s)

    @property
    def effective_share(self) -> float:
        """Share of a phase in which the GPU computes; its own turn is in no phase."""
        return self.compute_s / max(self.compute_s, self.others_s)


def turns(given: Flow) -> Turns:
    """The link of a flow and the computing, as the paper counts them."""
    alone = replace(given, gpus_per_link=1)
    return Turns(
        one_s=flow(alone).stages["link"], all_s=flow(given).stages["link"], compute_s=given.compute_s
    )


def paper_example() -> Flow:
    """Four GTX 1080 of 8 GB each, refreshed from main memory over one PCIe 4 ×16, and 0.5 s of computing.

    "without including any overhead produced by switching operations": hence no latency.
    """
    return Flow(
        decoded_bytes=8e9,
        batch=1,
        compute_s=0.5,
        gpus=4,
        gpus_per_link=4,
        link=replace(link("pcie-4-x16"), latency_us=0.0),
        memory="pinned",
    )
