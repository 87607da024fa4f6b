"""The tables: plain text for the terminal, Markdown for `docs/`, from the same cells."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

UNEXPLAINED_TARGET = 0.01
NAMED_TARGET = 0.98
THESIS = (
    # The thesis' profiler on its own machines: layers on every step, nothing to compare the rest with.
    ("thesis: AlexNet", "+245 %", "38–54 %"),
    ("thesis: VGG-11", "+235 %", "38–54 %"),
)
NOTHING = "–"
ENOUGH_ROUNDS = 6  # the range of n rounds holds the median with probability 1 − 2^(1−n): 97 % with 6
Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Cells with a heading; the first column is text, the others are numbers."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()

    def text(self) -> str:
        """Columns aligned by spaces."""
        lines = [self.header, *self.rows]
        widths = [max(len(line[column]) for line in lines) for column in range(len(self.header))]
        rule = "  ".join("-" * width for width in widths)
        body = [
            "  ".join(
                cell.ljust(width) if not at else cell.rjust(width)
                for at, (cell, width) in _cells(line, widths)
            )
            for line in lines
        ]
        return "\n".join([self.title, rule, body[0], rule, *body[1:], rule, *self.notes])

    def markdown(self) -> str:
        """A Markdown table under a heading."""
        align = ["---"] + ["---:"] * (len(self.header) - 1)
        lines = [self.header, align, *self.rows]
        notes = [f"- {note}" for note in self.notes]
        return "\n".join([f"## {self.title}", "", *(f"| {' | '.join(line)} |" for line in lines), "", *notes])


def _cells(line: Sequence[str], widths: Sequence[int]) -> Any:
    return enumerate(zip(line, widths, strict=True))


def percent(value: float, digits: int = 1) -> str:
    """A share with its sign, as a slow-down is written: +1.2 %."""
    return f"{value * 100:+.{digits}f} %".replace("-", "−")


def verdict(good: bool) -> str:
    """Met or missed, to be seen at a glance."""
    return "ok" if good else "MISS"


def slower(ratio: Document, good: Callable[[Document], bool]) -> str:
    """A slow-down with its interval and whether that meets the target."""
    low, high = (percent(ratio[key] - 1.0, 2).removesuffix(" %") for key in ("low", "high"))
    return f"{percent(ratio['ratio'] - 1.0, 2)} [{low}, {high}] {verdict(good(ratio))}"


def alone(ratio: Document | None) -> str:
    """A slow-down without its interval."""
    return NOTHING if ratio is None else percent(ratio["ratio"] - 1.0, 0)


def within(ratio: Document) -> bool:
    """Whether the upper end of the interval meets the target."""
    return bool(ratio["high"] - 1.0 <= ratio["target"])


def no_slower(ratio: Document) -> bool:
    """Whether "no difference" is inside the interval, or below it."""
    return bool(ratio["low"] <= 1.0)


SLOWDOWN_HEADER = (
    "network",
    "bare ms (quartiles)",
    "layers on every step",
    "≤",
    "default budget ≤ 2 %",
    "left after detaching",
    "unexplained ≤ 1 %",
    "named ≥ 98 %",
    "torch.profiler",
    "left by it",
    "DeepSpeed flops",
)


def slowdown_table(rows: Sequence[Document]) -> Table:
    """Bare step time, slow-downs, closed books, peers, and the thesis' figures last."""
    body = [_slowdown_row(row) for row in rows]
    for name, slow, share in THESIS:
        body.append([name, NOTHING, slow, *[NOTHING] * 3, share, *[NOTHING] * 4])
    notes = _notes(sorted(row["every_step"]["rounds"] for row in rows))
    return Table(title="Slow-down of a training step", header=SLOWDOWN_HEADER, rows=body, notes=notes)


def _notes(rounds: Sequence[int]) -> list[str]:
    notes = [
        "In brackets the 95 % interval; its upper end is judged against the target.",
        f"Slow-downs: median over {_range(rounds)} interleaved rounds of the ratio to that round's bare. "
        "A block counts with its mean step, so what the writer thread takes is in it.",
        "Left after detaching: bare steps between and after the recordings against bare steps before the "
        "first; ok means that no difference can be told from noise.",
        "Unexplained and named: the worst of all recordings.",
        "Peers: their steps are timed, not the making of their tables. Left by it: bare steps between "
        "torch.profiler's and DeepSpeed's against bare steps before anything.",
    ]
    if rounds and rounds[0] < ENOUGH_ROUNDS:
        notes.append("Under 6 rounds the interval is their range and covers less than 95 %: 75 % with 3.")
    return notes


