"""Simulated against published training on several nodes: `python -m benchmarks.clusters [--rows]`.

The rows are in `benchmarks/scaling/published`. Each series (a network of one source on one kind of GPU, in
one precision) has an anchor: its row with the fewest GPUs, and of those with the largest batch, since filling
and draining a pipeline matters least there. How much faster or slower that row is than a
predicted one is the only thing that is taken from it, as a factor on all computing; fused kernels, compilers
and float8 are in there. All other rows of the series, with other numbers of GPUs, batches and degrees, are
simulated with that factor and compared.
"""

from __future__ import annotations

import argparse
import csv
import logging
import re
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from laptime import hardware
from laptime.errors import LaptimeError
from laptime.hardware.cluster import Cluster
from laptime.model import Workload
from laptime.model.plan import Plan
from laptime.simulate.fabric import Fabric, LinkHabits
from laptime.simulate.step import play
from laptime.simulate.training import SPREAD, expected_slowest
from laptime.simulate.work import RankWork, rank_work

PUBLISHED = Path(__file__).parent / "scaling" / "published"
KEPT = Path(".cache") / "laptime-workloads"  # networks of 175 billion parameters take a while to read
LONGEST = 32768  # tokens of a sequence: longer ones are split over ranks in ways that are not simulated
_DIVIDED = re.compile(r"divided over (\w+)")  # the optimizer's state
# What makes two rows of one network different programs.
_VARIANTS = (
    "compile",
    "packed",
    "float8",
    "async TP",
    "rowwise",
    "divided over all",
    "ZeRO-3",
    "LBL",
    "interleaved",
)
_CONTEXT = re.compile(r"context parallel [2-9]|CP[ =]?[2-9]")
MOST_PASSES = 400  # micro-batches × stages that are played; a longer step grows evenly by micro-batches

