"""What holds for every verb: help, exit statuses, one JSON document, one line for what went wrong."""

import json
import subprocess
import sys
from importlib import import_module

import pytest
from tests.cli.conftest import ENTRY_POINT
from tests.runs.samples import a_finished_run

from laptime import __version__

VERBS = (
    "demo",
    "run",
    "train",
    "launch",
    "profile",
    "show",
    "compare",
    "collect",
    "export",
    "query",
    "doctor",
    "devices",
    "predict",
    "simulate",
    "calibrate",
    "data sync",
    "data zener",
)
HEAVY = ("torch", "pyarrow", "duckdb", "numpy", "rich", "laptime.runs", "laptime.recorder")


def one_line(text):
    assert text.endswith("\n")
    assert text.count("\n") == 1, text
    return text


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["show", "--help"], ["run", "--help"], []])
def test_help_imports_nothing_heavy(arguments):
    code = (
        "import sys\nfrom laptime.cli import main\n"
        "try:\n    main()\nexcept SystemExit: pass\n"
        f"print(sorted(set({HEAVY!r}) & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
    )
    assert done.stderr.splitlines()[-1] == "[]"


def test_help_lists_every_verb(laptime):
    done = laptime("--help")
    assert done.exit_code == 0
    for verb in {verb.split()[0] for verb in VERBS}:
        assert f"\n  {verb} " in done.stdout


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_and_takes_json(laptime, verb):
    done = laptime(*verb.split(), "--help")
    assert done.exit_code == 0
    assert "--json" in done.stdout


def test_the_version_is_the_package_s(laptime):
    assert laptime("--version").stdout == f"laptime {__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["no-such-verb"],
        ["show"],
        ["show", "--no-such-option"],
        ["export", "x"],
        ["export", "a", "b", "--csv", "--out", "c"],
        ["export", "a", "--csv", "--perfetto", "--out", "c"],
        ["query"],
        ["query", "SELECT 1", "--rows", "0"],
        ["run"],
        ["run", "--budget", "2", "x.py"],
        ["run", "--kernels", "first", "x.py"],
        ["run", "--kernels", "9-3", "x.py"],
        ["run", "--layers", "a=", "x.py"],
        ["profile"],
        ["profile", "zener4", "--batch", "-1"],
        ["profile", "zener4", "--batch", "many"],
        ["profile", "zener4", "--steps", "0"],
        ["profile", "zener4", "--input", "3xx4"],
        ["profile", "zener4", "--input", "0x4"],
        ["profile", "zener4", "--input", "float99:4"],
        ["profile", "zener4", "--input", "float32:4@7"],
        ["profile", "torch.nn:Identity"],
        ["demo", "--epochs", "0"],
        ["doctor", "surplus"],
    ],
)
def test_wrong_usage_ends_with_2_and_prints_nothing_to_stdout(laptime, arguments):
    done = laptime(*arguments)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert "Usage: " in done.stderr


def test_what_goes_wrong_is_one_line_on_stderr_and_status_1(laptime, run, tmp_path):
    broken = a_finished_run(tmp_path / "broken", ["conv"])
    (broken / "run.json").write_text("{")
    newer = a_finished_run(tmp_path / "newer", ["conv"])
    document = json.loads((newer / "run.json").read_text())
    (newer / "run.json").write_text(json.dumps(document | {"schema_version": 999}))
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("x")
    for arguments in (
        ["show", "missing"],
        ["show", "folder"],
        ["show", "file"],
        ["show", "broken"],
        ["show", "newer"],
        ["show", run, "missing", "--json"],
        ["export", "missing", "--csv"],
        ["export", run, "--perfetto", "--out", "file/trace.json"],
        ["export", run, "--csv", "--out", "file"],
        ["query", "SELEKT 1"],
        ["query", "SELECT 1", "--runs", "missing"],
    ):
        done = laptime(*arguments)
        assert done.exit_code == 1, arguments
        assert done.stdout == ""
        assert one_line(done.stderr).startswith("laptime: ")


def test_a_path_with_line_breaks_still_gives_one_line(laptime):
    assert "two\\nlines does not exist" in one_line(laptime("show", "two\nlines").stderr)


def test_ctrl_c_is_one_line_and_the_shell_s_status(laptime, run, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(import_module("laptime.runs.query"), "query", interrupted)
    done = laptime("query", "SELECT 1")
    assert (done.exit_code, done.stderr) == (130, "laptime: interrupted\n")


@pytest.mark.parametrize("arguments", [[], ["--all"], ["--json"]])
def test_a_reader_that_leaves_early_is_no_error(tmp_path, arguments):
    path = a_finished_run(tmp_path / "run", [f"layer{i}" for i in range(400)])
    command = f"{ENTRY_POINT} show {path} {' '.join(arguments)} | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=True)
    first, status = done.stdout.splitlines()
    assert first
    assert status == "0"
    assert done.stderr == ""


def test_a_terminal_that_knows_no_unicode_is_no_error(process, run):
    done = process("show", run, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert done.returncode == 0
    assert "wall time" in done.stdout


def test_stdout_that_is_full_is_told_in_one_line(run):
    command = f"{ENTRY_POINT} show {run} --json >/dev/full"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
