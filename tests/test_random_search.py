"""The search for new examples of every property; the default suite tries the same ones every time."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
SEED = "LAPTIME_SEED"  # repeats a search


def properties(folder=TESTS):
    """The test files that hold properties."""
    return sorted(
        file
        for file in folder.rglob("test_*.py")
        if any(line.startswith("from hypothesis import") for line in file.read_text().splitlines())
    )


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_property_holds_for_random_examples(capsys):
    seed = os.environ.get(SEED) or str(random.SystemRandom().randrange(1 << 32))
    marked = "hypothesis and not slow and not gpu"  # hypothesis marks what has @given
    options = ["-q", "-m", marked, "-p", "no:cacheprovider", "--hypothesis-profile=random"]
    command = [sys.executable, "-m", "pytest", *options, f"--hypothesis-seed={seed}", *map(str, properties())]
    with capsys.disabled():
        print(f"\nrandom search with seed {seed}; {SEED}={seed} repeats it")
    done = subprocess.run(command, cwd=TESTS.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{SEED}={seed} repeats this:\n{done.stdout}{done.stderr}"
    assert " passed" in done.stdout


def test_the_files_with_properties_are_found():
    assert TESTS / "runs" / "exporters" / "test_curves.py" in properties()
