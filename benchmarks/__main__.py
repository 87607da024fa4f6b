"""`python -m benchmarks` (`make bench`): the tables of what laptime costs and how right it is."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks import memory
from benchmarks.networks import configuration, configurations
from benchmarks.tables import Table, memory_table, own_table, slowdown_table, trace_table, worst_table
from benchmarks.worker import MEMORY, Order

SECTIONS = ("slowdown", "own", "trace", "memory")
SECONDS = {"cpu": 125.0, "cuda": 52.0}  # a configuration; a full run takes about 12 and 8 minutes
ROOT = Path(__file__).resolve().parents[1]
# glibc otherwise returns and re-maps large blocks at every step: CPU step times spread by ±15 %, not ±1 %.
STEADY_MALLOC = dict.fromkeys(("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"), "268435456")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write; 1 if a configuration could not be measured."""
    options = _parser().parse_args(arguments)
    device = options.device or _device()
    began, load = time.monotonic(), os.getloadavg()[0]
    until = began + options.minutes * 60 if options.minutes else float("inf")
    documents, failed = run_all(plan(options, device), until=until)
    report: dict[str, Any] = {
        "date": datetime.datetime.now(tz=datetime.UTC).isoformat(timespec="seconds"),
        "command": " ".join(
            ["python -m benchmarks", *(arguments if arguments is not None else sys.argv[1:])]
        ),
        "seconds": time.monotonic() - began,
        "load": load,
        "environment": next((one["environment"] for one in documents if "environment" in one), {}),
        "configurations": [one for one in documents if one["name"] != MEMORY],
        "memory": next((one["memory"] for one in documents if one["name"] == MEMORY), None),
        "failed": failed,
    }
    write(report, markdown=options.markdown, document=options.json)
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--sections", nargs="+", choices=SECTIONS, default=SECTIONS, help="what to measure; all"
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="configurations, such as alexnet-b64; all")
    parser.add_argument("--device", help="cpu or cuda; cuda where there is one")
    parser.add_argument(
        "--seconds", type=float, help="per configuration, on average: 125 on the CPU, 52 on CUDA"
    )
    parser.add_argument("--minutes", type=float, help="of the whole: what is left is divided among the rest")
    parser.add_argument("--rounds", type=int, help="interleaved rounds; as many as the seconds allow")
    parser.add_argument("--steps", type=int, default=memory.STEPS, help="of the memory section; a million")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables here as well")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write everything here, raw samples included"
    )
    return parser


def _device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def plan(options: argparse.Namespace, device: str) -> list[Order]:
    """One order per configuration, the time divided by their weights; the memory section last."""
    chosen = (
        [configuration(name, device) for name in options.only] if options.only else configurations(device)
    )
    sections = tuple(section for section in options.sections if section != MEMORY)
    seconds = options.seconds or SECONDS["cuda" if device.startswith("cuda") else "cpu"]
    share = seconds * len(chosen) / sum(one.weight for one in chosen) if not options.only else seconds
    orders = [
        Order(
            name=one.name,
            device=device,
            sections=sections,
            seconds=share * (one.weight if not options.only else 1.0),
            rounds=options.rounds,
        )
        for one in chosen
        if sections
    ]
    if MEMORY in options.sections:
        orders.append(Order(name=MEMORY, device="cpu", sections=(MEMORY,), seconds=0.0, steps=options.steps))
    return orders


def run_all(
    orders: Sequence[Order], *, until: float = float("inf")
) -> tuple[list[dict[str, Any]], list[str]]:
    """Every order in a process of its own, one after the other: (documents, names that failed)."""
    documents: list[dict[str, Any]] = []
    failed: list[str] = []
    with tempfile.TemporaryDirectory(prefix="laptime-bench-") as folder:
        for index, order in enumerate(orders):
            order = _in_time(order, orders[index:], until - time.monotonic())
            out = Path(folder) / f"{index}.json"
            arguments = [json.dumps(asdict(order)), str(time.monotonic()), str(out)]
            command = [sys.executable, "-m", "benchmarks.worker", *arguments]
            code = subprocess.run(command, env=_environment(order), check=False, stdout=sys.stderr).returncode
            if code == 0 and out.exists():
                documents.append(json.loads(out.read_bytes()))
            else:
                failed.append(order.name)
    return documents, failed


