"""Public scripts, bare and recorded: how they are judged, and what is refused."""

from __future__ import annotations

import re
import shlex
import struct
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.scripts import data
from benchmarks.scripts.__main__ import main, measure
from benchmarks.scripts.case import Case, Work
from benchmarks.scripts.cases import CASES
from benchmarks.scripts.execution import Execution, Places, Update, commit_of
from benchmarks.scripts.failures import Edited, NotFetched
from benchmarks.scripts.outcome import DIFFERENT, NOT_REPEATABLE, SAME, Recorded, judge
from benchmarks.scripts.page import page

CASE = Case(
    name="tiny",
    repository="someone/scripts",
    folder="tiny",
    script="train.py",
    arguments="--epochs 2",
    work=Work(steps=6, epochs=2),
    results=r"loss ([\d.]+)",
)
SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

network = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(24, 4)), batch_size=8)
for epoch in range(2):
    for (batch,) in loader:
        loss = network(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item()}")
"""


def execution(output: str, *, errors: str = "", seconds: float = 1.0, step_s: float = 0.1) -> Execution:
    updates = tuple(Update(wall_s=at * step_s, processor_s=at * step_s) for at in range(6))
    return Execution(status=0, seconds=seconds, output=output, errors=errors, updates=(updates,), run=None)


@pytest.fixture
def checkout(tmp_path: Path) -> Places:
    """A checkout of one repository with one script."""
    root = tmp_path / "repositories" / CASE.repository
    (root / CASE.folder).mkdir(parents=True)
    (root / CASE.folder / CASE.script).write_text(SCRIPT)
    git = ["git", "-C", str(root), "-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "a script"]):
        subprocess.run([*git, *command], check=True)
    return Places(repositories=tmp_path / "repositories", packages=None, scratch=tmp_path / "scratch")


def test_every_case_has_a_name_of_its_own_and_patterns_that_compile() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
    for case in CASES:
        re.compile(case.results)
        shlex.split(case.arguments)


def test_at_least_fifteen_scripts_of_several_repositories_are_run() -> None:
    assert len({(case.repository, case.folder, case.script) for case in CASES}) >= 15
    assert len({case.repository for case in CASES}) >= 5


def test_a_missing_repository_is_told_with_the_command_that_fetches_it(tmp_path: Path) -> None:
    with pytest.raises(
        NotFetched, match=r"git clone https://github\.com/someone/scripts \S+/someone/scripts$"
    ):
        CASE.source(tmp_path)


def test_a_folder_without_repositories_gives_a_line_and_status_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path), "--only", "mnist"]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "git clone https://github.com/pytorch/examples" in printed.err


def test_an_unknown_case_is_answered_with_the_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path), "--only", "mnits"]) == 2
    told = capsys.readouterr().err
    assert "mnits" in told
    assert "nanoGPT" in told


def test_an_edited_script_is_refused(checkout: Places) -> None:
    assert re.fullmatch("[0-9a-f]{7}", commit_of(CASE, checkout))
    (checkout.repositories / CASE.repository / CASE.folder / CASE.script).write_text("print('loss 0')")
    with pytest.raises(Edited, match="tiny"):
        commit_of(CASE, checkout)


def test_results_are_the_same_only_to_the_last_digit() -> None:
    bare, recorded = execution("loss 0.123456"), execution("loss 0.123457")
    assert judge(CASE, "abc", [bare], [recorded]).same == DIFFERENT
    assert judge(CASE, "abc", [bare], [bare]).same == SAME


def test_bare_runs_that_differ_blame_nobody() -> None:
    bare = [execution("loss 0.1"), execution("loss 0.2")]
    assert judge(CASE, "abc", bare, bare).same == NOT_REPEATABLE


def test_the_summary_of_laptime_is_no_result_of_the_script() -> None:
    recorded = execution("loss 0.5", errors="laptime: the run is in x\n  loss 7.0 %")
    assert judge(CASE, "abc", [execution("loss 0.5")], [recorded]).same == SAME


def test_only_warnings_that_the_bare_run_lacks_are_told() -> None:
    bare = execution("loss 1", errors="/a/train.py:3: UserWarning: old\n 2%| 1/50 [00:01")
    recorded = execution("loss 1", errors="train.py:3: UserWarning: old\n 4%| 2/50 [00:02\nlaptime: lost")
    assert judge(CASE, "abc", [bare], [recorded]).said == ("laptime: lost",)


def test_the_slow_down_is_from_update_to_update_and_not_of_the_whole_process() -> None:
    bare = execution("loss 1", seconds=1.0, step_s=0.10)
    recorded = execution("loss 1", seconds=9.0, step_s=0.11)
    assert judge(CASE, "abc", [bare], [recorded]).slowdowns == pytest.approx((1.1,))


def test_a_script_that_prints_how_many_batches_it_made_is_taken_at_its_word() -> None:
    case = replace(CASE, work=Work(steps=r"after (\d+) batches"))
    one = execution("loss 0.1 after 830 batches")
    assert judge(case, "abc", [one], [one]).steps == 830


def test_the_page_marks_what_was_not_recorded_as_it_was_done() -> None:
    one = execution("loss 0.1")
    outcome = judge(CASE, "abc1234", [one], [one])
    recorded = Recorded(steps=5, epochs=2, validation=0, updates=6, shares=(("forward", 0.6),), notes=())
    text = page([replace(outcome, recorded=recorded)], date="2026-11-16", command="x", rounds=1)
    assert "| **5 of 6** | 2 | 0 | 6 | forward 60 % |" in text
    assert "all as the script made them: 0 of 1" in text
    assert "someone/scripts@abc1234 `tiny/train.py --epochs 2`" in text


def test_made_up_digits_have_the_headers_of_idx_files(tmp_path: Path) -> None:
    data.mnist(tmp_path, training=20, test=10)
    images = (tmp_path / "MNIST/raw/train-images-idx3-ubyte").read_bytes()
    assert struct.unpack(">IIII", images[:16]) == (2051, 20, 28, 28)
    assert len(images) == 16 + 20 * 28 * 28


@pytest.mark.slow
def test_a_script_is_run_bare_and_recorded_and_comes_out_the_same(checkout: Places) -> None:
    outcome = measure(CASE, checkout, rounds=1)
    assert (outcome.same, outcome.results, outcome.statuses, outcome.updates) == (SAME, 2, (0, 0), 6)
    assert outcome.recorded is not None
    assert (outcome.recorded.steps, outcome.recorded.epochs, outcome.recorded.updates) == (6, 2, 6)
