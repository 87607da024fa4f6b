"""The tutorial, worked through from its first command to its last as a reader would."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tools.session import work_through

from tests.docs.pages import TUTORIAL

LAPTIME = Path(sys.executable).with_name("laptime")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_tutorial_goes_as_it_says(tmp_path):
    commands = [done.command.text for done in work_through(TUTORIAL, tmp_path)]
    assert any(one.startswith("laptime compare") for one in commands)
    before = _json(tmp_path, "show", "runs/before")["runs"][0]["train"]["accounts"]
    shares = {one["account"]: one["share"] or 0.0 for one in before}  # idle time is not known here
    assert max(shares, key=shares.get) == "data_wait"  # what sections 3 to 6 are about
    compared = _json(tmp_path, "compare", "runs/before", "runs/after")["train"]["accounts"]
    assert {one["account"]: one["verdict"] for one in compared}["data_wait"] == "faster"


def _json(folder, *words):
    done = subprocess.run([LAPTIME, *words, "--json"], cwd=folder, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)
