"""How long the dashboard takes when 200 clients ask at once, and whether slow clients hold it up.

`python -m benchmarks.dashboard_load` makes a folder of small runs, starts the real command on it and asks it
over sockets: every client opens the pages of the dashboard one after the other. The last row asks while as
many connections are half open, each with an unfinished request.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.dashboard import serving, small_run
from benchmarks.tables import Table, verdict

CLIENTS, RUNS, ROUNDS = 200, 20, 3
P99_S = 2.0  # what is promised


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """The answers to one kind of request."""

    what: str
    seconds: Sequence[float]
    failed: int

    def quantile(self, share: float) -> float:
        """The time that `share` of the answers took at most."""
        ordered = sorted(self.seconds)
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.inf


async def ask(host: str, port: int, path: str) -> tuple[float, int]:
    """Seconds and status of one request on a connection of its own; status 0 where none came."""
    begun = time.perf_counter()
    try:
        reader, writer = await asyncio.open_connection(host, port)
        try:
            writer.write(
                f"GET {path} HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close\r\n\r\n".encode()
            )
            answer = await reader.read(-1)
        finally:
            writer.close()
    except OSError:
        return time.perf_counter() - begun, 0
    words = answer.split(b" ", 2)
    return time.perf_counter() - begun, int(words[1]) if len(words) == 3 else 0


async def at_once(url: str, paths: Sequence[str], clients: int, rounds: int) -> list[Answered]:
    """`clients` ask for all paths, `rounds` times; each begins with another path."""
    place = urlsplit(url)
    taken: dict[str, list[tuple[float, int]]] = {path: [] for path in paths}

    async def client(number: int) -> None:
        for turn in range(rounds * len(paths)):
            path = paths[(number + turn) % len(paths)]
            taken[path].append(await ask(str(place.hostname), int(place.port or 80), path))

    await asyncio.gather(*(client(number) for number in range(clients)))
    return [
        Answered(
            what=path.partition("?")[0],
            seconds=[seconds for seconds, _ in asked],
            failed=sum(status != 200 for _, status in asked),
        )
        for path, asked in taken.items()
    ]


async def with_half_open(url: str, paths: Sequence[str], slow: int) -> list[Answered]:
    """The same for one client, while `slow` others have sent half of a request."""
    place = urlsplit(url)
    async with AsyncExitStack() as stack:
        for _ in range(slow):
            _, writer = await asyncio.open_connection(place.hostname, place.port)
            stack.callback(writer.close)
            writer.write(b"GET / HTTP/1.1\r\nHost: local")
        return await at_once(url, paths, 1, 5)


def table(title: str, answered: Sequence[Answered]) -> Table:
    """Seconds against what is promised."""
    rows = [
        (
            kind.what,
            str(len(kind.seconds)),
            str(kind.failed),
            f"{kind.quantile(0.5):.3f}",
            f"{kind.quantile(0.99):.3f}",
            f"{P99_S:.1f}",
            verdict(kind.quantile(0.99) < P99_S and not kind.failed),
        )
        for kind in answered
    ]
    return Table(
        title=title,
        header=("asked for", "requests", "failed", "median s", "p99 s", "promised", "kept"),
        rows=rows,
    )


def main() -> None:
    """Make the runs, ask, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--runs", type=int, default=RUNS)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        names = [f"lr-{number:04d}" for number in range(given.runs)]
        for number, name in enumerate(names):
            small_run(Path(made) / name, number)
        paths = [
            "/",
            f"/runs/{names[0]}",
            f"/compare?run={names[0]}&run={names[1]}",
            "/predict",
            "/api/results?" + "&".join(f"run={name}" for name in names),
            "/healthz",
        ]
        with serving(Path(made)) as url:
            time.sleep(2.0)  # someone opens the address that was printed
            for when, rounds in (("no page made yet", 1), ("afterwards", ROUNDS)):
                load = asyncio.run(at_once(url, paths, given.clients, rounds))
                print(table(f"{given.clients} clients at once, {given.runs} runs, {when}", load).text())
            slow = asyncio.run(with_half_open(url, paths, given.clients))
            print(table(f"one client beside {given.clients} half-open connections", slow).text())


if __name__ == "__main__":
    main()
