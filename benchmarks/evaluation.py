"""Every error that reference data can show, in one table: `python -m benchmarks.evaluation REFERENCE`.

Each case of "it must show" with its target, beside simpler ways of predicting on the same rows and what
others published of theirs on other rows. What has to be measured on a machine is named with its command.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from itertools import combinations
from pathlib import Path

import numpy as np

from benchmarks import baselines, mxnet, prediction, published, refinement
from benchmarks.baselines import Errors, Run, Step
from benchmarks.data_sheet.rows import measured
from benchmarks.published import Published
from benchmarks.scaling import judging

NEVER_LOWER = -0.02  # a peak of memory that is predicted lower than this lets a training fail
HEAD = ("case", "rows", "mean %", "median", "p90", "worst", "target: mean (p90)", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One line of the table: errors of some rows, or the command that measures them."""

    name: str
    errors: Errors = field(default_factory=list)
    target: float | None = None  # per cent, of the mean
    p90: float | None = None
    mean: float | None = None  # per cent, where it is no plain mean of the rows
    lowest: float | None = None  # no error may be below
    instead: str | None = None  # what the line says where nothing was computed

    @property
    def met(self) -> bool | None:
        """Whether its targets are; None where it has none."""
        if self.target is None or self.instead:
            return None
        mean, _, p90, _ = self.figures
        low = self.lowest is None or min(error for _, error in self.errors) > self.lowest
        return mean <= self.target and (self.p90 is None or p90 <= self.p90) and low

    @property
    def figures(self) -> tuple[float, float, float, float]:
        """Mean, median, p90 and worst of the absolute errors in per cent."""
        sizes = np.abs([error for _, error in self.errors]) * 100
        mean = float(sizes.mean()) if self.mean is None else self.mean
        return mean, float(np.median(sizes)), float(np.quantile(sizes, 0.9)), float(sizes.max())

    @property
    def cells(self) -> list[str]:
        """As a line of the table."""
        wanted = "" if self.target is None else f"{self.target:g}"
        wanted += "" if self.p90 is None else f" ({self.p90:g})"
        wanted += "" if self.lowest is None else f", none {-self.lowest:.0%} too low"
        if self.instead:
            return [self.name, "", "", "", "", "", wanted, self.instead]
        verdict = {True: "met", False: "missed", None: ""}[self.met]
        return [self.name, str(len(self.errors)), *(f"{one:.1f}" for one in self.figures), wanted, verdict]

    @property
    def worst(self) -> str:
        """The worst ten rows."""
        rows = sorted(self.errors, key=lambda one: -abs(one[1]))[:10]
        return f"{self.name}: " + "; ".join(f"{label} {error * 100:+.0f} %" for label, error in rows) + "."


def cited(found: Sequence[Published]) -> Iterator[Case]:
    """What others published, never on our rows."""
    for one in found:
        mean = "no figure" if one.mean is None else f"{one.mean:g} %"
        yield Case(name=f"… published: {one.name}", instead=f"{mean}: {one.on} ({one.source})")


def cases(folder: Path) -> Iterator[Case]:
    """All lines of the table."""
    found, steps = list(prediction.rows(folder)), baselines.h200(folder)
    yield from other_batches(folder, found, steps)
    yield from unseen_networks(found, steps)
    command = "run `laptime calibrate`, then `python -m benchmarks.calibrate_here`"
    yield Case(name="unseen network, CPU at hand", target=15, p90=30, instead=command)
    yield from data_sheet(folder)
    yield from several_gpus(folder)
    yield Case(name="per layer, H200, time-weighted", target=12, instead="run `python -m benchmarks.layers`")
    memory = [(one.label, one.memory_error) for one in found]
    yield Case(name="peak memory, H200", errors=memory, target=5, lowest=NEVER_LOWER)


def other_batches(folder: Path, found: Sequence[prediction.Row], steps: Sequence[Step]) -> Iterator[Case]:
    """From one run of the network."""
    name = "another batch size within 4×, one run known"
    ours = list(_labelled(found))
    pairs = mxnet.pairs(mxnet.rows(folder))
    gpus = [(one.label, one.error) for one in pairs if one.on_gpu]
    cpus = [(one.label, one.error) for one in pairs if not one.on_gpu]
    yield Case(name=name, errors=[*ours, *gpus, *cpus], target=6, p90=15)
    yield Case(name="… H200", errors=ours, target=6, p90=15)
    near = [pair for pair in refinement.batches(found) if pair.doublings <= refinement.WITHIN]
    held = [(pair.group, error) for pair, error in zip(near, refinement.held_out(near), strict=True)]
    yield Case(name="… H200, the rule's constant from the other families", errors=held, target=6, p90=15)
    yield Case(name="… MXNet, K80, M60 and V100 by their data sheets", errors=gpus, target=6, p90=15)
    single = [(one.label, one.error) for one in pairs if one.on_gpu and one.wanted.asked[3] == "fp32"]
    yield Case(name="… … without its fp16 rows, some of which equal those in fp32", errors=single)
    queued = [(one.label, one.queued_error) for one in pairs if one.on_gpu]
    yield Case(name="… … as if MXNet queued its operations, as PyTorch does", errors=queued)
    yield Case(name="… MXNet, CPUs of Amazon's C5", errors=cpus, target=6, p90=15)
    runs: dict[str, list[Run]] = {
        "H200": baselines.h200_runs(steps), "MXNet's GPUs": baselines.mxnet_runs(folder)
    }  # fmt: skip
    for where, here in runs.items():
        yield Case(
            name=f"… baseline, a + b·batch through two runs: {where}", errors=baselines.through_two(here)
        )
    straight = [(one.label, one.linear_error) for one in pairs if one.on_gpu]
    yield Case(name="… baseline, time goes with the batch: MXNet's GPUs", errors=straight)
    yield from cited(published.TWO_RUNS)