def _slowdown_row(row: Document) -> list[str]:
    bare = row["bare"]
    unexplained, named = row["unexplained_share"], row["named_share"]
    return [
        row["label"],
        f"{bare['median_s'] * 1e3:.2f} ({bare['q1_s'] * 1e3:.2f}–{bare['q3_s'] * 1e3:.2f}) {bare['noise']}",
        slower(row["every_step"], within),
        f"{row['every_step']['target'] * 100:.0f} %",
        slower(row["budget"], within),
        slower(row["left"], no_slower),
        f"{unexplained * 100:.2f} % {verdict(unexplained <= UNEXPLAINED_TARGET)}",
        f"{named * 100:.1f} % {verdict(named >= NAMED_TARGET)}",
        *(alone(row[peer]) for peer in ("torch_profiler", "left_by_peers", "deepspeed")),
    ]


def _range(values: Sequence[int]) -> str:
    if not values:
        return "no"
    return str(values[0]) if values[0] == values[-1] else f"{values[0]} to {values[-1]}"


def trace_table(rows: Sequence[Document]) -> Table:
    """How far laptime and an independent kernel trace are apart, per configuration."""
    header = (
        "network",
        "compared",
        "apart ≤ 3 %",
        "marks and busy time",
        "marks and spans",
        "steps",
        "dropped",
        "unknown",
    )
    body = []
    for row in rows:
        trace = row["trace"]
        shares = [f"{trace[key] * 100:.1f} %" for key in ("apart", "busy_apart", "spans_apart")]
        shares[0] += f" {verdict(trace['apart'] <= trace['target'])}"
        unknown = f"{trace['unknown_share'] * 100:.1f} %"
        counts = [str(trace["steps"]), str(trace["dropped"])]
        body.append([row["label"], trace["compared"], *shares, *counts, unknown])
    notes = (
        "Apart: Σ |laptime − trace| / Σ trace over layers, forward and backward. Busy: laptime's kernels "
        "tier; operators and spans: its layer marks, which the next two columns compare with both.",
        "A span begins when the host has entered the layer and the device has done all that came before.",
    )
    title = "Time per layer and phase against an independent kernel trace"
    return Table(title=title, header=header, rows=body, notes=notes)


def worst_table(rows: Sequence[Document]) -> Table:
    """The layers that differ most from the trace."""
    header = ("network", "layer", "phase", "laptime ms", "trace ms", "of the total")
    body = [
        [
            row["label"],
            worst["layer"],
            worst["phase"],
            f"{worst['laptime_s'] * 1e3:.3f}",
            f"{worst['trace_s'] * 1e3:.3f}",
            f"{worst['share'] * 100:.2f} %",
        ]
        for row in rows
        for worst in row["trace"]["worst"]
    ]
    return Table(title="Worst layers", header=header, rows=body)


def own_table(rows: Sequence[Document]) -> Table:
    """What recording adds, measured without the arithmetic, over the real step."""
    header = (
        "network",
        "real step ms",
        "without arithmetic ms",
        "added µs",
        "written µs",
        "of the real step",
        "≤",
    )
    body = [
        [
            row["label"],
            f"{row['step_s'] * 1e3:.1f}",
            f"{row['host_s'] * 1e3:.2f}",
            f"{row['added_s'] * 1e6:.0f}",
            f"{row['written_s'] * 1e6:.0f}",
            f"{row['share'] * 100:.3f} % {verdict(row['share'] <= row['target'])}",
            f"{row['target'] * 100:.0f} %",
        ]
        for row in rows
    ]
    notes = (
        "The same layers without their arithmetic: on meta tensors, GPT-2 with vectors of 24, the Zener "
        "network as it is. Added: the lowest tenth of the steps with every layer recorded, less that of bare "
        "ones. Written: processor time of the writer thread, counted as if training waited for it.",
    )
    return Table(title="The recorder's own work on the CPU", header=header, rows=body, notes=notes)


def memory_table(memory: Document) -> Table:
    """Resident memory of the recording process, first plateau and last."""
    header = (
        "steps",
        "first plateau",
        "last plateau",
        "growth ≤ 5 %",
        "per step",
        "live blocks per step",
        "closing",
    )
    mib = [f"{memory[key] / 2**20:.1f} MiB" for key in ("first_bytes", "last_bytes")]
    grown, blocks = memory["growth"], memory["blocks_per_step"]
    row = [
        f"{memory['steps']:,}",
        *mib,
        f"{percent(grown)} {verdict(grown <= memory['target_growth'])}",
        f"{memory['bytes_per_step']:.1f} B".replace("-", "−"),
        f"{blocks:.4f} {verdict(blocks <= memory['target_blocks_per_step'])}".replace("-", "−"),
        f"{memory['closing_bytes'] / 2**20:+.0f} MiB, {memory['closing_s']:.1f} s",
    ]
    notes = (
        "A plateau is the lowest sample of a twentieth of the steps; the first fifth, start-up, is left out.",
    )
    return Table(title="Memory of the recorder", header=header, rows=[row], notes=notes)
