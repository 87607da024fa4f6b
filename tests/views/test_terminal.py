import io
import re
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console
from tests.runs.samples import HOSTILE, a_finished_run, start
from tests.views.samples import a_rich_run

from laptime.model import Account, Stage
from laptime.render import terminal
from laptime.render.html.run_page import tiles
from laptime.render.terminal import run_text
from laptime.runs import AccountSummaries, load
from laptime.views.run_view import run_view

MARKUP = ["[red]x", "[/]", "[bold]", ":smile:", "[link=http://x]y[/link]", "\x1b[31mred\x1b[0m", "a\nb"]


def shown(path, width=80, *, every_layer=False, encoding="utf-8"):
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, errors="replace", newline="")
    to = terminal.console(file)
    to.width = width
    view = run_view(load(path))
    terminal.print_lines(run_text.run_lines(view, to.width, every_layer=every_layer), to)
    file.flush()
    return raw.getvalue().decode(encoding)


@pytest.fixture
def rich(tmp_path):
    return a_rich_run(tmp_path / "run")


def costing(path, *, overhead, **more):
    """A run whose recorder says something else of its cost."""
    view = run_view(load(path))
    recorder = replace(view.recorder, overhead={**view.recorder.overhead, **overhead}, **more)
    return replace(view, recorder=recorder)


def row(text, first):
    """The first table row that begins so."""
    return next(line for line in text.splitlines() if re.match(rf"\s+{re.escape(first)}(?!\S)", line))


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_no_line_is_wider_than_the_terminal(tmp_path, rich, width):
    many = a_finished_run(tmp_path / "many", [f"stage{i}.block{i}.conv{i}.weights" for i in range(40)])
    for path in (rich, many):
        lines = shown(path, width).splitlines()[1:]  # the first is the path of the run, which is not cut
        assert max(map(cell_len, lines)) <= width


def test_no_line_ends_in_blanks(rich):
    assert not re.search(r"[ \t]$", shown(rich), re.MULTILINE)


def test_the_books_end_with_the_wall_time_explained(rich):
    text = shown(rich)
    assert "100.0 %" in row(text, "wall time")
    assert "explained 100.0 %; first step left out as warm-up" in text


def test_accounts_without_time_are_left_out_but_unexplained_is_published(rich):
    text = shown(rich)
    assert "communication" not in text
    assert "unexplained" in text


def test_layers_show_every_phase_and_mark_what_is_allocated(rich):
    text = shown(rich)
    assert re.search(r"layer +forward +backward +update\* +total", text)
    assert "* allocated" in text
    assert re.search(r"head +0\.500 +1\.000 +0\.500 +2\.000", text)


def test_a_wide_terminal_shows_busy_idle_and_memory(rich):
    header = row(shown(rich, 140), "layer")
    for title in ("±", "share", "busy", "idle", "peak MiB", "parameters", "kind"):
        assert title in header


def test_a_narrow_terminal_keeps_the_layer_its_total_and_its_share(rich):
    header = row(shown(rich, 40), "layer")
    assert "total" in header
    assert "share" in header
    assert "kind" not in header


def test_compiled_and_frozen_layers_are_labelled(rich):
    text = shown(rich)
    assert "block (compiled)" in text
    assert "stem (frozen)" in text


def test_validation_has_tables_of_its_own(rich):
    text = shown(rich)
    assert text.index("Where a training step goes") < text.index("Where a validation step goes")


def test_the_cost_of_recording_comes_with_its_interval_and_how_it_is_known(rich):
    text = " ".join(shown(rich).split())
    assert (
        "+0.8 % of a step that has them, 95 % interval -0.4 % to +1.9 %: measured, 180 steps with marks "
        "against 20 without" in text
    )
    assert "bare steps stayed slower by +20.0 %" in text


def test_an_estimated_cost_says_so_and_adds_what_the_marks_do_not_hold(rich):
    view = costing(rich, overhead={"how": "estimated", "bare_steps": 0})
    accounts = dict(view.train.accounts)
    own = accounts[Account.INSTRUMENT]
    accounts[Account.INSTRUMENT] = replace(own, seconds=replace(own.seconds, median=0.0002))
    books = AccountSummaries(accounts, view.train.accounts.wall, 1)
    view = replace(view, stages={Stage.TRAIN: replace(view.train, accounts=books)})
    first, second, *_ = run_text.recorder(view)
    assert "estimated from their number, since no step went without them" in first
    assert "takes 2.0 % of a step more" in second


