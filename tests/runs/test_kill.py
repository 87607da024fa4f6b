"""kill -9 at random moments, readers beside a writer, and memory over a million steps."""

import random
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from laptime.runs import load, query

ROOT = Path(__file__).parents[2]


@contextmanager
def writer(run: Path, interval: float, fan: int) -> Iterator[subprocess.Popen]:
    """A process that begins to write; it is killed at the end, if not before."""
    counters = run.with_suffix(".counters")
    counters.write_bytes(bytes(16))
    command = [sys.executable, "-m", "tests.runs.fast_writer", run, counters, interval, fan]
    words = [str(word) for word in command]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def await_writer(process: subprocess.Popen) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n", "the writer did not start"


def counted(run: Path) -> tuple[int, int]:
    appended, flushed = struct.unpack("qq", run.with_suffix(".counters").read_bytes())
    return appended, flushed


def test_a_run_killed_at_any_moment_loads_and_misses_at_most_the_last_flush(tmp_path):
    """Twenty kills, two at once. One of them flushes all the time and merges every third part, to be hit
    while doing so.
    """
    chance = random.Random(20)
    runs = [tmp_path / f"run{kill}" for kill in range(20)]
    for merging, other in zip(runs[::2], runs[1::2], strict=True):
        with writer(merging, 0.005, 3) as one, writer(other, 0.2, 32) as two:
            for process in (one, two):
                await_writer(process)
            for process in chance.sample((one, two), 2):
                time.sleep(chance.uniform(0.0, 0.25))
                process.kill()
    found = []
    for run in runs:
        appended, flushed = counted(run)
        loaded = load(run)
        steps = loaded.steps.table["step"].to_pylist()
        assert loaded.status == "interrupted"
        assert steps == list(range(len(steps))), "a step is missing or there twice"
        assert flushed <= len(steps) <= appended + 1
        layers = loaded.layer_table["step"].to_pylist()
        assert layers == [number for number in range(len(layers) // 2) for _ in "12"]
        assert len(layers) >= flushed * 2
        assert len(loaded.steps) == len(steps)
        found.append(len(steps))
    assert max(found) > 100, "the writer was killed before it wrote anything"


def test_a_run_is_readable_at_every_moment_while_it_is_being_written(tmp_path):
    run = tmp_path / "run"
    with writer(run, 0.005, 3) as process:
        await_writer(process)
        counts = []
        stop = time.monotonic() + 2.0
        while time.monotonic() < stop:
            flushed = counted(run)[1]
            loaded = load(run)
            steps = [step.step for step in loaded.steps]
            assert loaded.status == "running"
            assert steps == list(range(len(steps)))
            assert len(steps) >= flushed
            assert len(loaded.layers()) in (0, 2)
            counts.append(len(steps))
        answer = query("SELECT count(*) AS n, count(DISTINCT step) AS d FROM steps", run)
        assert answer.warnings == ()
        assert answer.table["n"] == answer.table["d"]
        assert answer.table["n"][0].as_py() >= counts[-1]
    assert counts == sorted(counts)
    assert counts[-1] > counts[0]


MEMORY = """
import sys
import numpy as np, pyarrow as pa
from laptime.runs import RunWriter, from_columns, load

def resident():
    pa.default_memory_pool().release_unused()  # 20 MiB that Arrow keeps or not, as time passes
    return int(open("/proc/self/statm").read().split()[1]) * 4096

writer = RunWriter.create(sys.argv[1], config={}, environment={})
rows, samples = 500, []
for block in range(2000):
    steps = np.arange(block * rows, (block + 1) * rows)
    columns = {"step": steps, "start_s": steps * 0.1, "wall_s": 0.1, "forward_s": 0.1, "loss": steps * 1e-6}
    writer.append("steps", from_columns("steps", columns))
    if block % 4 == 3:
        writer.flush()
        if block % 200 == 199:
            samples.append((resident(), pa.total_allocated_bytes()))
writer.close("finished", {})
samples.append((resident(), pa.total_allocated_bytes()))
status = dict(line.split(":") for line in open("/proc/self/status"))
peak = int(status["VmHWM"].split()[0]) * 1024  # getrusage would tell the parent's where that is larger
assert len(load(sys.argv[1]).steps) == 1_000_000
print((samples, peak))
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="resident memory is read from /proc")
def test_a_million_steps_leave_the_memory_of_the_writer_constant(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(tmp_path / "run")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    samples, peak = eval(done.stdout)
    resident = [sample for sample, _ in samples]
    allocated = [sample for _, sample in samples]
    print(f"resident {[r >> 20 for r in resident]} MiB, at most {peak >> 20} MiB, Arrow {allocated}")
    assert max(allocated) < 4 * 2**20  # nothing is kept from one flush to the next
    assert resident[-2] - resident[1] < 16 * 2**20  # from 200,000 steps to 1,000,000
    assert resident[-1] - resident[1] < 60 * 2**20  # what closing needed is given back
    assert peak - resident[1] < 130 * 2**20  # closing reads and merges row group by row group
