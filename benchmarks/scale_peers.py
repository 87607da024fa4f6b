"""Several ranks against other loops: `python -m benchmarks.scale_peers [--ranks 2,4] [--seconds S]`.

Three tables. *Recording*: blocks of bare and of recorded steps of a DDP loop take turns in the same
processes. *Training*: so do `laptime train` and a plain DDP loop on the very same network. *Peers*: launches
of either, of Ray Train and of torchft take turns, and steady steps count. A rank has one thread, or a GPU.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.__main__ import ROOT, STEADY_MALLOC
from benchmarks.harness import Block, paired_ratio, samples
from benchmarks.loop import SKIPPED
from benchmarks.scale_ranks import (
    BARE,
    CASES,
    LAPTIME,
    LAUNCH_STEPS,
    RAY,
    RECORDING,
    TORCHFT,
    TRAIN,
    Order,
    configured,
)
from benchmarks.tables import ENOUGH_ROUNDS, NOTHING, Table, no_slower, slower, verdict, within
from laptime.files.text import first_line
from laptime.model import summarize
from laptime.runs import load

PEERS = "peers"
NAMES = {BARE: "DDP under torchrun", LAPTIME: "laptime train", RAY: "Ray Train", TORCHFT: "torchft"}
RECORDING_TARGET, SPEED_TARGET = 0.02, 0.98
LIMIT_S = 900.0  # of a launch beyond its measuring


class Failed(Exception):
    """A launch that gave no figures, with the last line it said."""


@dataclass(slots=True)
class Measured:
    """All figures of a network on so many ranks."""

    label: str
    ranks: int
    recording: list[Block] = field(default_factory=list)
    train: list[Block] = field(default_factory=list)
    launches: list[Block] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)  # why there are no figures, by loop
    batch: int = 0

    @property
    def row(self) -> str:
        """The first cell of its rows."""
        return f"{self.label}, {self.ranks} ranks"


# -- launching -----------------------------------------------------------------------------------------------


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody has now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()


def environment() -> dict[str, str]:
    """One thread a rank, steady malloc, and this checkout first."""
    told = {**STEADY_MALLOC, **os.environ, "OMP_NUM_THREADS": "1"}
    paths = (str(ROOT), str(ROOT / "src"), told.get("PYTHONPATH"))
    told["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    return told | {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}


def start(order: Order) -> Any:
    """Carry out an order in processes of its own; gives what rank 0 wrote."""
    command = [sys.executable, "-m", "benchmarks.scale_ranks", json.dumps(asdict(order))]
    [port] = free_ports(1)
    if order.loops == (RAY,):
        together([(command, environment())], order)
    else:
        shared = {"WORLD_SIZE": str(order.ranks), "LOCAL_WORLD_SIZE": str(order.ranks)}
        shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        ranks = ({"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(order.ranks))
        together([(command, {**environment(), **shared, **mine}) for mine in ranks], order)
    return json.loads((Path(order.out) / "seconds.json").read_bytes())


def together(commands: Sequence[tuple[list[str], Mapping[str, str]]], order: Order) -> None:
    """Run all at once; the first that fails ends the others."""
    said = [(Path(order.out) / f"said-{rank}").open("w+b") for rank in range(len(commands))]
    processes = [
        subprocess.Popen(command, env=variables, stdout=file, stderr=file)
        for (command, variables), file in zip(commands, said, strict=True)
    ]
    until = time.monotonic() + LIMIT_S + 4 * order.seconds
    try:
        failed: list[int] = []
        while not failed and any(process.poll() is None for process in processes):
            if time.monotonic() > until:
                raise Failed("it did not end in time")
            time.sleep(0.05)
            failed = [rank for rank, process in enumerate(processes) if process.poll()]
        if failed:
            said[failed[0]].seek(0)
            lines = said[failed[0]].read().decode(errors="replace").strip().splitlines()
            raise Failed(lines[-1] if lines else "without a word")
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
            process.wait()
        for file in said:
            file.close()


def launch(loop: str, order: Order, index: int) -> Block:
    """The steady steps of one launch of a loop."""
    step_s = trained(order) if loop == LAPTIME else start(order)
    return Block(
        variant=loop, round=index, steps=len(step_s), seconds=sum(step_s), step_s=tuple(map(float, step_s))
    )


def trained(order: Order) -> list[float]:
    """Seconds of the steady steps of `laptime train`, as it recorded them on rank 0."""
    folder = Path(order.out)
    document = configured(order, SKIPPED + (order.steps or LAUNCH_STEPS))
    (folder / "config.yaml").write_text(json.dumps(document), encoding="utf-8")  # YAML includes JSON
    command = [sys.executable, "-m", "laptime", "train", str(folder / "config.yaml")]
    command += ["--workers", str(order.ranks), "--out", str(folder / "run"), "--json"]
    together([(command, environment())], order)
    steps = [each for each in load(folder / "run").steps if each.rank == 0]
    return [each.wall_s for each in steps[SKIPPED + 1 :]]


# -- measuring -----------------------------------------------------------------------------------------------


def measure(network: str, ranks: int, options: argparse.Namespace) -> Measured:
    """One network on so many ranks: turns in one launch, then a launch for each loop, round by round."""
    found = Measured(label=CASES[network].label, ranks=ranks, batch=CASES[network].batch)
    turns = tuple(each for each in (RECORDING, TRAIN) if each in options.questions)
    if turns:
        say(f"{found.row}: {' and '.join(turns)}, {options.seconds:.0f} s each")
        with tempfile.TemporaryDirectory(prefix="laptime-peers-") as folder:
            document = start(_order(network, ranks, turns, folder, options))
        found.recording, found.train = (
            [
                Block(
                    variant=one["loop"],
                    round=one["round"],
                    steps=one["steps"],
                    seconds=one["mean_s"] * one["steps"],
                )
                for one in document.get(name, ())
            ]
            for name in (RECORDING, TRAIN)
        )
    if PEERS in options.questions:
        _launches(found, network, options)
    return found


def _launches(found: Measured, network: str, options: argparse.Namespace) -> None:
    """Launches of all loops in turns; a loop that fails is not tried again."""
    found.absent = {
        loop: "not installed" for loop in (RAY, TORCHFT) if loop in options.peers and find_spec(loop) is None
    }
    for index in range(options.launches):
        for loop in options.peers[:: -1 if index % 2 else 1]:
            if loop in found.absent:
                continue
            say(f"{found.row}: launch {index + 1} of {options.launches}, {NAMES[loop]}")
            with tempfile.TemporaryDirectory(prefix="laptime-peers-") as folder:
                try:
                    order = _order(network, found.ranks, (loop,), folder, options)
                    found.launches.append(launch(loop, order, index))
                except Failed as error:
                    found.absent[loop] = f"failed: {first_line(error)[:60]}"


def _order(
    network: str, ranks: int, loops: tuple[str, ...], folder: str, options: argparse.Namespace
) -> Order:
    return Order(
        network=network,
        ranks=ranks,
        loops=loops,
        out=folder,
        seconds=options.seconds,
        rounds=options.rounds,
        steps=options.steps,
        port=free_ports(1)[0],
        processor=options.processor,
    )


# -- tables --------------------------------------------------------------------------------------------------


def recording_table(found: Sequence[Measured]) -> Table:
    """What recording costs."""
    rows = []
    for one in found:
        if not one.recording:
            continue
        cells = [one.row, f"{median(samples(one.recording)) * 1e3:.2f}"]
        ratios = [paired_ratio(one.recording, variant) for variant in ("budget", "every_step")]
        cells += [slower({**each.document(), "target": RECORDING_TARGET}, within) for each in ratios]
        rows.append([*cells, str(ratios[0].rounds)])
    return Table(
        title="Recording a DDP loop",
        header=("network", "bare step ms", "default budget ≤ 2 %", "layers on every step ≤ 2 %", "rounds"),
        rows=rows,
        notes=_notes(
            "Slow-down: the median over rounds of the ratio to the round's bare blocks, with its "
            "95 % interval. The upper end is judged."
        ),
    )


def train_table(found: Sequence[Measured]) -> Table:
    """`laptime train` against a plain loop."""
    rows = []
    for one in found:
        if not one.train:
            continue
        ratio = paired_ratio(one.train, BARE, base=LAPTIME)
        step_ms = [f"{median(samples(one.train, loop)) * 1e3:.2f}" for loop in (BARE, LAPTIME)]
        speed = f"{ratio.ratio:.3f} [{ratio.low:.3f}, {ratio.high:.3f}] {verdict(ratio.low >= SPEED_TARGET)}"
        rows.append([one.row, *step_ms, speed, str(ratio.rounds)])
    return Table(
        title="`laptime train` against a plain DDP loop",
        header=("network", "plain step ms", "laptime step ms", "speed of the plain loop ≥ 0.98", "rounds"),
        rows=rows,
        notes=_notes(
            "laptime records every step and layer, loss and accuracies; the plain loop nothing. "
            "The lower end of the 95 % interval is judged."
        ),
    )


def _notes(first: str) -> list[str]:
    return [first, f"Under {ENOUGH_ROUNDS} rounds the interval is their range."]


def peers_table(found: Sequence[Measured], peers: Sequence[str]) -> Table:
    """Launches of each loop."""
    rows = []
    for one in found:
        if not one.launches and not one.absent:
            continue
        for loop in peers:
            if loop in one.absent:
                rows.append([one.row, NAMES[loop], one.absent[loop], *[NOTHING] * 3])
                continue
            mine = [each for each in one.launches if each.variant == loop]
            speed = summarize([one.batch * one.ranks / each.mean_s for each in mine])
            cells = [one.row, NAMES[loop], f"{speed.median:.0f} ({speed.low:.0f}–{speed.high:.0f})"]
            rows.append([*cells, *_beside(one.launches, loop), str(speed.count)])
    header = ("network", "loop", "samples/s", "speed of torchrun's", "laptime's speed over it", "launches")
    return Table(
        title="Loops of others",
        header=header,
        rows=rows,
        notes=_notes(
            f"Steady steps: the first {SKIPPED} of a launch are left out. Medians over launches; "
            "ratios of the same round. ok: laptime is not slower, as far as can be told."
        ),
    )


def _beside(launches: Sequence[Block], loop: str) -> list[str]:
    """A loop's speed over torchrun's, and laptime's over the loop's."""
    bare, ours = paired_ratio(launches, BARE, base=loop), paired_ratio(launches, loop, base=LAPTIME)
    first, second = NOTHING, NOTHING
    if bare.rounds and loop != BARE:
        first = f"{bare.ratio:.3f} [{bare.low:.3f}, {bare.high:.3f}]"
    if ours.rounds and loop != LAPTIME:
        good = verdict(no_slower({"low": 1 / ours.high}))
        second = f"{ours.ratio:.3f} [{ours.low:.3f}, {ours.high:.3f}] {good}"
    return [first, second]


def headline(seconds: float, load_before: float) -> str:
    """Where, when and with what it was measured."""
    versions = [f"{name} {_version(name)}" for name in ("torch", "ray", "torchft")]
    return (
        f"{platform.processor() or platform.machine()} with {os.cpu_count()} cores, "
        f"{torch.cuda.device_count()} GPUs; {', '.join(versions)}, Python {platform.python_version()}; "
        f"one thread a rank; load before: {load_before:.1f}; "
        f"{datetime.datetime.now(tz=datetime.UTC):%Y-%m-%d}, {seconds / 60:.1f} minutes, "
        f"`python -m benchmarks.scale_peers {' '.join(sys.argv[1:])}`"
    )


def _version(name: str) -> str:
    for package in (name, f"{name}-nightly"):
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return "not installed"


# -- the command ---------------------------------------------------------------------------------------------


def say(line: str) -> None:
    """Progress."""
    print(line, file=sys.stderr, flush=True)


def _names(known: Sequence[str]) -> Any:
    def names(text: str) -> list[str]:
        asked = text.split(",")
        if unknown := set(asked) - set(known):
            raise argparse.ArgumentTypeError(f"no {', '.join(unknown)}; some of {','.join(known)}")
        return asked

    return names


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    questions = (RECORDING, TRAIN, PEERS)
    parser.add_argument("--questions", type=_names(questions), default=list(questions), help="all of them")
    parser.add_argument("--ranks", default="2,4", help="how many, in turn")
    parser.add_argument("--networks", type=_names(tuple(CASES)), default=list(CASES))
    parser.add_argument("--peers", type=_names(tuple(NAMES)), default=list(NAMES), help="loops to launch")
    parser.add_argument("--seconds", type=float, default=60.0, help="for recording and for train, each")
    parser.add_argument("--launches", type=int, default=6, help="of each loop")
    parser.add_argument("--rounds", type=int, help="instead of the seconds")
    parser.add_argument("--steps", type=int, help=f"timed in a turn, or a launch ({LAUNCH_STEPS})")
    parser.add_argument(
        "--processor",
        action="store_true",
        help="recording and train by rank 0's processor time: for a machine that others use, too",
    )
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables here as well")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the raw samples here")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write."""
    options = _parser().parse_args(arguments)
    began, load_before = time.monotonic(), os.getloadavg()[0]
    found = [
        measure(network, int(ranks), options)
        for network in options.networks
        for ranks in options.ranks.split(",")
    ]
    tables = [recording_table(found), train_table(found), peers_table(found, options.peers)]
    text = "\n\n".join(table.markdown() for table in tables if table.rows)
    text = f"{text}\n\n{headline(time.monotonic() - began, load_before)}\n"
    print(text)
    if options.markdown is not None:
        options.markdown.write_text(text, encoding="utf-8")
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(one) for one in found]), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