# GB/s of a node in one direction. Sources that say nothing have the links that such nodes are sold with.
NETWORKS = {
    "bigscience tr11": 4 * 12.5,
    "internlm": 4 * 12.5,
    "torchtitan": 8 * 50.0,
    "llm-foundry": 200.0,
}
USUAL = {"a100": 8 * 25.0, "h100": 8 * 50.0, "h200": 8 * 50.0, "b200": 8 * 50.0, "v100": 8 * 12.5}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One published figure."""

    source: str
    network: str
    layers: int
    hidden: int
    heads: int
    vocabulary: int
    sequence: int
    precision: str
    device: str
    gpus: int
    per_node: int
    global_batch: int
    micro_batch: int
    plan: Plan
    step_s: float
    note: str

    @property
    def series(self) -> tuple[object, ...]:
        """What has one anchor."""
        variant = tuple(word in self.note for word in _VARIANTS)
        facts = (
            self.layers,
            self.hidden,
            self.heads,
            self.sequence,
            self.precision,
            self.device,
            self.plan.recompute,
        )
        return self.source, self.network, *facts, *variant, self.plan.shards > 1 and self.plan.feature == 1

    @property
    def label(self) -> str:
        """In one line."""
        return (
            f"{self.source} {self.network} {self.precision} {self.device} {self.gpus}: {self.plan.describe()}"
        )


def rows(only: Sequence[str] = ()) -> Iterator[tuple[Row | None, str]]:
    """Every row, or why it is left out."""
    for path in sorted(PUBLISHED.glob("*.csv")):
        if only and path.stem not in only:
            continue
        with path.open(encoding="utf-8", newline="") as file:
            for cells in csv.DictReader(file):
                try:
                    yield _row(cells), ""
                except (ValueError, KeyError, LaptimeError) as error:
                    yield None, str(error)


def _row(cells: dict[str, str]) -> Row:
    def number(name: str, default: int | None = None) -> int:
        text = cells[name] or ("" if default is None else str(default))
        if not text:
            raise ValueError(f"no {name}")
        return int(float(text))

    if "micro-batch x accumulation x GPUs is" in cells["note"]:
        raise ValueError("batches that contradict each other")
    if _CONTEXT.search(cells["note"]):
        raise ValueError("sequences split over ranks")
    layers, hidden, heads = number("layers"), number("hidden"), number("heads")
    sequence, gpus, micro = number("sequence"), number("gpus"), number("micro_batch")
    if sequence > LONGEST:
        raise ValueError("longer sequences")
    batch, stages, feature = number("global_batch"), number("stages"), number("feature")
    data = number("data", max(1, gpus // (stages * feature)))
    if data * stages * feature != gpus:
        raise ValueError("degrees do not multiply to the GPUs")
    each = batch // data
    micro_batches = max(1, each // micro)
    chunks = number("chunks", 1)
    interleaved = stages > 1 and chunks > 1 and micro_batches % stages == 0
    shards = min(number("shards", 1), data)
    plan = Plan(
        strategy="sharded" if shards > 1 else "hybrid" if stages * feature > 1 else "data",
        data=data,
        stages=stages,
        feature=feature,
        sequence=feature > 1 and cells["source"].startswith(("torchtitan", "nemo", "megatron-lm 2024")),
        shards=shards if data % shards == 0 else 1,
        state_shards=_state_shards(cells["note"], data),
        schedule="interleaved" if interleaved else "1f1b",
        chunks=chunks if interleaved else 1,
        micro_batches=micro_batches,
        recompute=cells["recompute"] == "1",
        gradient_bytes=2
        if number("parameters", 10**10) > 10**9
        else 4,  # frameworks of large models exchange bf16
        parameter_bytes=2,
    )
    value, metric = float(cells["value"]), cells["metric"]
    tokens = batch * sequence
    vocabulary = number("vocabulary", 51200)
    if metric == "step_s":
        step_s = value
    elif metric == "tokens_per_s_per_gpu":
        step_s = tokens / (value * gpus)
    elif metric == "samples_per_s":
        step_s = batch / value
    else:
        flops = _flops(
            layers, hidden, sequence, vocabulary, batch, recompute="hardware" in cells["note"].lower()
        )
        step_s = flops / (value * 1e12 * gpus)
    return Row(
        source=cells["source"],
        network=cells["model"],
        layers=layers,
        hidden=hidden,
        heads=heads,
        vocabulary=vocabulary,
        sequence=sequence,
        precision=cells["precision"],
        device=cells["device"],
        gpus=gpus,
        per_node=number("gpus_per_node", 8),
        global_batch=batch,
        micro_batch=micro,
        plan=plan,
        step_s=step_s,
        note=cells["note"],
    )


def _state_shards(note: str, data: int) -> int:
    ranks = _DIVIDED.findall(note)[:1]
    if not ranks:
        return 1
    return min(data, int(ranks[0])) if ranks[0].isdecimal() else data


def _flops(layers: int, hidden: int, sequence: int, vocabulary: int, batch: int, *, recompute: bool) -> float:
    """Of a step, as Narayanan et al. 2021 count them (equation 3)."""
    passes = 4 if recompute else 3
    whole = 24 * batch * sequence * layers * hidden**2 * (1 + sequence / (6 * hidden))
    return passes * whole + 6 * batch * sequence * hidden * vocabulary


# -- simulating ----------------------------------------------------------------------------------------------


@cache
def workload(layers: int, hidden: int, heads: int, vocabulary: int, sequence: int, family: str) -> Workload:
    """A transformer of that size, read once and kept on disk."""
    path = KEPT / f"{family}-{layers}-{hidden}-{heads}-{vocabulary}-{sequence}.json"
    if path.is_file():
        return Workload.load(path)
    import torch
    import transformers

    import laptime

    logging.disable(logging.WARNING)
    config: transformers.PretrainedConfig
    if family == "llama":
        config = transformers.LlamaConfig(
            hidden_size=hidden,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=heads if hidden < 8192 and vocabulary < 100_000 else 8,
            intermediate_size={4096: 14336 if vocabulary > 100_000 else 11008, 5120: 13824, 8192: 28672}.get(
                hidden, int(3.25 * hidden)
            ),
            vocab_size=vocabulary,
            max_position_embeddings=sequence,
        )
    else:
        config = transformers.GPT2Config(
            n_embd=hidden,
            n_layer=layers,
            n_head=heads,
            vocab_size=vocabulary,
            n_positions=sequence,
            attn_pdrop=0.0,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
        )
    with torch.device("meta"):
        network = transformers.AutoModelForCausalLM.from_config(config)
    ids = torch.zeros((2, sequence), dtype=torch.int64, device="meta")
    read = laptime.workload(
        network,
        example={"input_ids": ids, "labels": ids},
        precision="bf16",
        optimizer="adamw",
        name=path.stem,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    read.save(path)
    return read


def cluster_of(row: Row) -> Cluster:
    """Nodes with the links that the source names."""
    kind = row.device.split("-")[0]
    inside = {"v100": "nvlink-2", "a100": "nvlink-3", "b200": "nvlink-5"}.get(kind, "nvlink-4")
    gbs = next((value for name, value in NETWORKS.items() if row.source.startswith(name)), USUAL[kind])
    if "400 Gbps" in row.note or "fms" in row.source:
        gbs = 50.0 if kind == "a100" else 100.0
    link = hardware.link("infiniband-hdr")
    return Cluster(
        name=f"{row.device} nodes",
        title=row.source,
        device=row.device,
        nodes=max(1, -(-row.gpus // row.per_node)),
        devices_per_node=row.per_node,
        inside=inside,
        between=link.name,
        rails=max(1, round(gbs / link.bandwidth_gbs)),
    )


def work_of(row: Row) -> RankWork:
    """What a rank computes."""
    family = "llama" if "llama" in row.network else "gpt"
    read = workload(row.layers, row.hidden, row.heads, row.vocabulary, row.sequence, family)
    batch = row.micro_batch * row.plan.micro_batches
    return rank_work(read, hardware.device(row.device), row.plan, batch)


def simulated_s(row: Row, factor: float, habits: LinkHabits) -> float:
    """A step whose computing takes `factor` times as long as predicted."""
    work = work_of(row)
    layers = tuple(
        replace(
            layer,
            forward_s=layer.forward_s * factor,
            backward_s=layer.backward_s * factor,
            update_s=layer.update_s * factor,
        )
        for layer in work.layers
    )
    work, fabric = replace(work, layers=layers), Fabric(cluster=cluster_of(row), habits=habits)
    whole, stages = row.plan.micro_batches, row.plan.stages
    if whole * stages <= MOST_PASSES:
        return _step_s(work, row.plan, fabric)
    fewer, more = 2 * stages, 4 * stages
    low, high = (_step_s(work, replace(row.plan, micro_batches=count), fabric) for count in (fewer, more))
    return low + (high - low) * (whole - fewer) / (more - fewer)


def _step_s(work: RankWork, plan: Plan, fabric: Fabric) -> float:
    step = play(work, plan, fabric)
    return step.step_s + expected_slowest(plan.workers) * SPREAD * step.compute_s


def anchored(row: Row, habits: LinkHabits) -> float:
    """The factor with which a row is simulated as it was published."""
    factor = 1.0
    for _ in range(4):
        made = simulated_s(row, factor, habits)
        if abs(made / row.step_s - 1) < 1e-3:
            break
        slope = (simulated_s(row, factor * 1.05, habits) - made) / (0.05 * factor)
        factor = max(0.05, factor + (row.step_s - made) / slope) if slope > 0 else factor
    return factor


def judged(series: Sequence[Row], habits: LinkHabits) -> Iterator[tuple[Row, float, float]]:
    """Each row but the anchor: the factor, and simulated over published less 1."""
    anchor, *others = sorted(series, key=lambda row: (row.gpus, -row.global_batch))
    factor = anchored(anchor, habits)
    for row in others:
        yield row, factor, simulated_s(row, factor, habits) / row.step_s - 1


def main() -> int:
    """Print the errors by source."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", action="store_true", help="every row")
    parser.add_argument("--only", nargs="+", default=(), help="files of benchmarks/scaling/published")
    parser.add_argument("--between", type=float, default=LinkHabits().between)
    parser.add_argument("--beside", type=float, default=LinkHabits().inside_beside)
    parser.add_argument("--contention", type=float, default=LinkHabits().contention)
    options = parser.parse_args()
    habits = LinkHabits(between=options.between, inside_beside=options.beside, contention=options.contention)
    began = time.monotonic()
    left: dict[str, int] = defaultdict(int)
    series: dict[tuple[object, ...], list[Row]] = defaultdict(list)
    for row, why in rows(options.only):
        if row is None:
            left[why] += 1
        else:
            series[row.series].append(row)
    errors: dict[str, list[float]] = defaultdict(list)
    single = sum(len(members) == 1 for members in series.values())
    for members in series.values():
        if len(members) == 1:
            continue
        try:
            for row, factor, error in judged(members, habits):
                errors[row.source].append(error)
                if options.rows:
                    print(
                        f"{row.label[:120]:120} ×{factor:.2f} {row.step_s:8.3f} s {error:+7.1%}", flush=True
                    )
        except LaptimeError as error:
            left[str(error)[:80]] += len(members)
    print("| source | rows | mean % | median | p90 | bias |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    whole = [error for each in errors.values() for error in each]
    for source, found in [*errors.items(), ("all", whole)]:
        if found:
            size = np.abs(found) * 100
            print(
                f"| {source} | {len(size)} | {size.mean():.1f} | {np.median(size):.1f} | "
                f"{np.quantile(size, 0.9):.1f} | {np.mean(found) * 100:+.1f} |"
            )
    print(f"\n{single} series of one row; left out: {dict(left)}; {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
