"""Errors that others published of their predictors: on their rows, never on ours."""

from __future__ import annotations

from dataclasses import dataclass

NEUSIGHT = "Lee, Phanishayee, Mahajan, ASPLOS 2025, doi:10.1145/3669940.3707265"
KERNELS = "Li, Sun, Jog, MICRO 2023, abstract"
HABITAT = "Yu, Gao, Golikov, Pekhimenko, USENIX ATC 2021, abstract"
PALEO = "Qi, Sparks, Talwalkar, ICLR 2017, abstract"
QUOTED = "quoted, not checked against its source"


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What a paper gives."""

    name: str
    mean: float | None  # per cent; None: the abstract gives none
    on: str
    source: str


UNSEEN_NETWORK = (
    Published(name="linear models of kernels", mean=7.0, on="new image networks", source=KERNELS),
    Published(name="Paleo", mean=None, on="NiN, Inception and AlexNet", source=PALEO),
)
UNSEEN_DEVICE = (
    Published(
        name="NeuSight",
        mean=2.3,
        on="GPT-3 on an H100, both unseen",
        source=f"{NEUSIGHT}, its abstract as a review quotes it",
    ),
    Published(name="learned utilisation within a roofline", mean=10.4, on="unseen GPUs", source=QUOTED),
    Published(
        name="Habitat", mean=11.8, on="5 networks and 6 GPUs, from a run on another GPU", source=HABITAT
    ),
    Published(name="linear models of kernels", mean=15.2, on="new GPUs, image networks", source=KERNELS),
)
TWO_RUNS = (Published(name="two runs", mean=3.8, on="large batches", source=QUOTED),)
TWO_GPUS = (Published(name="fitted on 1 and 2 GPUs", mean=3.1, on="2 to 8 GPUs", source=QUOTED),)