@pytest.mark.parametrize(("low", "high"), [(1.306, 7.579), (0.33, 0.855)])
def test_a_cost_too_wide_or_below_nothing_is_not_called_measured(rich, low, high):
    found = costing(rich, overhead={"ratio": 1.6, "low": low, "high": high})
    told = next(run_text.recorder(found))
    assert told.startswith("What layer marks cost is not known: the steps are too noisy (180 steps with")
    (tile,) = (one for one in tiles(found) if one.name == "cost of layer marks")
    assert (tile.value, tile.note) == ("not known", "too noisy to measure")


def test_what_the_whole_run_paid_stands_beside_what_a_marked_step_did(rich):
    budget = {"paid": 0.0008, "marked_share": 0.1, "paid_how": "measured"}
    found = costing(rich, overhead={"pairs": 12, "estimated": 1.01}, budget=budget)
    first, second, *_ = run_text.recorder(found)
    assert first.endswith("measured, 12 times beside bare neighbours.")
    assert second == "The whole run paid 0.08 % for them (measured): 10.0 % of its training steps have marks."
    (tile,) = (one for one in tiles(found) if one.name == "cost of layer marks")
    assert tile.value == "+0.08 %"
    assert tile.note == "of the run; +0.8 % of a marked step, measured, 95 %: -0.4 % to +1.9 %"


def test_a_cost_that_is_unknown_says_what_its_marks_would_take(rich):
    overhead = {"how": "unknown", "ratio": None, "pairs": 3, "estimated": 1.01}
    found = costing(rich, overhead=overhead)
    assert next(run_text.recorder(found)).endswith("By their number it is about +1.0 %.")


def test_traced_steps_unlike_the_others_are_not_compared(rich):
    found = run_view(load(rich))
    found.kernels["reconciliation"]["spans_apart"] = 3.0
    assert "too far to compare" in " ".join(run_text.recorder(found))


def test_an_unknown_cost_is_not_a_cost_of_zero(tmp_path):
    assert "is not known" in shown(a_finished_run(tmp_path / "run", ["conv"]))


def test_notes_of_the_summary_are_shown(rich):
    assert "- 2 of 12 training steps had no backward pass" in shown(rich)


def test_many_layers_are_put_together_unless_all_are_asked_for(tmp_path):
    names = [f"layer{i}" for i in range(40)]
    path = a_finished_run(tmp_path / "run", names)
    text = shown(path, 120)
    assert re.search(r"… 27 more", text)  # 40 and two that are no module, less the 15 shown
    assert len(re.findall(r"^ +layer\d+ ", text, re.MULTILINE)) <= 15
    everything = shown(path, 120, every_layer=True)
    assert "more layer" not in everything
    assert len(re.findall(r"^ +layer\d+ ", everything, re.MULTILINE)) == 40


@pytest.mark.parametrize("name", [*MARKUP, *HOSTILE])
def test_a_name_is_text_whatever_it_holds(tmp_path, name):
    text = shown(a_finished_run(tmp_path / "run", [name]), 120)
    assert "\x1b" not in text
    first_rows = [line for line in text.splitlines() if "1.000" in line]
    assert len(first_rows) >= 3  # the layer, the loss and the rest, each on one line
    plain = name if name.isprintable() else repr(name)[1:-1]
    assert plain in text


def test_colour_changes_no_letter(rich):
    coloured = Console(
        file=io.StringIO(), force_terminal=True, color_system="truecolor", width=80, markup=False
    )
    terminal.print_lines(run_text.run_lines(run_view(load(rich)), coloured.width), coloured)
    text = re.sub(r"\x1b\[[0-9;]*m", "", coloured.file.getvalue())
    assert [line.rstrip() for line in text.splitlines()] == shown(rich).splitlines()


def test_a_terminal_without_unicode_gets_plain_bars(rich):
    text = shown(rich, encoding="ascii")
    assert "####" in text
    assert "█" not in text


def test_a_run_without_steps_can_be_shown(tmp_path):
    start(tmp_path / "run").close("interrupted", {})
    assert "No step was recorded" in shown(tmp_path / "run")


def test_brief_tells_a_run_in_a_few_lines(rich):
    lines = list(run_text.brief(run_view(load(rich))))
    assert lines[0].startswith("12 training steps, 10.0 ms each")
    assert "explained 100.0 %" in lines[1]
    assert len(lines) < 10
