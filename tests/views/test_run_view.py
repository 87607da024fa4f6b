"""A run as it is shown: read once, one headline number, the same in every view."""

import io
import json
import re

import pytest
from tests.runs.samples import a_finished_run, a_layer_time, a_step, start
from tests.views import page_runs
from tests.views.samples import a_rich_run
from tests.views.test_figures import numbers, trace

from laptime.model import Account, Phase, Stage
from laptime.render import terminal
from laptime.render.html.run_page import run_page, tiles
from laptime.render.server.listing import cells
from laptime.render.terminal import run_text
from laptime.runs import load, schema
from laptime.runs.table_reader import StoredTable
from laptime.views import format
from laptime.views.figures import layers, learning, steps
from laptime.views.figures.one_step import timeline
from laptime.views.run_document import content, document, trial_row
from laptime.views.run_tables import accounts_table, layers_table
from laptime.views.run_view import run_view
from laptime.views.step_bins import digest, typical_step


@pytest.fixture
def reads(monkeypatch):
    """The tables whose rows were read, one entry for each time."""
    read = []
    walk = StoredTable._walk

    def counted(stored, **words):
        if words["columns"]:
            read.append(stored.schema.name)
        return walk(stored, **words)

    monkeypatch.setattr(StoredTable, "_walk", counted)
    return read


@pytest.mark.parametrize("made", [page_runs.everything, page_runs.write, page_runs.interrupted])
def test_a_report_page_reads_steps_and_layers_once(tmp_path, made, reads):
    run = load(made(tmp_path / "run"))
    reads.clear()  # of writing the run: its CSV files
    run_page(run)
    assert (reads.count("steps"), reads.count("layers")) == (1, 1)


def test_a_resumed_run_is_read_once_too(tmp_path, reads):
    writer = start(tmp_path / "run")
    for attempt, numbers_ in ((0, range(8)), (1, range(5, 12))):
        rows = [a_step(number, attempt=attempt) for number in numbers_]
        writer.append("steps", schema.steps.table(rows))
        times = [a_layer_time(number, "conv", attempt=attempt) for number in numbers_]
        writer.append("layers", schema.layers.table(times))
    writer.close("finished", {})
    reads.clear()
    view = run_view(load(tmp_path / "run"))
    assert (reads.count("steps"), reads.count("layers")) == (1, 1)
    assert view.train.steps == 12
    assert any(note.startswith("3 steps were taken again") for note in view.notes)
    assert view.train.layers["conv"].forward.count == 12 - 2  # the first of each attempt warms up


def test_a_step_has_one_headline_number_in_every_view(tmp_path):
    path = page_runs.everything(tmp_path / "run")
    run = load(path)
    view = run_view(run)
    headline = format.milliseconds(view.train.wall_s.median)
    (tile,) = [tile for tile in tiles(view) if tile.name == "training step"]
    text = io.StringIO()
    terminal.print_lines(run_text.run_lines(view, 80), terminal.console(text))
    row = trial_row("one", "finished", run)
    assert tile.value == f"{headline} ms"
    assert f"{headline} ms each" in text.getvalue()
    assert cells(run)["step"] == headline
    assert format.milliseconds(row["train"]["step_s"]) == headline
    assert format.milliseconds(content(run)["train"]["wall_s"]["median"]) == headline
    assert accounts_table(view.train).rows[-1][1].rstrip("0").rstrip(".") == headline.rstrip("0").rstrip(".")


def test_the_document_is_strict_json_with_the_keys_of_the_view(tmp_path):
    view = run_view(load(a_rich_run(tmp_path / "run")))
    found = json.loads(json.dumps(document(view), allow_nan=False))
    layer = found["train"]["layers"][1]
    assert layer["total_s"] == pytest.approx(layer["forward_s"] + layer["backward_s"] + layer["update_s"])
    assert layer["forward"]["median"] == pytest.approx(view.train.layers[1].forward.median)
    assert layer["update"]["how"] == view.train.layers[1].how[Phase.UPDATE]
    assert [one["account"] for one in found["train"]["accounts"]] == [account.value for account in Account]


def test_the_columns_of_a_layer_add_up_to_its_total_and_the_layers_to_the_compute(tmp_path):
    view = run_view(load(a_finished_run(tmp_path / "run", ["a", "b"])))
    table = layers_table(view.train, "layer")
    titles = [column.title.rstrip("*") for column in table.columns]
    for row in table.rows:
        texts = dict(zip(titles, (getattr(cell, "text", cell) for cell in row), strict=True))
        phases = sum(float(texts[phase]) for phase in ("forward", "backward", "update"))
        assert float(texts["total"]) == pytest.approx(phases, abs=0.002)
    assert {"median", "±"} <= set(titles)


def test_the_table_of_layers_says_how_many_steps_have_layer_times(tmp_path):
    every = run_view(load(a_finished_run(tmp_path / "run", ["a", "b"])))
    assert layers_table(every.train, "layer").title == "Layers of a training step, in ms, largest first"
    some = run_view(load(page_runs.everything(tmp_path / "some")))
    title = "Layers of a training step, in ms, in the 30 steps with layer times, largest first"
    assert layers_table(some.train, "layer").title == title


