import io
import re
import shutil

import pytest
from tests.views import page_runs
from tests.views.comparisons import a_run

from laptime.model import Stage
from laptime.render import terminal
from laptime.render.terminal.run_text import comparison_lines
from laptime.runs import load
from laptime.views.comparison.sides import compare
from laptime.views.run_document import content, trial_row


@pytest.fixture
def compared(tmp_path):
    """A comparison of one run each, as `--json` has it; `a` and `b` say how they are made."""

    def make(a=None, b=None, **options):
        first = load(a_run(tmp_path / "a", **(a or {})))
        second = load(a_run(tmp_path / "b", seed=1, **(b or {})))
        make.view = compare([first], [second], **options)
        return make.view.document()

    return make


def shown(view, width=100):
    to = terminal.console(io.StringIO())
    to.width = width
    terminal.print_lines(comparison_lines(view, to.width), to)
    return to.file.getvalue()


def test_a_slower_run_is_slower_in_every_part(compared):
    train = compared(b={"scale": 1.5})["train"]
    assert train["step_s"]["ratio"] == pytest.approx(1.5, rel=0.02)
    assert train["step_s"]["verdict"] == "slower"
    assert train["samples_per_s"]["verdict"] == "slower"
    assert train["samples_per_s"]["ratio"] == pytest.approx(1 / 1.5, rel=0.02)
    assert {row["account"]: row["verdict"] for row in train["accounts"]} == dict.fromkeys(
        ("forward", "backward", "update"), "slower"
    )
    for layer in train["layers"]:
        for part in ("forward", "backward", "update", "total"):
            assert layer[part]["verdict"] == "slower"
    assert [row["layer"] for row in train["layers"]] == ["conv", "fc"]


def test_the_same_work_is_no_difference(compared):
    found = compared()
    assert found["train"]["step_s"]["verdict"] == "no difference"
    assert found["validation"]["step_s"]["ratio"] == pytest.approx(1.0)


def test_other_batches_are_compared_per_sample_and_it_is_said(compared):
    found = compared(b={"scale": 2.0, "batch": 128})
    train = found["train"]
    assert train["per_sample"] is True
    assert train["step_s"]["ratio"] == pytest.approx(2.0, rel=0.02)
    assert train["sample_s"]["ratio"] == pytest.approx(1.0, rel=0.02)
    assert train["layers"][0]["total"]["verdict"] == "no difference"
    assert any("A has 64 samples in a step (on each device), B 128" in note for note in found["notes"])
    assert "µs a sample" in shown(compared.view)


def test_layers_of_one_side_are_listed(compared):
    found = compared(a={"layers": ("conv", "fc")}, b={"layers": ("conv", "head")})
    assert found["train"]["only"] == {"a": ["fc"], "b": ["head"]}
    assert "only in A: fc" in found["notes"]
    assert "only in B: head" in found["notes"]


def test_profiling_is_shown_as_the_slow_down_it_costs(compared):
    found = compared(
        a={"scale": 3.45, "record": {"profile": True}}, b={"layers": (), "record": {"profile": False}}
    )
    assert found["profiling"]["slowdown"] == pytest.approx(2.45, rel=0.02)
    assert (found["profiling"]["with"], found["profiling"]["without"]) == ("a", "b")
    text = " ".join(shown(compared.view).split())
    assert "With profiling (A) a step takes 24" in text
    assert "B was recorded without layers" in text


def test_networks_that_differ_are_named(compared):
    found = compared(a={"network": {"name": "alexnet"}}, b={"network": {"name": "vgg11"}})
    assert "the networks differ: A is alexnet, B vgg11" in found["notes"]


def test_networks_without_a_name_that_share_few_layers_are_said_to_differ_first(tmp_path):
    runs = [
        load(a_run(tmp_path / "a", layers=("conv", "fc"))),
        load(a_run(tmp_path / "b", layers=("attention", "mlp", "head"))),
        load(a_run(tmp_path / "c", layers=("conv", "fc", "head"))),
    ]
    view = compare(runs[:1], runs[1:2])
    line = "the networks differ: 0 of 5 layers are in both"
    assert view.document()["notes"][0] == line
    text = shown(view)
    assert text.index(line) < text.index("A training step")
    assert text.count(line) == 1
    assert not compare(runs[:1], runs[2:]).networks_differ


def test_layers_of_fewer_steps_than_the_accounts_are_said_to_be(tmp_path):
    every, some = (load(make(tmp_path / name)) for name, make in (("a", a_run), ("b", page_runs.everything)))
    assert "Layers, in ms\n" in shown(compare([every], [every]))
    assert "Layers, in ms, in the 30 steps with layer times" in shown(compare([some], [some]))


