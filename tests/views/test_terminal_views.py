"""How a run looks: orders, widths, bars, lines over time, and what a plain terminal makes of it."""

import re

import numpy as np
import pytest
from rich.cells import cell_len
from tests.runs.samples import a_finished_run, a_layer_time, a_network, a_step, start
from tests.views.samples import a_rich_run
from tests.views.views import kinds, shown

from laptime.model import ACCOUNTS, Phase, Stage
from laptime.render.terminal import paragraph, shortened
from laptime.render.terminal.run_text import device_lines, trial_lines
from laptime.runs import load, schema
from laptime.views import format
from laptime.views.findings import look_first
from laptime.views.run_document import trial_row
from laptime.views.run_tables import marked_steps
from laptime.views.run_view import run_view
from laptime.views.step_series import DeviceSeconds, series

WIDTHS = (40, 60, 80, 100, 140)


def section(text, title):
    """The lines from a title to the next empty line."""
    lines = text.splitlines()
    start_ = next(place for place, line in enumerate(lines) if title in line)
    return lines[start_ : lines.index("", start_)]


def first_words(lines):
    return [line.split()[0] for line in lines]


@pytest.fixture
def rich(tmp_path):
    return run_view(load(a_rich_run(tmp_path / "run")))


@pytest.fixture(scope="module")
def every_kind(tmp_path_factory):
    return kinds(tmp_path_factory.mktemp("kinds"))


# -- order ---------------------------------------------------------------------------------------------------


def test_layers_stand_largest_first_and_the_title_says_so(rich):
    lines = section(shown(rich), "Layers of a training step, in ms, largest first")
    assert first_words(lines[2:5]) == ["block", "head", "stem"]


@pytest.mark.parametrize(
    ("sort", "title", "names"),
    [
        ("network", "in network order", ["stem", "block", "head"]),
        ("name", "by name", ["block", "head", "stem"]),
        ("update", "by update", ["block", "head", "stem"]),
    ],
)
def test_layers_stand_in_the_order_asked_for(rich, sort, title, names):
    lines = section(shown(rich, sort=sort), f"Layers of a training step, in ms, {title}")
    assert first_words(lines[2:5]) == names


def test_a_stage_without_the_phase_is_sorted_by_time_and_says_so(rich):
    text = shown(rich, sort="backward")
    assert "Layers of a training step, in ms, by backward" in text
    assert "Layers of a validation step, in ms, largest first" in text


@pytest.mark.parametrize("sort", ["time", "network", "forward", "name"])
def test_the_row_for_the_rest_is_last_and_its_count_whole(every_kind, sort):
    for width in WIDTHS:
        lines = section(shown(every_kind[2], width, sort=sort), "Layers of a training")
        rest = next(place for place, line in enumerate(lines) if "… " in line and "more" in line)
        assert " 127 more" in lines[rest]
        assert all("blocks" not in line and "projection" not in line for line in lines[rest + 1 :])


def test_accounts_stand_in_the_order_of_a_step(rich):
    names = first_words(section(shown(rich), "account")[1:])
    known = [account.value for account in ACCOUNTS if account.value in names]
    assert names[: len(known)] == known


# -- width ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", WIDTHS)
def test_every_kind_of_run_fits(every_kind, width):
    for found in every_kind:
        for encoding in ("utf-8", "ascii"):
            text = shown(found, width, encoding=encoding)
            assert max(map(cell_len, text.splitlines()[1:])) <= width
            assert not re.search(r"[ \t]$", text, re.MULTILINE)


@pytest.mark.parametrize("width", WIDTHS)
def test_no_number_is_parted_from_its_unit(every_kind, width):
    for found in every_kind:
        assert not re.search(r"\d\n\s+(%|ms|MiB)(?!\S)", shown(found, width))


def test_a_narrow_terminal_has_phases_as_bars_where_it_has_no_room_for_their_numbers(every_kind):
    text = "\n".join(section(shown(every_kind[2], 40), "Layers of a training"))
    assert "█" in text
    assert "▒" in text
    assert re.search(r"█ forward +▒ backward +░ update", text)
    assert not re.search(r"layer +forward", text)


def test_the_explained_share_is_never_left_out(rich):
    for width in WIDTHS:
        assert "explained 100.0 %" in shown(rich, width)