def _labelled(found: Sequence[prediction.Row]) -> Iterator[tuple[str, float]]:
    """The H200's errors of `prediction.other_batches`, each with its rows."""
    for one, other in combinations(found, 2):
        errors = prediction.other_batches([one, other])
        names = f"{other.label} from b{one.predicted.batch}", f"{one.label} from b{other.predicted.batch}"
        yield from zip(names, errors, strict=False)  # none where the two are no pair


def unseen_networks(found: Sequence[prediction.Row], steps: Sequence[Step]) -> Iterator[Case]:
    """From single operations alone."""
    for precision in ("fp32", "bf16"):
        mine = [one for one in found if one.precision == precision]
        bound = [(one.label, one.error) for one in mine if one.gpu_bound]
        name = f"unseen network, H200, {precision}"
        yield Case(name=name, errors=[(one.label, one.error) for one in mine], target=6, p90=15)
        yield Case(name=f"… GPU-bound, {precision}", errors=bound, target=5, p90=12)
        here = [one for one in steps if one.precision == precision]
        yield Case(name=f"… baseline, roofline, {precision}", errors=baselines.roofline(here))
        yield Case(name=f"… baseline, linear model of networks, {precision}", errors=baselines.linear(here))
    yield from cited(published.UNSEEN_NETWORK)


def data_sheet(folder: Path) -> Iterator[Case]:
    """Averaged per device and then over devices."""
    by_device = _data_sheet_errors(folder)
    name = f"device known by data sheet, {len(by_device)} devices"
    if by_device:
        every = [(f"{device}: {what}", error) for device, rows in by_device.items() for what, error in rows]
        means = [np.mean([abs(error) for _, error in rows]) for rows in by_device.values()]
        yield Case(name=name, errors=every, mean=float(np.mean(means)) * 100, target=12, p90=30)
    else:
        command = "run `python -m benchmarks.data_sheet`"
        yield Case(name="device known by data sheet", target=12, p90=30, instead=command)
    steps = baselines.other_devices(folder)
    errors = baselines.roofline(steps)
    where = f"{len({one.device.name for one in steps})} devices"
    missing = sum(1 for _ in measured(folder)) - len(steps)
    where += f", {missing} rows without a kept workload left out" if missing else ""
    average = baselines.per_device(steps, errors)
    yield Case(name=f"… baseline, roofline, {where}", errors=errors, mean=average)
    yield from cited(published.UNSEEN_DEVICE)


def _data_sheet_errors(folder: Path) -> dict[str, Errors]:
    """Of `benchmarks.data_sheet`, whichever of its files has them; none where no file does."""
    for name in ("benchmarks.data_sheet", "benchmarks.data_sheet.__main__"):
        errors = getattr(import_module(name), "errors", None)
        if errors is not None:
            return dict(errors(folder))
    return {}


def several_gpus(folder: Path) -> Iterator[Case]:
    """Constants from other GPUs and frameworks."""
    judged = judging.judge(folder)
    pytorch = [
        (one.label, float(error))
        for one, error in zip(judged.rows, judged.held, strict=True)
        if "/PyTorch/" in one.group
    ]
    yield Case(name="2–8 GPUs from one", errors=judged.errors, target=5, p90=12)
    yield Case(name="… PyTorch alone", errors=pytorch, target=5, p90=12)
    yield Case(name="… one batch split (HKBU)", errors=list(judged.strong))
    for name, errors in judging.baselines(judged.rows).items():
        labels = [one.label for one in judged.rows]
        yield Case(name=f"… baseline, {name}", errors=list(zip(labels, errors.tolist(), strict=True)))
    two = [
        (one.label, judging.from_two(one)) for one in judged.rows if one.twice is not None and one.gpus > 2
    ]
    yield Case(name="… baseline, a + b/n through 1 and 2 GPUs", errors=two)
    yield from cited(published.TWO_GPUS)


def speed() -> Case:
    """ResNet-50 on every device of the catalog, once all is imported: reading it, and predicting."""
    import torch

    from laptime.api import workload
    from laptime.estimate.predict import predict_all
    from laptime.hardware import devices
    from laptime.training import target

    with torch.device("meta"):
        network = target.network("resnet50")
    begin = time.perf_counter()
    asked = workload(network, input=(3, 224, 224), batch=64)
    read = time.perf_counter() - begin
    count = len(predict_all(asked, devices()))
    whole = time.perf_counter() - begin
    verdict = "met" if whole < 1 else "missed"
    spent = f"{whole:.2f} s, {read:.2f} of them reading; target 1 s: {verdict}"
    return Case(name=f"speed: ResNet-50, {count} devices", instead=spent)


def table(found: Sequence[Case]) -> list[str]:
    """As markdown."""
    rule = "| " + " | ".join(["---", *["---:"] * 5, "---:", "---"]) + " |"
    return ["| " + " | ".join(HEAD) + " |", rule, *("| " + " | ".join(one.cells) + " |" for one in found)]


def worst(found: Sequence[Case]) -> list[str]:
    """The worst ten rows of each case that has a target."""
    return [f"- {one.worst}" for one in found if one.errors and one.target is not None]


def main() -> None:
    """Print the table, and write it where asked to."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("reference", type=Path)
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables there too")
    options = parser.parse_args()
    timed = speed()  # first: whatever else reads a network would warm torch up for it
    found = [*cases(options.reference), timed]
    lines = [*table(found), "", "Worst ten of each case:", "", *worst(found)]
    print("\n".join(lines))
    if options.markdown:
        options.markdown.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