def test_losses_at_the_end_are_compared(compared):
    found = compared(a={"loss": 1.0}, b={"loss": 0.5})
    losses = {row["metric"]: row for row in found["results"]["train"]}
    assert losses["loss"]["difference"] == pytest.approx(-0.5)
    assert losses["loss"]["told_from_noise"] is None
    assert found["results"]["validation"][0]["b"] == [1.0]


def test_groups_are_compared_run_by_run(tmp_path):
    a = [load(a_run(tmp_path / f"a{i}", seed=i, loss=1 + 0.01 * i)) for i in range(3)]
    b = [load(a_run(tmp_path / f"b{i}", scale=1.1, seed=i + 5, loss=0.5 + 0.01 * i)) for i in range(3)]
    found = compare(a, b).document()
    assert found["train"]["step_s"]["unit"] == "runs"
    assert found["train"]["step_s"]["verdict"] == "slower"
    assert found["results"]["train"][0]["told_from_noise"] is True
    assert "3 runs against 3: the intervals are over runs" in found["notes"]


def test_one_run_each_says_what_its_interval_cannot_see(compared):
    assert any("do not show run-to-run noise" in note for note in compared()["notes"])


def test_layer_time_has_a_column_per_device(compared):
    found = compared(b={"ranks": 2}, by_rank=True)
    rows = {(row["layer"], row["phase"]): row["seconds"] for row in found["train"]["ranks"]["b"]}
    assert rows["conv", "forward"]["cpu rank 1"] == pytest.approx(1.5 * rows["conv", "forward"]["cpu rank 0"])
    assert "cpu rank 1" in shown(compared.view)


def test_several_ranks_take_a_step_together(compared):
    train = compared(b={"ranks": 2})["train"]
    assert train["step_s"]["ratio"] == pytest.approx(1.0, rel=0.02)
    assert train["samples_per_s"]["ratio"] == pytest.approx(2.0, rel=0.02)


@pytest.mark.parametrize("width", [60, 80, 140])
def test_it_fits_the_terminal_and_keeps_its_verdict(compared, width):
    compared(b={"scale": 1.5, "ranks": 2}, by_rank=True)
    text = shown(compared.view, width)
    lines = text.splitlines()
    assert max(map(len, lines[2:])) <= width
    assert "slower" in text


def test_show_and_compare_and_the_trials_table_have_one_rate(tmp_path):
    run = load(a_run(tmp_path / "a", ranks=2, batch=16))
    shown_rate = content(run)["train"]["samples_per_s"]
    walls = [step.wall_s for step in run.steps if step.stage == "train" and step.rank == 0 and step.step > 0]
    assert shown_rate == pytest.approx(2 * 16 * len(walls) / sum(walls))
    assert compare([run], [run]).stages[Stage.TRAIN].rate.a == pytest.approx(shown_rate)
    row = trial_row("a", run.status, run)
    assert row["train"]["samples_per_s"] == shown_rate


def test_profiling_that_shortens_a_step_is_said_to(compared):
    profiled = {"scale": 0.8, "record": {"profile": True}}
    compared(a=profiled, b={"record": {"profile": False}})
    text = " ".join(shown(compared.view).split())
    assert re.search(r"a step takes \d+\.\d % shorter than without, 95 % interval -\d", text)


def test_a_run_beside_itself_is_noted(tmp_path):
    first, second = (load(a_run(tmp_path / name)) for name in "ab")
    assert "both sides are the same run: they cannot differ" in compare([first], [first]).notes
    assert "1 run of A is in B too" in compare([first], [first, second]).notes
    assert not any("same run" in note for note in compare([first], [second]).notes)


def test_layers_that_were_deleted_are_not_said_to_be_unrecorded(tmp_path):
    first, second = (a_run(tmp_path / name, summary={"named_share": 1.0}) for name in "ab")
    shutil.rmtree(second / "layers")
    notes = compare([load(first)], [load(second)]).notes
    assert "B lost its `layers` folder, so layers cannot be compared" in notes


def test_repetitions_of_one_configuration_are_never_faster_or_slower(tmp_path):
    paths = [a_run(tmp_path / f"rep-{number}", seed=number, scale=1 + 0.3 * number) for number in (1, 2)]
    found = compare(*([load(path)] for path in paths))
    part = found.stages[Stage.TRAIN]
    rows = [part.step, part.rate, *part.accounts.values(), *(row.total for row in part.layers)]
    assert {row.verdict for row in rows} == {"cannot tell"}
    assert "A and B repeat one configuration: what sets them apart is run-to-run noise" in found.notes


def test_a_side_of_several_configurations_is_noted(tmp_path):
    runs = [load(a_run(tmp_path / f"{lr}", lr=lr)) for lr in (1, 2)]
    notes = compare([load(a_run(tmp_path / "base"))], runs).notes
    assert "the runs of B differ in their configuration, which widens the intervals" in notes