def test_a_shortened_name_keeps_its_end_and_whole_numbers():
    assert shortened("transformer.h.11.mlp", 7) == "…11.mlp"
    assert shortened("transformer.h.11.mlp", 6) == "….mlp"
    assert shortened("123456789", 4) == "…789"


def test_a_sentence_keeps_numbers_with_their_units():
    assert [line.plain for line in paragraph("it takes about 12.5 ms here", 20)] == [
        "it takes about",
        "12.5 ms here",
    ]


# -- bars ----------------------------------------------------------------------------------------------------


def test_a_bar_is_in_eighths():
    assert [format.bar(share, 1) for share in (0.0, 0.125, 0.5, 1.0, 2.0, None)] == [
        "",
        "▏",
        "▌",
        "█",
        "█",
        "",
    ]


def test_one_phase_needs_no_legend(rich):
    text = shown(rich)
    assert text.count("█ forward") == 1  # of the training; the validation has no other phase


# -- over time -----------------------------------------------------------------------------------------------


def test_step_time_and_loss_are_drawn_over_the_run(rich):
    lines = section(shown(rich), "step time")
    assert re.search(r"step time +[▁-█]{10} +from 10\.0 to 10\.0 ms, at most 10\.0 ms", lines[0])
    assert re.search(r"loss +[▁-█]{12} +from 1 to 0\.08333", lines[1])


def test_a_loss_that_ends_in_nan_says_so(every_kind):
    text = shown(every_kind[4])
    assert re.search(r"loss +[▁-█]{10}×{10}", text)
    assert "to not finite (not finite in 10 of 20 steps)" in " ".join(text.split())


def test_too_few_steps_make_no_line_but_tell_their_loss(every_kind):
    text = shown(every_kind[3])
    assert "step time" not in text
    assert re.search(r"^  loss 1$", text, re.MULTILINE)


def test_the_most_memory_is_told_with_its_layer(rich):
    assert "most memory allocated: 3.0 MiB, while" in shown(rich)
    rich.run.environment = {"device": {"type": "cuda", "memory_bytes": 2**30}}
    assert "most memory allocated: 3.0 MiB of 1,024.0 MiB, while" in shown(rich)


# -- plain characters ----------------------------------------------------------------------------------------


def test_every_character_of_ours_has_a_plain_one_as_wide(every_kind):
    for found in every_kind:
        text = shown(found, encoding="ascii")
        assert "?" not in text


def test_the_phases_of_a_plain_bar_are_told_apart(rich):
    text = shown(rich, encoding="ascii")
    assert "# forward  = backward  - update" in text
    assert re.search(r"#+=+-+", text)


def test_a_name_that_is_not_ascii_keeps_its_width():
    assert format.in_ascii("naïve 层…") == "na?ve ??~"


# -- devices and trials --------------------------------------------------------------------------------------


def test_many_devices_are_the_fastest_the_median_and_the_slowest(every_kind):
    rows = every_kind[5].train.layers_by_device
    wide = device_lines(rows, 300)[0].plain
    assert all(f"cuda:0 rank {rank}" in wide for rank in range(12))
    narrow = device_lines(rows, 78)
    assert re.search(r"fastest +median +slowest +which is", narrow[0].plain)
    assert re.search(r"1\.000 +6\.500 +12\.000 +cuda:0 rank 11", narrow[1].plain)


def test_a_row_that_no_device_has_is_unknown():
    seconds = {f"cpu rank {rank}": None for rank in range(20)}
    (_, line) = device_lines([DeviceSeconds(layer="conv", phase="forward", seconds=seconds)], 60)
    assert line.plain.split() == ["conv", "forward", "-", "-", "-", "-"]


def test_a_table_of_trials_fits_and_colours_how_each_ended(tmp_path):
    run = load(a_finished_run(tmp_path / "run", ["conv"]))
    rows = [trial_row("a/long/name/of/a/trial-1", "interrupted", run), trial_row("trial-2", "failed", None)]
    for width in WIDTHS:
        assert all(line.cell_len <= width for line in trial_lines(rows, width))
    styles = {str(span.style) for line in trial_lines(rows, 100) for span in line.spans}
    assert {"yellow", "red"} <= styles


