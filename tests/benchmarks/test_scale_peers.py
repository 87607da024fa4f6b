"""Loops of several ranks against each other: what the tables say, and that the ranks fill them."""

from __future__ import annotations

import sys

import pytest
from benchmarks.harness import Block
from benchmarks.scale_peers import Failed, Measured, main, peers_table, recording_table, together, train_table
from benchmarks.scale_ranks import CASES, Order

from benchmarks import scale_peers


def blocks(**milliseconds: float) -> list[Block]:
    """Six rounds in which each loop takes the same time."""
    return [
        Block(variant=loop, round=index, steps=10, seconds=each / 100)
        for index in range(6)
        for loop, each in milliseconds.items()
    ]


def measured(**lists: list[Block]) -> Measured:
    return Measured(label="net b10", ranks=4, batch=10, **lists)


def test_recording_is_judged_by_its_slow_down() -> None:
    table = recording_table([measured(recording=blocks(bare=20.0, budget=20.2, every_step=21.0))])
    assert table.rows == [
        ["net b10, 4 ranks", "20.00", "+1.00 % [+1.00, +1.00] ok", "+5.00 % [+5.00, +5.00] MISS", "6"]
    ]


@pytest.mark.parametrize(("step_ms", "told"), [(20.2, "0.990 [0.990, 0.990] ok"), (21.0, "MISS")])
def test_training_is_judged_by_its_speed(step_ms: float, told: str) -> None:
    [row] = train_table([measured(train=blocks(bare=20.0, laptime=step_ms))]).rows
    assert row[3].endswith(told)


def test_samples_of_all_ranks_count_and_an_absent_peer_has_a_row() -> None:
    one = measured(launches=blocks(bare=20.0, laptime=20.0, ray=25.0))
    one.absent = {"torchft": "not installed"}
    table = peers_table([one], ["bare", "laptime", "ray", "torchft"])
    cells = {row[1]: row[2:] for row in table.rows}
    assert cells["DDP under torchrun"][0] == "2000 (2000–2000)"
    assert cells["Ray Train"][1:3] == ["0.800 [0.800, 0.800]", "1.250 [1.250, 1.250] ok"]
    assert cells["torchft"] == ["not installed", "–", "–", "–"]


def test_a_peer_that_is_not_installed_is_not_launched(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(scale_peers, "find_spec", lambda _: None)
    asked = ["--questions", "peers", "--peers", "ray,torchft", "--ranks", "4", "--networks", "zener4"]
    assert main(asked) == 0
    assert capsys.readouterr().out.count("not installed | – | – | – |") == 2


def test_a_rank_that_fails_ends_the_others_and_its_last_line_is_told(tmp_path) -> None:
    order = Order(network="zener4", ranks=2, loops=("bare",), out=str(tmp_path))
    waits = [sys.executable, "-c", "import time; time.sleep(60)"]
    fails = [sys.executable, "-c", "raise SystemExit('no such thing')"]
    with pytest.raises(Failed, match="no such thing"):
        together([(waits, {}), (fails, {})], order)


def test_an_unknown_network_is_answered_with_the_names(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--networks", "zener5"])
    assert ",".join(CASES) in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_ranks_fill_every_table(capsys: pytest.CaptureFixture[str]) -> None:
    few = "--ranks 2 --networks zener4 --peers bare,laptime --rounds 1 --steps 3 --launches 1"
    assert main(few.split()) == 0
    rows = [
        line for line in capsys.readouterr().out.splitlines() if line.startswith("| zener4 b128, 2 ranks")
    ]
    assert len(rows) == 4
    assert not any("failed" in row or "nan" in row for row in rows)
