"""Runs commands, in this process where that is enough and in one of their own where it is not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.runs.samples import a_finished_run
from typer.testing import CliRunner

from laptime.cli import app

ENTRY_POINT = Path(sys.executable).with_name("laptime")


@pytest.fixture
def laptime(monkeypatch, tmp_path):
    """`laptime("show", …)` inside this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    for variable in ("KINETO_LOG_LEVEL", "TORCH_CPP_LOG_LEVEL"):  # which commands set for good
        monkeypatch.setenv(variable, "2")

    def call(*arguments):
        return CliRunner().invoke(app, [str(one) for one in arguments], catch_exceptions=False)

    return call


@pytest.fixture
def process(tmp_path):
    """`process("show", …)` as a shell would run it."""

    def call(*arguments, **variables):
        return subprocess.run(
            [ENTRY_POINT, *map(str, arguments)],
            cwd=tmp_path,
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    return call


@pytest.fixture
def run(tmp_path):
    """A finished run of two layers."""
    return a_finished_run(tmp_path / "runs" / "one", ["conv1", "fc"])