def test_predicted_layers_are_drawn_by_the_figure_of_measured_ones(tmp_path):
    from laptime.model import LayerSeconds

    measured = run_view(load(a_finished_run(tmp_path / "run", ["conv"]))).train.timed_layers
    predicted = [LayerSeconds(layer="conv", forward_s=0.001, backward_s=0.002, update_s=0.0)]
    for given in (measured, predicted):
        figure = layers.layers_together(given, "layer")
        assert numbers(trace(figure, "forward")["x"])[0] == pytest.approx(1.0)


# -- what is written beside the marks ------------------------------------------------------------------------


def test_a_bar_of_the_timeline_tells_its_length_and_not_where_it_ends(tmp_path):
    one = typical_step(load(page_runs.everything(tmp_path / "run")))
    (last,) = [layer for layer in one.layers if layer.start_s == max(row.start_s for row in one.layers)]
    figure = timeline(one)
    bars = trace(figure, f"layers {last.phase.value}")
    told = [data[2] for data in bars["customdata"] if data[0] == last.layer]
    length, begin = format.milliseconds(last.seconds), format.milliseconds(last.start_s - one.start_s)
    assert told == [f"{length} ms from {begin} ms on"]
    assert "%{x" not in bars["hovertemplate"]


@pytest.fixture
def validated(tmp_path):
    """Two epochs of ten steps with five steps of validation between them, all numbered in a row."""
    writer = start(tmp_path / "run")
    rows = [
        a_step(n, epoch=n // 15, stage=Stage.VALIDATION if 10 <= n < 15 else Stage.TRAIN) for n in range(25)
    ]
    writer.append("steps", schema.steps.table(rows))
    times = [a_layer_time(row.step, "conv") for row in rows if row.stage is Stage.TRAIN]
    writer.append("layers", schema.layers.table(times))
    writer.close("finished", {})
    return digest(load(tmp_path / "run"))


def gaps(drawn):
    """Between which steps a line is broken."""
    x, y = numbers(drawn["x"]), numbers(drawn["y"])
    return [(x[at - 1], x[at + 1]) for at, value in enumerate(y) if value != value]


def test_no_line_leads_over_a_validation(validated):
    step_time = [one for one in steps.step_time(validated).traces if one.get("name") == "cpu"]
    over = layers.over_iterations(validated, ["conv"], "layer").traces[:1]
    loss = [one for one in learning.loss(validated.learning).traces if one["name"] == "train"]
    for drawn in (*step_time, *over):
        assert gaps(drawn) == [(9.0, 15.0)]
    assert len(loss) == 3  # over seconds, steps and epochs
    assert all(len(gaps(drawn)) == 1 for drawn in loss)
    stack = steps.accounts_over_steps(validated).traces[0]
    x, y = numbers(stack["x"]), numbers(stack["y"])
    assert y[(x > 9) & (x < 15)] == pytest.approx([0.0, 0.0])


def test_a_line_without_a_validation_has_no_gap(tmp_path):
    writer = start(tmp_path / "run")
    writer.append("steps", schema.steps.table([a_step(n) for n in (0, 1, 2, 50, 51)]))
    writer.close("finished", {})
    drawn = steps.step_time(digest(load(tmp_path / "run"))).traces[1]
    assert gaps(drawn) == []


@pytest.mark.parametrize(
    ("a_second", "text"), [(0.0213, "0.0213"), (0.4, "0.4"), (4.31, "4.31"), (4140.4, "4,140"), (None, "-")]
)
def test_a_slow_rate_is_not_nothing(a_second, text):
    assert format.rate(a_second) == text


def test_long_times_have_no_exponent(tmp_path):
    assert format.milliseconds(45.13) == "45,130"
    writer = start(tmp_path / "run")
    wide = {"wall_s": 45.13, "forward_s": 45.06, "samples": 16}
    wide |= {"backward_s": 0.05, "update_s": 0.01, "host_s": 0.008, "unexplained_s": 0.002}
    writer.append("steps", schema.steps.table([a_step(n, start_s=45.13 * n, **wide) for n in range(8)]))
    times = [a_layer_time(n, "conv", start_s=45.13 * n, seconds=45.06) for n in range(8)]
    writer.append("layers", schema.layers.table(times))
    writer.close("finished", {})
    page = run_page(load(tmp_path / "run"))
    texts = [tile.value for tile in page.tiles] + [tile.note for tile in page.tiles]
    texts += [figure.caption for section in page.sections for figure in section.figures]
    texts += [json.dumps(figure.traces) for section in page.sections for figure in section.figures]
    assert not [text for text in texts if re.search(r"\de[+-]\d\d ms", text)]
    assert "45,130 ms" in texts
    hovers = re.findall(r"%\{\w+:([^}]*)\} ms", " ".join(texts))
    assert hovers
    assert not [form for form in hovers if form.endswith("g")]
    text = io.StringIO()
    view = run_view(load(tmp_path / "run"))
    terminal.print_lines(run_text.run_lines(view, 80), terminal.console(text))
    assert "45,130 ms each" in text.getvalue()
    assert "0.355 samples/s" in text.getvalue()