# -- which steps ---------------------------------------------------------------------------------------------


def took(number, seconds, **more):
    """A step whose time is all in its forward pass."""
    others = dict.fromkeys(("backward_s", "update_s", "host_s", "unexplained_s"), 0.0)
    return a_step(number, wall_s=seconds, forward_s=seconds, **others, **more)


def of_marked(path, marked, *, seconds=0.004):
    """Ten steps of 10 ms, one of 100 ms, layer times of some of them."""
    writer = start(path)
    writer.network(a_network(["0"]))
    walls = [0.01] * 10 + [0.1]
    steps = [took(n, wall, instrumented=n in marked) for n, wall in enumerate(walls)]
    writer.append("steps", schema.steps.table(steps))
    rows = [a_layer_time(n, "0", phase, seconds=seconds) for n in marked for phase in Phase]
    writer.append("layers", schema.layers.table(rows))
    writer.close("finished", {})
    return run_view(load(path))


def test_the_table_of_layers_says_how_many_steps_it_is_from(tmp_path):
    told = marked_steps(of_marked(tmp_path / "run", [0, 2, 5], seconds=0.01 / 3).train, "layer")
    assert told == (
        "layer times are means over 2 of 10 steps, those with layer marks; "
        "the compute accounts take 10.0 ms in these, 19.0 ms in all"
    )


def test_layers_of_every_step_are_said_to_be_of_the_steps_of_the_accounts(tmp_path):
    told = marked_steps(of_marked(tmp_path / "all", range(11), seconds=0.019 / 3).train, "layer")
    assert told == "layer times are means over the same 10 steps as the accounts"


def test_layers_that_add_up_to_more_than_the_accounts_are_said_to(tmp_path):
    view = of_marked(tmp_path / "run", [2, 5], seconds=0.008)
    told = marked_steps(view.train, "layer")
    assert told.endswith("the layers add up to 24.0 ms, the compute accounts of these steps to 10.0 ms")
    assert "24.0 of 24.0 ms in steps with layer marks" in look_first(view)[0]


def test_layers_of_the_first_step_alone_are_said_to_be(tmp_path):
    found = of_marked(tmp_path / "run", [0])
    assert "layer times are of the first step alone" in shown(found, 140)


def test_a_mean_far_from_the_median_stands_beside_it(tmp_path):
    assert "10.0 ms each (middle half 10.0 to 10.0: steady) · 19.0 ms on average" in shown(
        of_marked(tmp_path / "run", [2]), 140
    )


def test_a_run_has_one_median_step_however_many_ranks_took_it(tmp_path):
    writer = start(tmp_path / "run")
    for rank, walls in enumerate(([0.01, 0.010, 0.016, 0.016], [0.01, 0.012, 0.012, 0.014])):
        rows = [took(number, wall, rank=rank) for number, wall in enumerate(walls)]
        writer.append("steps", schema.steps.table(rows))
    writer.close("finished", {})
    run = load(tmp_path / "run")
    wall = run_view(run).train.wall_s
    timed = series(run, Stage.TRAIN)
    assert (wall.count, wall.median) == (3, pytest.approx(0.014))
    assert wall.median == pytest.approx(float(np.median(timed.wall_s)))


def test_phases_without_room_are_named_and_so_is_no_footnote_of_theirs(rich):
    text = " ".join(shown(rich, 40).split())
    assert "no room for forward, backward, update*: a wider terminal or --json has them" in text
    assert "* allocated" not in text
    assert "no room" not in shown(rich, 100)


# -- words ---------------------------------------------------------------------------------------------------


def test_a_layer_that_is_called_a_number_is_a_layer_within_a_sentence():
    assert [format.called(name, "layer") for name in ("0", "1.2", "h.0", "conv")] == [
        *("layer 0", "layer 1.2", "h.0", "conv")
    ]


def test_a_little_memory_is_not_none():
    assert [format.memory(size) for size in (0, 2048, 3 * 2**20)] == ["0.0 MiB", "2.0 KiB", "3.0 MiB"]
    assert [format.mebibytes(size) for size in (0, 2048, 3 * 2**20)] == ["0.0", "0.002", "3.0"]
