"""A link of known bandwidth: what crosses it is exposed communication, and found nowhere else."""

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tools.testbed as testbed

import laptime
from laptime.model import ACCOUNTS, Account
from laptime.runs.exchanges import read_exchanges

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),  # 45 s each on a machine that does nothing else
    pytest.mark.skipif(bool(testbed.missing()), reason=testbed.missing() or "there is a test bed"),
]
ROOT = Path(__file__).parents[2]
STEPS, TOLERANCE = 7, 0.05
LINKS = {"10mbit": 800, "100mbit": 2000}  # and the width of layers whose gradients take a second or two
CONFIG = f"""
network = {{name = "feedforward", options = {{hidden = [WIDTH, WIDTH]}}}}
data.kind = "digits"
checkpoint.every = 0
validation.every = 0
train = {{batch = 4, epochs = 1, steps = {STEPS}, threads = 1, device = "cpu"}}
parallel = {{strategy = "data"}}
"""


def gradient_bytes(width):
    return 4 * (65 * width + (width + 1) * width + (width + 1) * 10)


def trained(folder, rate, width):
    """The same training over a fast link and over a shaped one, and the bytes a second of the latter."""
    (folder / "a.toml").write_text(CONFIG.replace("WIDTH", str(width)))
    size = gradient_bytes(width)
    with testbed.a_testbed(2, "1gbit") as hosts:
        started = []
        for rank, host in enumerate(hosts):
            told = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}
            told |= {"MASTER_ADDR": hosts[0].address, "GLOO_SOCKET_IFNAME": "eth0"}
            command = [sys.executable, "-m", "tests.training.wire_rank", folder / "a.toml", folder, size]
            environment = os.environ | {name: str(value) for name, value in told.items()}
            started.append(subprocess.Popen(host.command(*map(str, command)), env=environment, cwd=ROOT))
        until = time.monotonic() + 120
        while not (folder / "free-done").exists() and time.monotonic() < until:
            time.sleep(0.05)
        testbed.set_rate(rate)
        (folder / "shaped-now").touch()
        assert [process.wait(120) for process in started] == [0, 0]
    rate_s = size / float((folder / "seconds").read_text())
    return laptime.load(folder / "free"), laptime.load(folder / "shaped"), rate_s


def steps_of(run):
    """Steps after the first two, those of both ranks together."""
    by_rank = [[step for step in run.steps if step.rank == rank and step.step > 1] for rank in (0, 1)]
    return list(zip(*by_rank, strict=True))


def usual(values):
    """The lower quartile: other processes of a busy machine only ever make a step longer."""
    return statistics.quantiles(values, n=4)[0]


def seconds_in(run, rank, account):
    return usual([getattr(step[rank], account.column) or 0.0 for step in steps_of(run)])


@pytest.mark.parametrize("rate", LINKS)
def test_exposed_communication_is_what_crosses_the_wire_by_its_bandwidth(rate, tmp_path):
    width = LINKS[rate]
    free, shaped, bytes_a_second = trained(tmp_path, rate, width)
    expected = gradient_bytes(width) / bytes_a_second
    # The rank that comes last waits for the wire alone, the other for that rank, too.
    exposed = usual([min(step.communication_s for step in ranks) for ranks in steps_of(shaped)])
    assert exposed == pytest.approx(expected, rel=TOLERANCE)
    for rank in (0, 1):
        grown = {
            account: seconds_in(shaped, rank, account) - seconds_in(free, rank, account)
            for account in ACCOUNTS
            if account is not Account.COMMUNICATION
        }
        assert all(abs(seconds) < TOLERANCE * expected for seconds in grown.values()), grown
        (averaged,) = [each for each in read_exchanges(shaped)[rank].collectives if each.calls]
        assert averaged.wire_bytes == STEPS * gradient_bytes(width)
        assert averaged.seconds >= STEPS * (1 - TOLERANCE) * expected  # under way at no higher rate
