"""A rank or the launcher killed at a random moment, under every strategy: nothing hangs, nothing is lost."""

import os
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from tests.training.launch.processes import left_of, ranks_of, start, wait_until

import laptime
from laptime.errors import LaptimeError
from laptime.training.stop_signals import ORPHAN_S

KILLS = 30
AT_ONCE = 3
BOUND_S = 240  # for a training of seconds on a busy machine; torch's and Ray's own waits are longer
SEED = "LAPTIME_SEED"
PLANS = ["data", "sharded", "model", "feature", "hybrid,stages=2", "local", "asynchronous", "mixed,groups=1"]

CONFIG = """
network = "zener4"
data = {kind = "zener", samples = 320, validation_samples = 40}
train = {batch = 8, epochs = 20, steps = 120, threads = 1, device = "cpu"}
optimizer = {name = "sgd", lr = 0.02}
loader = {drop_last = true}
checkpoint = {every_steps = 20}
record = {profile = false}
"""


class Wrong(Exception):
    """What a kill has shown."""


def ended(folder, training):
    """The status of a training, with nothing left of it."""
    if not wait_until(lambda: training.poll() is not None, BOUND_S):
        training.kill()
        raise Wrong("it hangs")
    if not wait_until(lambda: not left_of(folder), 2 * ORPHAN_S + 10):
        raise Wrong(f"left behind are {left_of(folder)}")
    return training.returncode


def kill_at_random(folder, training, rng):
    """Kill a rank or the launcher, while the training starts or once it has saved; says which."""
    early = rng.random() < 0.4
    if early:
        time.sleep(rng.uniform(0, 8))
    else:
        wait_until(lambda: saved(folder) or training.poll() is not None, BOUND_S)
        time.sleep(rng.uniform(0, 2))
    ranks = ranks_of(folder)
    rank = rng.choice([None, *sorted(ranks)])
    with suppress(ProcessLookupError):  # it has ended by itself
        os.kill(training.pid if rank is None else ranks[rank], signal.SIGKILL)
    return f"{'launcher' if rank is None else f'rank {rank}'} killed {'early' if early else 'late'}"


def train_and_kill(folder, plan, rng):
    """One training and one kill; it goes on by itself or is resumed, where there is a checkpoint."""
    options = ["--workers", "2", "--parallel", plan]
    folder.mkdir()
    what = "nothing killed yet"
    with open(folder / "said", "w") as said:
        try:
            training = start(folder, CONFIG, *options, stderr=said)
            what = kill_at_random(folder, training, rng)
            status = ended(folder, training)
            if list(folder.glob("run/steps/part-*")):
                laptime.load(folder / "run")
            if status and not saved(folder):
                return ""
            if status and ended(folder, start(folder, CONFIG, *options, "--resume", stderr=said)):
                raise Wrong("it cannot be resumed")
            if (status := laptime.load(folder / "run").status) != "finished":
                raise Wrong(f"the run is {status}")
        except (Wrong, LaptimeError) as wrong:
            return f"{folder.name} {plan}, {what}: {wrong}\n{(folder / 'said').read_text()[-3000:]}"
    return ""


def saved(folder):
    return (folder / "run" / "checkpoint" / "last.pt").exists()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_kills_at_random_moments_lose_no_run_and_leave_no_process(tmp_path, capsys):
    pytest.importorskip("ray", reason="laptime[ray] is not installed")
    seed = os.environ.get(SEED) or str(random.SystemRandom().randrange(1 << 32))
    with capsys.disabled():
        print(f"\nkills with seed {seed}; {SEED}={seed} repeats them")

    def kill(number):
        rng = random.Random(f"{seed}-{number}")
        return train_and_kill(tmp_path / str(number), PLANS[number % len(PLANS)], rng)

    with ThreadPoolExecutor(AT_ONCE) as threads:
        wrong = [each for each in threads.map(kill, range(KILLS)) if each]
    assert not wrong, "\n".join(wrong)
