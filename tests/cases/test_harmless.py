"""First, do no harm: under `laptime run` a script prints and ends as it does without."""

import subprocess
import sys

import pytest

from tests.cases.harness import ENVIRONMENT, SCRIPTS

ARGUMENTS = {"compiled": ("nowhere", "aot_eager"), "manual_update": ("200",)}
STATUS = {"spawned_workers": 3}
NAMES = sorted(path.stem for path in SCRIPTS.glob("*.py") if path.stem != "common")
RUNS = [(name, *ARGUMENTS.get(name, ())) for name in NAMES]
RUNS.append(("hugging_face", "checkpointing"))


@pytest.mark.parametrize("name_and_arguments", RUNS, ids=" ".join)
def test_a_recorded_script_ends_as_it_does_without_laptime(name_and_arguments, case):
    name, *arguments = name_and_arguments
    ran = case(name, *arguments)
    assert ran.bare.status == STATUS.get(name, 0), ran.bare.stderr
    assert ran.recorded.last_line == ran.bare.last_line, ran.recorded.stderr
    assert ran.recorded.status == ran.bare.status, ran.recorded.stderr
    assert "Traceback" not in ran.recorded.stderr


def test_a_forked_script_prints_what_a_fresh_python_prints(case):
    """Nothing of the warm process, such as its random numbers or threads, reaches a script."""
    ran = case("endless_loader")
    fresh = subprocess.run(
        [sys.executable, SCRIPTS / "endless_loader.py"], capture_output=True, text=True, env=ENVIRONMENT
    )
    assert (fresh.returncode, fresh.stdout, fresh.stderr) == (0, ran.bare.stdout, "")


def test_a_script_with_nothing_to_record_succeeds_and_is_told_so_in_one_line(case):
    ran = case("no_network")
    assert ran.recorded.status == 0
    assert not ran.has_run
    (line,) = ran.recorded.stderr.splitlines()
    assert line.startswith("laptime: ")
    assert "record" in line


def test_a_network_saved_while_it_is_recorded_can_be_loaded(case):
    ran = case("saved_recurrent")
    assert ran.recorded.stdout.splitlines() == [f"{number} ok" for number in range(6)]