def _in_time(order: Order, rest: Sequence[Order], left: float) -> Order:
    """The order with no more than its share of the time that is left."""
    planned = sum(one.seconds for one in rest)
    return replace(order, seconds=order.seconds * min(1.0, left / planned)) if planned else order


def _environment(order: Order) -> dict[str, str]:
    """Steady malloc for times; malloc as it comes for memory, whose pages should go back when freed."""
    variables = {"DS_ACCELERATOR": "cpu", "KINETO_LOG_LEVEL": "99", **os.environ}
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    if order.name == MEMORY:
        return {key: value for key, value in variables.items() if key not in STEADY_MALLOC}
    return {**STEADY_MALLOC, **variables}


def tables(report: Mapping[str, Any]) -> list[Table]:
    """The tables that the report has figures for. The short one comes last, where a terminal shows it."""
    rows = report["configurations"]
    found: list[Table] = []
    traced = [row for row in rows if "trace" in row]
    if traced:
        found += [worst_table(traced), trace_table(traced)]
    own = [row["own"] | {"label": row["label"]} for row in rows if "own" in row]
    if own:
        found.append(own_table(own))
    if report["memory"]:
        found.append(memory_table(report["memory"]))
    slowed = [row for row in rows if "every_step" in row]
    if slowed:
        found.append(slowdown_table(slowed))
    return found


def headline(report: Mapping[str, Any]) -> str:
    """Where, when and with what it was measured, in one paragraph."""
    facts = report["environment"]
    device = facts.get("device", {})
    settings = ", ".join(f"{key}={value}" for key, value in facts.get("variables", {}).items()) or "none"
    cuda = f", CUDA {device['cuda']}, cuDNN {device['cudnn']}" if device.get("type") == "cuda" else ""
    return (
        f"{device.get('name', 'unknown device')}{cuda}; {facts.get('cpu')} with {facts.get('cores')} cores, "
        f"{facts.get('threads')} threads; torch {facts.get('torch')}, Python {facts.get('python')}, "
        f"laptime {facts.get('laptime')}; settings: {settings}; load before: {report['load']:.1f}; "
        f"{report['date']}, {report['seconds'] / 60:.1f} minutes, `{report['command']}`"
    )


def _ending(report: Mapping[str, Any], misses: int) -> str:
    """What the tables amount to."""
    ending = f"{misses} targets missed" if misses else "every target met"
    noisy = [
        row["label"] for row in report["configurations"] if row.get("bare", {}).get("noise") == "unreliable"
    ]
    if noisy:
        ending += f"; too noisy to judge, measure again on a quiet machine: {', '.join(noisy)}"
    if report["failed"]:
        ending += f"; could not be measured: {', '.join(report['failed'])} (see above)"
    return ending


def write(report: Mapping[str, Any], *, markdown: Path | None, document: Path | None) -> None:
    """Print the tables and put them where they were asked for."""
    found = tables(report)
    text = "\n\n".join([*(table.text() for table in found), headline(report)])
    misses = sum(cell.count("MISS") for table in found for row in table.rows for cell in row)
    ending = _ending(report, misses)
    print(f"{text}\n{ending}")
    if markdown is not None:
        body = "\n\n".join(table.markdown() for table in reversed(found))
        markdown.write_text(f"# Benchmarks\n\n{headline(report)}; {ending}.\n\n{body}\n", encoding="utf-8")
    if document is not None:
        document.write_text(json.dumps(report, indent=1), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
